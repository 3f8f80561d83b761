"""The update loop that the online methods share: what it steps, in what order, what it keeps."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor

from llm_agents.envs.toy import Chest, Corridor, Lamp
from llm_agents.errors import UserError
from llm_agents.methods import (
    GLAM,
    POAD,
    TWOSOME,
    GLAMConfig,
    OnlinePPO,
    PPOConfig,
    TokenPPOConfig,
    load_agent,
)
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.types import Choice, Rollout
from tests.closeness import assert_rounding
from tests.methods.online import Rollouts, fit, some_samples, trainer

LORA = LoraConfig(r=4, alpha=8, targets="all-linear")
DROPOUT = LoraConfig(r=4, alpha=8, targets="all-linear", dropout=0.5)
LEARNING = {"lr": 1e-2, "gamma": 0.95, "gae_lambda": 0.95}

MakePolicy = Callable[..., LanguagePolicy]


def agent(make_policy: MakePolicy, lora: LoraConfig = LORA, seed: int = 0, **ppo: Any) -> TWOSOME:
    """Return a small TWOSOME."""
    torch.manual_seed(seed)
    return TWOSOME(make_policy("llama", lora=lora), ppo=PPOConfig(**ppo), critic_widths=(16,))


def weights(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return copies of what trains."""
    return {n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def one_rollout(module: OnlinePPO, world: type = Chest, num_worlds: int = 4) -> Rollout:
    """Return the first of two rollouts."""
    return Rollouts(module, [world(seed=e) for e in range(num_worlds)], 8, 2).collect()


class Stored(Rollouts):
    """Rollouts that were collected before, so that two runs see the same."""

    def __init__(self, rollouts: list[Rollout]) -> None:
        self.rollouts = rollouts

    def __len__(self) -> int:
        return len(self.rollouts)

    def __iter__(self) -> Iterator[Rollout]:
        return iter(self.rollouts)


def stored(module: OnlinePPO, count: int, world: type = Chest, num_steps: int = 8) -> list[Rollout]:
    return list(Rollouts(module, [world(seed=e) for e in range(4)], num_steps, count))


# --- what a step is taken on


@pytest.mark.parametrize("split", [{"accumulate": 5}, {"choices_per_pass": 1}])
def test_splitting_a_step_changes_no_gradient(
    make_policy: MakePolicy, tmp_path: Path, split: dict[str, Any]
) -> None:
    rollouts: list[Rollout] = []
    found = []
    for options in ({"choices_per_pass": None}, split):
        torch.manual_seed(0)
        module = POAD(
            make_policy("llama", lora=LORA),
            ppo=TokenPPOConfig(num_epochs=1, max_grad_norm=None, eps=1.0, lr=1.0, **options),
            critic_widths=(16,),
        )
        rollouts = rollouts or stored(module, 1)
        start = weights(module.policy)
        fit(module, Stored(rollouts), tmp_path)
        found.append(weights(module.policy))
        assert not same(start, found[-1])
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, atol=1e-6, rtol=1e-4)


# --- before any reward


def without_reward(module: OnlinePPO) -> Rollouts:
    """Return stored rollouts of a lamp that never pays."""
    paid = stored(module, 3, Lamp)
    return Stored([replace(rollout, rewards=0 * rollout.rewards) for rollout in paid])


@pytest.mark.parametrize("method", ["twosome", "poad", "glam"])
@pytest.mark.parametrize("critic_init", ["zero", "random"])
def test_only_values_that_start_at_zero_leave_a_policy_alone_that_met_no_reward(
    make_policy: MakePolicy, tmp_path: Path, method: str, critic_init: str
) -> None:
    torch.manual_seed(0)
    policy, ppo = make_policy("llama", lora=LORA), {"critic_init": critic_init, "entropy_coef": 0.0}
    module: OnlinePPO
    if method == "twosome":
        module = TWOSOME(policy, ppo=PPOConfig(**ppo), critic_widths=(16,))
    elif method == "poad":
        module = POAD(policy, ppo=TokenPPOConfig(**ppo), critic_widths=(16,))
    else:
        glam = GLAMConfig(**ppo, num_minibatches=1, lr=1e-3)
        module = GLAM(policy, ppo=glam, critic="base", critic_widths=(16,))
    before = weights(module.policy)
    assert bool((module.state_values([Choice("See", ("go",))]) == 0).all()) is (
        critic_init == "zero"
    )
    fit(module, without_reward(module), tmp_path)
    assert same(before, weights(module.policy)) is (critic_init == "zero")


