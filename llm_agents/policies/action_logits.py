"""Logits of the tokens of offered actions, as they leave the output head.

They are no log-probs: adding a constant to all logits of a position changes nothing that the model
says, but it changes these. GLAM's published checkpoints were trained on sums of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from llm_agents.policies.action_scoring import Edges, NodeIndex
from llm_agents.policies.language_policy import LanguagePolicy
from llm_agents.policies.plain_head import head_input, output_head
from llm_agents.types import Choice


def action_token_logits(policy: LanguagePolicy, choices: Sequence[Choice]) -> Tensor:
    """Return the logit of every token of every action, by the pass that `score_actions` makes.

    Gradients flow to whatever trains. Nothing is remembered.

    Args:
        policy: Whose logits.
        choices: B choices of at least one action each.

    Returns:
        ``[B, A, L]`` float32 in the layout of `ActionScores`; 0 where there is no token.
    """
    scorer = policy.scorer
    prepared, inverse = scorer.distinct(choices)
    scorer.look_at_model()
    found = scorer.node_states(prepared, None)
    index = NodeIndex(prepared, found.counts, found.states.device)
    if found.logits is not None:
        logits = found.logits[index.nodes, index.tokens]
    else:
        states = head_input(scorer.model, found.states)
        logits = _logits_of(output_head(scorer.model), states[index.nodes], index.tokens)
    edges = Edges(prepared, policy.device)
    rows = torch.tensor(inverse, device=policy.device)
    return edges.spread(logits.float()[index.edge_branches])[rows]


def _logits_of(head: nn.Module, states: Tensor, tokens: Tensor) -> Tensor:
    """Return ``[U]``: the logit of one token at each state ``[U, H]``."""
    if type(head) is not nn.Linear or head._forward_hooks or head._forward_pre_hooks:
        logits: Tensor = head(states).gather(1, tokens[:, None])
        return logits[:, 0]
    found = (states.to(head.weight.dtype) * head.weight[tokens]).sum(-1)
    return found if head.bias is None else found + head.bias[tokens]
