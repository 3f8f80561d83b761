"""POAD: the tokens of actions as units, and its relatives NTPO and ArCHer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_agents.envs import TextEnv
from llm_agents.envs.registry import make_world
from llm_agents.envs.toy import Chest, Corridor
from llm_agents.errors import UserError
from llm_agents.functional import token_level_gae
from llm_agents.methods import POAD, TWOSOME, PPOConfig, TokenPPOConfig
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.types import Choice
from tests.closeness import assert_rounding
from tests.methods.online import Rollouts, fit

MakePolicy = Callable[..., LanguagePolicy]
LORA = LoraConfig(r=4, alpha=8, targets="all-linear")
CHOICES = [
    Choice(
        "Two keys lie on the table. You should",
        ("pick up the silver key", "pick up the golden key", "wait for a while", "open the chest"),
    ),
    Choice("The chest is open. You should", ("take the coin",)),
]


def agent(make_policy: MakePolicy, family: str = "llama", **options: Any) -> POAD:
    policy = make_policy(family, lora=LORA, weights=0.2)
    ppo = TokenPPOConfig(**options.pop("ppo", {}))
    return POAD(policy, ppo=ppo, critic_widths=(16,), **options)


@pytest.mark.parametrize("behaviour", ["decomposed", "trie"])
def test_a_walk_from_token_to_token_is_a_policy(make_policy: MakePolicy, behaviour: str) -> None:
    module = agent(make_policy, behaviour=behaviour, tokens="all")
    scores = module.policy.score_actions(CHOICES, "word", entropies=True)
    units = module.units(CHOICES, scores)
    torch.testing.assert_close(units.action_log_probs.exp().sum(1), torch.ones(2))
    torch.testing.assert_close(
        units.log_probs.sum(-1)[scores.mask], units.action_log_probs[scores.mask]
    )
    asked = module.units(CHOICES, module.policy.score_actions(CHOICES, "word"))
    assert units.entropies is not None
    assert asked.entropies is not None
    assert_rounding(units.entropies, asked.entropies)

    count = 3000
    found = module.act([CHOICES[0]] * count, torch.Generator().manual_seed(0))
    expected = units.action_log_probs[0].detach().exp()
    shares = found.index.bincount(minlength=4) / count
    assert bool(((shares - expected).abs() <= 4 * (expected / count).sqrt()).all())
    assert_rounding(found.log_probs.sum(1), expected.log()[found.index])


def test_the_released_behaviour_draws_from_the_list(make_policy: MakePolicy) -> None:
    module = agent(make_policy, behaviour="list", tokens="all")
    scores = module.policy.score_actions(CHOICES, "word", entropies=True)
    units = module.units(CHOICES, scores)
    torch.testing.assert_close(units.action_log_probs, scores.log_probs())
    assert units.log_probs is scores.token_log_probs
    assert units.entropies is scores.token_entropies
    found = module.act(CHOICES, torch.Generator().manual_seed(0))
    rows = torch.arange(2)
    assert_rounding(found.log_probs, scores.token_log_probs[rows, found.index])


@pytest.mark.parametrize("behaviour", ["decomposed", "trie"])
def test_units_may_be_the_tokens_with_an_alternative(
    make_policy: MakePolicy, behaviour: str
) -> None:
    every = agent(make_policy, behaviour=behaviour, tokens="all")
    few = agent(make_policy, behaviour=behaviour, tokens="branching")
    few.critic.load_state_dict(every.critic.state_dict())
    scores = every.policy.score_actions(CHOICES, "word")
    all_units, few_units = every.units(CHOICES, scores), few.units(CHOICES, scores)
    assert torch.equal(all_units.action_log_probs, few_units.action_log_probs)
    torch.testing.assert_close(all_units.log_probs.sum(-1), few_units.log_probs.sum(-1))
    assert all_units.entropies is not None
    assert few_units.entropies is not None
    torch.testing.assert_close(all_units.entropies.sum(-1), few_units.entropies.sum(-1))
    for action in range(4):
        index = torch.tensor([action, 0])
        values, mask = every.unit_values(CHOICES, index)
        few_values, few_mask = few.unit_values(CHOICES, index)
        taken = all_units.log_probs[torch.arange(2), index]
        decisive = mask & (taken != 0)
        decisive[:, 0] = True
        assert few_mask.sum(1).tolist() == decisive.sum(1).tolist()
        assert_rounding(few_values[few_mask], values[decisive])
        assert torch.equal(few_mask, few_mask.sort(1, descending=True).values)
    assert few_mask[1].sum() == 1, "an only action has one unit"


def test_a_value_is_read_before_its_token(make_policy: MakePolicy) -> None:
    module = agent(make_policy, tokens="all")
    values, mask = module.unit_values([CHOICES[0]] * 2, torch.tensor([0, 1]))
    prompt = module.state_values([CHOICES[0]])
    assert_rounding(values[:, 0], prompt.expand(2))
    scores = module.policy.score_actions([CHOICES[0]], "word")
    ids = scores.token_ids[0]
    shared = int((ids[0] == ids[1]).int().cumprod(0).sum())
    assert 0 < shared < int(mask[0].sum())
    # The value before the first token that differs has not read it; the next one has.
    torch.testing.assert_close(values[0, : shared + 1], values[1, : shared + 1])
    if bool(mask[:, shared + 1].all()):
        assert not torch.isclose(values[0, shared + 1], values[1, shared + 1])


def test_a_list_in_which_one_action_begins_another_has_no_walk(make_policy: MakePolicy) -> None:
    nested = [Choice("You should", ("wait", "wait for a while"))]
    module = agent(make_policy)
    with pytest.raises(UserError, match="the beginning of another"):
        module.act(nested, torch.Generator())
    agent(make_policy, behaviour="list", tokens="all").act(nested, torch.Generator())


@pytest.mark.parametrize(
    ("options", "gamma", "trace"),
    [
        ({}, 1.0, 1.0),
        ({"intra_trace": "lambda"}, 1.0, 0.8),
        ({"intra_trace": "gamma_lambda"}, 1.0, 0.72),
        ({"credit": "ntpo", "intra_trace": "lambda"}, 0.9, 0.8),
        ({"credit": "ntpo", "intra_action_gamma": 0.5}, 0.5, 1.0),
    ],
)
def test_credit_inside_an_action(
    make_policy: MakePolicy, options: dict[str, Any], gamma: float, trace: float
) -> None:
    module = agent(make_policy, ppo={"gamma": 0.9, "gae_lambda": 0.8}, **options)
    rollout = Rollouts(module, [Chest(seed=e, max_steps=4) for e in range(3)], 6).collect()
    expected = token_level_gae(
        rewards=rollout.rewards,
        values=rollout.values,
        next_values=rollout.next_values,
        mask=rollout.mask,
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        discounts=torch.full((6, 3), 0.9),
        gae_lambda=0.8,
        intra_action_gamma=gamma,
        intra_action_lambda=trace,
    )
    torch.testing.assert_close(module.assign(rollout).advantages, expected.advantages)


def test_archer_bootstraps_from_the_next_actions_last_token(make_policy: MakePolicy) -> None:
    ppo = {"gamma": 0.9, "gae_lambda": 0.0}
    module = agent(make_policy, ppo=ppo, credit="archer", intra_trace="lambda")
    rollout = Rollouts(module, [Chest(seed=0)], 2).collect()
    lengths = rollout.mask.sum(-1)[:, 0]
    last = int(lengths[0]) - 1
    target = float(rollout.values[1, 0, int(lengths[1]) - 1])
    expected = float(rollout.rewards[0, 0]) + 0.9 * target - float(rollout.values[0, 0, last])
    assert float(module.assign(rollout).advantages[0, 0, last]) == pytest.approx(expected, abs=1e-5)


def test_with_trace_one_the_first_token_has_the_actions_advantage(make_policy: MakePolicy) -> None:
    module = agent(make_policy, ppo={"gamma": 0.9, "gae_lambda": 0.7})
    rollout = Rollouts(module, [Corridor(3, seed=e) for e in range(2)], 8).collect()
    actions = TWOSOME(
        module.policy,
        ppo=PPOConfig(gamma=0.9, gae_lambda=0.7, macro_discount=False),
        critic_widths=(16,),
    )
    found = module.assign(rollout).advantages[..., 0]
    assert_rounding(found, actions.assign(rollout).advantages[..., 0])


def test_options_that_mean_nothing_together_are_refused(make_policy: MakePolicy) -> None:
    with pytest.raises(UserError, match="behaviour: decomposed"):
        agent(make_policy, behaviour="list", tokens="branching")
    with pytest.raises(UserError, match="intra_action_gamma"):
        agent(make_policy, intra_action_gamma=1.5)


def test_the_defaults_are_those_of_an_update_on_tokens(make_policy: MakePolicy) -> None:
    module = POAD(make_policy("llama", lora=LORA), critic_widths=(4,))
    assert isinstance(module.ppo, TokenPPOConfig)
    assert not module.ppo.macro_discount
    assert module.ppo.on_target_kl == "skip"
    assert module.intra_action_gamma == 1.0
    assert agent(make_policy, credit="ntpo", ppo={"gamma": 0.95}).intra_action_gamma == 0.95


WORLDS = (
    "toy-chest",
    "overcooked-tomato-salad",
    "virtualhome-food-preparation",
)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_it_runs_in_every_world_with_every_kind_of_base(
    make_policy: MakePolicy, tmp_path: Path, family: str, world: str
) -> None:
    torch.manual_seed(0)
    module = agent(make_policy, family, tokens="branching", ppo={"num_epochs": 2, "lr": 1e-2})
    before = {n: p.detach().clone() for n, p in module.trainable()}
    worlds: list[TextEnv] = [make_world(world) for _ in range(2)]
    metrics = fit(module, Rollouts(module, worlds, 3, 2), tmp_path)
    for row in metrics.rows:
        assert row["train/first_ratio_error"] <= 1e-5
    assert any(
        not torch.equal(before[n], p)
        for n, p in module.policy.named_parameters(prefix="policy")
        if n in before
    )
    assert not torch.equal(before["critic.layers.0.weight"], module.critic.layers[0].weight)


@pytest.mark.parametrize("normalization", ["sum", "token", "word"])
@pytest.mark.parametrize("behaviour", ["decomposed", "trie", "list"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loss_over_actions_the_model_would_never_say_has_gradients(
    make_policy: MakePolicy, behaviour: Any, normalization: Any, dtype: str
) -> None:
    """A head 3,000 times as sharp puts hundreds of nats between the offered calls."""
    calls = Choice("The kitchen.", ("stop()", "move_to(kitchen_table)", "move_to(kitchen_sink)"))
    policy = make_policy(lora=LORA, weights=0.2, dtype=dtype)
    head: Any = policy.causal_model.get_output_embeddings()
    with torch.no_grad():
        head.weight.copy_(head.weight * 3000)
    module = POAD(
        policy,
        normalization,
        behaviour=behaviour,
        tokens="all",
        ppo=TokenPPOConfig(),
        critic_widths=(16,),
    )
    scores = policy.score_actions([calls, CHOICES[1]], normalization, entropies=behaviour == "list")
    assert float(scores.scores.detach()[0].max() - scores.scores.detach()[0].min()) > 89
    units = module.units([calls, CHOICES[1]], scores)
    assert units.entropies is not None
    loss = (units.log_probs - 0.01 * units.entropies)[scores.token_mask].sum()
    trained = dict(policy.trainable_parameters())
    gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    found = [gradient for gradient in gradients if gradient is not None]
    assert all(bool(gradient.isfinite().all()) for gradient in found)
    assert any(bool((gradient != 0).any()) for gradient in found)
