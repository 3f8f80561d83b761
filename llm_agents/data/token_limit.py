"""Counting tokens while data are prepared, where a rule is about tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from llm_agents.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TokenLimit:
    """A limit on the tokens of some texts together.

    Args:
        max_tokens: Most tokens.
        tokenizer: Whose tokens: a base model by alias, folder or Hub id.

    Raises:
        UserError: The limit is below 1.
    """

    max_tokens: int
    tokenizer: str = "smollm2-135m-instruct"

    def __post_init__(self) -> None:
        """Check the range."""
        if self.max_tokens < 1:
            raise UserError(f"expected `max_tokens` of at least 1, got {self.max_tokens}")

    def count(self, *texts: str) -> int:
        """Return the tokens of texts that each end in an end token.

        Raises:
            UserError: There is no such tokenizer.
        """
        ids = self._tokenizer(list(texts), add_special_tokens=False, verbose=False).input_ids
        return sum(len(row) + 1 for row in ids)

    def allows(self, *texts: str) -> bool:
        """Return whether texts that each end in an end token keep to the limit."""
        # A token has at least one byte (but for a blank put first): short texts need no counting.
        if sum(len(text.encode()) + 2 for text in texts) <= self.max_tokens:
            return True
        return self.count(*texts) <= self.max_tokens

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        """Load the tokenizer, once."""
        from transformers import AutoTokenizer

        from llm_agents.policies.bundled import resolve_base

        found = resolve_base(self.tokenizer)
        where = {} if found.revision is None else {"revision": found.revision}
        try:
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                found.source, **where
            )
        except (OSError, ValueError) as error:
            raise UserError(
                f"the tokenizer of {self.tokenizer!r} can't be read: {error}"
            ) from error
        return tokenizer
