from __future__ import annotations

import pytest
import torch

from llm_agents.policies import LoraConfig, action_expand
from llm_agents.policies.action_expand import action_paths, expand_node_states
from llm_agents.policies.action_plain import plain_node_states
from llm_agents.policies.action_trie import ActionTrie
from llm_agents.policies.action_types import EncodedChoice
from tests.closeness import assert_rounding, rounding
from tests.policies.action_models import (
    EXPAND,
    TREE,
    WINDOW,
    WINDOWED,
    build,
    gradients_of,
    largest_difference,
    one_by_one,
    random_choices,
    relative_difference,
    scores_of,
    tries_of,
)


@pytest.mark.parametrize("family", [*TREE, *EXPAND])
@pytest.mark.parametrize("number", [1, 8])
def test_expanded_scores_are_those_of_single_sequences(family, number):
    model, choices = build(family, torch.float64), random_choices(1, number)
    with torch.no_grad():
        found = expand_node_states(model, choices, tries_of(choices))
        expected = one_by_one(model, choices)
        difference = largest_difference(scores_of(model, found, choices), expected)
    assert difference < rounding(expected)


@pytest.mark.parametrize("family", WINDOWED)
@pytest.mark.parametrize("length", [WINDOW - 3, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW])
def test_windows_move_along(family, length):
    """Prompts that end short of the window, at it and beyond, with actions that cross it."""
    model, choices = build(family, torch.float64), random_choices(5, 2, longest=200)
    choices = [EncodedChoice(c.prompt_ids[:length], c.action_ids, c.num_words) for c in choices]
    with torch.no_grad():
        found = expand_node_states(model, choices, tries_of(choices))
        expected = one_by_one(model, choices)
        difference = largest_difference(scores_of(model, found, choices), expected)
    assert difference < rounding(expected)


@pytest.mark.parametrize("family", ["llama", "mistral_window"])
def test_the_number_of_passes_does_not_matter(family, monkeypatch):
    model, choices = build(family, torch.float64), random_choices(2, 6)
    with torch.no_grad():
        whole = expand_node_states(model, choices, tries_of(choices))
        monkeypatch.setattr(action_expand, "_TOKENS_PER_PASS", 45)
        monkeypatch.setattr(action_expand, "_CACHED_TOKENS", 90)
        parts = expand_node_states(model, choices, tries_of(choices))
    assert_rounding(parts.states, whole.states)


def test_prompts_of_one_length_share_a_pass_and_each_is_computed_once():
    model, actions = build("llama"), ((3, 4, 5), (3, 6, 7), (8,))
    prompts = ((9, 10, 11, 12, 13), (14, 15, 16, 17, 18), (19, 20, 21, 22))
    choices = [EncodedChoice(prompt, actions, (1, 1, 1)) for prompt in prompts]
    sizes = []
    hook = model.model.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(tuple(kwargs["input_ids"].shape)),
        with_kwargs=True,
    )
    with torch.no_grad():
        plain_node_states(model, choices, tries_of(choices))  # looks at the head first
        sizes.clear()
        expand_node_states(model, choices, tries_of(choices))
    hook.remove()
    # Two ways a choice: "3 4" and "3 6"; the last tokens and the action of one token need none.
    assert sizes == [(1, 4), (2, 2), (2, 5), (4, 2)]


def test_ways_cover_every_inner_node_and_none_lies_on_another():
    trie = ActionTrie.build(((1, 2, 3, 4), (1, 2, 5), (1, 6), (7,), (8, 9, 1)))
    paths = action_paths(3, trie)
    assert {node for path in paths for node in path.nodes} == set(range(1, trie.num_nodes))
    assert [path.tokens for path in paths] == [(1, 2, 3), (8, 9)]
    assert all(path.choice == 3 for path in paths)
    assert action_paths(0, ActionTrie.build(((1,), (2,)))) == []


@pytest.mark.parametrize("family", ["llama", "mistral_window", "bloom"])
def test_gradients_are_those_of_single_sequences(family):
    model, choices = build(family, torch.float64), random_choices(4, 3)
    scores = scores_of(model, expand_node_states(model, choices, tries_of(choices)), choices)
    expected = gradients_of(model, one_by_one(model, choices))
    assert relative_difference(gradients_of(model, scores), expected) < rounding(1.0)


@pytest.mark.parametrize("whole_sequences", [True, False])
def test_a_trunk_changes_nothing(whole_sequences, make_policy, tmp_path):
    """Where choices have one action, whole sequences through the layer above are less work."""
    lora = LoraConfig(r=4, alpha=8, targets=("q_proj", "v_proj"), top_layers=1)
    policy = make_policy("llama", lora=lora, weights=0.1, trunk_cache=str(tmp_path))
    policy.eval()
    trunk, choices = policy.forward_pass.trunk, random_choices(3, 3)
    if whole_sequences:
        choices = [EncodedChoice(c.prompt_ids, c.action_ids[:1], (1,)) for c in choices]
    tries = tries_of(choices)
    with torch.no_grad():
        expected = plain_node_states(policy.causal_model, choices, tries)
        found = expand_node_states(policy.causal_model, choices, tries, trunk)
    assert_rounding(found.states, expected.states)
    assert (len(trunk.store) > 0) == whole_sequences
