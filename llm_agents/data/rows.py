"""Layouts of rows, and how each becomes an example; `docs/bring_your_own.md` has a row for each.

The layout is told by the keys that a row has; what is null counts as absent.

``preference``
    ``chosen`` and ``rejected``: the two answers to the ``prompt`` beside them; or without it whole
    dialogues, as messages, as one text with hh-rlhf's marks, or as texts whose common beginning is
    the prompt. Scores: ``rewards``, or one a key as ``score_chosen`` and ``score_rejected``.
``responses``
    ``prompt`` (or ``prompt_or_input_text``, ``instruction``) and ``responses``, ``references`` or
    ``response``; ``rewards``, ``reward`` or ``reward_components`` (with their ``final_reward``);
    ``preferred`` is the good one's index (else the highest reward's, else the first).
``completion``
    ``prompt`` and ``completion``; ``reward``, or KTO's ``label``.
``completions``
    ``prompt`` or ``instruction`` and a list of texts, or of objects with text and rating.
``messages``
    A whole dialogue as ``messages`` or ``conversations``, whose last answer is the response.
``pro``
    ``prefix`` (K equal lists of ``<|prompter|>…`` and ``<|assistant|>…`` texts), ``suffix`` (K
    answers), ``reward`` (K raw scores), ``sft_index`` (the good one), ``meta``.

A prompt or an answer is a text, or a list of ``{"role": …, "content": …}``. A prompt in one text
with hh-rlhf's marks becomes turns; ``knowledge`` beside any prompt becomes its system turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from llm_agents.data.base import Example
from llm_agents.data.dialogue_marks import has_marks, is_marked, read_dialogue
from llm_agents.data.ratings import completion_texts, pair_scores
from llm_agents.data.row_fields import (
    LAYOUT_KEYS,
    Row,
    RowError,
    UnusableRowError,
    describe,
    messages,
    number,
)
from llm_agents.rewards.knowledge import with_knowledge
from llm_agents.types import Prompt, Turn

Layout = Literal["preference", "responses", "completion", "completions", "messages", "pro"]

KEEP_PARAGRAPHS = "data.rules.roleless_paragraphs: keep"
_PROMPT_KEYS = ("prompt", "prompt_or_input_text", "instruction")
_PRO_ROLES: tuple[tuple[str, Literal["user", "assistant"]], ...] = (
    ("<|prompter|>", "user"),
    ("<|assistant|>", "assistant"),
)


@dataclass
class RowReading:
    """How rows are read, and what was changed on the way.

    Args:
        keep_paragraphs: Whether turns of dialogues with marks keep all their paragraphs.
        changed: Reason → rows.
    """

    keep_paragraphs: bool
    changed: Counter[str] = field(default_factory=Counter)
    _lost: bool = False

    def dialogue(self, text: str) -> Prompt:
        """Return the turns of a dialogue with marks."""
        found = read_dialogue(text, self.keep_paragraphs)
        self._lost = self._lost or found.lost_paragraphs
        return found.turns

    def finish(self) -> None:
        """Count what happened to a row."""
        if self._lost:
            self.changed[f"rows that lost paragraphs without a role ({KEEP_PARAGRAPHS})"] += 1
        self._lost = False


def layout_of(row: Row) -> Layout | None:
    """Tell the layout of a row by its keys; None if there is no such layout."""
    has = row.fields.keys()
    has_prompt = bool(has & set(_PROMPT_KEYS))
    if {"prefix", "suffix"} <= has:
        return "pro"
    if has & {"chosen", "rejected"}:
        return "preference"
    if has_prompt and has & {"responses", "references", "response"}:
        return "responses"
    if "completions" in has:
        return "completions"
    if "completion" in has or {"instruction", "output"} <= has:
        return "completion"
    if has & {"messages", "conversations"}:
        return "messages"
    if has_prompt:
        return "responses"
    return "pro" if has & {"prefix", "suffix"} else None


def read_row(
    content: object, meta: Mapping[str, str], reading: RowReading, expected: Layout | None
) -> tuple[Example, Layout, Row]:
    """Return the example of a row, its layout, and the row with what was read of it.

    Args:
        content: The row.
        meta: What the example is to say of itself.
        reading: How rows are read.
        expected: The layout of the rows before: one that isn't known is held against it.

    Raises:
        RowError: The row is malformed.
        UnusableRowError: It can't be learnt from.
    """
    row = Row(content)
    layout = layout_of(row) or expected
    if layout is None:
        raise RowError(f"expected {LAYOUT_KEYS}, got {describe(content)}")
    prompt, responses, rewards, preferred = _READERS[layout](row, reading)
    if layout != "pro":
        prompt = _grounded(prompt, row)
    meta = {**row.meta(), **meta}
    if not responses:
        meta["keys"] = ", ".join(row.fields)
    reading.finish()
    return Example(prompt, responses, rewards, preferred, meta), layout, row


_Parts = tuple[Prompt, tuple[str, ...], tuple[float, ...] | None, int]


def _read_pro(row: Row, reading: RowReading) -> _Parts:
    """Read a row in PRO's format, which has lost its paragraphs already."""
    del reading
    prefixes = row.take("prefix", list)
    responses = row.texts("suffix")
    if not responses or len(prefixes) != len(responses):
        raise RowError(
            "expected `prefix` and `suffix` to be lists of one equal length, got "
            f"{len(prefixes)} and {len(responses)}"
        )
    prompts = [_pro_turns(prefix) for prefix in prefixes]
    if any(prompt != prompts[0] for prompt in prompts):
        raise UnusableRowError("prompts of the responses differ")
    preferred = row.index("sft_index", len(responses))
    return prompts[0], responses, row.numbers("reward", len(responses)), preferred or 0


