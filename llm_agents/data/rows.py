r"""From one row of a data file to an example, in the three formats that are read.

``pro``
    ``prefix`` (K equal lists of ``<|prompter|>…`` and ``<|assistant|>…`` texts), ``suffix`` (K
    answers), ``reward`` (K raw scores), ``sft_index`` (the good one), ``meta``.
``hh_rlhf``
    ``chosen``, ``rejected``: whole dialogues, as text (``\n\nHuman: …\n\nAssistant: …``) or as
    lists of messages; with ``prompt`` beside them, the two answers alone; ``rewards`` if known.
``common``
    ``prompt`` or ``prompt_or_input_text`` (text or a list of messages), ``knowledge`` if the answer
    is to be grounded in it (it becomes the system turn); ``responses``, ``references`` or
    ``response``; ``rewards``, ``reward`` or ``reward_components`` (with their ``final_reward``) if
    known; ``preferred`` is the good one's index (else the highest reward's, else the first).

A message is ``{"role": "system" | "user" | "assistant", "content": text}``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

from llm_agents.data.base import Example
from llm_agents.rewards.knowledge import with_knowledge
from llm_agents.types import Prompt, Turn

RowFormat = Literal["pro", "hh_rlhf", "common"]
_T = TypeVar("_T")

_PRO_ROLES: tuple[tuple[str, Literal["user", "assistant"]], ...] = (
    ("<|prompter|>", "user"),
    ("<|assistant|>", "assistant"),
)
_HH_ROLES: tuple[tuple[str, Literal["user", "assistant"]], ...] = (
    ("Human:", "user"),
    ("Assistant:", "assistant"),
)
_ROLE_NAMES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
}


class RowError(ValueError):
    """A row is not what its format asks for; says what was expected and what came."""


class UnusableRowError(ValueError):
    """A row is well-formed, but can't be learnt from; the message is the reason to count."""


def format_of(row: object) -> RowFormat:
    """Tell the format of a row by its keys."""
    if isinstance(row, Mapping):
        if {"prefix", "suffix"} <= row.keys():
            return "pro"
        if {"chosen", "rejected"} <= row.keys():
            return "hh_rlhf"
        if row.keys() & {"prompt", "prompt_or_input_text"}:
            return "common"
    raise RowError(
        "expected an object with the keys prefix and suffix, chosen and rejected, or prompt and "
        f"responses, got {_describe(row)}"
    )


def read_pro(row: object, meta: Mapping[str, str], keep_paragraphs: bool) -> Example:
    """Read a row in PRO's format."""
    del keep_paragraphs  # this format has lost them already
    prefixes = _field(row, "prefix", list)
    responses = _texts(row, "suffix")
    if not responses or len(prefixes) != len(responses):
        raise RowError(
            "expected `prefix` and `suffix` to be lists of one equal length, got "
            f"{len(prefixes)} and {len(responses)}"
        )
    prompts = [_pro_turns(prefix) for prefix in prefixes]
    if any(prompt != prompts[0] for prompt in prompts):
        raise UnusableRowError("prompts of the responses differ")
    preferred = _index(row, "sft_index", len(responses))
    return Example(
        prompt=prompts[0],
        responses=responses,
        rewards=_rewards(row, "reward", len(responses)),
        preferred=0 if preferred is None else preferred,
        meta={**_meta(row), **meta},
    )


def read_hh_rlhf(row: object, meta: Mapping[str, str], keep_paragraphs: bool) -> Example:
    """Read a pair of dialogues, or of answers to the prompt beside them."""
    if isinstance(row, Mapping) and row.get("prompt") is not None:
        prompt = _prompt(row["prompt"], "prompt")
        chosen, rejected = (_answer(row, key, prompt) for key in ("chosen", "rejected"))
    else:
        dialogues = [_dialogue(row, key, keep_paragraphs) for key in ("chosen", "rejected")]
        if len(dialogues[0]) != len(dialogues[1]):
            raise UnusableRowError("dialogues differ in number of turns")
        if dialogues[0][:-1] != dialogues[1][:-1]:
            raise UnusableRowError("prompts of the responses differ")
        prompt = dialogues[0][:-1]
        chosen, rejected = (dialogue[-1].text for dialogue in dialogues)
    return Example(
        prompt=prompt,
        responses=(chosen, rejected),
        rewards=_rewards(row, "rewards", 2),
        preferred=0,
        meta={**_meta(row), **meta},
    )


