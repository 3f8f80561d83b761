"""A policy over offered actions, from the log-probs of their tokens."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from llm_agents.functional.shapes import check_mask, check_rank, check_shape, full_precision

Normalization = Literal["sum", "token", "word"]
NORMALIZATIONS: tuple[Normalization, ...] = get_args(Normalization)


def normalize_scores(
    token_log_probs: Tensor,
    token_mask: Tensor,
    num_words: Tensor,
    *,
    normalization: Normalization,
) -> Tensor:
    """Score each action by its tokens' log-probs, long and short ones on one scale.

        z = Σ_j log_probs[j] / n,   n = 1 (sum) | tokens (token) | words (word)

    The division is of the logarithm: a geometric mean of probabilities. Without it long actions
    lose whatever they say.

    Args:
        token_log_probs: ``[B, A, L]``; may hold anything where the mask is False.
        token_mask: ``[B, A, L]`` bool, True = token; a row without any is no action.
        num_words: ``[B, A]`` int64, words of each action's text, split at whitespace; read for
            ``"word"`` only.
        normalization: ``"sum"``, ``"token"`` or ``"word"``.

    Returns:
        ``[B, A]`` action scores; −∞ where there is no action.

    Raises:
        TypeError: `token_mask` is not boolean.
        ValueError: The shapes differ, the normalization is unknown, or an action has no word.

    Example:
        >>> import torch
        >>> log_probs = torch.tensor([[[-1.0, -2.0], [-2.0, 0.0]]])
        >>> mask = torch.tensor([[[True, True], [True, False]]])
        >>> normalize_scores(log_probs, mask, torch.tensor([[2, 1]]), normalization="token")
        tensor([[-1.5000, -2.0000]])

    References:
        TWOSOME (arXiv 2401.14151), the two normalizations; GLAM has the sum.
    """
    check_rank("token_log_probs", token_log_probs, "[B, A, L]")
    check_mask("token_mask", token_mask, token_log_probs, "token_log_probs")
    cure = "give one number for each action"
    check_shape("num_words", num_words, token_mask.shape[:2], "the actions", cure)
    offered = token_mask.any(-1)
    sums = full_precision(token_log_probs).masked_fill(~token_mask, 0).sum(-1)
    if normalization == "token":
        sums = sums / token_mask.sum(-1).clamp(min=1)
    elif normalization == "word":
        if bool((num_words[offered] < 1).any()):
            raise ValueError("expected `num_words` of at least 1 for every action, got 0: no text")
        sums = sums / num_words.clamp(min=1)
    elif normalization != "sum":
        raise ValueError(
            f"expected `normalization` {', '.join(NORMALIZATIONS)}, got {normalization!r}"
        )
    return sums.masked_fill(~offered, -torch.inf)


def list_log_probs(action_scores: Tensor, mask: Tensor) -> Tensor:
    """Turn scores into log-probs over each choice's own list of actions.

        log_softmax over the actions offered

    Args:
        action_scores: ``[B, A]``; may hold anything where the mask is False.
        mask: ``[B, A]`` bool, True = offered; at least one a row.

    Returns:
        ``[B, A]`` log-probs; −∞ where nothing is offered. A list of one action gives 0.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: The shapes differ, or a row offers nothing.

    Example:
        >>> import torch
        >>> list_log_probs(torch.tensor([[0.0, 0.0, 9.0]]), torch.tensor([[True, True, False]]))
        tensor([[-0.6931, -0.6931,    -inf]])

    References:
        TWOSOME (arXiv 2401.14151): the policy over admissible actions.
    """
    _check_lists("action_scores", action_scores, mask)
    return full_precision(action_scores).masked_fill(~mask, -torch.inf).log_softmax(-1)


def list_entropy(log_probs: Tensor, mask: Tensor) -> Tensor:
    """Compute the entropy of each choice's distribution, in nats.

        −Σ_a exp(log_probs[a]) · log_probs[a]

    Args:
        log_probs: ``[B, A]``, normalized; may hold anything where the mask is False.
        mask: ``[B, A]`` bool, True = offered; at least one a row.

    Returns:
        ``[B]``, from 0 for a certain action to ln A.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: The shapes differ, or a row offers nothing.

    Example:
        >>> import torch
        >>> list_entropy(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[True, True]]))
        tensor([0.6931])
    """
    _check_lists("log_probs", log_probs, mask)
    possible = mask & (log_probs.detach() > -torch.inf)  # 0 · ln 0 = 0
    filled = full_precision(log_probs).masked_fill(~possible, 0)
    return -(filled.exp() * filled).masked_fill(~possible, 0).sum(-1)


def list_kl(*, log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Compute the exact divergence of two policies over each choice's list.

        KL(π ‖ ref) = Σ_a exp(log_probs[a]) · (log_probs[a] − ref_log_probs[a])

    Args:
        log_probs: ``[B, A]``, normalized.
        ref_log_probs: ``[B, A]``, normalized; without gradient.
        mask: ``[B, A]`` bool, True = offered; at least one a row.

    Returns:
        ``[B]``, ≥ 0 up to rounding.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: The shapes differ, or a row offers nothing.

    Example:
        >>> import torch
        >>> sure, even = torch.tensor([[1.0, 0.0]]).log(), torch.tensor([[0.5, 0.5]]).log()
        >>> list_kl(log_probs=sure, ref_log_probs=even, mask=torch.tensor([[True, True]]))
        tensor([0.6931])
    """
    _check_lists("log_probs", log_probs, mask)
    cure = "score the same lists with the reference"
    check_shape("ref_log_probs", ref_log_probs, log_probs.shape, "`log_probs`", cure)
    possible = mask & (log_probs.detach() > -torch.inf)
    filled = full_precision(log_probs).masked_fill(~possible, 0)
    reference = ref_log_probs.detach().to(filled.dtype).masked_fill(~possible, 0)
    return (filled.exp() * (filled - reference)).masked_fill(~possible, 0).sum(-1)


