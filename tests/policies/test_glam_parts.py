"""What GLAM adds to a policy: a network on its state, raw logits, weights without pretraining."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from llm_agents.errors import UserError
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.policies.action_logits import action_token_logits
from llm_agents.policies.heads import load_head, save_head
from llm_agents.policies.state_mlp import StateMLP
from llm_agents.policies.untrained import forget_pretraining
from llm_agents.types import Choice
from tests.closeness import assert_rounding

MakePolicy = Callable[..., LanguagePolicy]
LORA = LoraConfig(r=4, alpha=8, targets="all-linear")
CHOICES = [
    Choice("Goal of the agent: go to the ball \n Action 0:", ("turn left", "drop", "pick up")),
    Choice("You see a wall. Action 0:", ("toggle", "go forward")),
]


# --- the network


@pytest.mark.parametrize(
    ("hidden_size", "count"), [(512, 1_575_937), (1024, 2_100_225), (2048, 3_148_801)]
)
def test_the_value_network_has_as_many_parameters_as_released(hidden_size: int, count: int) -> None:
    assert sum(p.numel() for p in StateMLP(hidden_size).parameters()) == count


def test_the_network_is_sigmoids_between_linear_layers() -> None:
    head = StateMLP(3, 2, (4, 5))
    states = torch.randn(6, 3)
    first, second, third = (layer for layer in head.layers if isinstance(layer, nn.Linear))
    expected = third(second(first(states).sigmoid()).sigmoid())
    torch.testing.assert_close(head(states), expected)
    assert StateMLP(3, 1, (4,))(states.to(torch.bfloat16)).dtype == torch.float32
    assert StateMLP(3)(states).shape == (6,)


def test_the_state_learns_from_the_network() -> None:
    states = torch.randn(2, 3, requires_grad=True)
    StateMLP(3, 1, (4,))(states).sum().backward()
    assert states.grad is not None
    assert float(states.grad.abs().min()) > 0


def test_the_network_survives_its_files(tmp_path: Path) -> None:
    head = StateMLP(3, 2, (4,))
    save_head(head, tmp_path, "action_head")
    again = load_head(tmp_path, "action_head", 3)
    assert isinstance(again, StateMLP)
    assert torch.equal(again(torch.ones(1, 3)), head(torch.ones(1, 3)))
    with pytest.raises(UserError, match="trained on another base"):
        load_head(tmp_path, "action_head", 5)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        StateMLP(3, 0)
    with pytest.raises(ValueError, match=r"\(…, 3\)"):
        StateMLP(3)(torch.zeros(2, 4))


# --- raw logits


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_logits_less_their_log_sums_are_log_probs(make_policy: MakePolicy, family: str) -> None:
    policy = make_policy(family, lora=LORA, weights=0.3)
    logits = action_token_logits(policy, CHOICES)
    scores = policy.score_actions(CHOICES, "sum")
    assert logits.shape == scores.token_mask.shape
    assert bool((logits[~scores.token_mask] == 0).all())
    for row, choice in enumerate(CHOICES):
        for number, action in enumerate(choice.actions):
            expected = plain_logits(policy, choice.prompt, action)
            length = int(scores.token_mask[row, number].sum())
            assert len(expected) == length
            found = logits[row, number, :length]
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def plain_logits(policy: LanguagePolicy, prompt: str, action: str) -> torch.Tensor:
    """Return the logits of an action's tokens, read alone."""
    model = policy.causal_model
    if policy.is_encoder_decoder:
        ids = policy.encode_text(prompt, begin=True)
        own = policy.encode_text(action, begin=False)
        start = int(model.config.decoder_start_token_id)
        output = model(
            input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([[start, *own[:-1]]])
        )
        return output.logits[0, torch.arange(len(own)), torch.tensor(own)].detach()
    whole = policy.encode_text(f"{prompt} {action}", begin=True)
    alone = len(policy.encode_text(prompt, begin=True))
    own = torch.tensor(whole[alone:])
    logits = model(input_ids=torch.tensor([whole])).logits[0, alone - 1 : -1]
    return logits[torch.arange(len(own)), own].detach()


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_the_state_is_that_before_an_actions_first_token(
    make_policy: MakePolicy, family: str
) -> None:
    """Behind the last norm: of the decoder's start token, or of the prompt's last one."""
    policy = make_policy(family, lora=LORA, weights=0.3)
    model = policy.causal_model
    found = policy.score_actions(CHOICES, "sum").prompt_states
    for row, choice in enumerate(CHOICES):
        ids = torch.tensor([policy.encode_text(choice.prompt, begin=True)])
        if policy.is_encoder_decoder:
            start = torch.tensor([[int(model.config.decoder_start_token_id)]])
            output = model(input_ids=ids, decoder_input_ids=start, output_hidden_states=True)
            expected = output.decoder_hidden_states[-1][0, 0]
        else:
            output = model(input_ids=ids, output_hidden_states=True)
            expected = output.hidden_states[-1][0, -1]
        assert_rounding(found[row], expected)


