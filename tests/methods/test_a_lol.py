"""A-LoL as a module: reference, advantages, sampling, budget, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_agents.errors import UserError
from llm_agents.functional.lol import ALGORITHMS
from llm_agents.methods import ALoL, OfflineOptions, ValueFitConfig
from llm_agents.methods.value_fit import ValueFit
from llm_agents.policies.heads import ValueHead

FAST_VALUE = ValueFitConfig(epochs=2, lr=1e-3)
EXACT_VALUE = ValueFitConfig(epochs=100, lr=1e-2, dropout=0.0)


def make(toy: Any, policy: Any = None, **options: Any) -> ALoL:
    settings = {"optimizer": toy.fast(), "generation": toy.generation, "value": FAST_VALUE}
    if options.get("algorithm") == "a_lol_kl":
        settings["kl_coef"] = 0.2
    reward = options.pop("reward", None) or toy.Reward()
    return ALoL(policy or toy.policy(), reward, **{**settings, **options})


def with_value(toy: Any, value: float, **options: Any) -> ALoL:
    """Return a module whose reference gets `value` for every answer, and a fit that finds it."""
    return make(toy, reward=toy.Constant(value), value=EXACT_VALUE, **options)


@pytest.mark.parametrize("algorithm", ["r_lol", "a_lol", "a_lol_seq", "a_lol_kl"])
def test_ratio_is_1_at_the_first_step_from_an_sft_adapter(toy: Any, algorithm: str) -> None:
    """O7: the reference is the adapter that was given, not the bare base."""
    policy = toy.policy(adapter=toy.sft_adapter())
    module = make(toy, policy, algorithm=algorithm)
    trainer = toy.trainer(1)
    trainer.fit(module, datamodule=toy.data())
    assert abs(float(trainer.callback_metrics["train/log_ratio"])) < 1e-5

    bare = toy.policy(trainable=False)
    source = trainer.datamodule
    batch = next(iter(source.table_batches(10_000)))
    reference = module.ref_log_probs.gather(batch.rows, batch.response_mask)
    with torch.no_grad():
        assert (reference - bare.log_probs(batch)).abs().max() > 0.01


def test_dropout_is_off_in_the_reference_only(toy: Any) -> None:
    from llm_agents.policies import LoraConfig

    lora = LoraConfig(r=4, alpha=8, targets="all-linear", dropout=0.5)
    policy = toy.policy(adapter=toy.sft_adapter(), lora=lora)
    trainer = toy.trainer(1)
    trainer.fit(make(toy, policy), datamodule=toy.data())
    assert abs(float(trainer.callback_metrics["train/log_ratio"])) > 1e-3
    assert policy.training


def test_sft_adapter_and_base_stay_as_they_were(toy: Any) -> None:
    """O7: ten steps change the policy's adapter and nothing else."""
    policy = toy.policy(adapter=toy.sft_adapter())
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    toy.fit(make(toy, policy), max_steps=10, val_check_interval=20)
    changed = {n for n, p in policy.named_parameters() if not torch.equal(p, before[n])}
    assert changed
    assert all(".default." in name for name in changed)
    assert {name for name in before if ".default." in name} == changed


def test_reference_is_asked_once_and_never_in_a_step(toy: Any) -> None:
    policy = toy.policy()
    calls = {"log_probs": 0, "both": 0}
    asked, both = policy.log_probs, policy.log_probs_and_prompt_states

    def count_log_probs(batch: Any) -> Any:
        calls["log_probs"] += 1
        return asked(batch)

    def count_both(batch: Any) -> Any:
        calls["both"] += 1
        return both(batch)

    policy.log_probs, policy.log_probs_and_prompt_states = count_log_probs, count_both
    toy.fit(make(toy, policy), max_steps=5, limit_val_batches=0)
    assert calls["both"] == 1, "16 short responses are one batch"
    assert calls["log_probs"] == 5, "one pass a training batch"


def test_a_second_run_takes_everything_from_the_cache(toy: Any) -> None:
    path = toy.file(toy.rows())
    first, second = make(toy), make(toy)
    toy.fit(first, toy.data(train=path, validation=path), limit_val_batches=0)
    toy.fit(second, toy.data(train=path, validation=path), limit_val_batches=0)
    assert (first.reward.calls, second.reward.calls) == (1, 0)
    assert torch.equal(first.values, second.values)
    assert torch.equal(first.ref_log_probs.flat, second.ref_log_probs.flat)

    third = make(toy)
    third.reward.version = "2"
    toy.fit(third, toy.data(train=path, validation=path), limit_val_batches=0)
    assert third.reward.calls == 1, "another version of the reward is another reward"


