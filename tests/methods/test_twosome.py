"""TWOSOME: actions from a list, one unit each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from llm_agents.envs.toy import Corridor
from llm_agents.functional import list_entropy
from llm_agents.methods import TWOSOME, PPOConfig
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.policies.backbone import build_optimizer
from llm_agents.types import Choice
from tests.closeness import assert_rounding
from tests.methods.online import Rollouts

MakePolicy = Callable[..., LanguagePolicy]
LORA = LoraConfig(r=4, alpha=8, targets="all-linear")
CHOICE = Choice(
    "You see a red lamp. You should", ("press the red button", "wait", "look at the table")
)


def agent(make_policy: MakePolicy, normalization: str = "word", **ppo: object) -> TWOSOME:
    policy = make_policy("llama", lora=LORA, weights=0.2)
    return TWOSOME(policy, normalization, ppo=PPOConfig(**ppo), critic_widths=(16,))  # type: ignore[arg-type]


@pytest.mark.parametrize("normalization", ["sum", "token", "word"])
def test_actions_are_drawn_from_the_softmax_over_normalized_scores(
    make_policy: MakePolicy, normalization: str
) -> None:
    module = agent(make_policy, normalization)
    scores = module.policy.score_actions([CHOICE], "sum")
    tokens, words = scores.token_mask[0].sum(-1), torch.tensor([4, 1, 4])
    lengths = {"sum": torch.ones(3), "token": tokens, "word": words}[normalization]
    expected = (scores.token_log_probs[0].sum(-1) / lengths).detach().log_softmax(0)
    count = 4000
    found = module.act([CHOICE] * count, torch.Generator().manual_seed(0))
    assert_rounding(found.log_probs[:, 0], expected[found.index])
    shares = found.index.bincount(minlength=3) / count
    bound = 4 * (expected.exp() * (1 - expected.exp()) / count).sqrt()
    assert bool(((shares - expected.exp()).abs() <= bound).all())
    assert found.mask.shape == (count, 1)
    assert bool(found.mask.all())


def test_the_order_of_the_list_changes_nothing(make_policy: MakePolicy) -> None:
    module = agent(make_policy)
    turned = Choice(CHOICE.prompt, CHOICE.actions[::-1])
    scores = module.policy.score_actions([CHOICE, turned], "word")
    found = module.units([CHOICE, turned], scores).action_log_probs
    assert_rounding(found[0], found[1].flip(0))


def test_an_only_action_is_certain_and_teaches_nothing(make_policy: MakePolicy) -> None:
    module = agent(make_policy)
    alone = Choice(CHOICE.prompt, ("wait",))
    found = module.act([alone], torch.Generator())
    assert float(found.log_probs) == 0
    units = module.units([alone], module.policy.score_actions([alone], "word"))
    assert units.entropies is not None
    assert float(units.entropies.detach().squeeze()) == 0
    units.log_probs.sum().backward()
    gradients = [p.grad for _, p in module.policy.trainable_parameters() if p.grad is not None]
    assert all(float(gradient.abs().max()) == 0 for gradient in gradients)


def test_entropies_are_those_of_the_lists(make_policy: MakePolicy) -> None:
    module = agent(make_policy)
    shorter = Choice(CHOICE.prompt, CHOICE.actions[:2])
    scores = module.policy.score_actions([CHOICE, shorter], "word")
    units = module.units([CHOICE, shorter], scores)
    assert units.entropies is not None
    expected = list_entropy(units.action_log_probs, scores.mask)
    torch.testing.assert_close(units.entropies[:, 0, 0], expected)
    assert float(expected[1]) <= torch.tensor(2.0).log()


def test_macros_are_discounted_by_their_duration(make_policy: MakePolicy) -> None:
    module = agent(make_policy, gamma=0.9, gae_lambda=0.5)
    rollout = Rollouts(module, [Corridor(4, macros=True, seed=e) for e in range(3)], 6).collect()
    assert int(rollout.durations.max()) > 1
    found = module.assign(rollout)
    assert found.advantages.shape == rollout.values.shape == (6, 3, 1)
    expected = torch.zeros(6, 3)
    for world in range(3):
        following = 0.0
        for step in reversed(range(6)):
            discount = 0.9 ** int(rollout.durations[step, world])
            done = bool(rollout.terminated[step, world] | rollout.truncated[step, world])
            delta = (
                float(rollout.rewards[step, world])
                + discount * float(rollout.next_values[step, world])
                - float(rollout.values[step, world, 0])
            )
            following = delta + (0.0 if done else discount * 0.5 * following)
            expected[step, world] = following
    assert_rounding(found.advantages[..., 0], expected)

    flat = agent(make_policy, gamma=0.9, gae_lambda=0.5, macro_discount=False)
    ones = replace(rollout, durations=torch.ones_like(rollout.durations))
    torch.testing.assert_close(flat.assign(rollout).returns, module.assign(ones).returns)


def test_a_published_rate_belongs_to_adam_in_half_precision() -> None:
    """In float16 the first step is 20 to 100 times as long: ``eps`` is lost in the root's rounding.

    So a rate of 5e-7 there is one of about 1e-5 here, and the recipes have rates of their own.
    """
    worked = {
        1e-3: (-4.9949e-5, -4.9505e-7),
        1e-4: (-5.0068e-6, -4.5455e-7),
        1e-5: (-4.7684e-7, -2.5e-7),
    }
    for gradient, steps in worked.items():
        for dtype, step in zip((torch.float16, torch.float32), steps, strict=True):
            parameter = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
            parameter.grad = torch.full_like(parameter, gradient)
            optimizer = build_optimizer(
                "adamw", [parameter], lr=5e-7, betas=(0.9, 0.999), eps=1e-5, weight_decay=0.0
            )
            optimizer.step()
            assert float(parameter) == pytest.approx(step, rel=2e-4), (gradient, dtype)


def test_adapters_are_in_single_precision_whatever_the_base_is(make_policy: MakePolicy) -> None:
    policy = make_policy("llama", lora=LORA, dtype="bfloat16")
    assert {p.dtype for _, p in policy.trainable_parameters()} == {torch.float32}
    assert policy.causal_model.get_output_embeddings().weight.dtype == torch.bfloat16
