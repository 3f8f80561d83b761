"""DRRN's network: the value of an action's text in the situation that a prompt describes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from llm_agents.errors import UserError
from llm_agents.policies.word_vocabulary import WORDS_AND_MARKS, WordVocabulary
from llm_agents.types import Choice

Text = bytes
"""The numbers of a text's words, two bytes each: millions of prompts are to be remembered."""

_MOST_WORDS = 2**16


class DRRNetwork(nn.Module):
    """A reader of prompts, a reader of actions, and a small network on what both remember.

        Q(s, a) = w · relu(W · [GRU(s); GRU′(a)] + b) + c

    The words' numbers are given as words are first met; their embedding is shared by both readers.

    Args:
        vocabulary_size: Numbers that words may have.
        embedding_size: Of a word.
        hidden_size: Of both readers and of the hidden layer.

    References:
        He et al., ACL 2016 (arXiv 1511.04636); GLAM's comparison, with 1,255,169 parameters.
        Differs: words and marks as tokens, where GLAM's release has sub-words of a tokenizer that
        was trained on text games.
    """

    def __init__(
        self, vocabulary_size: int = 8000, embedding_size: int = 128, hidden_size: int = 128
    ) -> None:
        if not 2 <= vocabulary_size <= _MOST_WORDS:
            raise UserError(
                f"expected `vocabulary_size` from 2 to {_MOST_WORDS}, got {vocabulary_size}"
            )
        super().__init__()
        self.config = {
            "vocabulary_size": vocabulary_size,
            "embedding_size": embedding_size,
            "hidden_size": hidden_size,
        }
        self.vocabulary = WordVocabulary(vocabulary_size, WORDS_AND_MARKS)
        self.embedding = nn.Embedding(vocabulary_size, embedding_size)
        self.state_reader = nn.GRU(embedding_size, hidden_size, batch_first=True)
        self.action_reader = nn.GRU(embedding_size, hidden_size, batch_first=True)
        self.hidden = nn.Linear(2 * hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, 1)

    def encode(self, choice: Choice) -> tuple[Text, tuple[Text, ...]]:
        """Return the numbers of a choice's prompt and of each action."""
        return self._encode(choice.prompt), tuple(map(self._encode, choice.actions))

    def _encode(self, text: str) -> Text:
        """Return the numbers of a text's words."""
        return array("H", self.vocabulary.encode(text)).tobytes()

    def forward(self, states: Sequence[Text], actions: Sequence[Sequence[Text]]) -> Tensor:
        """Return the value of every action of each state.

        Equal states, and equal actions, are read once.

        Args:
            states: B prompts, as `encode` gives them.
            actions: At least one action of each.

        Returns:
            ``[B, A]`` float32; −∞ where there is no action.
        """
        if not all(actions):
            raise ValueError("expected at least one action in every choice, got an empty list")
        device = self.output.weight.device
        read, of_state = self._read(self.state_reader, states)
        flat = [action for own in actions for action in own]
        understood, of_action = self._read(self.action_reader, flat)
        counts = torch.tensor([len(own) for own in actions], device=device)
        rows = torch.arange(len(states), device=device).repeat_interleave(counts)
        both = torch.cat([read[of_state[rows]], understood[of_action]], 1)
        values: Tensor = self.output(self.hidden(both).relu())[:, 0]
        places = torch.cat([torch.arange(len(own), device=device) for own in actions])
        table = values.new_full((len(states), int(counts.max())), -torch.inf)
        return table.index_put((rows, places), values)

    def _read(self, reader: nn.GRU, texts: Sequence[Text]) -> tuple[Tensor, Tensor]:
        """Return ``[D, H]`` last states of the distinct texts, and ``[N]``: which is whose."""
        numbers: dict[Text, int] = {}
        of_text = [numbers.setdefault(text, len(numbers)) for text in texts]
        lengths = [max(1, len(text) // 2) for text in numbers]
        ids = np.zeros((len(numbers), max(lengths)), dtype=np.int64)
        for row, text in enumerate(numbers):
            ids[row, : len(text) // 2] = np.frombuffer(text, dtype=np.uint16)
        device = self.output.weight.device
        # Padding is read, too, but after a text's last word, whose state is what counts. (Packed
        # sequences would leave it out; on a CPU a whole update takes four times as long with them.)
        states: Tensor = reader(self.embedding(torch.from_numpy(ids).to(device)))[0]
        rows = torch.arange(len(lengths), device=device)
        last = states[rows, torch.tensor(lengths, device=device) - 1]
        return last, torch.tensor(of_text, device=device)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the words: without them the weights mean nothing."""
        return {"words": list(self.vocabulary.words)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take the words that belong to the weights."""
        self.vocabulary.restore(state["words"])