def test_values_do_not_depend_on_how_the_pass_is_batched(toy: Any) -> None:
    """Trap 8: padding never enters, dropout is off; both responses share their prompt's value."""
    rows = toy.rows(repeats=3)
    found = []
    for tokens in (40, 100_000):
        options = OfflineOptions(tokens_per_batch=tokens, cache=str(toy.folder / str(tokens)))
        module = make(toy, options=options)
        toy.fit(module, toy.data(rows), max_steps=1, limit_val_batches=0)
        found.append(module)
    assert torch.allclose(found[0].values, found[1].values, atol=1e-5)
    assert torch.allclose(found[0].ref_log_probs.flat, found[1].ref_log_probs.flat, atol=1e-5)
    pairs = found[0].values.view(-1, 2)
    assert torch.equal(pairs[:, 0], pairs[:, 1])
    assert len(set(pairs[:, 0].tolist())) == len(rows)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ("uniform", {0: 1, 2: 1, 4: 1, 6: 1}),
        ("good_priority", {0: 0.8, 2: 0.4}),
        ("good_random", {0: 1, 2: 1}),
        ("all_priority", {0: 0.8, 2: 0.4, 5: 0.6}),
    ],
)
def test_rows_are_drawn_by_the_strategy(
    toy: Any, sampling: str, expected: dict[int, float]
) -> None:
    rows = toy.rows(repeats=1)
    for row, rewards in zip(rows, [(1, 0), (0.6, 0), (0, 0.8), (0.1, 0)], strict=True):
        row["rewards"] = list(rewards)
    module = with_value(toy, 0.2, sampling=sampling, optimizer=toy.fast(lr=0.0))
    log = toy.fit(module, toy.data(rows, batch_size=100), max_steps=4, limit_val_batches=0)
    drawn = torch.tensor([row for batch in log.rows for row in batch])
    counts = torch.bincount(drawn, minlength=8).double() / len(drawn)
    wanted = torch.zeros(8, dtype=torch.float64)
    for row, weight in expected.items():
        wanted[row] = weight
    wanted /= wanted.sum()
    assert (counts > 0).tolist() == (wanted > 0).tolist()
    # at most 200 draws here (the share shortens the run): three deviations of a share are 0.11
    assert (counts - wanted).abs().max() < 0.11


def test_budget_is_scaled_by_the_positive_share(toy: Any) -> None:
    """Half of the good responses are left: half the steps, validations twice as often."""
    rows = toy.rows(repeats=1)
    for row, good in zip(rows, [1.0, 1.0, 0.0, 0.0], strict=True):
        row["rewards"] = [good, 0.0]
    module = with_value(toy, 0.2, optimizer=toy.fast(lr=0.0))
    log = toy.StepLog()
    trainer = toy.trainer(21, log, val_check_interval=4, accumulate_grad_batches=3)
    trainer.fit(module, datamodule=toy.data(rows))
    assert module.total_steps == trainer.global_step == 10
    assert len(log.losses) == 30
    assert [step for step, _ in log.validations] == [2, 4, 6, 8, 10]
    assert (trainer.max_steps, trainer.val_check_interval) == (21, 4), "put back at the end"


def test_the_whole_budget_is_taken_if_asked(toy: Any) -> None:
    rows = toy.rows(repeats=1)
    for row, good in zip(rows, [1.0, 1.0, 0.0, 0.0], strict=True):
        row["rewards"] = [good, 0.0]
    module = with_value(toy, 0.2, options=OfflineOptions(budget="whole"))
    log = toy.fit(module, toy.data(rows), max_steps=5, val_check_interval=5)
    assert module.total_steps == len(log.losses) == 5
    assert {row for rows in log.rows for row in rows} <= {0, 2}  # still only those that are good


@pytest.mark.parametrize("sampling", ["uniform", None])
def test_budget_is_whole_without_advantages(toy: Any, sampling: Any) -> None:
    module = make(toy, algorithm="wbc", sampling=sampling)
    log = toy.fit(module, max_steps=3, limit_val_batches=0)
    assert len(log.losses) == 3


def test_statistics_and_picture_are_written(toy: Any) -> None:
    module = make(toy)
    toy.fit(module, max_steps=1, limit_val_batches=0)
    said = str(module.advantage_stats)
    assert "preferred responses, 100% of them above 0, mean 0." in said
    assert "mean reward 0.900 against" in said
    found = json.loads((toy.folder / "advantage_stats.json").read_text("utf8"))
    assert found["preferred"]["share_kept"] == 1.0
    assert found["mean_reward"] == pytest.approx(0.9)
    assert found["preferred"]["mean"] == pytest.approx(0.9 - found["mean_value"], abs=1e-6)
    assert len(found["preferred"]["deciles"]) == 11
    assert (toy.folder / "advantages.png").read_bytes()[:4] == b"\x89PNG"


def test_value_head_is_saved_beside_the_adapter(toy: Any) -> None:
    from llm_agents.policies.heads import load_head

    module = make(toy)
    toy.fit(module, max_steps=1, limit_val_batches=0)
    module.save_pretrained(toy.folder / "out")
    head = load_head(toy.folder / "out", "value_head")
    hidden, mask = torch.randn(1, 3, 64), torch.ones(1, 3, dtype=torch.bool)
    assert torch.equal(head(hidden, mask), module.value_fit.head(hidden, mask))
    assert (toy.folder / "out" / "adapter_model.safetensors").is_file()