def read_common(row: object, meta: Mapping[str, str], keep_paragraphs: bool) -> Example:
    """Read a prompt with any number of responses; without any it is a prompt to be answered."""
    del keep_paragraphs  # prompts are taken as they are
    if not isinstance(row, Mapping):
        raise RowError(f"expected an object with the key prompt, got {_describe(row)}")
    key = "prompt" if row.get("prompt") is not None else "prompt_or_input_text"
    prompt = _grounded(_prompt(_field(row, key, str, list), key), row)
    responses: tuple[str, ...] = ()
    for name in ("responses", "references"):
        if row.get(name) is not None:
            responses = (row[name],) if isinstance(row[name], str) else _texts(row, name)
    if row.get("response") is not None:
        responses = (_field(row, "response", str),)
    rewards = _rewards(row, "rewards", len(responses))
    if rewards is None and len(responses) == 1:
        rewards = _single_reward(row)
    preferred = _index(row, "preferred", len(responses)) if responses else 0
    if preferred is None:
        preferred = max(range(len(responses)), key=rewards.__getitem__) if rewards else 0
    return Example(prompt, responses, rewards, preferred, {**_meta(row), **meta})


FORMATS: dict[RowFormat, Callable[[object, Mapping[str, str], bool], Example]] = {
    "pro": read_pro,
    "hh_rlhf": read_hh_rlhf,
    "common": read_common,
}


def split_dialogue(text: str, keep_paragraphs: bool = False) -> Prompt:
    r"""Split an hh-rlhf dialogue into turns, as PRO does.

    The text is cut at blank lines; consecutive paragraphs of one role are joined by a newline.
    A paragraph that begins with no role is dropped, or with `keep_paragraphs` stays in its turn.

    Example:
        >>> text = "\n\nHuman: Hi\n\nAssistant: Hello\n\nmore"
        >>> split_dialogue(text)
        (Turn(role='user', text='Hi'), Turn(role='assistant', text='Hello'))
        >>> split_dialogue(text, keep_paragraphs=True)[1].text
        'Hello\n\nmore'
    """
    turns: list[Turn] = []
    for paragraph in text.split("\n\n"):
        head = next(((mark, role) for mark, role in _HH_ROLES if paragraph.startswith(mark)), None)
        if head is not None:
            mark, role = head
            words = paragraph[len(mark) :].strip()
            if turns and turns[-1].role == role:
                turns[-1] = Turn(role, turns[-1].text + "\n" + words)
            else:
                turns.append(Turn(role, words))
        elif keep_paragraphs and turns:
            turns[-1] = Turn(turns[-1].role, turns[-1].text + "\n\n" + paragraph)
    return tuple(Turn(turn.role, turn.text.strip()) for turn in turns)


def _dialogue(row: object, key: str, keep_paragraphs: bool) -> Prompt:
    """Return a whole dialogue of at least one prompt turn and the assistant's answer."""
    value = _field(row, key, str, list)
    if isinstance(value, str):
        turns = split_dialogue(value, keep_paragraphs)
    else:
        turns = _messages(value, key)
    if len(turns) < 2 or turns[-1].role != "assistant":
        raise RowError(
            f"expected `{key}` to be a dialogue of Human and Assistant that ends with Assistant, "
            f"got {_describe(value)}"
        )
    return turns


def _answer(row: object, key: str, prompt: Prompt) -> str:
    """Return one answer to `prompt`: a text, or the last of messages that may repeat the prompt."""
    value = _field(row, key, str, list)
    if isinstance(value, str):
        return value
    turns = _messages(value, key)
    if not turns or turns[-1].role != "assistant" or turns[:-1] not in ((), prompt):
        raise RowError(
            f"expected `{key}` to hold one assistant message, after the prompt's or alone, got "
            f"{_describe(value)}"
        )
    return turns[-1].text


def _pro_turns(prefix: object) -> Prompt:
    """Return the turns of one PRO prompt."""
    if not isinstance(prefix, list) or len(prefix) < 2 or prefix[-1] != "<|assistant|>":
        raise RowError(
            "expected `prefix` to hold lists of <|prompter|>… and <|assistant|>… that end with the "
            f"bare <|assistant|>, got {_describe(prefix)}"
        )
    turns: list[Turn] = []
    for text in prefix[:-1]:
        for mark, role in _PRO_ROLES:
            if isinstance(text, str) and text.startswith(mark):
                turns.append(Turn(role, text[len(mark) :]))
                break
        else:
            raise RowError(f"expected <|prompter|>… or <|assistant|>…, got {_describe(text)}")
    return tuple(turns)


