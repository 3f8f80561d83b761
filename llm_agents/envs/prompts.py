"""How an observation becomes a prompt: template, goal, history, listed actions, and its principles.

Four principles make a language model's own probabilities a good start (TWOSOME, section 3):

1. Cohesion: prompt and action join into one sentence; the prompt ends in an unfinished clause.
2. Articles: nouns carry them, in the text and in the actions (`article_faults`).
3. What a useful action names also stands in the prompt (`mentioned`).
4. One action may be worded differently by situation: its number stays (`wordings`).

The first, and that the texts of a list are distinct, must hold for every prompt: `PromptBuilder`
raises where they do not. The others are statements about a world, and its tests make them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import Formatter
from typing import NamedTuple

from llm_agents.envs.base import Observation
from llm_agents.errors import UserError
from llm_agents.types import Choice

_FIELDS = ("history", "observation", "actions", "goal")
_MOMENT_FIELDS = ("observation", "goal", "action")
_ARTICLES = frozenset({"a", "an", "the"})
_DETERMINERS = _ARTICLES | {"one"}
_PLAIN_WORDS = frozenset(
    {*_ARTICLES, "to", "in", "on", "into", "at", "of", "and", "up", "down", "off", "nothing", "it"}
)
_VERB = re.compile(r"(?=[^\W\d_])[^A-Z\W\d_]+\b")  # of any language: "lâcher"
_WORD = re.compile(r"[a-z]+", re.IGNORECASE)


class Moment(NamedTuple):
    """A step of the past: what the world showed, its goal clause, and the action taken."""

    observation: str
    goal: str
    action: str


@dataclass(frozen=True)
class PromptBuilder:
    """Turns observations into choices.

    A part that is empty takes the space or the line around it with it. A history makes more prompts
    distinct, so that fewer of them can be answered from memory.

    Args:
        template: Fields ``{history}``, ``{observation}``, ``{actions}`` and ``{goal}``; it ends
            with ``{goal}``, which the action continues.
        history_length: How many earlier steps of the episode the prompt tells.
        moment: How one of them is told: fields ``{observation}``, ``{goal}`` and ``{action}``.
        show_goal: Whether the world's own goal clause ends the prompt.
        closing: The unfinished clause that stands in for the goal where it is not shown.
        list_actions: Whether the prompt lists the admissible actions.
        action_list: How it lists them: field ``{actions}``.
        action_separator: What stands between two of them.
        check_cohesion: Refuse texts that do not flow into their actions; turn it off for a world
            whose actions are no verbs.

    Raises:
        UserError: A template has unknown fields or lacks one, or a clause is finished.

    Example:
        >>> seen = Observation("You see a door.", "To leave, you should", ("open it",), (0,), (1,))
        >>> PromptBuilder().choice(seen).prompt
        'You see a door. To leave, you should'
        >>> PromptBuilder(list_actions=True, show_goal=False).choice(seen).prompt
        'You see a door. You can now: open it. The next step is to'
    """

    template: str = "{history} {observation} {actions} {goal}"
    history_length: int = 0
    moment: str = "{observation} You chose to {action}."
    show_goal: bool = True
    closing: str = "The next step is to"
    list_actions: bool = False
    action_list: str = "You can now: {actions}."
    action_separator: str = "; "
    check_cohesion: bool = True

    def __post_init__(self) -> None:
        """Check the templates."""
        fields = _check_fields("template", self.template, _FIELDS, ("observation", "goal"))
        _check_fields("moment", self.moment, _MOMENT_FIELDS, ("action",))
        _check_fields("action_list", self.action_list, ("actions",), ("actions",))
        if not self.template.endswith("{goal}"):
            raise UserError(
                "expected a `template` that ends with {goal}, because the action continues it, "
                f"got {self.template!r}: move {{goal}} to its end"
            )
        for name, asked in (("history", self.history_length > 0), ("actions", self.list_actions)):
            if asked and name not in fields:
                raise UserError(
                    f"expected {{{name}}} in `template`, because the recipe asks for it, got "
                    f"{self.template!r}: add the field, or leave the option off"
                )
        if self.history_length < 0:
            raise UserError(f"expected `history_length` of 0 or more, got {self.history_length}")
        if fault := clause_fault(self.closing):
            raise UserError(f"expected `closing` to be an unfinished clause: {fault}")

    def choice(self, observation: Observation, history: Sequence[Moment] = ()) -> Choice:
        """Return the prompt of an observation with its actions.

        Args:
            observation: What the world shows.
            history: Earlier steps of the episode, oldest first; the last `history_length` count.

        Raises:
            ValueError: The world's clause is finished, or its actions do not continue one.
        """
        past = tuple(history[-self.history_length :]) if self.history_length else ()
        return _build(self, observation, past)

    def remember(
        self, history: Sequence[Moment], observation: Observation, index: int
    ) -> tuple[Moment, ...]:
        """Return the history after the action at `index` of `observation`'s list was taken."""
        if not self.history_length:
            return ()
        taken = Moment(observation.text, observation.goal, observation.actions[index])
        return (*history, taken)[-self.history_length :]