def test_nothing_left_says_why(toy: Any) -> None:
    message = r"mean reward 0\.9000, mean value 0\.9\d\d\d, highest advantage -0\..*scale"
    with pytest.raises(UserError, match=message):
        toy.fit(with_value(toy, 0.95))


def test_a_missing_reward_names_its_row(toy: Any) -> None:
    rows = toy.rows(repeats=1)
    del rows[2]["rewards"]
    with pytest.raises(UserError, match=r"nan for training response 4 \(prompt 2, 'yes yes'\)"):
        toy.fit(make(toy), toy.data(rows))


def test_data_without_rewards_name_the_cure(toy: Any) -> None:
    rows = toy.rows(repeats=1)
    for row in rows:
        del row["rewards"]
    module = ALoL(toy.policy(), None, "r_lol")
    with pytest.raises(UserError, match="hold no rewards: take data that do, or name a `reward`"):
        toy.fit(module, toy.data(rows), limit_val_batches=0)


@pytest.mark.parametrize("algorithm", ["r_lol", "wbc"])
def test_data_without_rewards_are_scored_by_the_reward(
    toy: Any, algorithm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rows = toy.rows(repeats=1)
    for row in rows:
        del row["rewards"]
    module = make(toy, algorithm=algorithm)
    with caplog.at_level("INFO", logger="llm_agents"):
        toy.fit(module, toy.data(rows), max_steps=1, limit_val_batches=0)
    assert module.rewards.tolist() == [0.875, 0.0] * 4
    assert "the training data hold no rewards: " in caplog.text


def test_responses_can_be_scored_by_the_reward(toy: Any) -> None:
    rows = toy.rows(repeats=1)
    for row in rows:
        del row["rewards"]
    module = make(toy, options=OfflineOptions(training_rewards="scored"))
    toy.fit(module, toy.data(rows), max_steps=1, limit_val_batches=0)
    assert module.rewards.tolist() == [0.875, 0.0] * 4


def test_raw_logits_are_refused(toy: Any) -> None:
    """Trap 29: a reward outside the judge's range is of another scale."""
    with pytest.raises(UserError, match=r"from 0\.0 to 1\.0, got 2\.3.*sigmoid"):
        toy.fit(make(toy), toy.data(toy.rows(rewards=(2.3, -1.0))))


def test_validation_prompts_are_needed_for_the_value(toy: Any) -> None:
    with pytest.raises(UserError, match=r"data\.validation"):
        toy.fit(make(toy), toy.data(validation=None))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "nll", "sampling": "good_priority"}, "uniform"),
        ({"algorithm": "wbc", "sampling": "all_priority"}, "needs advantages"),
        ({"algorithm": "a_lol_kl", "kl_coef": 0.0}, "kl_coef"),
        ({"algorithm": "a_lol_seq", "kl_coef": 0.1}, "leave it 0"),
        ({"clip_epsilon": 1.0}, "clip_epsilon"),
        ({"algorithm": "nll", "options": OfflineOptions(training_rewards="scored")}, "no rewards"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    toy: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make(toy, **options)


def test_a_value_without_a_reward_is_refused(toy: Any) -> None:
    with pytest.raises(UserError, match=r"model\.reward"):
        ALoL(toy.policy(), None, algorithm="a_lol")


def test_a_reward_without_bounds_is_refused(toy: Any) -> None:
    module = make(toy)
    module.reward.low = -5.0
    with pytest.raises(UserError, match=r"ranges from -5\.0 to 1\.0"):
        toy.fit(module)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_option_runs_with_validation(toy: Any, algorithm: str, tmp_path: Path) -> None:
    module = make(toy, algorithm=algorithm)
    log = toy.fit(module, max_steps=2, val_check_interval=1, gradient_clip_val=0.3)
    assert [step for step, _ in log.validations] == [1, 2]
    assert all(torch.tensor(log.losses).isfinite())


@pytest.mark.parametrize("family", ["gpt2", "neox", "opt", "qwen2", "t5"])
def test_every_family_starts_at_ratio_1(toy: Any, family: str) -> None:
    policy = toy.policy(f"tiny-random-{family}")
    trainer = toy.trainer(1, limit_val_batches=0)
    trainer.fit(make(toy, policy), datamodule=toy.data())
    assert abs(float(trainer.callback_metrics["train/log_ratio"])) < 1e-4


def test_a_value_fit_that_learned_nothing_is_reported(
    caplog: pytest.LogCaptureFixture, toy: Any
) -> None:
    module, head = make(toy), ValueHead(8)
    with caplog.at_level("WARNING"):
        module._warn_of_a_bad_fit(ValueFit(head, (0.02, 0.012), 0.013))
        assert not caplog.records
        module._warn_of_a_bad_fit(ValueFit(head, (0.3, 0.29), 0.013))
    assert "0.2900 is above the targets' variance 0.0130" in caplog.text
