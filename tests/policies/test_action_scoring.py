"""`score_actions` and `base_features`: exact, computed once, and never stale."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn

from llm_agents.errors import UserError
from llm_agents.functional.action_scores import branch_entropies, branch_log_probs
from llm_agents.policies import LoraConfig
from llm_agents.policies.action_text import PreparedChoice
from llm_agents.policies.action_trie import ActionTrie
from llm_agents.types import Choice
from tests.closeness import assert_rounding

STATIC = "You see a tomato, a plate and a knife. The pot is hot. "
CHOICES = [
    Choice(f"{STATIC}You should", ("get the tomato", "get the plate", "go left", "wait")),
    Choice(f"{STATIC}You hold the knife. You should", ("chop the tomato", "put it down")),
    Choice("You should", ("wait", "go")),
    Choice(f"{STATIC}You should", ("wait",)),
]


@pytest.fixture
def policy(make_policy):
    return make_policy("llama", weights=0.1, lora=LoraConfig()).eval()


def encoded(policy, choice):
    return policy.scorer.encoder.encode(choice)


def one_by_one(policy, choices):
    """Return each action's token log-probs and states before them, each sequence read alone."""
    model = policy.causal_model
    layers = getattr(model, model.base_model_prefix)
    log_probs, states = [], []
    for choice in choices:
        ids = encoded(policy, choice)
        for action in ids.action_ids:
            row = torch.tensor([[*ids.prompt_ids, *action]])
            hidden = layers(input_ids=row).last_hidden_state[0, len(ids.prompt_ids) - 1 : -1]
            found = model.get_output_embeddings()(hidden).double().log_softmax(-1)
            log_probs.append(found.gather(1, torch.tensor(action)[:, None])[:, 0])
            states.append(hidden)
    return log_probs, states


def by_action(tensor, mask):
    """Return the masked rows of a ``[B, A, L]`` tensor, action by action."""
    return [row[own] for row, own in zip(tensor.flatten(0, 1), mask.flatten(0, 1)) if own.any()]  # noqa: B905  # equal by construction


class Counter:
    """Counts the tokens that go through a module."""

    def __init__(self, module):
        self.tokens = 0
        module.register_forward_hook(self.count)

    def count(self, module, args, output):
        states = output[0] if isinstance(output, tuple) else output
        self.tokens += states.shape[0] * states.shape[1]

    def of(self, call):
        before = self.tokens
        call()
        return self.tokens - before


def layers_of(policy):
    model = policy.causal_model
    return getattr(model, model.base_model_prefix).layers


@pytest.mark.parametrize("top_layers", [None, 1])
@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_scores_are_those_of_one_sequence_an_action(make_policy, family, top_layers):
    if family == "t5" and top_layers is not None:
        pytest.skip("encoder-decoders have no trunk")
    policy = make_policy(family, weights=0.1, lora=LoraConfig(top_layers=top_layers)).eval()
    scores = policy.score_actions(CHOICES, "sum", entropies=True)
    if family != "t5":
        expected = one_by_one(policy, CHOICES)[0]
        found = by_action(scores.token_log_probs, scores.token_mask)
        for own, their in zip(found, expected, strict=True):
            torch.testing.assert_close(own.double(), their, atol=5e-5, rtol=0)
    sums = scores.token_log_probs.sum(-1)
    torch.testing.assert_close(scores.scores[scores.mask], sums[scores.mask])
    assert (scores.scores[~scores.mask] == -torch.inf).all()
    assert (scores.token_log_probs[~scores.token_mask] == 0).all()
    assert scores.mask.sum(1).tolist() == [4, 2, 2, 1]
    with torch.no_grad():  # what collects must be what trains: the first ratio is 1
        again = policy.score_actions(CHOICES, "sum")
    assert_rounding(again.log_probs(), scores.log_probs())


