"""Choices as token ids, and what scoring them gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from llm_agents.functional.action_scores import list_log_probs


@dataclass(frozen=True)
class EncodedChoice:
    """A prompt and its actions as token ids that are never encoded again.

    Args:
        prompt_ids: What all the choice's sequences begin with, begin token included.
        action_ids: The rest of each sequence, at least one token each.
        num_words: Words of each action's text, split at whitespace.
    """

    prompt_ids: tuple[int, ...]
    action_ids: tuple[tuple[int, ...], ...]
    num_words: tuple[int, ...]


@dataclass(frozen=True)
class NodeStates:
    """Hidden states at the inner nodes of choices' action tries; node 0 is the prompt's end.

    Args:
        states: ``[N, H]`` after the final norm, the nodes of all choices one after another.
        logits: ``[N, V]`` only of models whose logits are not the plain output head's; else None.
        counts: Number of nodes of each choice.
    """

    states: Tensor
    logits: Tensor | None
    counts: tuple[int, ...]


class ChosenTokens(NamedTuple):
    """The token tensors of one action a choice.

    Args:
        log_probs: ``[B, L]`` float32 over the whole vocabulary, 0 under a False mask.
        branch_log_probs: ``[B, L]`` float32 over the tokens that continue an offered action.
        mask: ``[B, L]`` bool, True = token.
        entropies: ``[B, L]`` float32 over the whole vocabulary; None if not asked for.
        branch_entropies: ``[B, L]`` float32 over the offered tokens; None if not asked for.
    """

    log_probs: Tensor
    branch_log_probs: Tensor
    mask: Tensor
    entropies: Tensor | None
    branch_entropies: Tensor | None


@dataclass(frozen=True)
class ActionScores:
    """Scores of B choices with up to A actions of up to L tokens.

    Args:
        scores: ``[B, A]`` float32 normalized log-probs; −∞ where there is no action.
        mask: ``[B, A]`` bool, True = action.
        token_ids: ``[B, A, L]`` int64, 0 under a False mask.
        token_mask: ``[B, A, L]`` bool, True = token.
        token_log_probs: ``[B, A, L]`` float32 over the whole vocabulary, 0 under a False mask.
        branch_log_probs: ``[B, A, L]`` float32, each token's log-prob among those tokens that
            continue an offered action there; 0 where there is but one.
        token_entropies: ``[B, A, L]`` float32, entropy over the whole vocabulary of what each token
            was drawn from; None if not asked for.
        branch_entropies: ``[B, A, L]`` float32, the same over the offered tokens; None if not asked
            for.
        is_nested: ``[B]`` bool, True = an action is the beginning of another, so that
            `branch_log_probs` are no policy over these actions: the walk has no place to stop.
        prompt_states: ``[B, H]`` hidden state at each prompt's end, adapters included; of an
            encoder-decoder the decoder's, before the action's first token.
    """

    scores: Tensor
    mask: Tensor
    token_ids: Tensor
    token_mask: Tensor
    token_log_probs: Tensor
    branch_log_probs: Tensor
    token_entropies: Tensor | None
    branch_entropies: Tensor | None
    is_nested: Tensor
    prompt_states: Tensor

    def log_probs(self) -> Tensor:
        """Return ``[B, A]``: the log-prob of each action among those offered."""
        return list_log_probs(self.scores, self.mask)

    def chosen(self, index: Tensor) -> ChosenTokens:
        """Return the token tensors of the action `index` (``[B]`` int64) of each choice."""
        rows = torch.arange(len(index), device=index.device)
        columns = [self.token_log_probs, self.branch_log_probs, self.token_mask]
        optional = [self.token_entropies, self.branch_entropies]
        return ChosenTokens(
            *(column[rows, index] for column in columns),
            *(None if column is None else column[rows, index] for column in optional),
        )


@dataclass(frozen=True)
class BaseFeatures:
    """Hidden states of N choices under the frozen base model alone.

    Args:
        prompt_states: ``[N, H]`` at each prompt's end, without gradient.
        nodes: ``[M, H]`` at the nodes of the distinct choices' tries.
        places: ``[N, A, L]`` int64, the node before each token; 0 under a False mask.
        token_mask: ``[N, A, L]`` bool, True = token.
    """

    prompt_states: Tensor
    nodes: Tensor
    places: Tensor
    token_mask: Tensor

    def token_states(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states before each token of the chosen actions.

        Args:
            index: ``[N]`` int64, the action of each choice.

        Returns:
            ``[N, L, H]`` states, the first one the prompt's end, zero under a False mask, and
            ``[N, L]`` bool mask, True = token.
        """
        rows = torch.arange(len(index), device=index.device)
        mask = self.token_mask[rows, index]
        return self.nodes[self.places[rows, index]] * mask[..., None], mask
