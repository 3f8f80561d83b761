"""The ranges of numbers in settings, and the message about one that is out of its range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llm_agents.errors import UserError

_RANGES: dict[str, Callable[[float], bool]] = {
    "from 0 to 1": lambda value: 0 <= value <= 1,
    "above 0 and below 1": lambda value: 0 < value < 1,
    "from 0": lambda value: value >= 0,
    "above 0": lambda value: value > 0,
    "of at least 1": lambda value: value >= 1,
}
_OR_NULL = ", or null"


def expect_range(settings: object, group: str, expected: str, *names: str) -> None:
    """Refuse a setting that is out of its range.

    Args:
        settings: Has an attribute of each name.
        group: What a recipe calls the settings.
        expected: One of ``from 0 to 1``, ``above 0 and below 1``, ``from 0``, ``above 0`` and
            ``of at least 1``; with ``, or null`` behind it, None is allowed too.
        names: The settings.

    Raises:
        UserError: One is.
    """
    holds = _RANGES[expected.removesuffix(_OR_NULL)]
    for name in names:
        value: Any = getattr(settings, name)
        is_allowed = expected.endswith(_OR_NULL) if value is None else holds(value)
        if not is_allowed:
            raise UserError(f"expected `{group}.{name}` {expected}, got {value!r}")
