"""Layouts of choices: every common beginning once, and node states as if each were alone."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agents.policies.action_layout import lay_out, layout_inputs, tree_attention
from llm_agents.policies.action_prefix import PrefixStore
from llm_agents.policies.action_tree import tree_node_states
from llm_agents.policies.action_trie import ActionTrie
from llm_agents.policies.action_trunk import ActionTrunk
from llm_agents.policies.action_types import EncodedChoice
from llm_agents.policies.tiny import tiny_model
from tests.closeness import assert_rounding

SHARED = tuple(range(20, 50))


def choice(prompt, *actions):
    return EncodedChoice(tuple(prompt), tuple(map(tuple, actions)), (1,) * len(actions))


def tries_of(choices):
    return [ActionTrie.build(c.action_ids) for c in choices]


def laid_out(choices):
    return lay_out(choices, tries_of(choices), torch.device("cpu"))


def alone(model, choices):
    """Return the float64 states at all nodes, each path read as a sequence of its own."""
    states = []
    for item, trie in zip(choices, tries_of(choices), strict=True):
        paths = [()]
        for parent, token in zip(trie.parents, trie.tokens, strict=True):
            paths.append((*paths[parent], token))
        for path in paths:
            ids = torch.tensor([[*item.prompt_ids, *path]])
            states.append(model(input_ids=ids).last_hidden_state[0, -1])
    return torch.stack(states)


@pytest.fixture(scope="module")
def models():
    """Return a tiny model and the layers of its float64 copy."""
    model = tiny_model("llama")
    return model, copy.deepcopy(model).double().model


def test_common_beginnings_come_once():
    choices = [
        choice((*SHARED, 1, 2), (5, 6), (5, 7)),
        choice((*SHARED, 1, 3, 4), (5, 6)),
        choice((*SHARED, 1, 3, 4), (9,)),
        choice((60, 61), (5, 6, 7)),
    ]
    layout = laid_out(choices)
    # What three share, then a rest and its trie at a time; equal prompts come once.
    assert layout.ids.tolist()[0] == [*SHARED, 1, 2, 5, 3, 4, 5, 60, 61, 5, 6]
    assert [len(places) for places in layout.node_places] == [2, 2, 1, 3]
    for item, places in zip(choices, layout.prompt_places, strict=True):
        assert tuple(layout.ids[0, places].tolist()) == item.prompt_ids
        assert layout.position_ids[0, places].tolist() == list(range(len(item.prompt_ids)))


def test_equal_prompts_are_one():
    choices = [choice(SHARED, (1, 2)), choice(SHARED, (3, 2)), choice(SHARED[:20], (4,))]
    layout = laid_out(choices)
    assert layout.ids.shape[1] == len(SHARED) + 2
    assert layout.node_places[0][0] == layout.node_places[1][0]


def drawn_choice(long, prompt, actions):
    """Return a choice whose prompt begins as that of others if it is `long`."""
    return choice((SHARED if long else ()) + prompt, *dict.fromkeys(actions))


tokens = st.integers(1, 6)  # few, so that much is shared
prompts = st.lists(tokens, min_size=1, max_size=24).map(tuple)
actions = st.lists(st.lists(tokens, min_size=1, max_size=4).map(tuple), min_size=1, max_size=5)
drawn = st.builds(drawn_choice, st.booleans(), prompts, actions)
choice_lists = st.lists(drawn, min_size=1, max_size=5, unique=True)


@settings(max_examples=25, deadline=None)
@given(choice_lists)
def test_node_states_are_those_of_each_path_alone(models, choices):
    model, exact = models
    with torch.no_grad():
        found = tree_node_states(model, choices, tries_of(choices))
        expected = alone(exact, choices)
    assert_rounding(found.states.double(), expected)


@settings(max_examples=10, deadline=None)
@given(st.lists(choice_lists, min_size=2, max_size=3))
def test_stored_prefixes_and_kept_states_change_nothing(models, calls):
    model, exact = models
    prefixes, trunk = PrefixStore(2**20), ActionTrunk(model, 1)
    for choices in calls:
        with torch.no_grad():
            for kept in (None, trunk):
                store = PrefixStore(2**20) if kept else prefixes
                found = tree_node_states(model, choices, tries_of(choices), kept, store)
                expected = alone(exact, choices)
                assert_rounding(found.states.double(), expected)


def test_small_stores_lose_nothing_but_time(models, monkeypatch):
    model, exact = models
    trunk = ActionTrunk(model, 1)
    trunk._blocks.limit = trunk._nodes.limit = 5_000  # less than one prompt's states
    monkeypatch.setattr("llm_agents.policies.action_trunk._MOST_NUMBERS", 2)
    for end in (4, 5, 4):
        choices = [choice((*SHARED, *SHARED, end), (1, 2)), choice((*SHARED, end), (2,))]
        with torch.no_grad():
            found = tree_node_states(model, choices, tries_of(choices), trunk, PrefixStore(100))
            expected = alone(exact, choices)
        assert_rounding(found.states.double(), expected)


def test_stored_tokens_are_not_computed_again(models):
    model, _ = models
    store = PrefixStore(2**20)
    first, second = choice((*SHARED, 1, 2), (3, 4)), choice((*SHARED, 5), (3, 4))
    with torch.no_grad():
        tree_node_states(model, [first], tries_of([first]), None, store)
    found = store.find(second.prompt_ids)
    assert found is not None
    assert found[1] == len(SHARED)
    assert store.find(first.prompt_ids)[1] == len(SHARED) + 1  # the last token's state is needed
    assert store.find((1, 2, 3)) is None
    layout = lay_out([second], tries_of([second]), torch.device("cpu"), [found])
    assert layout.ids.tolist() == [[5, 3]]
    store.clear()
    assert store.find(second.prompt_ids) is None


def test_keeping_needs_a_record():
    item = choice(SHARED, (1,))
    layout = laid_out([item])
    layout.begin()
    with pytest.raises(ValueError, match="record=True"):
        PrefixStore(2**20).keep([item], layout, [None])


def test_the_models_attention_is_put_back(models):
    model, _ = models
    before = model.config._attn_implementation
    layout = laid_out([choice(SHARED, (1, 2))])
    with pytest.raises(RuntimeError, match="stop"):
        _stop_inside(model, layout)
    assert model.config._attn_implementation == before


def _stop_inside(model, layout):
    """Leave the context by an exception."""
    with tree_attention(model):
        model.model(**layout_inputs(layout))
        raise RuntimeError("stop")