@lru_cache(maxsize=65536)
def _build(builder: PromptBuilder, observation: Observation, past: tuple[Moment, ...]) -> Choice:
    """Return the choice; worlds show few distinct observations, so most answers are remembered."""
    actions = ""
    if builder.list_actions and observation.actions:
        listed = builder.action_separator.join(observation.actions)
        actions = builder.action_list.format(actions=listed)
    parts = {
        "history": " ".join(builder.moment.format(**moment._asdict()) for moment in past),
        "observation": observation.text,
        "actions": actions,
        "goal": observation.goal if builder.show_goal else builder.closing,
    }
    lines = []
    for line in builder.template.split("\n"):
        filled = re.sub(r" {2,}", " ", line.format(**parts)).strip(" ")
        if filled or not line.strip(" "):
            lines.append(filled)
    choice = Choice("\n".join(lines).strip(), observation.actions)
    if builder.check_cohesion and (faults := cohesion_faults(choice)):
        raise ValueError(
            f"expected a text that flows into its actions, got {'; '.join(faults)}: reword the "
            "world, or set `check_cohesion` to false"
        )
    return choice


def _check_fields(
    name: str, template: str, known: tuple[str, ...], needed: tuple[str, ...]
) -> set[str]:
    """Return the fields of a template; refuse unknown and missing ones."""
    try:
        parsed = [(field, form, how) for _, field, form, how in Formatter().parse(template)]
    except ValueError as error:
        raise UserError(
            f"expected `{name}` to be a template, got {template!r}: {error}; write a brace that is "
            "no field twice"
        ) from error
    fields = {field for field, _, _ in parsed if field is not None}
    unknown = sorted(fields - set(known))
    missing = [field for field in needed if field not in fields]
    if unknown or missing or any(form or how for _, form, how in parsed):
        raise UserError(
            f"expected `{name}` with plain fields out of {', '.join(known)}, with "
            f"{' and '.join(needed)} among them, got {template!r}"
        )
    return fields


def clause_fault(clause: str) -> str | None:
    """Return why an action can't continue a clause, or None.

    Example:
        >>> clause_fault("To leave, you should first")
        >>> clause_fault("You should leave.")
        "'You should leave.' ends in '.': end it in a word"
    """
    if not clause:
        return "the clause is empty: end the prompt in words that an action continues"
    last = clause[-1]
    return None if last.isalnum() else f"{clause[-40:]!r} ends in {last!r}: end it in a word"


def cohesion_faults(choice: Choice) -> list[str]:
    """Return what keeps the prompt and the actions of a choice from being one sentence each.

    Example:
        >>> cohesion_faults(Choice("You should", ("Open it", "wait.")))
        ["action 'Open it' does not start with a bare verb", "action 'wait.' ends in '.'"]
    """
    faults = [fault] if (fault := clause_fault(choice.prompt)) else []
    for action in choice.actions:
        first = action.split(" ")[0]
        if not _VERB.match(first) or first in _ARTICLES | {"to"}:
            faults.append(f"action {action!r} does not start with a bare verb")
        elif not action[-1].isalnum():
            faults.append(f"action {action!r} ends in {action[-1]!r}")
    repeated = sorted({a for a in choice.actions if choice.actions.count(a) > 1})
    return faults + [f"action {action!r} is listed twice" for action in repeated]


def article_faults(text: str, nouns: Iterable[str], between: Iterable[str] = ()) -> list[str]:
    """Return the nouns of a text that stand without an article; "one" counts as one.

    Args:
        text: A description or an action.
        nouns: The nouns of the world, each of one word or more.
        between: Words that may stand between an article and its noun.

    Example:
        >>> article_faults("put tomato in the empty bowl", ["tomato", "bowl"], ["empty"])
        ['tomato']
    """
    words = [word.lower() for word in _WORD.findall(text)]
    skipped = set(between)
    faults = []
    for noun in nouns:
        parts = noun.lower().split()
        for start in range(len(words) - len(parts) + 1):
            if words[start : start + len(parts)] != parts:
                continue
            before = start - 1
            while before >= 0 and words[before] in skipped:
                before -= 1
            if before < 0 or words[before] not in _DETERMINERS:
                faults.append(noun)
    return faults


def mentioned(choice: Choice) -> tuple[bool, ...]:
    """Return, for each action, whether the prompt has a word that the action is about.

    Verbs count as well as nouns; articles, prepositions and the like do not.

    Example:
        >>> mentioned(Choice("You see a door. You should", ("open the door", "sit down")))
        (True, False)
    """
    told = {word.lower() for word in _WORD.findall(choice.prompt)}
    words = [{w.lower() for w in _WORD.findall(action)} for action in choice.actions]
    return tuple(bool((about - _PLAIN_WORDS) & told) for about in words)


def wordings(observations: Iterable[Observation]) -> dict[int, set[str]]:
    """Return the texts under which each action number was offered."""
    texts: dict[int, set[str]] = {}
    for observation in observations:
        for number, text in zip(observation.action_ids, observation.actions, strict=True):
            texts.setdefault(number, set()).add(text)
    return texts
