"""GLAM: scores, values of the model's own state, one update for all of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from llm_agents.envs.toy import Chest, Clock, Lamp
from llm_agents.errors import UserError
from llm_agents.functional import list_entropy
from llm_agents.methods import GLAM, GLAMConfig, load_agent
from llm_agents.methods.minibatches import Samples
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.policies.state_mlp import StateMLP
from llm_agents.types import Choice, Rollout
from tests.methods.online import Rollouts, fit, trainer

MakePolicy = Callable[..., LanguagePolicy]
LORA = LoraConfig(r=4, alpha=8, targets="all-linear")
CHOICES = [
    Choice("Goal of the agent: go to the ball \n Action 0:", ("turn left", "drop", "pick up")),
    Choice("You see a wall. Action 0:", ("toggle", "go forward")),
]


def agent(
    make_policy: MakePolicy, family: str = "llama", *, full: bool = False, **options: Any
) -> GLAM:
    """Return a small GLAM, of which all weights train if `full`."""
    ppo = {k: options.pop(k) for k in tuple(options) if k in GLAMConfig.__dataclass_fields__}
    torch.manual_seed(0)
    policy = make_policy(family, **({} if full else {"lora": LORA, "weights": 0.2}))
    numbers: dict[str, Any] = {"num_minibatches": 2, "lr": 1e-2, "critic_lr": 1e-2, **ppo}
    return GLAM(policy, ppo=GLAMConfig(**numbers), critic_widths=(16,), **options)


def one_rollout(module: GLAM, world: type = Chest, num_rollouts: int = 2) -> Rollout:
    return Rollouts(module, [world(seed=e) for e in range(4)], 8, num_rollouts).collect()


def samples_of(module: GLAM, rollout: Rollout) -> Samples:
    return module.samples(rollout)


def close(found: Tensor, expected: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


# --- the numbers of the release


def test_the_defaults_are_those_of_the_release() -> None:
    config = GLAMConfig()
    assert (config.gamma, config.gae_lambda, config.clip_epsilon) == (0.99, 0.99, 0.2)
    assert (config.entropy_coef, config.value_clip, config.max_grad_norm) == (0.01, 0.2, 0.5)
    assert (config.lr, config.critic_lr, config.betas) == (1e-6, 1e-6, (0.9, 0.999))
    assert (config.eps, config.num_epochs, config.num_minibatches) == (1e-5, 4, 20)
    assert config.normalize_advantages == "none"
    assert config.value_coef == 1.0, "of half the mean squared error, as 0.5 is of the whole"
    assert config.target_kl is None


# --- the policy


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_the_default_is_a_softmax_over_sums_of_log_probs(
    make_policy: MakePolicy, family: str
) -> None:
    module = agent(make_policy, family)
    scores = module.policy.score_actions(CHOICES, "sum")
    expected = scores.token_log_probs.sum(-1).masked_fill(~scores.mask, -torch.inf).log_softmax(-1)
    units = module.units(CHOICES, scores)
    close(units.action_log_probs[0], expected[0])
    close(units.action_log_probs[1, :2], expected[1, :2])
    assert units.entropies is not None
    close(units.entropies[:, 0, 0], list_entropy(expected, scores.mask))
    found = module.act(CHOICES, torch.Generator().manual_seed(0))
    close(found.log_probs[:, 0], expected.gather(1, found.index[:, None])[:, 0])


def test_the_historical_rules(make_policy: MakePolicy) -> None:
    from llm_agents.policies.action_logits import action_token_logits

    found = {}
    for rule in ("logits", "logits_padded", "probabilities"):
        module = agent(make_policy, scoring=rule)
        scores = module.policy.score_actions(CHOICES, "sum")
        found[rule] = module.units(CHOICES, scores).action_log_probs[0]
    logits = action_token_logits(module.policy, CHOICES)[0].sum(-1)
    close(found["logits"], logits.log_softmax(-1), 1e-4)
    lengths = scores.token_mask[0].sum(-1)
    close(found["logits_padded"], (logits + lengths.max() - lengths).log_softmax(-1), 1e-4)
    probabilities = scores.scores[0].exp()
    close(found["probabilities"], (probabilities / probabilities.max()).log_softmax(-1))


@pytest.mark.parametrize("rule", ["log_softmax", "logits", "probabilities"])
def test_what_is_scored_beside_an_action_changes_nothing(
    make_policy: MakePolicy, rule: str
) -> None:
    module = agent(make_policy, scoring=rule)
    with torch.no_grad():
        alone = [
            module.units([one], module.policy.score_actions([one], "sum")).action_log_probs[0]
            for one in CHOICES
        ]
        scores = module.policy.score_actions(CHOICES, "sum")
        together = module.units(CHOICES, scores).action_log_probs
    close(together[0], alone[0])
    close(together[1, :2], alone[1])


def test_synonyms_are_scored_as_they_are_listed(make_policy: MakePolicy) -> None:
    module = agent(make_policy)
    other = Choice(CHOICES[1].prompt, ("switch", "move ahead"))
    scores = module.policy.score_actions([CHOICES[1], other], "sum")
    found = module.units([CHOICES[1], other], scores).action_log_probs
    assert not torch.allclose(found[0], found[1]), "texts count, not places"


# --- heads


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_an_action_head_counts_places_and_not_texts(make_policy: MakePolicy, family: str) -> None:
    module = agent(make_policy, family, action_head=4)
    assert module.action_head is not None
    scores = module.policy.score_actions(CHOICES, "sum")
    found = module.units(CHOICES, scores).action_log_probs
    expected = module.action_head(scores.prompt_states)
    close(found[0], expected[0, :3].log_softmax(-1))
    close(found[1, :2], expected[1, :2].log_softmax(-1))
    other = [Choice(c.prompt, tuple(f"do {n}" for n in range(len(c.actions)))) for c in CHOICES]
    with torch.no_grad():
        again = module.units(other, module.policy.score_actions(other, "sum")).action_log_probs
    close(again, found.detach(), 1e-4)


def test_an_action_head_learns_with_the_policy(make_policy: MakePolicy, tmp_path: Path) -> None:
    module = agent(make_policy, action_head=4)
    before = {n: p.detach().clone() for n, p in module.trainable()}
    fit(module, Rollouts(module, [Chest(seed=e) for e in range(2)], 8, 1), tmp_path)
    changed = {n.split(".")[0] for n, p in module.trainable() if not torch.equal(p, before[n])}
    assert changed == {"policy", "critic", "action_head"}


def test_a_list_that_the_head_has_no_places_for_is_refused(make_policy: MakePolicy) -> None:
    module = agent(make_policy, action_head=2)
    with pytest.raises(UserError, match="set `action_head: 3`"):
        module.act(CHOICES, torch.Generator())


# --- values


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_the_value_is_of_the_prompt_whatever_is_offered(
    make_policy: MakePolicy, family: str
) -> None:
    module = agent(make_policy, family)
    prompt = CHOICES[0].prompt
    lists = [CHOICES[0].actions, CHOICES[0].actions[::-1], ("toggle",), ()]
    values = module.state_values([Choice(prompt, actions) for actions in lists])
    close(values, values[:1].expand(4), 1e-6 if family == "t5" else 1e-5)
    decided = module.act([CHOICES[0]], torch.Generator().manual_seed(0))
    close(decided.values[:, 0], values[:1])


def test_a_joint_value_reads_the_adapted_model(make_policy: MakePolicy) -> None:
    module = agent(make_policy)
    own = module.state_values(CHOICES)
    with module.policy.without_adapters():
        base = module.state_values(CHOICES)
    assert not torch.allclose(own, base)
    apart = agent(make_policy, critic="base")
    first = apart.state_values(CHOICES)
    with torch.no_grad():
        for _, parameter in apart.policy.trainable_parameters():
            parameter.add_(0.1)
    torch.testing.assert_close(apart.state_values(CHOICES), first)


def test_a_joint_loss_is_that_of_policy_and_values(make_policy: MakePolicy) -> None:
    module = agent(make_policy, value_clip=0.2, value_coef=0.7, entropy_coef=0.05)
    samples = samples_of(module, one_rollout(module))
    samples = replace(samples, returns=samples.returns + 1, values=samples.values + 0.1)
    found = module.policy_losses(samples).loss
    scores = module.policy.score_actions(samples.choices, "sum")
    log_probs = scores.scores.log_softmax(-1)
    taken = log_probs.gather(1, samples.index[:, None])[:, 0]
    ratio = (taken - samples.log_probs[:, 0]).exp()
    advantages = samples.advantages[:, 0]
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    values, old, returns = (
        module.critic(scores.prompt_states),
        samples.values[:, 0],
        samples.returns[:, 0],
    )
    clipped = old + (values - old).clamp(-0.2, 0.2)
    squares = torch.maximum((values - returns).square(), (clipped - returns).square())
    entropy = list_entropy(log_probs, scores.mask).mean()
    expected = -surrogate - 0.05 * entropy + 0.7 * 0.5 * squares.mean()
    close(found, expected)
    found.backward()
    assert all(p.grad is not None for p in module.critic.parameters())


def test_the_model_learns_from_the_values_only_where_they_are_joint(
    make_policy: MakePolicy,
) -> None:
    for critic, learns in (("joint", True), ("base", False)):
        module = agent(make_policy, critic=critic, entropy_coef=0.0)
        samples = samples_of(module, one_rollout(module))
        still = replace(samples, advantages=torch.zeros_like(samples.advantages))
        still = replace(still, returns=still.returns + 5)
        module.policy_losses(still).loss.backward()
        norms = [
            float(p.grad.abs().max())
            for _, p in module.policy.trainable_parameters()
            if p.grad is not None
        ]
        assert (max(norms) > 1e-6) is learns


def test_advantages_stay_as_they_are_unless_asked(make_policy: MakePolicy) -> None:
    plain = agent(make_policy)
    rollout = one_rollout(plain)
    raw = plain.assign(rollout).advantages
    assert abs(float(raw.std()) - 1) > 0.1
    assert torch.equal(plain.samples(rollout).advantages, raw.flatten(0, 1))
    asked = agent(make_policy, normalize_advantages="rollout").samples(rollout).advantages
    close(asked, ((raw - raw.mean()) / raw.std()).flatten(0, 1))


def test_one_norm_bounds_all_gradients_of_a_joint_step(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    module = agent(make_policy, max_grad_norm=0.5, num_epochs=1, num_minibatches=1)
    seen: list[float] = []

    def spy(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        own = [p for o in module.trainer.optimizers for g in o.param_groups for p in g["params"]]
        squares = [p.grad.square().sum() for p in own if p.grad is not None]
        seen.append(float(torch.stack(squares).sum().sqrt()))

    handle = register_optimizer_step_pre_hook(spy)
    worlds = [Clock(penalty=50.0) for _ in range(2)]
    metrics = fit(module, Rollouts(module, worlds, 8, 1), tmp_path)
    handle.remove()
    assert len(seen) == 2, "the policy's and the critic's, after one backward pass"
    assert seen == pytest.approx([0.5, 0.5], abs=1e-4)
    assert metrics.rows[-1]["train/grad_norm"] > 0.5, "what is logged is from before"
    assert "train/critic_grad_norm" not in metrics.rows[-1]


def test_two_optimizers_step_as_one(make_policy: MakePolicy, tmp_path: Path) -> None:
    module = agent(make_policy, num_epochs=1, num_minibatches=1, max_grad_norm=None)
    other = agent(make_policy, num_epochs=1, num_minibatches=1, max_grad_norm=None)
    rollout = one_rollout(module)
    samples = samples_of(other, rollout)
    own = [p for _, p in other.trainable()]
    adam = torch.optim.Adam(own, lr=1e-2, eps=1e-5)
    other.policy_losses(samples).loss.backward()
    adam.step()

    class Once(Rollouts):
        def __init__(self) -> None:
            self.num_rollouts, self.number = 1, 0

        def collect(self) -> Rollout:
            self.number += 1
            return rollout

    fit(module, Once(), tmp_path)
    for (name, first), second in zip(module.trainable(), own, strict=True):
        close(first.detach(), second.detach(), 2e-4), name


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("family", "full", "pretrained"),
    [
        ("llama", False, "all"),
        ("t5", True, "all"),
        ("t5", True, "embeddings"),
        pytest.param("llama", True, "all", marks=SLOW),
        pytest.param("t5", False, "all", marks=SLOW),
    ],
)
def test_ratios_begin_at_one(
    make_policy: MakePolicy, tmp_path: Path, family: str, full: bool, pretrained: str
) -> None:
    rates = {"lr": 1e-4, "critic_lr": 1e-4}
    module = agent(make_policy, family, full=full, pretrained=pretrained, **rates)
    dropouts = [m for m in module.policy.modules() if isinstance(m, nn.Dropout) and m.p > 0]
    assert bool(dropouts) is (family == "t5" and full), "or else nothing is shown"
    metrics = fit(module, Rollouts(module, [Lamp(seed=e) for e in range(2)], 4, 2), tmp_path)
    for row in metrics.rows:
        assert row["train/first_ratio_error"] < 1e-4


# --- settings


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scoring": "logits", "normalization": "token"}, "normalization: token"),
        ({"scoring": "logits", "action_head": 3}, "takes the place of scoring"),
        ({"action_head": 0}, "action_head` of at least 1"),
        ({"action_head": 3, "kl_coef": 0.1}, "kl_coef: 0"),
        ({"pad_group": 0}, "pad_group"),
        ({"warm_up_frames": 32}, "warm_up_frames: 0"),
        ({"critic": "base", "full": True}, "critic: joint"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    make_policy: MakePolicy, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        agent(make_policy, **options)


def test_several_processes_that_train_are_refused(make_policy: MakePolicy, tmp_path: Path) -> None:
    module = agent(make_policy)
    module.trainer = trainer(tmp_path, devices=2, strategy="ddp")
    with pytest.raises(UserError, match="GLAM trains in one process, the trainer has 2"):
        module.setup("fit")


def test_a_base_critic_may_be_warmed_up(make_policy: MakePolicy) -> None:
    assert agent(make_policy, critic="base", warm_up_frames=32).ppo.warm_up_frames == 32


# --- files


@pytest.mark.parametrize(
    "variant",
    ["plain", "npae", *(pytest.param(v, marks=SLOW) for v in ("head", "npa_lora", "padded"))],
)
def test_a_saved_agent_acts_alike(make_policy: MakePolicy, tmp_path: Path, variant: str) -> None:
    options: dict[str, Any] = {
        "plain": {},
        "head": {"action_head": 3},
        "npae": {"action_head": 3, "pretrained": "embeddings", "full": True},
        "npa_lora": {"pretrained": "none", "init_seed": 5},
        "padded": {"scoring": "logits_padded", "pad_group": 2},
    }[variant]
    module = agent(make_policy, **options)
    fit(module, Rollouts(module, [Lamp(seed=1)], 4, 1), tmp_path / "run")
    module.save_pretrained(tmp_path / "agent")
    described = json.loads((tmp_path / "agent" / "agent.json").read_text())
    assert described["method"] == "GLAM"
    folder = str(tmp_path / "agent")
    if options.get("full"):
        policy = LanguagePolicy.from_pretrained(folder, trainable=False)
    else:
        policy = LanguagePolicy.from_pretrained(module.policy.base, adapter=folder, trainable=False)
    again = load_agent(folder, policy)
    assert isinstance(again, GLAM)
    assert isinstance(again.critic, StateMLP)
    first = module.act(CHOICES, torch.Generator().manual_seed(3))
    second = again.act(CHOICES, torch.Generator().manual_seed(3))
    assert torch.equal(first.index, second.index)
    close(first.log_probs, second.log_probs, 1e-4)
    close(first.values, second.values, 1e-4)


def test_a_checkpoint_of_the_whole_model_restores_it(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    module = agent(make_policy, full=True, lr=1e-4)
    rollouts = Rollouts(module, [Lamp(seed=1)], 4, 1)
    run = trainer(tmp_path, enable_checkpointing=True)
    run.fit(module, rollouts)
    run.save_checkpoint(tmp_path / "whole.ckpt")
    again = agent(make_policy, full=True, lr=1e-4)
    saved = torch.load(tmp_path / "whole.ckpt", weights_only=True)
    again.on_load_checkpoint(saved)
    again.load_state_dict(saved["state_dict"], strict=False)
    close(again.state_values(CHOICES), module.state_values(CHOICES))


# --- learning


LEARNING: dict[str, Any] = {
    "lr": 5e-3,
    "critic_lr": 1e-2,
    "num_minibatches": 2,
    "gamma": 0.95,
    "target_kl": 0.05,
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["scores", "head"])
def test_it_learns_to_read_the_lamp(make_policy: MakePolicy, tmp_path: Path, variant: str) -> None:
    options = {"action_head": 3} if variant == "head" else {}
    policy = make_policy("llama", lora=LoraConfig(r=8, alpha=16, targets="all-linear"))
    module = GLAM(policy, ppo=GLAMConfig(**LEARNING), critic_widths=(64,), **options)
    metrics = fit(module, Rollouts(module, [Lamp(seed=e) for e in range(8)], 16, 16), tmp_path)
    assert metrics.rows[0]["rollout/success_rate"] < 0.6
    assert metrics.mean("rollout/success_rate", last=4) > 0.85


@pytest.mark.slow
def test_a_whole_encoder_decoder_learns(make_policy: MakePolicy, tmp_path: Path) -> None:
    reached = []
    for seed in range(3):  # one seed's end is a matter of rounding, and so of the processor
        torch.manual_seed(seed)
        ppo = GLAMConfig(lr=5e-4, critic_lr=1e-3, num_minibatches=1, gamma=0.95)
        module = GLAM(make_policy("t5"), ppo=ppo, critic_widths=(64,))
        worlds = [Lamp(seed=e) for e in range(8)]
        metrics = fit(module, Rollouts(module, worlds, 16, 24), tmp_path / str(seed))
        reached.append(metrics.mean("rollout/success_rate", last=4))
    assert sum(reached) / len(reached) > 0.8, reached


def test_the_first_rule_can_not_become_sure(make_policy: MakePolicy) -> None:
    module = agent(make_policy, scoring="probabilities")
    six = Choice("Press the", tuple(f"button {n}" for n in "abcdef"))
    with torch.no_grad():
        shares = module.units([six], module.policy.score_actions([six], "sum")).action_log_probs
    assert float(shares.exp().max()) <= math.e / (math.e + 5) + 1e-6