def test_logits_carry_a_gradient(make_policy: MakePolicy) -> None:
    policy = make_policy("llama", lora=LORA, weights=0.3)
    action_token_logits(policy, CHOICES).sum().backward()
    assert any(
        p.grad is not None and bool(p.grad.abs().max() > 0)
        for _, p in policy.trainable_parameters()
    )


# --- without pretraining


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_without_pretraining_all_weights_are_others(make_policy: MakePolicy, family: str) -> None:
    policy = make_policy(family)
    before = {n: p.detach().clone() for n, p in policy.model.named_parameters()}
    forget_pretraining(policy, keep_embeddings=False, seed=3)
    changed = [
        name
        for name, parameter in policy.model.named_parameters()
        if parameter.dim() > 1 and not torch.equal(parameter, before[name])
    ]
    assert len(changed) == sum(p.dim() > 1 for p in policy.model.parameters())
    again = make_policy(family)
    forget_pretraining(again, keep_embeddings=False, seed=3)
    for first, second in zip(policy.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(first, second), "the seed decides"
    other = make_policy(family)
    forget_pretraining(other, keep_embeddings=False, seed=4)
    assert not torch.equal(
        next(p for p in other.model.parameters() if p.dim() > 1),
        next(p for p in policy.model.parameters() if p.dim() > 1),
    )


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_the_embeddings_alone_can_be_kept(make_policy: MakePolicy, family: str) -> None:
    policy, untouched = make_policy(family), make_policy(family)
    forget_pretraining(policy, keep_embeddings=True, seed=0)
    torch.testing.assert_close(
        policy.causal_model.get_input_embeddings().weight,
        untouched.causal_model.get_input_embeddings().weight,
    )
    pairs = zip(policy.model.named_parameters(), untouched.model.named_parameters(), strict=True)
    changed = {n for (n, own), (_, old) in pairs if own.dim() > 1 and not torch.equal(own, old)}
    assert changed
    assert not any("embed" in n or "shared" in n or "wte" in n for n in changed)


def test_what_was_remembered_of_the_pretrained_model_is_forgotten(make_policy: MakePolicy) -> None:
    policy = make_policy("llama", lora=LORA, weights=0.3)
    with torch.no_grad():
        before = policy.score_actions(CHOICES, "sum").scores
        features = policy.prompt_features([CHOICES[0].prompt])
        adapters = [p.clone() for _, p in policy.trainable_parameters()]
        forget_pretraining(policy, keep_embeddings=False, seed=0)
        assert not torch.allclose(policy.score_actions(CHOICES, "sum").scores, before)
        assert not torch.allclose(policy.prompt_features([CHOICES[0].prompt]), features)
    after = [p for _, p in policy.trainable_parameters()]
    assert all(torch.equal(a, b) for a, b in zip(adapters, after, strict=True))


def test_stored_states_of_the_pretrained_model_are_refused(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    top = LoraConfig(r=4, alpha=8, targets="all-linear", top_layers=1)
    policy = make_policy("llama", lora=top)
    policy.use_trunk_cache(tmp_path)
    with pytest.raises(UserError, match="trunk_cache"):
        forget_pretraining(policy, keep_embeddings=False, seed=0)
