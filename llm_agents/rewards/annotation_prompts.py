"""How a judge is asked to compare two captions: five goals, two wordings, two kinds of model.

The structure is that of Motif's prompts (arXiv 2310.00166, section 3 and appendix): a persona, what
to think about, a verdict under a key, the two captions. The words are ours. ``default`` says what
the goal is before the captions are analyzed and calls them descriptions; ``reworded`` says it at
the comparison and calls them messages. A chat model gets turns; a base model gets a document with
worked comparisons that it goes on with.
"""

from __future__ import annotations

from typing import Literal, get_args

from llm_agents.errors import UserError
from llm_agents.rewards.annotation_parsing import Noun
from llm_agents.types import Prompt, Turn

Goal = Literal["defaultgoal", "zeroknowledge", "combat", "gold", "stairs"]
Version = Literal["default", "reworded"]
JudgeTemplate = Literal["chat", "plain"]
"""``chat`` asks in turns, by the model's chat template; ``plain`` gives a text to go on with."""

GOALS: dict[Goal, str] = {
    "defaultgoal": (
        "Progress means a higher score: monsters slain, gold collected, stairs taken downward."
    ),
    "zeroknowledge": "",
    "combat": (
        "Progress means fighting: attack monsters and slay them. Whatever picks up gold, however "
        "little, or leads to a deeper level is the opposite of what is wanted."
    ),
    "gold": (
        "Progress means gold: pick up as much of it as there is. Whatever gains score in another "
        "way, as fighting does, is the opposite of what is wanted."
    ),
    "stairs": (
        "Progress means depth: take the stairs down, as far as they go. Whatever gains score in "
        "another way, by fighting or by picking up gold, however little, is the opposite of what "
        "is wanted."
    ),
}
NOUNS: dict[Version, Noun] = {"default": "description", "reworded": "message"}

_PERSONA = (
    "You are an expert on NetHack who judges how well it is played and whether the player makes "
    "progress. You are fair and as helpful as you can be without leaving the truth: where you are "
    "not sure, you say so and make nothing up."
)
_BLOCKS = "{blocks}"
_VERDICT = '("best_{noun}": {value})'

_QUESTION: dict[Version, str] = {
    "default": (
        "Below are two short descriptions of what happened in a game of NetHack.\n"
        "1. Call to mind what you know about NetHack and what its player is after. {goal}\n"
        "2. Work out what each description tells about the state of the game. Rely only on its "
        "text, which may be empty, and on what you know about NetHack.\n"
        "3. Weigh the two against each other, arguing from first principles.\n"
        "4. Say which of them is more likely to bring the player closer to the goal. End with "
        '("best_description": 1), ("best_description": 2) or, if you see no difference, '
        '("best_description": None).\n\n{blocks}'
    ),
    "reworded": (
        "Below are two short messages that a player of NetHack read on the screen.\n"
        "1. Call to mind what you know about NetHack and what its player is after.\n"
        "2. Sum up what each message means and what has evidently come of it. Keep to facts.\n"
        "3. Compare the two, arguing from first principles, and tell how sure you are. {goal}\n"
        "4. Say which of them shows that things got better with regard to the goal. You must end "
        'with exactly one of ("best_message": 1), ("best_message": 2) and, if you are very unsure, '
        '("best_message": None).\n\n{blocks}'
    ),
}
_RETRY = (
    "Which one do you choose in the end? Answer with nothing but {one}, {two} or {none}, whichever "
    "holds."
)
_CHOICE: dict[Version, str] = {
    "default": (
        "Below are two short descriptions of what happened in a game of NetHack. {goal}\n\n"
        "{blocks}\n\nWhich description is more likely to bring the player closer to the goal? "
        "Answer with its number, 1 or 2, and nothing else."
    ),
    "reworded": (
        "Below are two short messages that a player of NetHack read on the screen.\n\n{blocks}\n\n"
        "{goal}\nWhich message shows that things got better? Answer with its number, 1 or 2, and "
        "nothing else."
    ),
}

