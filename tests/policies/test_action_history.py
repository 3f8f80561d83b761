"""What was computed together is computed together again, so that a resumed run rounds alike."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
import torch

from llm_agents.policies import LoraConfig
from llm_agents.policies.action_history import ComputedGroups, groups_of
from llm_agents.policies.action_types import EncodedChoice
from llm_agents.types import Choice

FIRST = EncodedChoice((1, 2), ((3,), (4, 5)), (1, 2))
SECOND = EncodedChoice((1, 2, 3), (), ())
ROOM = "You are in a long room with a table, two chairs and a lamp that is on. "
CHOICES = [
    Choice(f"{ROOM}You see {thing}. You should", ("take it", f"look at {thing}", "go on"))
    for thing in ("a red ball", "an old green key", "nothing at all", "a box and a door", "tea")
]


def test_groups_come_back_in_order_as_plain_data() -> None:
    groups = ComputedGroups()
    groups.add("trunk", [FIRST, SECOND])
    groups.add("policy", [SECOND])
    groups.add("features", [FIRST])
    groups.drop("policy")
    state = json.loads(json.dumps(groups.state_dict()))
    assert groups_of(state) == [("trunk", (FIRST, SECOND)), ("features", (FIRST,))]
    assert len(state["choices"]) == 2, "a choice is written once"


def test_too_many_choices_are_given_up_for_good() -> None:
    groups = ComputedGroups(most_choices=1)
    groups.add("trunk", [FIRST])
    assert groups_of(groups.state_dict()) == [("trunk", (FIRST,))]
    groups.add("trunk", [SECOND])
    assert groups.state_dict() == {"choices": [], "groups": []}
    groups.add("trunk", [FIRST])
    assert groups.state_dict() == {"choices": [], "groups": []}


def play(policy, parts):
    """Score choices and read their features, some at a time, as a run does."""
    with torch.no_grad():
        for part in parts:
            policy.score_actions(part, "sum")
            policy.base_features(part)
            with policy.reference():
                policy.score_actions(part, "sum")


def numbers_of(policy):
    """Return all that is known of the choices, as tensors."""
    with torch.no_grad():
        scores = policy.score_actions(CHOICES, "sum").token_log_probs
        features = policy.base_features(CHOICES).nodes
        with policy.reference():
            reference = policy.score_actions(CHOICES, "sum").token_log_probs
    return scores, features, reference


def compute_again(policy, state):
    """Do what a module does with the state of a checkpoint."""
    contexts = {
        "policy": nullcontext,
        "reference": policy.reference,
        "base": policy.without_adapters,
    }
    policy.scorer.compute_again(state, contexts, policy.parameter_version)


@pytest.mark.parametrize("top_layers", [None, 1])
def test_another_process_comes_to_the_same_bits(make_policy, top_layers) -> None:
    lora = LoraConfig(top_layers=top_layers)
    policies = []
    for _ in range(2):
        torch.manual_seed(0)
        policies.append(make_policy("llama", weights=0.1, lora=lora).eval())
    first, second = policies
    play(first, [CHOICES[:1], CHOICES[3:], CHOICES[1:3], CHOICES])
    state = json.loads(json.dumps(first.scorer.computed_groups(first.parameter_version)))
    compute_again(second, state)
    second.reset_memory_statistics()
    for mine, theirs in zip(numbers_of(first), numbers_of(second), strict=True):
        assert torch.equal(mine, theirs)
    assert second.memory_statistics().computed == 0
    assert second.scorer.computed_groups(0)["groups"] == state["groups"]


def test_scores_under_other_weights_are_not_asked_for_again(make_policy) -> None:
    policy = make_policy("llama", weights=0.1, lora=LoraConfig()).eval()
    play(policy, [CHOICES[:2]])
    kinds = [kind for kind, _ in policy.scorer.computed_groups(policy.parameter_version)["groups"]]
    assert kinds == ["policy", "features", "base"]
    policy.parameters_changed()
    kinds = [kind for kind, _ in policy.scorer.computed_groups(policy.parameter_version)["groups"]]
    assert kinds == ["features", "base"]