def _read_preference(row: Row, reading: RowReading) -> _Parts:
    """Read a pair of dialogues, or of answers to the prompt beside them."""
    values: list[object] = [row.take(key, str, list) for key in ("chosen", "rejected")]
    key = _prompt_key(row)
    if key in row:
        dialogues = [
            _continued(row.take(key, str, list), value, (key, name), reading)
            for value, name in zip(values, ("chosen", "rejected"), strict=True)
        ]
    elif all(isinstance(value, str) and not has_marks(value) for value in values):
        beginning, *answers = _common_beginning(*map(str, values))
        dialogues = [(Turn("user", beginning), Turn("assistant", one)) for one in answers]
    else:
        dialogues = [
            _whole(value, name, reading)
            for value, name in zip(values, ("chosen", "rejected"), strict=True)
        ]
    prompt, responses = _common_prompt(dialogues)
    rewards = row.numbers("rewards", 2) or pair_scores(row)
    return prompt, responses, rewards, 0


def _read_responses(row: Row, reading: RowReading) -> _Parts:
    """Read a prompt with any number of responses; without any it is a prompt to be answered."""
    key = _prompt_key(row)
    value = row.take(key, str, list)
    source = next((name for name in ("response", "responses", "references") if name in row), "")
    given: list[object] = []
    if source:
        found = row.take(source, str, list)
        is_one = isinstance(found, str) or source == "response"
        given = [found] if is_one else list(found)
    if not given:
        return _prompt(value, key, reading), (), None, 0
    wholes = [_continued(value, one, (key, source), reading) for one in given]
    prompt, responses = _common_prompt(wholes)
    rewards = row.numbers("rewards", len(responses))
    if rewards is None and isinstance(row.fields.get("reward"), list):
        rewards = row.numbers("reward", len(responses))
    if len(responses) == 1:
        return prompt, responses, *_single_score(row, rewards)
    preferred = row.index("preferred", len(responses))
    if preferred is None:
        preferred = max(range(len(responses)), key=rewards.__getitem__) if rewards else 0
    return prompt, responses, rewards, preferred


def _read_completion(row: Row, reading: RowReading) -> _Parts:
    """Read a prompt with its completion, as TRL and KTO have them, and Alpaca's rows."""
    key = _prompt_key(row)
    prompt: object = row.take(key, str, list)
    if key == "instruction" and isinstance(prompt, str) and "input" in row:
        prompt = f"{prompt}\n\n{row.take('input', str)}".rstrip()
    name = "completion" if "completion" in row else "output"
    whole = _continued(prompt, row.take(name, str, list), (key, name), reading)
    return whole[:-1], (whole[-1].text,), *_single_score(row, None)


def _read_completions(row: Row, reading: RowReading) -> _Parts:
    """Read a prompt with rated completions."""
    key = _prompt_key(row)
    texts, rewards = completion_texts(row, reading.changed)
    value = row.take(key, str, list)
    if not texts:
        return _prompt(value, key, reading), (), None, 0
    wholes = [_continued(value, text, (key, "completions"), reading) for text in texts]
    prompt, responses = _common_prompt(wholes)
    preferred = row.index("preferred", len(responses))
    if preferred is None:
        preferred = max(range(len(responses)), key=rewards.__getitem__) if rewards else 0
    return prompt, responses, rewards, preferred


def _read_messages(row: Row, reading: RowReading) -> _Parts:
    """Read a dialogue of messages: the last answer is the response, the rest the prompt."""
    del reading
    key = "messages" if "messages" in row else "conversations"
    turns = messages(row.get(key), key)
    if len(turns) < 2 - (bool(turns) and turns[-1].role == "user"):
        raise RowError(
            f"expected `{key}` to hold a message of the user at least, before the assistant's, got "
            f"{describe(row.get(key))}"
        )
    if turns[-1].role != "assistant":
        return turns, (), None, 0
    return turns[:-1], (turns[-1].text,), *_single_score(row, None)


_READERS: dict[Layout, Callable[[Row, RowReading], _Parts]] = {
    "pro": _read_pro,
    "preference": _read_preference,
    "responses": _read_responses,
    "completion": _read_completion,
    "completions": _read_completions,
    "messages": _read_messages,
}


def _prompt_key(row: Row) -> str:
    """Return the name of the row's prompt."""
    return next((key for key in _PROMPT_KEYS if key in row), "prompt")


