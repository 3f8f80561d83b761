"""Fields of a row, checked as they are read: what is null is absent, what nobody reads is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Literal, TypeVar

from llm_agents.types import Prompt, Turn

_T = TypeVar("_T")
_Role = Literal["system", "user", "assistant"]

TEXT_KEYS = frozenset(
    {
        *("prompt", "prompt_or_input_text", "instruction", "input", "output", "knowledge"),
        *("response", "completion", "chosen", "rejected"),
    }
)
_ROLE_NAMES: dict[str, _Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
}


class RowError(ValueError):
    """A row is not what its layout asks for; says what was expected and what came."""


class UnusableRowError(ValueError):
    """A row is well-formed, but can't be learnt from; the message is the reason to count."""


class Row:
    """A row's fields by name. Nulls are left out, and so is NaN where a text is meant.

    Args:
        content: The row; what pyarrow, pandas or torch hand over as arrays counts as lists.

    Raises:
        RowError: It is no object.
    """

    def __init__(self, content: object) -> None:
        if not isinstance(content, Mapping):
            raise RowError(f"expected {LAYOUT_KEYS}, got {describe(content)}")
        given = {str(name): _plain(value) for name, value in content.items()}
        self.fields = {name: value for name, value in given.items() if not _absent(name, value)}
        self.read: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        """Return whether the row has a value under `key`."""
        return key in self.fields

    @property
    def unread(self) -> list[str]:
        """Return the names of the values that nobody has asked for."""
        return [name for name in self.fields if name not in self.read]

    @property
    def read_keys(self) -> list[str]:
        """Return the names of the values that were asked for, in the row's order."""
        return [name for name in self.fields if name in self.read]

    def get(self, key: str) -> object:
        """Return a value, or None."""
        self.read[key] = None
        return self.fields.get(key)

    def take(self, key: str, *kinds: type[_T]) -> _T:
        """Return a value of one of the kinds asked for."""
        value = self.get(key)
        if isinstance(value, kinds):
            return value
        came = describe(value)
        if key not in self:
            came = f"no such key beside {', '.join(self.fields) or '(none)'}"
        raise RowError(
            f"expected `{key}` of type {' or '.join(k.__name__ for k in kinds)}, got {came}"
        )

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts."""
        values = self.take(key, list)
        for value in values:
            if not isinstance(value, str):
                raise RowError(f"expected `{key}` to hold texts, got {describe(value)}")
        return tuple(values)

    def numbers(self, key: str, count: int) -> tuple[float, ...] | None:
        """Return `count` numbers, or None if there are none or all of them are null."""
        if key not in self:
            return None
        values = self.take(key, list)
        if values and all(value is None for value in values):
            return None
        if len(values) != count:
            raise RowError(f"expected `{key}` to hold {count} numbers, got {len(values)}")
        return tuple(number(value, key) for value in values)

    def number(self, key: str) -> float | None:
        """Return a number, or None if there is none."""
        value = self.get(key)
        return None if value is None else number(value, key)

    def index(self, key: str, count: int) -> int | None:
        """Return an index into `count` responses, or None if the row names none."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
            raise RowError(f"expected `{key}` from 0 to {count - 1}, got {describe(value)}")
        return value

    def truth(self, key: str) -> bool | None:
        """Return a yes or no, which a CSV has as text, or None if there is none."""
        value = self.get(key)
        if value is None:
            return None
        found = _TRUTHS.get(str(value).strip().lower())
        if found is None:
            raise RowError(f"expected `{key}` to be true or false, got {describe(value)}")
        return found

    def meta(self) -> dict[str, str]:
        """Return where the row says that it comes from."""
        for key in ("meta", "meta_data"):
            if isinstance(self.fields.get(key), Mapping):
                found = self.take(key, dict)
                return {str(name): str(value) for name, value in found.items()}
        return {}


_TRUTHS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
LAYOUT_KEYS = (
    "an object with the keys prompt and response, responses or completion; chosen and rejected; "
    "messages; or prefix and suffix"
)


def messages(value: object, key: str) -> Prompt:
    """Return the turns of a list of messages."""
    if not isinstance(value, list):
        raise RowError(f"expected `{key}` to be a list of messages, got {describe(value)}")
    turns = []
    for position, message in enumerate(value):
        fields = message if isinstance(message, Mapping) else {}
        role = _ROLE_NAMES.get(str(fields.get("role", fields.get("from"))))
        content = _content(fields.get("content", fields.get("value")))
        if role is None or content is None or (role == "system" and position):
            raise RowError(
                f"expected `{key}` to hold messages with role user, assistant or (first) system "
                f"and content, got {describe(message)}"
            )
        turns.append(Turn(role, content))
    return tuple(turns)


def _content(value: object) -> str | None:
    """Return a message's text, which may be given in parts; None if it is something else."""
    if isinstance(value, list) and value:
        parts = [p.get("text") if isinstance(p, Mapping) else None for p in value]
        return "".join(map(str, parts)) if all(isinstance(p, str) for p in parts) else None
    return value if isinstance(value, str) else None


def number(value: object, key: str) -> float:
    """Return a finite number."""
    try:
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        found = float(value) if is_number else math.nan  # type: ignore[arg-type]  # told before
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise RowError(f"expected a finite number in `{key}`, got {describe(value)}")
    return found


def require_unicode(value: object) -> None:
    """Refuse text that can't be written out: half of a surrogate pair."""
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as fault:
                raise RowError(
                    f"expected valid Unicode, got {fault.object[fault.start]!a} alone in "
                    f"{value[max(0, fault.start - 20) : fault.end + 20]!a}"
                ) from None
    elif isinstance(value, Mapping):
        for name, content in value.items():
            require_unicode(name)
            require_unicode(content)
    elif isinstance(value, list | tuple):
        for content in value:
            require_unicode(content)


def describe(value: object) -> str:
    """Return a short form of what came."""
    if isinstance(value, Mapping):
        return f"an object with the keys {', '.join(map(str, value)) or '(none)'}"
    try:
        text = repr(value)
    except (ValueError, RecursionError) as fault:  # thousands of digits, or of brackets
        return f"{type(value).__name__} ({fault})"
    return text if len(text) <= 80 else text[:77] + "..."


def _plain(value: object) -> object:
    """Return arrays and tuples as lists, numbers of other libraries as Python's."""
    if isinstance(value, tuple):
        return list(value)
    as_list = getattr(value, "tolist", None)
    return as_list() if callable(as_list) else value


def _absent(name: str, value: object) -> bool:
    """Return whether a value stands for none."""
    return value is None or (name in TEXT_KEYS and isinstance(value, float) and math.isnan(value))