def list_log_mass(token_log_probs: Tensor, token_mask: Tensor) -> Tensor:
    """Compute how probable it is that the model would say one of the offered actions at all.

        ln Σ_a exp(Σ_j log_probs[a, j])

    Only the tokens that were sampled are pushed, so this mass can drift away unseen: log it.

    Args:
        token_log_probs: ``[B, A, L]``, over the whole vocabulary.
        token_mask: ``[B, A, L]`` bool, True = token.

    Returns:
        ``[B]`` ≤ 0, as long as no action begins another.

    Raises:
        TypeError: `token_mask` is not boolean.
        ValueError: The shapes differ.

    Example:
        >>> import torch
        >>> log_probs = torch.tensor([[[0.5, 0.5], [0.25, 1.0]]]).log()
        >>> list_log_mass(log_probs, torch.ones(1, 2, 2, dtype=torch.bool)).exp()
        tensor([0.5000])
    """
    words = token_mask.new_ones(token_mask.shape[:2], dtype=torch.int64)
    sums = normalize_scores(token_log_probs, token_mask, words, normalization="sum")
    return sums.logsumexp(-1)


def branch_log_probs(token_log_probs: Tensor, token_ids: Tensor, token_mask: Tensor) -> Tensor:
    """Restrict each token's distribution to those tokens that continue an offered action.

        log_probs[a, j] − ln Σ exp(log_probs[w]),   w over the distinct tokens after a's first j

    Their sum over an action's tokens is the log-prob of a policy that walks the trie of the offered
    actions, so sampling and ratio agree. Tokens without an alternative have log-prob 0.

    Args:
        token_log_probs: ``[B, A, L]``; equal where actions share their tokens so far.
        token_ids: ``[B, A, L]`` int64.
        token_mask: ``[B, A, L]`` bool, True = token; right-padded.

    Returns:
        ``[B, A, L]``, 0 where the mask is False.

    Raises:
        TypeError: `token_mask` is not boolean.
        ValueError: The shapes differ, or an action begins another or equals it: then the walk has
            no place to stop.

    Example:
        >>> import torch
        >>> log_probs = torch.tensor([[[0.5, 0.1], [0.5, 0.3]]]).log()
        >>> ids = torch.tensor([[[7, 1], [7, 2]]])
        >>> branch_log_probs(log_probs, ids, torch.ones(1, 2, 2, dtype=torch.bool)).exp()
        tensor([[[1.0000, 0.2500],
                 [1.0000, 0.7500]]])

    References:
        The restricted form of POAD (arXiv 2405.15821). Differs: its release samples from the list
        and takes its ratio over the whole vocabulary.
    """
    log_probs = full_precision(token_log_probs).masked_fill(~token_mask, 0)
    branches = _branches(log_probs, token_ids, token_mask)
    return (log_probs - branches.logsumexp(2)).masked_fill(~token_mask, 0)