def _prompt(value: object, key: str, reading: RowReading) -> Prompt:
    """Return a prompt given as text, with or without marks, or as messages."""
    if isinstance(value, str) and value.strip():
        if not is_marked(value):
            return (Turn("user", value),)
        turns = reading.dialogue(value)
        turns = turns[:-1] if turns[-1] == Turn("assistant", "") else turns
        if turns:
            return turns
    if isinstance(value, list) and value:
        return messages(value, key)
    raise RowError(f"expected `{key}` to be text or a list of messages, got {describe(value)}")


def _continued(value: object, answer: object, keys: tuple[str, str], reading: RowReading) -> Prompt:
    """Return a prompt's turns and an answer's, which may repeat the prompt, as one dialogue."""
    prompt = _prompt(value, keys[0], reading)
    if isinstance(answer, str):
        if is_marked(answer):
            whole = _whole(answer, keys[1], reading)
            if whole[:-1] != prompt:
                raise UnusableRowError("an answer is a dialogue that doesn't begin with the prompt")
            return whole
        if isinstance(value, str) and is_marked(value):
            is_open = reading.dialogue(value)[-1].role == "assistant"
            mark = "" if is_open else "\n\nAssistant:"
            return _whole(f"{value.rstrip()}{mark} {answer.lstrip()}", keys[1], reading)
        return (*prompt, Turn("assistant", answer))
    turns = messages(answer, keys[1])
    if turns[: len(prompt)] == prompt:
        turns = turns[len(prompt) :]
    if len(turns) != 1 or turns[0].role != "assistant":
        raise RowError(
            f"expected `{keys[1]}` to hold one assistant message, after the prompt's or alone, got "
            f"{describe(answer)}"
        )
    return (*prompt, *turns)


def _whole(value: object, key: str, reading: RowReading) -> Prompt:
    """Return a whole dialogue of at least one prompt turn and the assistant's answer."""
    turns = reading.dialogue(value) if isinstance(value, str) else messages(value, key)
    if len(turns) < 2 or turns[-1].role != "assistant":
        raise RowError(
            f"expected `{key}` to be a dialogue of Human and Assistant that ends with Assistant, "
            f"got {describe(value)}"
        )
    return turns


def _common_prompt(dialogues: Sequence[Prompt]) -> tuple[Prompt, tuple[str, ...]]:
    """Return what all dialogues begin with, and their last answers."""
    if any(len(dialogue) != len(dialogues[0]) for dialogue in dialogues):
        raise UnusableRowError("dialogues differ in number of turns")
    if any(dialogue[:-1] != dialogues[0][:-1] for dialogue in dialogues):
        raise UnusableRowError("prompts of the responses differ")
    return dialogues[0][:-1], tuple(dialogue[-1].text for dialogue in dialogues)


def _common_beginning(chosen: str, rejected: str) -> tuple[str, str, str]:
    """Return the words that two texts begin with, and the rest of each, as TRL parts them."""
    count = next(
        (at for at, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b),
        min(len(chosen), len(rejected)),
    )
    while count and not chosen[count - 1].isspace():  # a word is not parted
        count -= 1
    prompt = chosen[:count].rstrip()
    if not prompt:
        raise UnusableRowError("chosen and rejected without a prompt or a common beginning")
    return prompt, chosen[count:], rejected[count:]


def _single_score(
    row: Row, rewards: tuple[float, ...] | None
) -> tuple[tuple[float, ...] | None, int]:
    """Return the stored score of a row's one response, and its index if the data call it good."""
    if rewards is None and "reward" in row:
        score = row.number("reward")
        rewards = None if score is None else (score,)
    elif rewards is None and isinstance(row.fields.get("reward_components"), Mapping):
        components = row.take("reward_components", dict)
        rewards = (number(components.get("final_reward"), "reward_components.final_reward"),)
    label = row.truth("label")
    if label is None:
        row.index("preferred", 1)
        return rewards, 0
    return ((float(label),) if rewards is None else rewards), (0 if label else -1)


def _grounded(prompt: Prompt, row: Row) -> Prompt:
    """Return the prompt with the row's knowledge, if it has any, as its system turn."""
    if "knowledge" not in row:
        return prompt
    if prompt[0].role == "system":
        raise RowError("expected a prompt without a system turn beside `knowledge`, got both")
    return with_knowledge(row.take("knowledge", str), prompt)


def _pro_turns(prefix: object) -> Prompt:
    """Return the turns of one PRO prompt."""
    if not isinstance(prefix, list) or len(prefix) < 2 or prefix[-1] != "<|assistant|>":
        raise RowError(
            "expected `prefix` to hold lists of <|prompter|>… and <|assistant|>… that end with the "
            f"bare <|assistant|>, got {describe(prefix)}"
        )
    turns: list[Turn] = []
    for text in prefix[:-1]:
        for mark, role in _PRO_ROLES:
            if isinstance(text, str) and text.startswith(mark):
                turns.append(Turn(role, text[len(mark) :]))
                break
        else:
            raise RowError(f"expected <|prompter|>… or <|assistant|>…, got {describe(text)}")
    return tuple(turns)
