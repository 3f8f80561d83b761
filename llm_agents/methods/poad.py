"""POAD: PPO whose units are the tokens of actions (Wen et al., NeurIPS 2024), with NTPO and ArCHer.

Each token of an action has a value, an advantage and an importance ratio of its own. The reward
comes after an action's last token; from token to token inside an action nothing is discounted, so
that the values of tokens are consistent with those of actions, and credit lands on the tokens that
make the difference. NTPO is the same with the discount of actions between tokens too: a flat
process of tokens, which punishes long actions. ArCHer bootstraps from the last token of the next
action.

Equation → function (``llm_agents.functional``):

- A(t, j), backed up over tokens inside actions → `token_level_gae`; ArCHer → `archer_next_values`
- π(w_j | prompt, w_<j) among the tokens that continue an offered action → `branch_log_probs`
- what actions are drawn from, otherwise → `list_log_probs`; its tokens → `list_token_log_probs`

Differs from the authors' code: with ``behaviour: decomposed``, the default, actions are drawn from
TWOSOME's softmax over the list, and the ratio of a token is that of the same distribution; theirs
(``list``) draws so too, but takes the ratio of token probabilities over the whole vocabulary. The
trace inside an action is 1 by default, which gives the first token the action's own advantage;
theirs is λ, in the first release γ·λ. Masks come from the actions' lengths, so that an advantage of
exactly 0 counts and old ones never remain.

    lightning run recipes/poad_virtualhome_food_preparation.yaml
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.functional.action_scores import (
    Normalization,
    branch_entropies,
    list_token_log_probs,
)
from llm_agents.functional.gae import (
    Advantages,
    archer_next_values,
    token_level_gae,
)
from llm_agents.methods.online_ppo import OnlinePPO, expect_frozen_base
from llm_agents.methods.ppo_losses import Units
from llm_agents.methods.ppo_settings import TokenPPOConfig
from llm_agents.methods.whole_actions import action_discounts
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.action_types import ActionScores
from llm_agents.types import Choice, Rollout

Behaviour = Literal["decomposed", "trie", "list"]
Credit = Literal["poad", "ntpo", "archer"]
IntraTrace = Literal["one", "lambda", "gamma_lambda"]
Tokens = Literal["all", "branching"]


class POAD(OnlinePPO):
    """PPO on the tokens of actions, each with an advantage of its own.

    Args:
        policy: What acts; its adapter trains, and the critic reads the frozen base.
        normalization: Length that an action's log-prob is divided by in the softmax.
        behaviour: What actions are drawn from. ``decomposed``: the softmax over the offered
            actions, whose chain rule gives the tokens' probabilities. ``trie``: token by token, the
            model's own probabilities among those that continue an offered action. ``list``: that
            softmax, with the ratio of token probabilities over the whole vocabulary, as released.
        credit: ``poad`` discounts nothing inside an action, ``ntpo`` tokens like actions,
            ``archer`` too, and bootstraps from the last token of the next action.
        intra_action_gamma: Discount from token to token, if it is not to follow from `credit`.
        intra_trace: Trace from token to token: 1, λ, or γ·λ.
        tokens: Which tokens are units: ``all``, or only the first and those with an alternative
            among the offered actions (for ``behaviour: trie``: the rest have probability 1).
        ppo: The numbers of the update.
        critic_widths: Hidden widths of the critic.
    """

    default_ppo = TokenPPOConfig

    def __init__(
        self,
        policy: LanguagePolicy,
        normalization: Normalization = "word",
        behaviour: Behaviour = "decomposed",
        credit: Credit = "poad",
        intra_action_gamma: float | None = None,
        intra_trace: IntraTrace = "one",
        tokens: Tokens = "branching",
        ppo: TokenPPOConfig | None = None,
        critic_widths: tuple[int, ...] = (1024, 512),
    ) -> None:
        expect_frozen_base(policy)
        super().__init__(policy, normalization, ppo, critic_widths)
        if intra_action_gamma is not None and not 0 <= intra_action_gamma <= 1:
            raise UserError(
                f"expected `intra_action_gamma` from 0 to 1, or null, got {intra_action_gamma}"
            )
        if tokens == "branching" and behaviour == "list":
            raise UserError(
                "`tokens: branching` leaves out tokens of probability 1, and over the whole "
                "vocabulary none has it: set `behaviour: decomposed`, or `tokens: all`"
            )
        self.behaviour, self.credit = behaviour, credit
        self.asks_entropies = behaviour == "list"  # those over the whole vocabulary cost
        self.intra_trace, self.tokens = intra_trace, tokens
        default = 1.0 if credit == "poad" else self.ppo.gamma
        self.intra_action_gamma = default if intra_action_gamma is None else intra_action_gamma
        self.save_settings(
            normalization=normalization,
            behaviour=behaviour,
            credit=credit,
            intra_action_gamma=self.intra_action_gamma,
            intra_trace=intra_trace,
            tokens=tokens,
            critic_widths=tuple(critic_widths),
        )

    def description(self) -> dict[str, Any]:
        """Return the constructor's plain arguments that acting depends on."""
        return {**super().description(), "behaviour": self.behaviour, "tokens": self.tokens}

    def units(self, choices: Sequence[Choice], scores: ActionScores) -> Units:
        """Return the token log-probs of each action, and what actions are drawn from."""
        if self.behaviour == "list":
            return Units(scores.log_probs(), scores.token_log_probs, scores.token_entropies)
        if bool(scores.is_nested.any()):
            row = int(scores.is_nested.nonzero()[0, 0])
            raise UserError(
                f"one of the actions {list(choices[row].actions)} is the beginning of another, so "
                "that a walk from token to token has no place to stop: set `behaviour: list`, or "
                "word them apart"
            )
        if self.behaviour == "decomposed":
            action_log_probs = scores.log_probs()
            log_probs, entropies = list_token_log_probs(
                action_log_probs, scores.token_ids, scores.token_mask
            )
        else:
            log_probs = scores.branch_log_probs
            entropies = branch_entropies(
                scores.token_log_probs, scores.token_ids, scores.token_mask
            )
            action_log_probs = log_probs.sum(-1).masked_fill(~scores.mask, -torch.inf)
        if self.tokens == "branching":
            before = _same_beginning(scores.token_ids, scores.token_mask)
            kept = _decisive(before, scores.token_mask)
            log_probs = _compact(log_probs, kept)
            entropies = _compact(entropies, kept)
        return Units(action_log_probs, log_probs, entropies)

    def unit_states(self, choices: Sequence[Choice], index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the state before each token, the first one the prompt's end."""
        features = self.policy.base_features(choices)
        states, mask = features.token_states(index)
        if self.tokens == "all":
            return states, mask
        both = features.token_mask[:, :, None] & features.token_mask[:, None]
        before = both & (features.places[:, :, None] == features.places[:, None])
        rows = torch.arange(len(index), device=index.device)
        kept = _decisive(before, features.token_mask)[rows, index]
        order, mask = _to_the_left(kept)
        return states.gather(1, order[..., None].expand(*order.shape, states.shape[-1])), mask

    def assign(self, rollout: Rollout) -> Advantages:
        """Return the advantages of tokens."""
        config = self.ppo
        traces = {
            "one": 1.0,
            "lambda": config.gae_lambda,
            "gamma_lambda": config.gamma * config.gae_lambda,
        }
        next_values = rollout.next_values
        if self.credit == "archer":
            next_values = archer_next_values(
                values=rollout.values,
                mask=rollout.mask,
                next_values=next_values,
                terminated=rollout.terminated,
                truncated=rollout.truncated,
            )
        return token_level_gae(
            rewards=rollout.rewards,
            values=rollout.values,
            next_values=next_values,
            mask=rollout.mask,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            discounts=action_discounts(rollout, config),
            gae_lambda=config.gae_lambda,
            intra_action_gamma=self.intra_action_gamma,
            intra_action_lambda=traces[self.intra_trace],
        )


def _same_beginning(ids: Tensor, mask: Tensor) -> Tensor:
    """Return ``[B, A, A, L]`` bool: both actions have a token here and the same ones before."""
    both = mask[:, :, None] & mask[:, None]
    same = both & (ids[:, :, None] == ids[:, None])
    through = same.int().cumprod(-1).bool()
    return both & torch.cat([torch.ones_like(through[..., :1]), through[..., :-1]], -1)


def _decisive(before: Tensor, mask: Tensor) -> Tensor:
    """Return ``[B, A, L]`` bool: the first token of each action, and those with an alternative.

    Args:
        before: ``[B, A, A, L]`` bool: both actions have a token here and the same ones before.
        mask: ``[B, A, L]`` bool, True = token.
    """
    itself = torch.eye(before.shape[1], dtype=torch.bool, device=before.device)[:, :, None]
    together = torch.cat([before[..., 1:], torch.zeros_like(before[..., :1])], -1) | itself
    kept = (before & ~together).any(2)
    kept[..., 0] = True
    return kept & mask


def _compact(per_token: Tensor, kept: Tensor) -> Tensor:
    """Return ``[B, A, L']``: the entries that are kept moved to the left, 0 behind them."""
    order, mask = _to_the_left(kept)
    return per_token.gather(-1, order).masked_fill(~mask, 0)


def _to_the_left(kept: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``[…, L']`` places of what is kept, in order, and bool mask of those that are any."""
    length = int(kept.sum(-1).max())
    order = (~kept).to(torch.int8).argsort(dim=-1, stable=True)[..., :length]
    return order, kept.gather(-1, order)