def test_values_start_in_one_of_two_ways() -> None:
    with pytest.raises(UserError, match=r"expected `ppo.critic_init` random or zero, got 'zeros'"):
        PPOConfig(critic_init="zeros")  # type: ignore[arg-type]


def test_a_floor_without_normalization_is_refused() -> None:
    with pytest.raises(UserError, match=r"`ppo.advantage_floor` is of normalized advantages"):
        PPOConfig(advantage_floor=0.1, normalize_advantages="none")
    assert GLAMConfig(advantage_floor=0.1, normalize_advantages="rollout").advantage_floor == 0.1


def test_the_floor_reaches_the_advantages_that_are_trained_on(make_policy: MakePolicy) -> None:
    """A deviation far below the floor of 10: divided by 10 instead."""
    plain, floored = agent(make_policy), agent(make_policy, advantage_floor=10.0)
    rollout = one_rollout(plain)
    raw = plain.assign(rollout).advantages
    expected = (raw - raw[rollout.mask].mean()).flatten() / 10
    assert raw.std() < 5
    torch.testing.assert_close(floored.samples(rollout).advantages.flatten(), expected)
    assert plain.samples(rollout).advantages.std() == pytest.approx(1, abs=0.01)


# --- whose parameters a step changes


def test_the_critic_learns_alone_during_the_warm_up(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    module = agent(make_policy, warm_up_frames=70, anneal=True)
    before, critic = weights(module.policy), weights(module.critic)
    metrics = fit(module, Stored(stored(module, 4)[:2]), tmp_path)
    assert same(before, weights(module.policy)), "70 frames are two rollouts of 32"
    assert not same(critic, weights(module.critic))
    assert [row["train/lr"] for row in metrics.rows] == pytest.approx([1e-3, 1e-3])
    assert all(parameter.grad is None for _, parameter in module.policy.trainable_parameters())


def test_a_policy_step_changes_nothing_of_the_critic(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    module = agent(make_policy, num_epochs=1)
    critic, base = weights(module.critic), module.policy.causal_model.state_dict()
    base = {name: value.clone() for name, value in base.items() if "lora" not in name}
    rollouts = stored(module, 1)
    trainer(tmp_path).fit(module, Stored([]))  # builds the optimizers
    policy_optimizer, critic_optimizer = module.optimizers()
    groups = [
        {id(p) for group in optimizer.param_groups for p in group["params"]}
        for optimizer in (policy_optimizer, critic_optimizer)
    ]
    assert not groups[0] & groups[1]
    assert groups[0] | groups[1] == {id(p) for _, p in module.trainable()}
    samples = module.samples(rollouts[0])
    policy = weights(module.policy)
    assert module._policy_step(samples, (torch.arange(len(samples)),))
    assert same(critic, weights(module.critic))
    assert not same(policy, weights(module.policy))
    after = module.policy.causal_model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in base.items())


def test_each_optimizer_clips_its_own_gradient(make_policy: MakePolicy) -> None:
    module = agent(make_policy, max_grad_norm=0.5)
    policy, critic = module.configure_optimizers()
    for optimizer, norm in ((policy, 0.3), (critic, 0.5)):
        own = [p for group in optimizer.param_groups for p in group["params"]]
        count = sum(p.numel() for p in own)
        for parameter in own:
            parameter.grad = torch.full_like(parameter, norm / count**0.5)
    wrapped = LightningOptimizer(torch.optim.SGD(policy.param_groups[0]["params"], lr=0.0))
    wrapped._strategy = module  # never asked: the step is left out
    wrapped.step = lambda: None  # type: ignore[method-assign]
    module._clip_and_step("grad_norm", wrapped, some_samples([0.0]))
    own = [p.grad for p in policy.param_groups[0]["params"]]
    norm = float(torch.nn.utils.get_total_norm([g for g in own if g is not None]))
    assert norm == pytest.approx(0.3, rel=1e-5), "the norm of both would be 0.583095"


def test_the_value_does_not_depend_on_the_adapter_or_the_batch(make_policy: MakePolicy) -> None:
    module = agent(make_policy)
    choices = [
        Choice("A long story about a room with a table in it: you should", ("wait", "go on")),
        Choice("You should", ("wait", "go on now")),
    ]
    values = module.state_values(choices)
    for choice, value in zip(choices, values, strict=True):
        assert_rounding(module.state_values([choice])[0], value)
    ended = [Choice(choice.prompt, ()) for choice in choices]
    assert_rounding(module.state_values(ended), values)
    with torch.no_grad():
        for _, parameter in module.policy.trainable_parameters():
            parameter.add_(0.5)
    assert torch.equal(module.state_values(choices), values)
    fresh = agent(make_policy)
    with torch.no_grad():
        for _, parameter in fresh.policy.trainable_parameters():
            parameter.add_(0.5)
    fresh.critic.load_state_dict(module.critic.state_dict())
    assert_rounding(fresh.state_values(choices), values)


@pytest.mark.parametrize("method", [TWOSOME, POAD])
def test_a_critic_of_the_base_needs_a_base(
    make_policy: MakePolicy, method: type[OnlinePPO]
) -> None:
    with pytest.raises(UserError, match=r"train an adapter \(`lora: \{r: 8\}`\); GLAM"):
        method(make_policy("llama"))
    method(make_policy("llama", trainable=False), critic_widths=(16,))


# --- ratio, divergence, rates


@pytest.mark.parametrize("method", ["twosome", "decomposed", "trie", "branching", "list"])
def test_the_first_ratio_is_one_though_dropout_is_configured(
    make_policy: MakePolicy, tmp_path: Path, method: str
) -> None:
    policy = make_policy("llama", lora=DROPOUT, weights=0.1)
    critic = {"critic_widths": (16,)}
    modules: dict[str, Callable[[], OnlinePPO]] = {
        "twosome": lambda: TWOSOME(policy, **critic),
        "decomposed": lambda: POAD(policy, **critic),
        "trie": lambda: POAD(policy, behaviour="trie", tokens="all", **critic),
        "branching": lambda: POAD(policy, behaviour="trie", **critic),
        "list": lambda: POAD(policy, behaviour="list", tokens="all", **critic),
    }
    module = modules[method]()
    metrics = fit(module, Rollouts(module, [Chest(seed=e) for e in range(3)], 8, 3), tmp_path)
    assert len(metrics.rows) == 3
    for row in metrics.rows:
        assert row["train/first_ratio_error"] <= 1e-5
        assert row["train/approx_kl"] >= 0


def test_rollout_and_update_share_their_precision(make_policy: MakePolicy, tmp_path: Path) -> None:
    module = agent(make_policy, num_epochs=2)
    rollouts = Rollouts(module, [Chest(seed=e) for e in range(3)], 8, 2)
    for row in fit(module, rollouts, tmp_path, precision="bf16-mixed").rows:
        assert row["train/first_ratio_error"] < 0.05


def test_a_copy_in_another_process_acts_in_the_trainers_precision(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    module = agent(make_policy)
    run = trainer(tmp_path, precision="bf16-mixed")
    run.fit(module, Stored([]))
    copy = pickle.loads(pickle.dumps(module))
    assert copy._trainer is None
    with copy._precision():
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(copy._shuffle.get_state(), module._shuffle.get_state())
    choice = Choice("You should", ("wait", "go on"))
    with torch.no_grad():
        scores = [m.policy.score_actions([choice], "word").scores for m in (copy, module)]
    assert torch.equal(*scores)
    with pickle.loads(pickle.dumps(agent(make_policy)))._precision():
        assert not torch.is_autocast_enabled("cpu")


def test_a_policy_that_moved_too_far_stops_or_skips(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    rollouts = stored(agent(make_policy), 1)
    found = {}
    for rule in ("stop", "skip"):
        module = agent(
            make_policy, num_epochs=3, lr=0.1, target_kl=1e-3, on_target_kl=rule, num_minibatches=2
        )
        critic = weights(module.critic)
        row = fit(module, Stored(rollouts), tmp_path).rows[0]
        found[rule] = (row["train/policy_steps"], row["train/refused_steps"])
        assert not same(critic, weights(module.critic))
    assert found["stop"] == (1, 1), "the first minibatch has no divergence"
    assert found["skip"] == (1, 5)


def test_the_refused_step_leaves_no_trace(make_policy: MakePolicy, tmp_path: Path) -> None:
    rollouts = stored(agent(make_policy), 1)
    found = []
    for epochs in (1, 4):
        module = agent(make_policy, num_epochs=epochs, lr=0.1, target_kl=1e-3)
        fit(module, Stored(rollouts), tmp_path)
        found.append(weights(module.policy))
    assert same(found[0], found[1])


def test_a_refused_step_computes_no_gradient(
    make_policy: MakePolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its divergence is known after the passes that exceed it; the others count in the log."""
    rollouts = stored(agent(make_policy), 1, Lamp)
    kinds = len(set(rollouts[0].choices))
    assert kinds > 2
    found = []
    for divergence in (1e-3, None):
        module = agent(make_policy, num_epochs=2, lr=0.1, target_kl=divergence, choices_per_pass=1)
        calls = []
        backward = module.manual_backward
        monkeypatch.setattr(
            module, "manual_backward", lambda loss, b=backward, c=calls: (c.append(1), b(loss))
        )
        metrics = fit(module, Stored(rollouts), tmp_path).rows[0]
        steps = 2  # of the critic, a call each
        found.append((len(calls) - steps, metrics["train/approx_kl"], metrics["train/entropy"]))
    assert found[1][0] == 2 * kinds
    assert kinds <= found[0][0] < 2 * kinds
    assert found[0][1:] == pytest.approx(found[1][1:], rel=1e-5)


def test_rates_fall_linearly_after_the_warm_up(make_policy: MakePolicy, tmp_path: Path) -> None:
    module = agent(make_policy, anneal=True, warm_up_frames=32, lr=1.0e-4, critic_lr=2e-3)
    rows = fit(module, Stored(stored(module, 5)), tmp_path).rows
    assert [r["train/lr"] for r in rows] == pytest.approx([1e-4, 1e-4, 7.5e-5, 5e-5, 2.5e-5])
    assert [r["train/critic_lr"] / r["train/lr"] for r in rows] == pytest.approx(5 * [20])


def test_the_penalty_is_the_divergence_from_where_training_began(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    module = agent(make_policy, kl_coef=0.5)
    rollout = one_rollout(module)
    first = module.samples(rollout)
    assert_rounding(first.ref_log_probs, first.log_probs)
    with torch.no_grad():
        for name, parameter in module.policy.trainable_parameters():
            if "lora_B" in name:
                parameter.add_(0.1)
    losses = module.policy_losses(first)
    choices = [first.choices[0], *first.choices[1:]]
    with torch.no_grad():
        new = module.policy.score_actions(choices, "word").log_probs()
    new = new[torch.arange(len(choices)), first.index]
    log_ratio = first.log_probs[:, 0] - new
    expected = (log_ratio.exp() - 1 - log_ratio).mean()
    torch.testing.assert_close(losses.reference_kl, expected, atol=1e-5, rtol=1e-3)
    assert float(expected) > 1e-4
    total = losses.policy_loss - 0.01 * losses.entropy + 0.5 * expected
    torch.testing.assert_close(losses.loss.detach(), total, atol=1e-5, rtol=1e-4)
    assert agent(make_policy).samples(rollout).ref_log_probs is None


# --- files


def test_a_resumed_run_continues_alike(make_policy: MakePolicy, tmp_path: Path) -> None:
    options = {"num_minibatches": 2, "lr": 1e-2, "anneal": True}
    rollouts = stored(agent(make_policy), 4)
    whole = agent(make_policy, **options)
    torch.manual_seed(3)
    fit(whole, Stored(rollouts), tmp_path)

    first = agent(make_policy, **options)
    torch.manual_seed(3)
    run = trainer(tmp_path)
    run.fit(first, Stored(rollouts[:2]))
    run.save_checkpoint(tmp_path / "half.ckpt")
    second = agent(make_policy, seed=5, **options)
    torch.manual_seed(4)
    trainer(tmp_path, max_epochs=2).fit(
        second, Stored(rollouts[2:]), ckpt_path=str(tmp_path / "half.ckpt"), weights_only=True
    )
    assert same(weights(whole), weights(second)), "bit by bit: features come in the same groups"


def test_a_checkpoint_holds_what_trains_and_fits_nothing_else(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    module = agent(make_policy)
    run = trainer(tmp_path)
    run.fit(module, Stored(stored(module, 1)))
    run.save_checkpoint(tmp_path / "a.ckpt")
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert set(saved["state_dict"]) == {name for name, _ in module.trainable()}
    other = agent(make_policy, LoraConfig(r=2, alpha=4, targets="all-linear"))
    with pytest.raises(UserError, match="resume with the recipe"):
        other.on_load_checkpoint(saved)
    with pytest.raises(UserError, match="not written by a run of an online method"):
        module.on_load_checkpoint({"state_dict": {}, "llm_agents": {}})


def test_a_saved_agent_acts_alike(make_policy: MakePolicy, tmp_path: Path) -> None:
    policy = make_policy("llama", lora=LORA, weights=0.3)
    module = POAD(policy, "token", tokens="branching", critic_widths=(16, 8))
    module.save_pretrained(tmp_path / "agent")
    loaded = load_agent(
        tmp_path / "agent",
        make_policy("llama", adapter=str(tmp_path / "agent"), trainable=False),
    )
    choices = [Choice("You see a red lamp. You should", ("press red", "press blue", "wait"))] * 5
    found = [m.act(choices, torch.Generator().manual_seed(1)) for m in (module, loaded)]
    for name in ("index", "log_probs", "values", "mask"):
        first, second = (getattr(decision, name) for decision in found)
        assert_rounding(first, second)
    listed = load_agent(tmp_path / "agent", loaded.policy, behaviour="list", tokens="all")
    expected = loaded.policy.score_actions(choices, "token")
    units = listed.units(choices, expected)
    torch.testing.assert_close(units.action_log_probs, expected.log_probs())


def test_a_folder_that_is_no_agent_is_refused(make_policy: MakePolicy, tmp_path: Path) -> None:
    policy = make_policy("llama", lora=LORA)
    with pytest.raises(UserError, match=r"agent\.json is missing"):
        load_agent(tmp_path, policy)
    (tmp_path / "agent.json").write_text(json.dumps({"method": "SAC", "format_version": 1}))
    with pytest.raises(UserError, match=r"'SAC'.*reads .*POAD, TWOSOME"):
        load_agent(tmp_path, policy)
    (tmp_path / "agent.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        load_agent(tmp_path, policy)


# --- what is refused


def test_a_number_that_is_not_finite_stops_the_run(make_policy: MakePolicy, tmp_path: Path) -> None:
    module = agent(make_policy)
    (rollout,) = stored(module, 1)
    rewards = rollout.rewards.clone()
    rewards[0, 0] = float("nan")
    with pytest.raises(UserError, match="critic's loss is nan"):
        fit(module, Stored([replace(rollout, rewards=rewards)]), tmp_path)
    kept = json.loads((tmp_path / "non_finite_batch.json").read_text())
    assert kept["choices"][0]["actions"]


def test_a_policy_without_anything_to_train_is_refused(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    module = TWOSOME(make_policy("llama", trainable=False), critic_widths=(4,))
    with pytest.raises(UserError, match="nothing of the policy trains"):
        trainer(tmp_path).fit(module, Stored([]))


# --- learning


@pytest.mark.parametrize("method", ["twosome", "poad"])
def test_it_learns_to_read_the_lamp(make_policy: MakePolicy, tmp_path: Path, method: str) -> None:
    policy = make_policy("llama", lora=LoraConfig(r=8, alpha=16, targets="all-linear"))
    module: OnlinePPO
    if method == "twosome":
        module = TWOSOME(policy, ppo=PPOConfig(**LEARNING), critic_widths=(64,))
    else:
        ppo = TokenPPOConfig(**LEARNING, entropy_coef=1e-2)
        module = POAD(policy, tokens="branching", ppo=ppo, critic_widths=(64,))
    metrics = fit(module, Rollouts(module, [Lamp(seed=e) for e in range(8)], 16, 16), tmp_path)
    assert metrics.rows[0]["rollout/success_rate"] < 0.6
    assert metrics.mean("rollout/success_rate", last=4) > 0.85


@pytest.mark.slow
def test_it_learns_to_look_ahead(make_policy: MakePolicy, tmp_path: Path) -> None:
    lengths = []
    for seed in range(3):  # what one seed reaches is a matter of rounding, and so of the processor
        torch.manual_seed(seed)
        policy = make_policy("llama", lora=LoraConfig(r=8, alpha=16, targets="all-linear"))
        ppo = PPOConfig(**{**LEARNING, "lr": 3e-3})
        module = TWOSOME(policy, ppo=ppo, critic_widths=(64,))
        worlds = [Corridor(2, seed=e) for e in range(8)]
        metrics = fit(module, Rollouts(module, worlds, 16, 24), tmp_path / str(seed))
        lengths.append(metrics.mean("rollout/length_mean", last=3))
    assert sorted(lengths)[1] < 3, f"two steps lead to the exit: {lengths}"