# Worked comparisons for base models: good, bad, which one is good, and why, for each goal.
_Comparison = tuple[str, str, Literal[1, 2], str]
_SLAIN_OVER_HURT: _Comparison = (
    "You kill the kobold!",
    "The kobold hits!",
    1,
    "In the first a monster is slain, in the second the player is hurt.",
)
_COMPARISONS: dict[Goal, tuple[_Comparison, _Comparison]] = {
    "defaultgoal": (
        _SLAIN_OVER_HURT,
        (
            "It is too dark to see.",
            "$ - 31 gold pieces.",
            2,
            "The first changes nothing, in the second the player gets richer.",
        ),
    ),
    "zeroknowledge": (
        _SLAIN_OVER_HURT,
        (
            "It is too dark to see.",
            "You feel fine.",
            2,
            "The first changes nothing, in the second the player is well.",
        ),
    ),
    "combat": (
        (
            "You kill the kobold!",
            "$ - 31 gold pieces.",
            1,
            "The first is a fight won, the second picks up gold, which is not wanted.",
        ),
        (
            "You go downstairs.",
            "You hit the kobold.",
            2,
            "The first leads deeper, which is not wanted, the second is a blow in a fight.",
        ),
    ),
    "gold": (
        (
            "$ - 31 gold pieces.",
            "You kill the kobold!",
            1,
            "The first picks up gold, the second gains score by fighting, which is not wanted.",
        ),
        (
            "It is too dark to see.",
            "You see here 7 gold pieces.",
            2,
            "The first changes nothing, the second leads to gold.",
        ),
    ),
    "stairs": (
        (
            "You go downstairs.",
            "You kill the kobold!",
            1,
            "The first leads deeper, the second gains score by fighting, which is not wanted.",
        ),
        (
            "$ - 31 gold pieces.",
            "There are stairs down here.",
            2,
            "The first picks up gold, which is not wanted, the second is a way down.",
        ),
    ),
}
_DOCUMENT: dict[Version, str] = {
    "default": (
        "Games of NetHack, described by a few words. {goal}\n"
        "Two descriptions are compared, and the one that brings the player closer to the goal is "
        "named."
    ),
    "reworded": (
        "Messages from the screen of NetHack, two at a time, and which of them shows that things "
        "got better. {goal}"
    ),
}


class PairPrompts:
    """Asks which of two captions is better.

    Args:
        goal: What the player is after.
        version: Wording.
        template: For a chat model or for a base model.
    """

    def __init__(self, goal: Goal, version: Version, template: JudgeTemplate) -> None:
        check_wording(goal, version)
        if template not in get_args(JudgeTemplate):
            raise UserError(f"expected `template` chat or plain, got {template!r}")
        self.goal, self.version, self.template = goal, version, template
        self.noun = NOUNS[version]

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Return what ends a reply: a base model would go on with the next comparison."""
        return () if self.template == "chat" else ("\n\n",)

    def question(self, first: str, second: str) -> Prompt:
        """Return the question that is answered by reasoning and a verdict."""
        if self.template == "chat":
            return self._turns(_QUESTION[self.version], first, second)
        return (Turn("user", self._document(first, second, reasons=True)),)

    def retry(self, question: Prompt, reply: str) -> Prompt:
        """Return what is asked after a reply without a verdict."""
        if self.template == "chat":
            one, two, none = (
                _VERDICT.format(noun=self.noun, value=value) for value in ("1", "2", "None")
            )
            again = _RETRY.format(one=one, two=two, none=none)
            return *question, Turn("assistant", reply), Turn("user", again)
        so_far = f"{question[0].text} {reply.strip()}".rstrip()
        return (Turn("user", f"{so_far} In short:"),)

    def choice(self, first: str, second: str) -> Prompt:
        """Return the question that is answered by the number 1 or 2 alone."""
        if self.template == "chat":
            return self._turns(_CHOICE[self.version], first, second)
        return (Turn("user", self._document(first, second, reasons=False)),)

    def wording(self) -> list[str]:
        """Return the questions with place-holders: what makes two judges ask differently."""
        asked = self.question("<first>", "<second>")
        prompts = (asked, self.retry(asked, "<reply>"), self.choice("<first>", "<second>"))
        return [turn.text for prompt in prompts for turn in prompt]

    def _turns(self, template: str, first: str, second: str) -> Prompt:
        """Return the persona and a question with the two captions, as they are, in braces."""
        blocks = "\n\n".join(
            f'{{\n"{self.noun}_{number}":\n"{text}"\n}}'
            for number, text in ((1, first), (2, second))
        )
        before, after = with_goal(template, self.goal).split(_BLOCKS)
        return Turn("system", _PERSONA), Turn("user", f"{before}{blocks}{after}")

    def _document(self, first: str, second: str, *, reasons: bool) -> str:
        """Return a text of comparisons whose last one is unfinished."""
        head = with_goal(_DOCUMENT[self.version], self.goal)
        name = self.noun.capitalize()
        parts = [head]
        for one, two, better, why in _COMPARISONS[self.goal]:
            verdict = _VERDICT.format(noun=self.noun, value=better)
            end = f"Comparison: {why} {verdict}" if reasons else f"Better: {better}"
            parts.append(f'{name} 1: "{one}"\n{name} 2: "{two}"\n{end}')
        end = "Comparison:" if reasons else "Better:"
        parts.append(f'{name} 1: "{first}"\n{name} 2: "{second}"\n{end}')
        return "\n\n".join(parts)


def check_wording(goal: str, version: str) -> None:
    """Raise a `UserError` for a goal or a wording that there isn't."""
    if goal not in GOALS:
        raise UserError(f"expected `goal` to be one of {', '.join(GOALS)}, got {goal!r}")
    if version not in NOUNS:
        raise UserError(f"expected `version` to be one of {', '.join(NOUNS)}, got {version!r}")


def with_goal(template: str, goal: Goal) -> str:
    """Return a wording with a goal's sentences in their place, and no gap where there are none."""
    text = template.replace("{goal}", GOALS[goal])
    return text.replace(" \n", "\n").replace("\n\n\n", "\n\n").strip()
