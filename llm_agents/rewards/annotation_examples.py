"""One caption at a time: is it good for the goal? Asked after examples that show what is meant.

A small model that can't compare two captions often knows of each whether things go well. Every
example is of a kind, and the goal says which kinds are good: that is how the examples steer. All
prompts of a goal begin alike, so that a model reads the examples once.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from llm_agents.errors import UserError
from llm_agents.rewards.annotation_prompts import Goal, JudgeTemplate, Version, check_wording
from llm_agents.types import Prompt, Turn

# fmt: off
Kind = Literal[
    "fight", "ally", "gold", "down", "gain", "meal", "escape", "opening",
    "idle", "failure", "hunger", "harm", "death",
]
# fmt: on


class _Wording(NamedTuple):
    """How captions are presented.

    Args:
        head: What good means, per goal; stands before the examples.
        field: Stands before a caption.
        label: Stands before the verdict.
        good: The verdict on what is good.
        bad: The verdict on what is not.
    """

    head: dict[Goal, str]
    field: str
    label: str
    good: str
    bad: str


_WORDINGS: dict[Version, _Wording] = {
    "default": _Wording(
        {
            "defaultgoal": (
                'Messages from the game NetHack. A message is "good" if things go well for the '
                'player, who is after a high score, and "bad" otherwise.'
            ),
            "zeroknowledge": 'Messages from the game NetHack, called "good" or "bad".',
            "combat": (
                'Messages from the game NetHack. A message is "good" if the player fights or slays '
                'monsters, and "bad" otherwise.'
            ),
            "gold": (
                'Messages from the game NetHack. A message is "good" if the player finds or picks '
                'up gold, and "bad" otherwise.'
            ),
            "stairs": (
                'Messages from the game NetHack. A message is "good" if the player goes down or '
                'finds a way down, and "bad" otherwise.'
            ),
        },
        field="Message",
        label="Verdict",
        good="good",
        bad="bad",
    ),
    "reworded": _Wording(
        {
            "defaultgoal": (
                "What NetHack shows on the screen, and whether it is progress towards a high score."
            ),
            "zeroknowledge": "What NetHack shows on the screen, and whether it is progress.",
            "combat": (
                "What NetHack shows on the screen, and whether it is progress in fighting and "
                "slaying monsters."
            ),
            "gold": (
                "What NetHack shows on the screen, and whether it is progress in finding gold and "
                "picking it up."
            ),
            "stairs": (
                "What NetHack shows on the screen, and whether it is progress on the way down."
            ),
        },
        field="Screen",
        label="Progress",
        good="yes",
        bad="no",
    ),
}

_TEXTS: dict[Kind, tuple[str, ...]] = {
    "fight": (
        "You kill the kobold!",
        "You hit the wolf.",
        "You kill the wolf!",
        "You kick the kobold.",
        "You destroy the ghoul!",
        "You strike the snake!",
    ),
    "gold": (
        "$ - 31 gold pieces.",
        "You see here 7 gold pieces.",
        "$ - 44 gold pieces (58 in total).",
        "$ - 5 gold pieces.",
        "There are 19 gold pieces here.",
        "$ - 160 gold pieces (204 in total).",
    ),
    "down": (
        "You go downstairs.",
        "There are stairs down here.",
        "You descend to the level below.",
        "There is a ladder leading down here.",
        "You climb down to dungeon level 8.",
        "You walk downstairs.",
    ),
    "ally": ("Your dog kills the kobold.",),
    "meal": ("You finish eating the orange.",),
    "hunger": ("You are getting hungry.",),
    "death": ("You are killed by the wolf.",),
    "gain": ("Welcome to experience level 9.", "b - a yellow potion.", "You feel healthy."),
    "escape": ("The wolf misses!",),
    "idle": ("", "You stop at the iron bars."),
    "failure": ("You miss the wolf.", "You have nothing to drink.", "There are no stairs."),
    "harm": ("The kobold hits!", "Your purse is stolen.", "You feel ill.", "The wolf bites!"),
    "opening": ("The chest opens.", "The gate opens."),
}

# The order of the examples: each kind's texts are used in turn.
_ALL_ROUND: tuple[Kind, ...] = (
    *("fight", "idle", "gold", "harm", "meal", "gain", "idle", "down", "harm", "death", "escape"),
    *("failure", "gain", "failure", "ally", "fight", "harm", "down", "harm", "hunger", "gold"),
    "failure",
)
_ORDERS: dict[Goal, tuple[Kind, ...]] = {
    "defaultgoal": _ALL_ROUND,
    "zeroknowledge": _ALL_ROUND,
    "combat": (
        *("gold", "fight", "down", "fight", "idle", "fight", "gold", "fight", "failure", "fight"),
        *("down", "fight", "gain"),
    ),
    "gold": (
        *("fight", "gold", "gain", "gold", "down", "gold", "fight", "gold", "opening", "gold"),
        *("idle", "gold", "down", "fight"),
    ),
    "stairs": (
        *("fight", "down", "gold", "down", "idle", "down", "fight", "down", "gold", "down"),
        *("failure", "down", "gain"),
    ),
}
_GOOD_ALL_ROUND: frozenset[Kind] = frozenset(
    {"fight", "ally", "gold", "down", "gain", "meal", "escape"}
)
_GOOD: dict[Goal, frozenset[Kind]] = {
    "defaultgoal": _GOOD_ALL_ROUND,
    "zeroknowledge": _GOOD_ALL_ROUND,
    "combat": frozenset({"fight"}),
    "gold": frozenset({"gold"}),
    "stairs": frozenset({"down"}),
}


class Example(NamedTuple):
    """A caption with the verdict on it.

    Args:
        text: The caption.
        is_good: Whether the goal wants it.
    """

    text: str
    is_good: bool


def examples(goal: Goal) -> tuple[Example, ...]:
    """Return the examples that a goal is shown with."""
    unused = {kind: iter(texts) for kind, texts in _TEXTS.items()}
    return tuple(Example(next(unused[kind]), kind in _GOOD[goal]) for kind in _ORDERS[goal])


class PointwisePrompts:
    """Asks of one caption whether it is good.

    Args:
        goal: What the player is after.
        version: Wording.
        template: For a chat model or for a base model.
        num_examples: Use the last so many examples; None uses all.

    Attributes:
        answers: The verdicts, the good one first.
    """

    def __init__(
        self,
        goal: Goal,
        version: Version,
        template: JudgeTemplate,
        num_examples: int | None = None,
    ) -> None:
        check_wording(goal, version)
        if template not in get_args(JudgeTemplate):
            raise UserError(f"expected `template` chat or plain, got {template!r}")
        shown = examples(goal)
        if num_examples is not None and not 0 <= num_examples <= len(shown):
            raise UserError(
                f"expected `num_examples` from 0 to {len(shown)} for the goal {goal}, or null for "
                f"all of them, got {num_examples}"
            )
        self._wording = _WORDINGS[version]
        self._head = self._wording.head[goal]
        self._examples = shown if num_examples is None else shown[len(shown) - num_examples :]
        self.template = template
        self.answers = (self._wording.good, self._wording.bad)

    def question(self, text: str) -> Prompt:
        """Return the question about one caption."""
        wording = self._wording
        verdicts = [wording.good if example.is_good else wording.bad for example in self._examples]
        if self.template == "plain":
            parts = [
                f'{wording.field}: "{example.text}"\n{wording.label}: {verdict}'
                for example, verdict in zip(self._examples, verdicts, strict=True)
            ]
            asked = f'{wording.field}: "{text}"\n{wording.label}:'
            return (Turn("user", "\n\n".join([self._head, *parts, asked])),)
        head = (
            f"{self._head} You are shown one at a time. Answer with a single word, {wording.good} "
            f"or {wording.bad}."
        )
        turns = [Turn("system", head)]
        for example, verdict in zip(self._examples, verdicts, strict=True):
            turns += [Turn("user", f'{wording.field}: "{example.text}"')]
            turns += [Turn("assistant", verdict)]
        return *turns, Turn("user", f'{wording.field}: "{text}"')

    def wording(self) -> list[str]:
        """Return the question with a place-holder: what makes two judges ask differently."""
        return [*(turn.text for turn in self.question("<caption>")), *self.answers]
