"""The A-LoL family: eight weighted negative log-likelihoods of stored responses.

Paper: "Leftover-Lunch: Advantage-based Offline Reinforcement Learning for Language Models"
(arXiv 2305.14718). A response is one action; its log-likelihood is weighted by a reward or an
advantage, and by how much likelier the policy makes it than the frozen reference does.

With lp = log_probs, lq = ref_log_probs, R = rewards, V = values and S a masked sum over tokens, the
loss is the mean over the batch of

    nll             −S(lp)
    wbc             −R · S(lp)
    r_gold          −R · S(lp · max(exp(lp), gold_floor))
    r_lol           −R · ρ̄ · S(lp)                          ρ̄  = clip(exp(S(lp) − S(lq)))
    a_lol           −A⁺ · ρ̄ · S(lp)                         A⁺ = max(R − V, 0)
    a_lol_ref_free  −A⁺ · S(lp)
    a_lol_seq       −A⁺ · S(lp · ρ̄_t)                       ρ̄_t = clip(exp(lp − lq)), per token
    a_lol_kl        −A⁺ · S(lp) + kl_coef · (S(lp) − S(lq))

Everything but the explicit lp is detached. The clip is a clamp of the weight to [1 − ε, 1 + ε], not
PPO's minimum of two surrogates: outside the band the gradient does not vanish.

Differs from the release: `clip_epsilon` 0 means a ratio of exactly 1 and None no clip, everywhere;
ratios are clamped as logarithms, so they cannot overflow; negative advantages are clamped for every
option, unless asked not to.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from llm_agents.functional.advantage import advantages as raw_advantages
from llm_agents.functional.advantage import leftover_advantages
from llm_agents.functional.weighted_nll import (
    LolLoss,
    ScoredTokens,
    log_ratio_bounds,
    probability_weighted_nll,
    ratio_weighted_nll,
    row_weights,
    scored_tokens,
    token_ratio_weighted_nll,
    weighted_nll,
)

Algorithm = Literal[
    "nll", "wbc", "r_gold", "r_lol", "a_lol", "a_lol_ref_free", "a_lol_seq", "a_lol_kl"
]

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

_NEED_REFERENCE = frozenset({"r_lol", "a_lol", "a_lol_seq", "a_lol_kl"})
_NEED_VALUE = frozenset({"a_lol", "a_lol_ref_free", "a_lol_seq", "a_lol_kl"})
_TAKE_KL = frozenset({"r_lol", "a_lol", "a_lol_kl"})


def needs_reference(algorithm: Algorithm) -> bool:
    """Return whether the loss uses the reference's log-probs."""
    return _checked(algorithm) in _NEED_REFERENCE


def needs_value(algorithm: Algorithm) -> bool:
    """Return whether the loss uses the value of the prompt."""
    return _checked(algorithm) in _NEED_VALUE


def nll_loss(*, log_probs: Tensor, response_mask: Tensor) -> LolLoss:
    """Compute the negative log-likelihood of the responses.

        −S(log_probs)

    Args:
        log_probs: ``[B, T]``, each ≤ 0.
        response_mask: ``[B, T]`` bool, True = token is scored; at least one a row.

    Returns:
        `LolLoss`: summed over tokens, averaged over sequences.

    Raises:
        TypeError: The mask is not boolean.
        ValueError: Shapes differ, or a row has no scored token.

    Example:
        >>> import torch
        >>> nll_loss(
        ...     log_probs=torch.tensor([[-1.0, -2.0]]), response_mask=torch.tensor([[True, True]])
        ... ).loss
        tensor(3.)
    """
    tokens = scored_tokens(log_probs, response_mask)
    return weighted_nll(tokens, tokens.log_probs.new_ones(len(tokens.log_probs)))


def wbc_loss(*, log_probs: Tensor, response_mask: Tensor, rewards: Tensor) -> LolLoss:
    """Compute weighted behavior cloning: likelihood weighted by the reward.

        −rewards · S(log_probs)

    Args:
        log_probs: ``[B, T]``, each ≤ 0.
        response_mask: ``[B, T]`` bool, True = token is scored; at least one a row.
        rewards: ``[B]``, of the responses.

    Returns:
        `LolLoss`: summed over tokens, averaged over sequences.

    Raises:
        TypeError: The mask is not boolean.
        ValueError: Shapes differ, or a row has no scored token.

    Example:
        >>> import torch
        >>> wbc_loss(
        ...     log_probs=torch.tensor([[-1.0, -2.0]]), response_mask=torch.tensor([[True, True]]),
        ...     rewards=torch.tensor([0.5])
        ... ).loss
        tensor(1.5000)
    """
    tokens = scored_tokens(log_probs, response_mask)
    return weighted_nll(tokens, row_weights("rewards", rewards, tokens))


