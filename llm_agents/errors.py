"""Faults that a user can cure: printed without a traceback by the command."""

from __future__ import annotations


class UserError(Exception):
    """A fault in what the user gave: says what was expected, what came, and the cure."""


class MissingExtraError(UserError):
    """A package that an extra brings is not installed.

    Args:
        package: Name of the package that is missing.
        extra: Extra of this distribution that brings it.
        purpose: What it is needed for, as the end of "is needed …".
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"the package `{package}` is needed {purpose} and is not installed: "
            f"pip install 'llm-agents[{extra}]'"
        )
        self.package = package
        self.extra = extra