def test_normalizations(policy):
    with torch.no_grad():
        by = {n: policy.score_actions(CHOICES, n) for n in ("sum", "token", "word")}
    total, mask = by["sum"].scores, by["sum"].mask
    words = torch.tensor([[3, 3, 2, 1], [3, 3, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]])
    tokens = by["sum"].token_mask.sum(-1)
    torch.testing.assert_close(by["word"].scores[mask], (total / words)[mask])
    torch.testing.assert_close(by["token"].scores[mask], (total / tokens)[mask])
    with pytest.raises(ValueError, match="sum, token, word"):
        policy.score_actions(CHOICES, "letters")


def test_branches_and_entropies_are_those_of_the_formulas(policy):
    scores = policy.score_actions(CHOICES, "sum", entropies=True)
    arguments = (scores.token_log_probs, scores.token_ids, scores.token_mask)
    expected = branch_log_probs(*arguments)
    assert_rounding(scores.branch_log_probs, expected)
    expected = branch_entropies(*arguments)
    assert_rounding(scores.branch_entropies, expected)
    walks = scores.branch_log_probs.sum(-1).exp().masked_fill(~scores.mask, 0)
    torch.testing.assert_close(walks.sum(1), torch.ones(4))
    states = one_by_one(policy, CHOICES)[1]
    found = by_action(scores.token_entropies, scores.token_mask)
    for own, hidden in zip(found, states, strict=True):
        full = policy.causal_model.get_output_embeddings()(hidden).log_softmax(-1)
        assert_rounding(own, -(full.exp() * full).sum(-1))
    assert policy.score_actions(CHOICES, "sum").token_entropies is None


def test_chosen_picks_an_actions_tokens(policy):
    scores = policy.score_actions(CHOICES, "sum", entropies=True)
    index = torch.tensor([2, 0, 1, 0])
    chosen = scores.chosen(index)
    for row, action in enumerate(index.tolist()):
        torch.testing.assert_close(chosen.log_probs[row], scores.token_log_probs[row, action])
        torch.testing.assert_close(chosen.entropies[row], scores.token_entropies[row, action])
        assert chosen.mask[row].equal(scores.token_mask[row, action])
    assert policy.score_actions(CHOICES, "sum").chosen(index).branch_entropies is None


def test_an_action_that_begins_another_is_pointed_out(policy):
    choices = [Choice("You should", ("go", "go left")), Choice("You should", ("go", "wait"))]
    assert policy.score_actions(choices, "sum").is_nested.tolist() == [True, False]


@pytest.mark.parametrize("top_layers", [None, 1])
def test_gradients_are_those_of_one_sequence_an_action(make_policy, top_layers):
    policy = make_policy("llama", weights=0.1, lora=LoraConfig(top_layers=top_layers)).eval()
    parameters = [parameter for _, parameter in policy.trainable_parameters()]
    scores = policy.score_actions(CHOICES, "sum")
    found = by_action(scores.token_log_probs, scores.token_mask)
    expected = one_by_one(policy, CHOICES)[0]
    weights = [torch.randn(len(row)) for row in expected]
    gradients = []
    for rows in (found, expected):
        loss = sum((row * weight).sum() for row, weight in zip(rows, weights, strict=True))
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
    assert (gradients[0] - gradients[1]).norm() <= 1e-4 * gradients[1].norm()


def test_a_choice_does_not_see_its_batch(policy):
    with torch.no_grad():
        together = policy.score_actions(CHOICES, "sum")
        for row, choice in enumerate(CHOICES):
            policy.scorer.forget()
            alone = policy.score_actions([choice], "sum")
            size = len(choice.actions)
            assert_rounding(alone.scores[0], together.scores[row, :size])