def branch_entropies(token_log_probs: Tensor, token_ids: Tensor, token_mask: Tensor) -> Tensor:
    """Compute the entropy of the distribution that `branch_log_probs` draws each token from.

        −Σ_w p(w) · ln p(w),   w over the distinct tokens after the action's first j

    Args:
        token_log_probs: ``[B, A, L]``; equal where actions share their tokens so far.
        token_ids: ``[B, A, L]`` int64.
        token_mask: ``[B, A, L]`` bool, True = token; right-padded.

    Returns:
        ``[B, A, L]``, 0 where the mask is False and where there is no alternative; at most ln A.

    Raises:
        TypeError: `token_mask` is not boolean.
        ValueError: The shapes differ, or an action begins another or equals it.

    Example:
        >>> import torch
        >>> log_probs = torch.tensor([[[0.5, 0.1], [0.5, 0.1]]]).log()
        >>> ids = torch.tensor([[[7, 1], [7, 2]]])
        >>> branch_entropies(log_probs, ids, torch.ones(1, 2, 2, dtype=torch.bool))[0, 0, 1]
        tensor(0.6931)
    """
    log_probs = full_precision(token_log_probs).masked_fill(~token_mask, 0)
    branches = _branches(log_probs, token_ids, token_mask)
    total = branches.logsumexp(2, keepdim=True)
    # Copies of a shared token divide its probability, but each has the logarithm of the whole.
    offered = branches > -torch.inf
    whole = (log_probs.unsqueeze(1) - total).masked_fill(~offered, 0)
    entropies = -((branches - total).exp() * whole).sum(2)
    return entropies.masked_fill(~token_mask, 0)


class ListTokens(NamedTuple):
    """A policy over offered actions, token by token.

    Args:
        log_probs: ``[B, A, L]``, of each token after the ones before it; 0 where the mask is False.
        entropies: ``[B, A, L]``, of the distribution that each token is drawn from.
    """

    log_probs: Tensor
    entropies: Tensor


