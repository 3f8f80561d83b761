"""Tries of actions: nodes, edges, branches."""

from __future__ import annotations

import pytest

from llm_agents.policies.action_trie import ActionTrie


def test_common_beginnings_are_one_node_and_leaves_are_none():
    trie = ActionTrie.build([(7, 8, 9), (7, 8, 5), (7, 4), (3,)])
    assert trie.tokens == (7, 8)
    assert (trie.parents, trie.depths, trie.num_nodes) == ((0, 1), (0, 1), 3)
    assert trie.edge_nodes == (0, 1, 2, 0, 1, 2, 0, 1, 0)
    assert trie.edge_tokens == (7, 8, 9, 7, 8, 5, 7, 4, 3)
    assert trie.edge_actions == (0, 0, 0, 1, 1, 1, 2, 2, 3)
    assert trie.edge_positions == (0, 1, 2, 0, 1, 2, 0, 1, 0)
    assert trie.visibility().tolist() == [[True, False], [True, True]]
    assert not trie.is_nested


def test_each_branch_is_there_once():
    trie = ActionTrie.build([(7, 8, 9), (7, 8, 5), (7, 4), (3,)])
    branches = trie.branches
    assert list(zip(branches.nodes, branches.tokens, strict=True)) == [
        (0, 3), (0, 7), (1, 4), (1, 8), (2, 5), (2, 9)
    ]  # fmt: skip
    for edge, branch in enumerate(branches.of_edges):
        assert branches.nodes[branch] == trie.edge_nodes[edge]
        assert branches.tokens[branch] == trie.edge_tokens[edge]


@pytest.mark.parametrize(
    ("actions", "is_nested"),
    [([(1, 2), (1,)], True), ([(1,), (1, 2)], True), ([(1, 2), (2, 1)], False), ([(1,)], False)],
)
def test_an_action_that_begins_another_is_found(actions, is_nested):
    assert ActionTrie.build(actions).is_nested is is_nested


@pytest.mark.parametrize("actions", [[], [(1,), ()]])
def test_there_are_no_empty_actions(actions):
    with pytest.raises(ValueError, match="at least one token"):
        ActionTrie.build(actions)