def r_gold_loss(
    *, log_probs: Tensor, response_mask: Tensor, rewards: Tensor, gold_floor: float
) -> LolLoss:
    """Compute R-GOLD: each token weighted by its own detached probability.

        −rewards · S(log_probs · max(exp(log_probs), gold_floor))

    Args:
        log_probs: ``[B, T]``, each ≤ 0.
        response_mask: ``[B, T]`` bool, True = token is scored; at least one a row.
        rewards: ``[B]``, of the responses.
        gold_floor: Lower bound of the probability, in [0, 1].

    Returns:
        `LolLoss`: summed over tokens, averaged over sequences.

    Raises:
        TypeError: The mask is not boolean.
        ValueError: Shapes differ, a row has no scored token, or `gold_floor` is out of range.

    Example:
        >>> import torch
        >>> r_gold_loss(
        ...     log_probs=torch.tensor([[-2.0]]), response_mask=torch.tensor([[True]]),
        ...     rewards=torch.tensor([1.0]), gold_floor=0.5
        ... ).loss
        tensor(1.)

    References:
        GOLD (arXiv 2009.07839), with the reward of the sequence; A-LoL's baseline, floor 0.1.
    """
    tokens = scored_tokens(log_probs, response_mask)
    return probability_weighted_nll(tokens, row_weights("rewards", rewards, tokens), gold_floor)


def r_lol_loss(
    *,
    log_probs: Tensor,
    ref_log_probs: Tensor,
    response_mask: Tensor,
    rewards: Tensor,
    clip_epsilon: float | None,
) -> LolLoss:
    """Compute R-LoL: likelihood weighted by the reward and the importance ratio of the sequence.

        −rewards · clip(exp(S(log_probs) − S(ref_log_probs))) · S(log_probs)

    Args:
        log_probs: ``[B, T]``, each ≤ 0.
        ref_log_probs: ``[B, T]``, under the frozen reference.
        response_mask: ``[B, T]`` bool, True = token is scored; at least one a row.
        rewards: ``[B]``, of the responses.
        clip_epsilon: In [0, 1): half-width of the band around 1; None is no clip.

    Returns:
        `LolLoss`: summed over tokens, averaged over sequences.

    Raises:
        TypeError: The mask is not boolean.
        ValueError: Shapes differ, a row has no scored token, or `clip_epsilon` is out of range.

    Example:
        >>> import torch
        >>> r_lol_loss(
        ...     log_probs=torch.tensor([[-1.0]]), ref_log_probs=torch.tensor([[-9.0]]),
        ...     response_mask=torch.tensor([[True]]), rewards=torch.tensor([1.0]), clip_epsilon=0.5
        ... ).loss
        tensor(1.5000)
    """
    tokens = scored_tokens(log_probs, response_mask, ref_log_probs)
    return ratio_weighted_nll(tokens, row_weights("rewards", rewards, tokens), clip_epsilon)


def a_lol_loss(
    *,
    log_probs: Tensor,
    ref_log_probs: Tensor,
    response_mask: Tensor,
    advantages: Tensor,
    clip_epsilon: float | None,
) -> LolLoss:
    """Compute A-LoL: likelihood weighted by the advantage and the importance ratio of the sequence.

        −advantages · clip(exp(S(log_probs) − S(ref_log_probs))) · S(log_probs)

    Args:
        log_probs: ``[B, T]``, each ≤ 0.
        ref_log_probs: ``[B, T]``, under the frozen reference.
        response_mask: ``[B, T]`` bool, True = token is scored; at least one a row.
        advantages: ``[B]``, used as they are: see `leftover_advantages`.
        clip_epsilon: In [0, 1): half-width of the band around 1; None is no clip.

    Returns:
        `LolLoss`: summed over tokens, averaged over sequences.

    Raises:
        TypeError: The mask is not boolean.
        ValueError: Shapes differ, a row has no scored token, or `clip_epsilon` is out of range.

    Example:
        >>> import torch
        >>> a_lol_loss(
        ...     log_probs=torch.tensor([[-1.0]]), ref_log_probs=torch.tensor([[-9.0]]),
        ...     response_mask=torch.tensor([[True]]), advantages=torch.tensor([2.0]),
        ...     clip_epsilon=0.5
        ... ).loss
        tensor(3.)
    """
    tokens = scored_tokens(log_probs, response_mask, ref_log_probs)
    return ratio_weighted_nll(tokens, row_weights("advantages", advantages, tokens), clip_epsilon)