def list_token_log_probs(
    action_log_probs: Tensor, token_ids: Tensor, token_mask: Tensor
) -> ListTokens:
    """Decompose a policy over offered actions into the tokens of its actions, by the chain rule.

        log p(w_j | w_<j) = ln Σ_{c shares a's first j tokens} π(c) − the same with j − 1

    The tokens' log-probs of an action sum to its own log-prob, however the actions were scored, so
    that what is drawn and what the ratio of each token says are one distribution.

    Args:
        action_log_probs: ``[B, A]``, log π(a); −∞ where there is no action.
        token_ids: ``[B, A, L]`` int64.
        token_mask: ``[B, A, L]`` bool, True = token; right-padded.

    Returns:
        Log-probs and entropies of tokens; a token without an alternative has 0 and 0.

    Raises:
        TypeError: `token_mask` is not boolean.
        ValueError: The shapes differ, or an action begins another or equals it.

    Example:
        >>> import torch
        >>> ids = torch.tensor([[[7, 1], [7, 2], [8, 0]]])
        >>> mask = torch.tensor([[[True, True], [True, True], [True, False]]])
        >>> pi = torch.tensor([[0.2, 0.3, 0.5]]).log()
        >>> list_token_log_probs(pi, ids, mask).log_probs.exp()[0, 1]
        tensor([0.5000, 0.6000])

    References:
        POAD (arXiv 2405.15821) on restricted actions. Differs: its release draws from this list,
        but takes the ratio of the tokens' probabilities over the whole vocabulary.
    """
    check_rank("action_log_probs", action_log_probs, "[B, A]")
    check_mask("token_mask", token_mask, token_ids, "token_ids")
    check_shape(
        "token_ids", token_ids[..., 0], action_log_probs.shape, "`action_log_probs`", "align them"
    )
    log_probs = full_precision(action_log_probs)
    before, shared = _prefixes(token_ids, token_mask)
    _check_no_action_begins_another(shared, token_mask)
    exists = token_mask.unsqueeze(2)  # where a has no token j, its row is made 0 below
    spread = log_probs[:, None, :, None].expand(shared.shape)
    lowest = torch.finfo(log_probs.dtype).min

    def mass(member: Tensor) -> Tensor:
        return spread.masked_fill(~member & exists, -torch.inf).clamp(min=lowest).logsumexp(2)

    tokens = (mass(shared) - mass(before)).masked_fill(~token_mask, 0)
    total = mass(before).unsqueeze(2)
    # Masked before the exponential: elsewhere it may overflow, and 0 · ∞ is no gradient.
    weights = (spread.clamp(min=lowest) - total).masked_fill(~before, -torch.inf).exp()
    entropies = -(weights * tokens.unsqueeze(1)).sum(2)
    return ListTokens(tokens, entropies.masked_fill(~token_mask, 0))


def _prefixes(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``[B, A, A, L]`` bool twice: actions a and c agree before token j, and through it."""
    both = mask.unsqueeze(1) & mask.unsqueeze(2)
    same = both & (ids.unsqueeze(1) == ids.unsqueeze(2))
    shared = same.int().cumprod(-1).bool()
    before = torch.cat([torch.ones_like(shared[..., :1]), shared[..., :-1]], dim=-1)
    return before & both, shared


def _branches(log_probs: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Return ``[B, A, A, L]``: what each action offers after the beginning of each other one.

    Entry [a, c, j] is the log-prob of c's token j, less ln of the number of actions that share it
    with c; −∞ where c has not a's first j tokens. Where a has no token j, its row is 0.
    """
    check_rank("token_log_probs", log_probs, "[B, A, L]")
    check_mask("token_mask", mask, log_probs, "token_log_probs")
    check_shape("token_ids", ids, log_probs.shape, "`token_log_probs`", "pass the tokens' ids")
    before, shared = _prefixes(ids, mask)
    _check_no_action_begins_another(shared, mask)
    copies = shared.sum(1).clamp(min=1).to(log_probs.dtype)
    branches = (log_probs - copies.log()).unsqueeze(1).expand(shared.shape)
    return branches.masked_fill(~before, -torch.inf).masked_fill(~mask.unsqueeze(2), 0)


def _check_no_action_begins_another(shared: Tensor, mask: Tensor) -> None:
    """Raise where all tokens of an action are the first ones of another."""
    last = (mask.sum(-1) - 1).clamp(min=0)
    at_end = last[:, None, :, None].expand(*shared.shape[:3], 1)
    contained = shared.gather(-1, at_end).squeeze(-1)
    others = ~torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
    found = (contained & others).nonzero().tolist()
    if found:
        row, longer, shorter = found[0]
        raise ValueError(
            f"expected no action to begin another, but in row {row} the tokens of action {shorter} "
            f"begin action {longer}: end each action's text with a mark of its own"
        )


def _check_lists(name: str, values: Tensor, mask: Tensor) -> None:
    """Raise unless both are ``[B, A]`` and every row offers something."""
    check_rank(name, values, "[B, A]")
    check_mask("mask", mask, values, name)
    empty = (~mask.any(-1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"expected at least one action in every row of `mask`, got none in row(s) "
            f"{', '.join(map(str, empty))}: a choice after an episode's end is not asked for"
        )
