"""A language model with a reward head as the reward of game messages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.policies.heads import Pooling, RewardHead, save_head
from llm_agents.policies.language_policy import LanguagePolicy
from llm_agents.policies.message_scorer import MessageScorer, check_messages
from llm_agents.policies.modes import evaluation
from llm_agents.policies.response_states import response_states
from llm_agents.types import MessageObservations, TokenBatch, Turn

HEAD_NAME = "reward_head"

_PROMPT = "The game of NetHack tells its player:"


class LanguageMessageScorer(MessageScorer):
    """A `LanguagePolicy` that reads a message as an answer to a fixed prompt, with a reward head.

    What a frozen trunk says of a message is computed once and kept, a few kilobytes a message.

    Args:
        policy: The trunk; with an adapter it trains, with ``trainable: false`` the head does alone.
        prompt: What stands before every message.
        pooling: What the head reads, see `RewardHead`.
        width: Hidden units of the head; None for a linear one.
        dropout: Of the head.
        max_tokens: A longer message keeps its first tokens.
        batch_size: Messages a pass of the language model.
    """

    def __init__(
        self,
        policy: LanguagePolicy,
        prompt: str = _PROMPT,
        pooling: Pooling = "summary",
        width: int | None = None,
        dropout: float = 0.0,
        max_tokens: int = 96,
        batch_size: int = 32,
    ) -> None:
        super().__init__()
        if max_tokens < 1 or batch_size < 1:
            raise UserError(
                f"expected `max_tokens` and `batch_size` of at least 1, got {max_tokens} and "
                f"{batch_size}"
            )
        self.policy = policy
        self.prompt, self.max_tokens, self.batch_size = prompt, max_tokens, batch_size
        self.head = RewardHead(policy.hidden_size, dropout, pooling, width)
        self.hidden_size = self.head.num_features
        self.base, self.revision = policy.hub_id or policy.base, policy.revision
        self._prompt_ids = policy.encode_prompt((Turn("user", prompt),), template="plain")
        self._places: dict[bytes, int] = {}
        self._known = torch.zeros(0, self.hidden_size)

    @property
    def is_frozen(self) -> bool:
        """Return whether nothing of the trunk trains."""
        return not any(parameter.requires_grad for parameter in self.policy.parameters())

    def prepare(self, batches: Iterable[MessageObservations]) -> None:
        """Compute what a frozen trunk says of the training messages; give the head its scale."""
        if self.is_frozen:
            with evaluation(self), torch.no_grad():
                self.head.standardize(torch.cat([self.hidden_states(batch) for batch in batches]))

    def hidden_states(self, observations: MessageObservations) -> Tensor:
        """Return ``[M, H]`` float32: what the head reads of each message."""
        check_messages(observations.message)
        if not self.is_frozen:
            return self._features(observations.message)
        names = [_digest(row) for row in observations.message.cpu().numpy()]
        new = list(dict.fromkeys(n for n in names if n not in self._places))
        if new:
            first = {name: row for row, name in reversed(list(enumerate(names)))}
            rows = torch.tensor([first[name] for name in new], device=observations.message.device)
            with torch.no_grad():
                found = self._features(observations.message[rows])
            self._known = torch.cat((self._known.to(found.device), found))
            self._places |= {name: len(self._places) + i for i, name in enumerate(new)}
        places = torch.tensor([self._places[name] for name in names])
        self._known = self._known.to(self.device)
        return self._known[places.to(self.device)]

    def forward(self, observations: MessageObservations) -> Tensor:
        """Return ``[M]`` raw rewards."""
        return self.head.of_features(self.hidden_states(observations))

    def describe(self) -> dict[str, object]:
        """Return the class, the base and the arguments of the constructor."""
        return {
            "class": type(self).__name__,
            "base": self.base,
            "revision": self.revision,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "pooling": self.head.pooling,
            "has_adapter": not self.is_frozen,
        }

    def save(self, folder: Path) -> None:
        """Write the head, and the adapter if the trunk trains."""
        if not self.is_frozen:
            self.policy.save_adapter(folder)
        save_head(self.head, folder, HEAD_NAME)

    def _features(self, messages: Tensor) -> Tensor:
        """Return ``[M, H]`` from ``[M, 256]`` bytes, computed by the language model."""
        texts = [_text(row.tobytes()) for row in messages.cpu().numpy()]
        ids = [
            self.policy.encode_response(text, template="plain", max_tokens=self.max_tokens)
            for text in texts
        ]
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]), reverse=True)
        parts = [torch.zeros(0, self.hidden_size, device=self.device)]
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            batch = self._batch([ids[row] for row in chosen]).to(self.device)
            parts.append(self.head.features(*response_states(self.policy, batch)).float())
        back = torch.empty(len(order), dtype=torch.int64)
        back[torch.tensor(order, dtype=torch.int64)] = torch.arange(len(order))
        return torch.cat(parts)[back.to(self.device)]

    def _batch(self, ids: Sequence[Sequence[int]]) -> TokenBatch:
        """Return the prompt with each of some responses."""
        count, length = len(ids), max(map(len, ids))
        prompt = torch.tensor([self._prompt_ids] * count)
        responses = torch.zeros(count, length, dtype=torch.int64)
        mask = torch.zeros(count, length, dtype=torch.bool)
        for row, tokens in enumerate(ids):
            responses[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = True
        rows = torch.arange(count)
        return TokenBatch(prompt, torch.ones_like(prompt, dtype=torch.bool), responses, mask, rows)


def _digest(message: object) -> bytes:
    """Return what identifies a message's bytes."""
    return hashlib.blake2b(memoryview(message), digest_size=16).digest()  # type: ignore[arg-type]


def _text(message: bytes) -> str:
    """Return a message's text: zeros left out, every other byte the character of its code."""
    return message.replace(b"\0", b"").decode("latin-1")