def a_lol_ref_free_loss(*, log_probs: Tensor, response_mask: Tensor, advantages: Tensor) -> LolLoss:
    """Compute reference-free A-LoL: the importance ratio is taken to be 1.

        −advantages · S(log_probs)

    Args:
        log_probs: ``[B, T]``, each ≤ 0.
        response_mask: ``[B, T]`` bool, True = token is scored; at least one a row.
        advantages: ``[B]``, used as they are: see `leftover_advantages`.

    Returns:
        `LolLoss`: summed over tokens, averaged over sequences.

    Raises:
        TypeError: The mask is not boolean.
        ValueError: Shapes differ, or a row has no scored token.

    Example:
        >>> import torch
        >>> a_lol_ref_free_loss(
        ...     log_probs=torch.tensor([[-1.0]]), response_mask=torch.tensor([[True]]),
        ...     advantages=torch.tensor([2.0])
        ... ).loss
        tensor(2.)
    """
    tokens = scored_tokens(log_probs, response_mask)
    return weighted_nll(tokens, row_weights("advantages", advantages, tokens))


def a_lol_seq_loss(
    *,
    log_probs: Tensor,
    ref_log_probs: Tensor,
    response_mask: Tensor,
    advantages: Tensor,
    clip_epsilon: float | None,
) -> LolLoss:
    """Compute A-LoL sequence: each token has its own importance ratio.

        −advantages · S(log_probs · clip(exp(log_probs − ref_log_probs)))

    Args:
        log_probs: ``[B, T]``, each ≤ 0.
        ref_log_probs: ``[B, T]``, under the frozen reference.
        response_mask: ``[B, T]`` bool, True = token is scored; at least one a row.
        advantages: ``[B]``, used as they are: see `leftover_advantages`.
        clip_epsilon: In [0, 1): half-width of the band around 1; None is no clip.

    Returns:
        `LolLoss`: summed over tokens, averaged over sequences.

    Raises:
        TypeError: The mask is not boolean.
        ValueError: Shapes differ, a row has no scored token, or `clip_epsilon` is out of range.

    Example:
        >>> import torch
        >>> a_lol_seq_loss(
        ...     log_probs=torch.tensor([[-1.0, -4.0]]), ref_log_probs=torch.tensor([[-9.0, -4.0]]),
        ...     response_mask=torch.tensor([[True, True]]), advantages=torch.tensor([2.0]),
        ...     clip_epsilon=0.5
        ... ).loss
        tensor(11.)
    """
    tokens = scored_tokens(log_probs, response_mask, ref_log_probs)
    weights = row_weights("advantages", advantages, tokens)
    return token_ratio_weighted_nll(tokens, weights, clip_epsilon)


def a_lol_kl_loss(
    *,
    log_probs: Tensor,
    ref_log_probs: Tensor,
    response_mask: Tensor,
    advantages: Tensor,
    kl_coef: float,
) -> LolLoss:
    """Compute reference-free A-LoL with a KL estimate towards the reference.

        −advantages · S(log_probs) + kl_coef · (S(log_probs) − S(ref_log_probs))

    The responses are fixed, so the gradient is that of `a_lol_ref_free` with weight advantages −
    kl_coef: the reference shifts the reported loss and nothing else. With rewards in place of the
    advantages this is "R-LoL KL".

    Args:
        log_probs: ``[B, T]``, each ≤ 0.
        ref_log_probs: ``[B, T]``, under the frozen reference.
        response_mask: ``[B, T]`` bool, True = token is scored; at least one a row.
        advantages: ``[B]``, used as they are: see `leftover_advantages`.
        kl_coef: β ≥ 0.

    Returns:
        `LolLoss`: summed over tokens, averaged over sequences.

    Raises:
        TypeError: The mask is not boolean.
        ValueError: Shapes differ, a row has no scored token, or `kl_coef` is negative.

    Example:
        >>> import torch
        >>> a_lol_kl_loss(
        ...     log_probs=torch.tensor([[-1.0]]), ref_log_probs=torch.tensor([[-3.0]]),
        ...     response_mask=torch.tensor([[True]]), advantages=torch.tensor([2.0]), kl_coef=0.5
        ... ).loss
        tensor(3.)
    """
    _check_kl_coef(kl_coef)
    tokens = scored_tokens(log_probs, response_mask, ref_log_probs)
    return weighted_nll(tokens, row_weights("advantages", advantages, tokens), kl_coef=kl_coef)


