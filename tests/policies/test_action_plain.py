from __future__ import annotations

import pytest
import torch

from llm_agents.policies import LoraConfig, action_plain
from llm_agents.policies.action_plain import NodeCollector, plain_node_states
from llm_agents.policies.action_trie import ActionTrie
from llm_agents.policies.action_types import EncodedChoice
from tests.closeness import assert_rounding, rounding
from tests.policies.action_models import (
    ENCODER_DECODER,
    EXPAND,
    TREE,
    build,
    gradients_of,
    largest_difference,
    one_by_one,
    random_choices,
    relative_difference,
    scores_of,
    tries_of,
)


@pytest.mark.parametrize("family", [*TREE, *EXPAND, "mamba", *ENCODER_DECODER])
def test_plain_scores_are_those_of_single_sequences(family):
    model, choices = build(family, torch.float64), random_choices(1, 3)
    with torch.no_grad():
        found = plain_node_states(model, choices, tries_of(choices))
        expected = one_by_one(model, choices)
        difference = largest_difference(scores_of(model, found, choices), expected)
    assert difference < rounding(expected)
    assert found.counts == tuple(trie.num_nodes for trie in tries_of(choices))


def test_logits_come_only_where_the_head_is_not_all_there_is():
    choices = random_choices(1, 1)
    with torch.no_grad():
        assert plain_node_states(build("llama"), choices, tries_of(choices)).logits is None
        scaled = build("granite")
        found = plain_node_states(scaled, choices, tries_of(choices))
        by_head = scaled.get_output_embeddings()(found.states)
    assert found.logits is not None
    torch.testing.assert_close(found.logits, by_head / 3)


@pytest.mark.parametrize("family", ["llama", "granite", "t5", "bart"])
def test_the_number_of_passes_does_not_matter(family, monkeypatch):
    model, choices = build(family, torch.float64), random_choices(2, 4)
    with torch.no_grad():
        whole = plain_node_states(model, choices, tries_of(choices))
        monkeypatch.setattr(action_plain, "_TOKENS_PER_PASS", 60)
        parts = plain_node_states(model, choices, tries_of(choices))
    assert_rounding(parts.states, whole.states)


def test_a_choice_without_actions_has_its_prompts_end():
    """The trie of a choice without actions is that of one token which nobody reads."""
    model, choice = build("llama", torch.float64), EncodedChoice((5, 6, 7), (), ())
    with torch.no_grad():
        found = plain_node_states(model, [choice], [ActionTrie.build(((0,),))])
        expected = model.model(input_ids=torch.tensor([[5, 6, 7]])).last_hidden_state[0, -1:]
    torch.testing.assert_close(found.states, expected)


def test_states_that_come_twice_are_taken_once_and_in_order():
    trie = ActionTrie.build(((1, 2), (1, 3), (4, 5)))
    assert trie.num_nodes == 3
    collector = NodeCollector()
    collector.add([(1, 2), (0, 0), (0, 1)], torch.tensor([[12.0], [0.0], [1.0]]), None)
    collector.add([(0, 0), (1, 0), (1, 1), (0, 2)], torch.tensor([[9.0], [10], [11], [2]]), None)
    found = collector.collect([trie, trie])
    assert found.states[:, 0].tolist() == [0, 1, 2, 10, 11, 12]
    assert found.counts == (3, 3)


def test_a_trunk_changes_nothing(make_policy, tmp_path):
    lora = LoraConfig(r=4, alpha=8, targets=("q_proj", "v_proj"), top_layers=1)
    policy = make_policy("llama", lora=lora, weights=0.1, trunk_cache=str(tmp_path))
    policy.eval()
    choices = random_choices(3, 3)
    arguments = (policy.causal_model, choices, tries_of(choices))
    with torch.no_grad():
        expected = plain_node_states(*arguments)
        for _ in range(2):  # filled, then read
            found = plain_node_states(*arguments, policy.forward_pass.trunk)
            assert_rounding(found.states, expected.states)


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_gradients_are_those_of_single_sequences(family):
    model, choices = build(family, torch.float64), random_choices(4, 2)
    scores = scores_of(model, plain_node_states(model, choices, tries_of(choices)), choices)
    expected = gradients_of(model, one_by_one(model, choices))
    assert relative_difference(gradients_of(model, scores), expected) < rounding(1.0)