def _prompt(value: object, key: str) -> Prompt:
    """Return a prompt given as text or as messages."""
    if isinstance(value, str) and value.strip():
        return (Turn("user", value),)
    if isinstance(value, list) and value:
        return _messages(value, key)
    raise RowError(f"expected `{key}` to be text or a list of messages, got {_describe(value)}")


def _messages(value: Sequence[object], key: str) -> Prompt:
    """Return the turns of a list of messages."""
    turns = []
    for position, message in enumerate(value):
        fields = message if isinstance(message, Mapping) else {}
        role, content = _ROLE_NAMES.get(str(fields.get("role"))), fields.get("content")
        if role is None or not isinstance(content, str) or (role == "system" and position):
            raise RowError(
                f"expected `{key}` to hold messages with role user, assistant or (first) system "
                f"and content, got {_describe(message)}"
            )
        turns.append(Turn(role, content))
    return tuple(turns)


def _field(row: object, key: str, *kinds: type[_T]) -> _T:
    """Return a field of one of the kinds asked for."""
    value = row.get(key) if isinstance(row, Mapping) else None
    if isinstance(value, kinds):
        return value
    came = _describe(value if isinstance(row, Mapping) else row)
    if isinstance(row, Mapping) and key not in row:
        came = f"no such key beside {', '.join(map(str, row)) or '(none)'}"
    raise RowError(f"expected `{key}` of type {' or '.join(k.__name__ for k in kinds)}, got {came}")


def _texts(row: object, key: str) -> tuple[str, ...]:
    """Return a list of texts."""
    values = _field(row, key, list)
    for value in values:
        if not isinstance(value, str):
            raise RowError(f"expected `{key}` to hold texts, got {_describe(value)}")
    return tuple(values)


def _rewards(row: object, key: str, count: int) -> tuple[float, ...] | None:
    """Return the stored scores, one a response, or None if there are none."""
    if not isinstance(row, Mapping) or row.get(key) is None:
        return None
    values = _field(row, key, list)
    if len(values) != count:
        raise RowError(f"expected `{key}` to hold {count} numbers, got {len(values)}")
    return tuple(_number(value, key) for value in values)


def _number(value: object, key: str) -> float:
    """Return a finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):  # type: ignore[arg-type]  # told just before
        raise RowError(f"expected a finite number in `{key}`, got {_describe(value)}")
    return float(value)  # type: ignore[arg-type]  # told just before


def _single_reward(row: Mapping[str, object]) -> tuple[float] | None:
    """Return the stored score of a row's one response, or None if there is none."""
    if row.get("reward") is not None:
        return (_number(row["reward"], "reward"),)
    if isinstance(components := row.get("reward_components"), Mapping):
        return (_number(components.get("final_reward"), "reward_components.final_reward"),)
    return None


def _grounded(prompt: Prompt, row: Mapping[str, object]) -> Prompt:
    """Return the prompt with the row's knowledge, if it has any, as its system turn."""
    if row.get("knowledge") is None:
        return prompt
    if prompt[0].role == "system":
        raise RowError("expected a prompt without a system turn beside `knowledge`, got both")
    return with_knowledge(_field(row, "knowledge", str), prompt)


def _index(row: object, key: str, count: int) -> int | None:
    """Return an index into the responses, or None if the row names none."""
    value = row.get(key) if isinstance(row, Mapping) else None
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
        raise RowError(f"expected `{key}` from 0 to {count - 1}, got {_describe(value)}")
    return value


def _meta(row: object) -> dict[str, str]:
    """Return where a row says it comes from."""
    for key in ("meta", "meta_data"):
        if isinstance(row, Mapping) and isinstance(found := row.get(key), Mapping):
            return {str(name): str(value) for name, value in found.items()}
    return {}


def _describe(value: object) -> str:
    """Return a short form of what came."""
    if isinstance(value, Mapping):
        return f"an object with the keys {', '.join(map(str, value)) or '(none)'}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
