"""Numbers for words, given in the order in which the words are first met."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llm_agents.errors import UserError

WORDS = r"[a-z]+"
"""Runs of letters: what a mission consists of."""

WORDS_AND_MARKS = r"[^\W\d_]+|\d+|[^\w\s]"
"""Words in any script, numbers and marks: what a prompt consists of."""

NOTHING = 0
"""The number of padding, and of words that a finished vocabulary doesn't know."""


class WordVocabulary:
    """Turns text into numbers, and learns words on the way until it is frozen.

    Args:
        size: Numbers are below this; 0 is nobody's.
        pattern: What counts as a word, of text in small letters.

    Attributes:
        is_frozen: Whether new words get 0 rather than a number of their own.

    Example:
        >>> words = WordVocabulary(10)
        >>> words.encode("go to the red ball"), words.encode("the ball")
        ((1, 2, 3, 4, 5), (3, 5))
    """

    def __init__(self, size: int, pattern: str = WORDS) -> None:
        if size < 2:
            raise ValueError(f"expected `size` of at least 2, got {size}")
        self.size, self.pattern = size, pattern
        self.is_frozen = False
        self._regex = re.compile(pattern)
        self._numbers: dict[str, int] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the numbers of a text's words.

        Raises:
            UserError: There are more words than numbers.
        """
        numbers = self._numbers
        found = []
        for word in self._regex.findall(text.lower()):
            number = numbers.get(word)
            if number is None:
                number = NOTHING if self.is_frozen else self._learn(word)
            found.append(number)
        return tuple(found)

    def _learn(self, word: str) -> int:
        """Give a new word its number."""
        number = len(self._numbers) + 1
        if number >= self.size:
            raise UserError(
                f"the world speaks more than {self.size - 1} different words, {word!r} is one too "
                "many: take a larger vocabulary"
            )
        self._numbers[word] = number
        return number

    @property
    def words(self) -> tuple[str, ...]:
        """Return the known words in the order of their numbers, from 1."""
        return tuple(self._numbers)

    def restore(self, words: Sequence[str]) -> None:
        """Know exactly these words from now on.

        Raises:
            UserError: They are more than there are numbers, or one comes twice.
        """
        if len(words) >= self.size or len(set(words)) < len(words):
            raise UserError(
                f"expected at most {self.size - 1} different words, got {len(words)}: the weights "
                "are of a network with another vocabulary"
            )
        self._numbers = {word: number for number, word in enumerate(words, start=1)}