def lol_loss(
    algorithm: Algorithm,
    *,
    log_probs: Tensor,
    response_mask: Tensor,
    rewards: Tensor,
    ref_log_probs: Tensor | None = None,
    values: Tensor | None = None,
    clip_epsilon: float | None,
    kl_coef: float,
    gold_floor: float,
    clamp_advantages: bool,
) -> LolLoss:
    """Compute the loss that `algorithm` names; the module's docstring has the formulas.

    With `kl_coef` above 0, `a_lol` and `r_lol` too get a KL term and, as released, a ratio of 1:
    −A⁺ · S(lp) or −R · S(lp), plus kl_coef · (S(lp) − S(lq)).

    Args:
        algorithm: One of `ALGORITHMS`.
        log_probs: ``[B, T]``, each ≤ 0.
        response_mask: ``[B, T]`` bool, True = token is scored; at least one a row.
        rewards: ``[B]``; `nll` doesn't read them.
        ref_log_probs: ``[B, T]``; where `needs_reference` is False only their ratio is reported.
        values: ``[B]``, of the prompts; read where `needs_value` is True.
        clip_epsilon: In [0, 1); 0 is a ratio of exactly 1, None no clip.
        kl_coef: β ≥ 0; above 0 only for `a_lol_kl`, `a_lol` and `r_lol`.
        gold_floor: Lower bound of the probability in `r_gold`, in [0, 1].
        clamp_advantages: False keeps negative advantages: unlikelihood training.

    Returns:
        `LolLoss`: summed over tokens, averaged over sequences.

    Raises:
        TypeError: The mask is not boolean.
        ValueError: Shapes differ, an option is out of range or has no effect, a row has no scored
            token, or `ref_log_probs` or `values` is missing.

    Example:
        >>> import torch
        >>> lol_loss(
        ...     "wbc", log_probs=torch.tensor([[-2.0]]), response_mask=torch.tensor([[True]]),
        ...     rewards=torch.ones(1), clip_epsilon=0.9, kl_coef=0.0, gold_floor=0.1,
        ...     clamp_advantages=True).loss
        tensor(2.)
    """
    _check_options(algorithm, kl_coef, clip_epsilon)
    if needs_reference(algorithm):
        _given("ref_log_probs", ref_log_probs, algorithm)
    tokens = scored_tokens(log_probs, response_mask, ref_log_probs)
    weights = _sequence_weights(algorithm, tokens, rewards, values, clamp_advantages)
    if kl_coef > 0 or algorithm == "a_lol_kl":
        return weighted_nll(tokens, weights, kl_coef=kl_coef)
    if algorithm == "r_gold":
        return probability_weighted_nll(tokens, weights, gold_floor)
    if algorithm == "a_lol_seq":
        return token_ratio_weighted_nll(tokens, weights, clip_epsilon)
    if algorithm in ("r_lol", "a_lol"):
        return ratio_weighted_nll(tokens, weights, clip_epsilon)
    return weighted_nll(tokens, weights)


def _sequence_weights(
    algorithm: Algorithm,
    tokens: ScoredTokens,
    rewards: Tensor,
    values: Tensor | None,
    clamp_advantages: bool,
) -> Tensor:
    """Return ``[B]``: 1, the rewards or the advantages, as the algorithm has it."""
    if needs_value(algorithm):
        baseline = _given("values", values, algorithm)
        compute = leftover_advantages if clamp_advantages else raw_advantages
        return row_weights("advantages", compute(rewards, baseline), tokens)
    if algorithm == "nll":
        return tokens.log_probs.new_ones(len(tokens.log_probs))
    return row_weights("rewards", rewards, tokens)


def _check_options(algorithm: Algorithm, kl_coef: float, clip_epsilon: float | None) -> None:
    """Raise on options that are out of range or that the algorithm would ignore in silence."""
    _checked(algorithm)
    _check_kl_coef(kl_coef)
    log_ratio_bounds(clip_epsilon)
    if kl_coef > 0 and algorithm not in _TAKE_KL:
        raise ValueError(
            f"expected `kl_coef` 0 with {algorithm}, got {kl_coef}: choose a_lol_kl, a_lol or "
            "r_lol for a KL term"
        )


def _check_kl_coef(kl_coef: float) -> None:
    """Raise unless `kl_coef` is at least 0."""
    if not kl_coef >= 0:
        raise ValueError(f"expected `kl_coef` of at least 0, got {kl_coef}")


def _checked(algorithm: Algorithm) -> Algorithm:
    """Return `algorithm`, or raise if there is none of that name."""
    if algorithm not in ALGORITHMS:
        raise ValueError(
            f"expected `algorithm` to be one of {', '.join(ALGORITHMS)}, got {algorithm!r}"
        )
    return algorithm


def _given(name: str, tensor: Tensor | None, algorithm: Algorithm) -> Tensor:
    """Return `tensor`, or raise if it is None."""
    if tensor is None:
        raise ValueError(
            f"expected `{name}` for {algorithm}, got None: compute them once with the frozen "
            "reference"
        )
    return tensor