def test_a_choice_is_computed_once_until_the_weights_change(policy):
    with torch.no_grad():
        first = policy.score_actions([*CHOICES, CHOICES[0]], "sum")
        assert policy.memory_statistics() == (5, 4, 1)
        again = policy.score_actions(CHOICES, "word", entropies=True)
        assert policy.memory_statistics() == (9, 4, 5)
    assert again.token_log_probs.equal(first.token_log_probs[:4])
    policy.reset_memory_statistics()
    policy.score_actions(CHOICES, "sum")  # a gradient can't come from memory
    assert policy.memory_statistics() == (4, 4, 0)


def adamw(policy, **options):
    def step():
        optimizer = torch.optim.AdamW([p for _, p in policy.trainable_parameters()], **options)
        policy.score_actions(CHOICES, "sum").scores[0, 0].backward()
        optimizer.step()

    return step


def write_in_place(policy):
    with torch.no_grad():
        next(policy.trainable_parameters())[1].add_(0.1)


def load(policy):
    state = {name: tensor + 0.1 for name, tensor in policy.adapter_state_dict().items()}
    policy.load_adapter_weights(state)


CHANGES = {
    "foreach step": lambda policy: adamw(policy, lr=0.1, foreach=True)(),
    "fused step": lambda policy: adamw(policy, lr=0.1, fused=True)(),
    "plain step": lambda policy: adamw(policy, lr=0.1, foreach=False)(),
    "write": write_in_place,
    "load": load,
    "told": lambda policy: policy.parameters_changed(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_answer_outlives_the_weights(policy, change):
    with torch.no_grad():
        policy.score_actions(CHOICES, "sum")
    CHANGES[change](policy)
    policy.reset_memory_statistics()
    with torch.no_grad():
        scores = policy.score_actions(CHOICES, "sum")
    assert policy.memory_statistics().answered_from_memory == 0
    found = by_action(scores.token_log_probs, scores.token_mask)
    for own, their in zip(found, one_by_one(policy, CHOICES)[0], strict=True):
        torch.testing.assert_close(own.double(), their, atol=5e-5, rtol=0)


def test_what_dropout_changes_is_not_remembered(make_policy):
    policy = make_policy("llama", weights=0.1, lora=LoraConfig(dropout=0.5)).train()
    with torch.no_grad():
        first = policy.score_actions(CHOICES, "sum").token_log_probs
        assert not first.equal(policy.score_actions(CHOICES, "sum").token_log_probs)
        policy.eval()
        first = policy.score_actions(CHOICES, "sum").token_log_probs
    exact = policy.score_actions(CHOICES, "sum").token_log_probs
    assert_rounding(first, exact)


def test_policy_reference_and_base_have_memories_of_their_own(make_policy, tmp_path):
    start = make_policy("llama", weights=0.1, lora=LoraConfig())
    start.save_adapter(tmp_path)
    policy = make_policy("llama", adapter=str(tmp_path)).eval()
    write_in_place(policy)
    contexts = {
        "policy": nullcontext,
        "reference": policy.reference,
        "base": policy.without_adapters,
    }
    for _ in range(2):
        for context in contexts.values():
            with torch.no_grad(), context():
                scores = policy.score_actions(CHOICES, "sum")
                expected = one_by_one(policy, CHOICES)[0]
            found = by_action(scores.token_log_probs, scores.token_mask)
            for own, their in zip(found, expected, strict=True):
                torch.testing.assert_close(own.double(), their, atol=5e-5, rtol=0)
    assert policy.memory_statistics().computed == 3 * len(CHOICES)
    write_in_place(policy)
    with torch.no_grad(), policy.reference():
        policy.score_actions(CHOICES, "sum")
    assert policy.memory_statistics().computed == 3 * len(CHOICES)  # the reference did not change


def test_without_adapters_leaves_no_trace(policy):
    before = [name for name, _ in policy.trainable_parameters()]
    policy.train()
    with policy.reference(), policy.without_adapters():
        assert not policy.training
    with policy.without_adapters(), policy.without_adapters():
        pass
    assert policy.training
    assert [name for name, _ in policy.trainable_parameters()] == before
    exact = policy.eval().score_actions(CHOICES, "sum").token_log_probs
    with policy.without_adapters():
        assert not policy.score_actions(CHOICES, "sum").token_log_probs.allclose(exact, atol=1e-3)


def test_a_policy_that_moves_or_changes_precision_forgets(policy):
    with torch.no_grad():
        policy.score_actions(CHOICES, "sum")
        policy.base_features(CHOICES)
        policy.double()
        assert policy.score_actions(CHOICES, "sum").token_log_probs.dtype == torch.float64
        assert policy.base_features(CHOICES).nodes.dtype == torch.float64


def test_a_prompt_that_goes_on_is_not_read_again(policy):
    counter = Counter(layers_of(policy)[0])
    history = STATIC + "You go left. "
    longer = replace(CHOICES[0], prompt=f"{history}You go right. You should")
    with torch.no_grad():
        policy.score_actions([replace(CHOICES[0], prompt=f"{history}You should")], "sum")
        computed = counter.of(lambda: policy.score_actions([longer], "sum"))
    ids = encoded(policy, longer)
    trie = policy.scorer.encoder.prepare(longer).trie
    assert computed < len(ids.prompt_ids) // 2 + len(trie.tokens)
    exact = policy.score_actions([longer], "sum").token_log_probs
    with torch.no_grad():
        stored = policy.score_actions([longer], "sum").token_log_probs
    assert_rounding(stored, exact)


def test_frozen_layers_are_computed_once_in_rollout_update_and_features(make_policy):
    policy = make_policy("llama", weights=0.1, lora=LoraConfig(top_layers=1)).eval()
    bottom, top = (Counter(layer) for layer in layers_of(policy))
    lower = layers_of(policy)[0].mlp  # the layer itself is called, and hands kept states over
    work = Counter(lower)
    with torch.no_grad():
        assert work.of(lambda: policy.score_actions(CHOICES, "sum")) > 0
    assert work.of(lambda: policy.score_actions(CHOICES, "sum").scores[0, 0].backward()) == 0
    write_in_place(policy)
    with torch.no_grad():
        assert work.of(lambda: policy.score_actions(CHOICES, "sum")) == 0
        assert work.of(lambda: policy.base_features(CHOICES)) == 0
    policy.scorer.keeps_trunk = False
    assert work.of(lambda: policy.score_actions(CHOICES, "sum")) > 0
    assert top.tokens > 0
    assert bottom.tokens > 0


@pytest.mark.parametrize("top_layers", [None, 1])
def test_features_are_the_bases_and_last_for_the_run(make_policy, top_layers):
    policy = make_policy("llama", weights=0.1, lora=LoraConfig(top_layers=top_layers)).eval()
    features = policy.base_features(CHOICES)
    assert not features.nodes.requires_grad
    with policy.without_adapters(), torch.no_grad():
        expected = iter(one_by_one(policy, CHOICES)[1])
    for row, choice in enumerate(CHOICES):
        for action in range(len(choice.actions)):
            states, mask = features.token_states(torch.tensor([action] * len(CHOICES)).clamp(
                max=torch.tensor([len(c.actions) - 1 for c in CHOICES])
            ))  # fmt: skip
            their = next(expected)
            assert_rounding(states[row, mask[row]], their)
            assert (states[row, ~mask[row]] == 0).all()
            torch.testing.assert_close(features.prompt_states[row], states[row, 0])
    counter = Counter(layers_of(policy)[1])
    write_in_place(policy)
    assert counter.of(lambda: policy.base_features(CHOICES[:2])) == 0
    prompts = [choice.prompt for choice in CHOICES]
    alone = []
    assert counter.of(lambda: alone.append(policy.prompt_features(prompts))) == 0
    assert alone[0].equal(features.prompt_states)


def test_the_last_layer_feeds_forward_where_its_states_are_read(policy):
    """Its other tokens give keys and values alone: a few of a long prompt's are computed."""
    with torch.no_grad():
        policy.score_actions(CHOICES[:1], "sum")  # finds out how the model is scored
    write_in_place(policy)
    work = Counter(layers_of(policy)[-1].mlp.down_proj)
    nodes = sum(policy.scorer.encoder.prepare(choice).trie.num_nodes for choice in CHOICES)
    nodes -= 1  # two choices have one prompt
    with torch.no_grad():
        assert work.of(lambda: policy.score_actions(CHOICES, "sum")) == nodes
    assert work.of(lambda: policy.score_actions(CHOICES, "sum").scores[0, 0].backward()) == nodes
    assert "forward" not in layers_of(policy)[-1].mlp.__dict__


def test_what_is_added_to_all_logits_of_a_place_changes_no_score(policy):
    """Summed logits would rank actions by it: it differs from place to place."""
    with torch.no_grad():
        before = policy.score_actions(CHOICES, "token").scores
        head = policy.causal_model.get_output_embeddings()
        head.weight += 3 * torch.randn(head.weight.shape[1])
        after = policy.score_actions(CHOICES, "token").scores
    assert policy.causal_model.get_input_embeddings().weight is not head.weight
    assert_rounding(after, before)


def test_a_pad_id_inside_an_action_is_a_token_like_any_other(policy):
    """Masks come from lengths."""
    choice = Choice("You should", ("go", "wait here"))
    prepared = policy.scorer.encoder.prepare(choice)
    ids = (prepared.encoded.action_ids[0], (*prepared.encoded.action_ids[1][:1], 0, 0))
    changed = replace(prepared.encoded, action_ids=ids)
    policy.scorer.encoder._remembered.put(
        choice, PreparedChoice(changed, ActionTrie.build(ids)), size=1
    )
    with torch.no_grad():
        scores = policy.score_actions([choice], "sum")
        expected = one_by_one(policy, [choice])[0]
    assert scores.token_mask.sum(-1).tolist() == [[len(ids[0]), 3]]
    found = by_action(scores.token_log_probs, scores.token_mask)
    for own, their in zip(found, expected, strict=True):
        assert_rounding(own.double(), their)


def test_features_of_prompts_that_nothing_follows(policy):
    features = policy.base_features([Choice("The dish is served.", ()), CHOICES[2]])
    states, mask = features.token_states(torch.tensor([0, 0]))
    assert not mask[0].any()
    assert (states[0] == 0).all()
    only = policy.prompt_features(["The dish is served."])
    assert only.shape == (1, policy.hidden_size)
    assert only[0].equal(features.prompt_states[0])
    assert policy.base_features([Choice("The end.", ())]).token_mask.shape == (1, 0, 0)


def test_without_a_frozen_base_there_are_no_features(make_policy):
    with pytest.raises(UserError, match="all weights of this policy train"):
        make_policy("llama").base_features(CHOICES)
    frozen = make_policy("llama", trainable=False)
    assert frozen.base_features(CHOICES).prompt_states.shape == (4, frozen.hidden_size)


def test_all_weights_may_train(make_policy):
    policy = make_policy("llama").eval()
    policy.score_actions(CHOICES, "word", entropies=True).log_probs()[:, 0].sum().backward()
    head = policy.causal_model.get_output_embeddings()
    assert isinstance(head, nn.Linear)
    assert float(head.weight.grad.norm()) > 0


def test_what_can_not_be_scored_is_said(policy):
    with pytest.raises(ValueError, match="at least one choice"):
        policy.score_actions([], "sum")
    with pytest.raises(ValueError, match="at least one choice"):
        policy.base_features([])
    with pytest.raises(ValueError, match=r"got none after 'The end\.'"):
        policy.score_actions([Choice("The end.", ())], "sum")
    long = Choice("red " * policy.context_length, ("go",))
    with pytest.raises(UserError, match="show less history"):
        policy.score_actions([long], "sum")
