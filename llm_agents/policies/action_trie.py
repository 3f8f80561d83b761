"""The actions of a choice as a trie of tokens: common beginnings are computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor


class Branches(NamedTuple):
    """The distinct tokens that go on from each node.

    Args:
        nodes: Node of each of the U branches, ascending.
        tokens: Token of each branch.
        of_edges: Branch that each of the trie's E edges takes.
    """

    nodes: tuple[int, ...]
    tokens: tuple[int, ...]
    of_edges: tuple[int, ...]


@dataclass(frozen=True)
class ActionTrie:
    """Inner nodes and edges of a trie over token ids; leaves need no forward pass.

    Node 0 is the end of the prompt; node ``i ≥ 1`` is the place after ``tokens[i - 1]``.

    Args:
        tokens: ``S`` tokens to forward.
        parents: Node from which each of them leaves.
        depths: Number of action tokens before each of them.
        edge_nodes: Node that predicts, for each of the E tokens of all actions, action by action.
        edge_tokens: The predicted tokens.
        edge_actions: The actions they belong to.
        edge_positions: Their places in those actions.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    edge_nodes: tuple[int, ...]
    edge_tokens: tuple[int, ...]
    edge_actions: tuple[int, ...]
    edge_positions: tuple[int, ...]

    @classmethod
    def build(cls, action_ids: Sequence[Sequence[int]]) -> ActionTrie:
        """Build the trie of actions with at least one token each.

        Raises:
            ValueError: There is no action, or one is empty.
        """
        if not action_ids or not all(action_ids):
            raise ValueError("expected actions of at least one token each")
        tokens: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        edges: list[tuple[int, int, int, int]] = []
        children: dict[tuple[int, int], int] = {}
        for action, ids in enumerate(action_ids):
            node = 0
            for position, token in enumerate(ids):
                edges.append((node, token, action, position))
                if position == len(ids) - 1:
                    break
                if (node, token) not in children:
                    tokens.append(token)
                    parents.append(node)
                    depths.append(position)
                    children[node, token] = len(tokens)
                node = children[node, token]
        edge_columns = [tuple(column) for column in zip(*edges, strict=True)]
        return cls(tuple(tokens), tuple(parents), tuple(depths), *edge_columns)

    @property
    def num_nodes(self) -> int:
        """Return S + 1: the inner nodes and the prompt's end."""
        return len(self.tokens) + 1

    @cached_property
    def branches(self) -> Branches:
        """Return the distinct branches, of which actions with a common beginning share some."""
        edges = list(zip(self.edge_nodes, self.edge_tokens, strict=True))
        places = {edge: place for place, edge in enumerate(sorted(set(edges)))}
        nodes, tokens = zip(*places, strict=True)
        return Branches(nodes, tokens, tuple(places[edge] for edge in edges))

    @cached_property
    def is_nested(self) -> bool:
        """Tell whether an action is the beginning of another, so that a walk can't stop there."""
        ends = dict(zip(self.edge_actions, self.branches.of_edges, strict=True))
        inner = set(zip(self.parents, self.tokens, strict=True))
        branches = list(zip(self.branches.nodes, self.branches.tokens, strict=True))
        return any(branches[end] in inner for end in ends.values())

    def visibility(self) -> Tensor:
        """Return ``[S, S]`` bool, True = the row's token sees the column's: itself, ancestors."""
        mask = torch.eye(len(self.tokens), dtype=torch.bool)
        for row, parent in enumerate(self.parents):
            if parent > 0:
                mask[row] |= mask[parent - 1]
        return mask
