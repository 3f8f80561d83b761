"""PPO on generated responses: reference, ratio, stops, budget, resume, learning."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.functional.response_rewards import Moments
from llm_agents.methods import PPO, OptimizerConfig, ResponsePPOConfig
from llm_agents.methods.response_rollout import ResponseRollout, chunk_weights
from llm_agents.policies import LoraConfig
from llm_agents.policies.modes import evaluation
from llm_agents.policies.response_pass import sample_responses
from llm_agents.types import GenerationConfig, Prompt, Reward

SAMPLING = GenerationConfig(max_new_tokens=6, temperature=1.0)
GREEDY = GenerationConfig(max_new_tokens=6)


class ShareOfE(Reward):
    """Share of the letter e in an answer."""

    name, version, low, high = "e", "1", 0.0, 1.0

    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        assert all(prompt[0].text for prompt in prompts)
        return torch.tensor([text.count("e") / max(1, len(text)) for text in responses])


def make(toy: Any, policy: Any = None, reward: Any = None, **options: Any) -> PPO:
    settings: dict[str, Any] = {
        "ppo": ResponsePPOConfig(num_epochs=2),
        "sampling": SAMPLING,
        "generation": GREEDY,
        "optimizer": toy.fast(lr=1e-2),
    }
    return PPO(policy or toy.policy(), reward or ShareOfE(), **{**settings, **options})


class Seen(Callback):
    """Keeps the metrics of every rollout, and the rows that were answered."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []
        self.rows: list[list[int]] = []
        self.validations: list[tuple[int, float]] = []

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        found = trainer.callback_metrics
        self.metrics.append({n: float(v) for n, v in found.items() if not n.startswith("val/")})
        self.rows.append(batch.tokens.rows.tolist())

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        reward = float(trainer.callback_metrics["val/reward"])
        self.validations.append((trainer.global_step, reward))


def run(toy: Any, module: PPO, max_steps: int, *more: Callback, **options: Any) -> Seen:
    data = options.pop("data", None) or toy.data(validation=None)
    seen = Seen()
    checkpoint = options.pop("checkpoint", None)
    trainer = toy.trainer(max_steps, seen, *more, **options)
    trainer.fit(module, datamodule=data, ckpt_path=checkpoint)
    return seen


def first_rollout(toy: Any, module: PPO, data: Any = None) -> ResponseRollout:
    """Answer the first four prompts without a trainer."""
    data = data or toy.data(validation=None)
    data.connect(module.policy)
    data.setup("fit")
    module._prompts = list(data.table_texts()[0])
    with evaluation(module):
        return module.collect(next(iter(data.train_dataloader())).tokens, str.strip)


# --- the reference


def test_the_reference_is_where_the_policy_started(toy: Any) -> None:
    """Trap 12: no divergence before the first update, with dropout in the adapter too."""
    lora = LoraConfig(r=4, alpha=8, targets="all-linear", dropout=0.3)
    policy = toy.policy(adapter=toy.sft_adapter(), lora=lora)
    rollout = first_rollout(toy, make(toy, policy))
    assert rollout.divergences.abs().max() < 1e-6
    bare = first_rollout(toy, make(toy, policy, kl_reference="base"))
    assert torch.equal(bare.tokens.response_ids, rollout.tokens.response_ids)
    assert bare.divergences.abs().min() > 1e-3


def test_a_policy_that_trains_as_a_whole_keeps_a_copy_of_its_start(toy: Any) -> None:
    module = make(toy, toy.policy(lora=None))
    seen = run(toy, module, 6)
    first, *rest = (found["rollout/kl"] for found in seen.metrics)
    assert abs(first) < 1e-5
    assert max(abs(kl) for kl in rest) > 1e-3
    start = dict(toy.policy(lora=None).model.named_parameters())
    copied = dict(module._frozen[0].model.named_parameters())
    assert all(torch.equal(copied[name], start[name]) for name in start)
    with pytest.raises(UserError, match=r"leave `kl_reference: base` out"):
        make(toy, toy.policy(lora=None), kl_reference="base")


# --- the rollout and the update


def test_an_unchanged_policy_has_a_ratio_of_one(toy: Any) -> None:
    lora = LoraConfig(r=4, alpha=8, targets="all-linear", dropout=0.3)
    seen = run(toy, make(toy, toy.policy(lora=lora)), 4)
    assert all(found["train/first_ratio_error"] < 1e-5 for found in seen.metrics)
    assert seen.metrics[0]["train/grad_norm"] > 0


def test_what_stopped_an_answer_is_learnt_and_not_judged(toy: Any) -> None:
    policy = toy.policy()
    prompts = [[5, 6, 7]] * 24
    config = replace(SAMPLING, max_new_tokens=24, stop_strings=("e", "t", "a"))
    found = sample_responses(policy, prompts, config, torch.Generator().manual_seed(1))
    stopped = [response for response in found if len(response.kept) < len(response.ids)]
    assert stopped
    for response in stopped:
        assert response.is_ended
        assert response.ids[: len(response.kept)] == response.kept
        assert any(stop in policy.text.decode_exactly(response.ids) for stop in "eta")
        assert not any(stop in policy.text.decode_exactly(response.kept) for stop in "eta")
    plain = policy.generate(prompts, config, torch.Generator().manual_seed(1))
    assert plain == [response.kept for response in found]


def test_splitting_a_step_into_chunks_changes_nothing(toy: Any) -> None:
    rollout = first_rollout(toy, make(toy, toy.policy(adapter=toy.sft_adapter())))
    grads = []
    for accumulate in (1, 4):
        config = ResponsePPOConfig(accumulate=accumulate)
        module = make(toy, toy.policy(adapter=toy.sft_adapter()), ppo=config)
        judged = rollout.judged(rollout.scores, kl_coef=0.2, config=config)
        chunks = torch.arange(len(rollout)).tensor_split(accumulate)
        weights = chunk_weights(judged, chunks, config)
        assert sum(weights) == pytest.approx(1)
        with evaluation(module):
            for rows, weight in zip(chunks, weights, strict=True):
                (module.loss(judged.select(rows)) * weight).backward()
        grads.append({n: p.grad for n, p in module.trainable()})
    for name, gradient in grads[0].items():
        assert torch.allclose(gradient, grads[1][name], atol=1e-6, rtol=1e-4), name
    equal = ResponsePPOConfig(accumulate=4, chunk_weights="equal")
    assert chunk_weights(rollout, chunks, equal) == [0.25] * 4


def test_a_ratio_out_of_hand_teaches_nothing(toy: Any) -> None:
    module = make(toy, ppo=ResponsePPOConfig(max_ratio=10.0))
    rollout = first_rollout(toy, module)
    judged = rollout.judged(rollout.scores, kl_coef=0.2, config=module.ppo)
    far = replace(judged, log_probs=judged.log_probs - 3.0)  # ratios of e³
    loss = module.loss(far)
    assert float(loss) == 0.0
    assert module._means.take()["train/refused"] == 1.0
    module.ppo = replace(module.ppo, max_ratio=None)
    assert float(module.loss(far)) != 0.0


def test_the_value_learns_with_the_policy(toy: Any) -> None:
    """The value's gradient reaches the adapter: the head reads the policy's own states."""
    module = make(toy, toy.policy(adapter=toy.sft_adapter()))
    torch.nn.init.normal_(module.critic.layers[0].weight)
    rollout = first_rollout(toy, module)
    judged = rollout.judged(rollout.scores, kl_coef=0.0, config=module.ppo)
    nothing = replace(judged, advantages=torch.zeros_like(judged.advantages))
    with evaluation(module):
        module.loss(replace(nothing, returns=judged.values + 1)).backward()
    assert max(float(p.grad.abs().max()) for _, p in module.policy.trainable_parameters()) > 0
    # ½ · value_coef · (V − R)² falls where V rises: the bias is in every token's value.
    (bias,) = [p for name, p in module.critic.named_parameters() if name.endswith("bias")]
    assert bias.grad.item() == pytest.approx(-module.ppo.value_coef, rel=1e-5)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_step_makes_likelier_what_was_better_than_expected(toy: Any, advantage: float) -> None:
    module = make(toy, toy.policy(adapter=toy.sft_adapter()))
    rollout = first_rollout(toy, module)
    judged = rollout.judged(rollout.scores, kl_coef=0.0, config=module.ppo)
    only = replace(
        judged, advantages=torch.full_like(judged.advantages, advantage), returns=judged.values
    )
    with evaluation(module):
        module.loss(only).backward()
        with torch.no_grad():
            for _, parameter in module.policy.trainable_parameters():
                parameter -= 0.1 * parameter.grad
        module.policy.parameters_changed()
        after = module.policy.log_probs(only.tokens)
    moved = (after - only.log_probs)[only.mask].mean().item()
    assert moved * advantage > 1e-5


@pytest.mark.parametrize("base", ["tiny-random-gpt2", "tiny-random-t5"])
def test_it_trains_other_families(toy: Any, base: str) -> None:
    lora = LoraConfig(r=4, alpha=8, targets="attention")
    seen = run(toy, make(toy, toy.policy(base, lora=lora)), 2)
    assert seen.metrics[0]["train/first_ratio_error"] < 1e-4
    assert abs(seen.metrics[0]["rollout/kl"]) < 1e-4


def test_what_is_read_once_is_not_kept_on_disk(toy: Any, tmp_path: Any) -> None:
    lora = LoraConfig(r=4, alpha=8, targets="all-linear", top_layers=1)
    path, found = toy.file(toy.rows()), []
    for cache in (False, str(tmp_path / "trunk")):
        policy = toy.policy(lora=lora, trunk_cache=cache)
        data = toy.data(train=path, validation=None)
        found.append(run(toy, make(toy, policy), 4, data=data).metrics)
    for plain, cached in zip(*found, strict=True):
        assert cached["train/loss"] == pytest.approx(plain["train/loss"], rel=1e-4, abs=1e-6)
    assert len(policy.forward_pass.trunk.store) == 0


# --- the budget


def test_it_counts_optimizer_steps_and_tokens(toy: Any) -> None:
    config = ResponsePPOConfig(num_epochs=2, num_minibatches=2)
    module = make(toy, ppo=config)
    data = toy.data()
    seen = run(toy, module, 12, data=data, val_check_interval=8)
    assert len(seen.metrics) == 3
    assert [step for step, _ in seen.validations] == [8]
    last = seen.metrics[-1]
    mean = [found["rollout/response_tokens"] for found in seen.metrics]
    assert last["rollout/generated_tokens"] == pytest.approx(4 * sum(mean))
    assert last["train/trained_tokens"] == 2 * last["rollout/generated_tokens"]
    assert module.moments.size == 12
    with pytest.raises(UserError, match=r"`trainer\.max_steps` to be a multiple of 4"):
        run(toy, make(toy, ppo=config), 6)


def test_faults_are_named(toy: Any) -> None:
    with pytest.raises(UserError, match=r"set `sampling.temperature` above 0"):
        make(toy, sampling=GREEDY)
    with pytest.raises(UserError, match=r"expected `ppo.num_epochs` of at least 1, got 0"):
        ResponsePPOConfig(num_epochs=0)
    with pytest.raises(UserError, match=r"`ppo\.kl_target: null`"):
        ResponsePPOConfig(kl_coef=0.0)
    with pytest.raises(UserError, match="nothing of the policy trains"):
        run(toy, make(toy, toy.policy(trainable=False)), 2)
    with pytest.raises(UserError, match="not a bare loader"):
        toy.trainer(2).fit(make(toy), train_dataloaders=[1])


def test_a_reward_out_of_its_range_stops_the_run(toy: Any) -> None:
    reward = toy.Constant(0.5)
    reward.high = 0.25
    with pytest.raises(UserError, match="the answer to training response"):
        run(toy, make(toy, reward=reward), 2)


def test_sampling_that_narrows_is_named_as_the_cause_of_a_negative_divergence(
    toy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    module = make(toy)
    rollout = first_rollout(toy, module)
    with caplog.at_level("WARNING"):
        module._adapt(replace(rollout, log_probs=rollout.log_probs - 1.0))
    assert "narrow it" in caplog.text
    assert module.kl_coef < 0.2


# --- a run


def test_a_resumed_run_is_the_unbroken_run(toy: Any) -> None:
    path, found = toy.file(toy.rows()), []
    lora = LoraConfig(r=4, alpha=8, targets="all-linear", dropout=0.2)
    for resume in (False, True):
        schedule = toy.fast(lr=5e-3, schedule="linear")
        module = make(toy, toy.policy(lora=lora), optimizer=schedule)
        keep = ModelCheckpoint(
            dirpath=toy.folder / f"checkpoints-{resume}",
            filename="{step}",
            auto_insert_metric_name=False,
            every_n_train_steps=2,
            save_top_k=-1,
        )
        checkpoint = toy.folder / "checkpoints-False" / "4.ckpt" if resume else None
        if resume:
            shutil.rmtree(toy.folder / "cache" / "reference")
        seen = run(
            toy,
            module,
            8,
            keep,
            data=toy.data(train=path, validation=path),
            val_check_interval=4,
            enable_checkpointing=True,
            checkpoint=checkpoint,
        )
        found.append((seen, module))
    (whole, first), (rest, second) = found
    assert (len(whole.rows), len(rest.rows)) == (4, 2)
    assert rest.rows == whole.rows[2:]
    assert rest.metrics == whole.metrics[2:]
    assert rest.metrics[0]["train/lr"] < 5e-3
    assert rest.validations[-1] == whole.validations[-1]
    assert (first.moments, first.kl_coef) == (second.moments, second.kl_coef)
    assert first.moments != Moments()
    for (name, a), (_, b) in zip(first.trainable(), second.trainable(), strict=True):
        assert torch.equal(a, b), name


def test_what_it_leaves_behind_is_a_policy_with_its_value_head(toy: Any) -> None:
    module = make(toy)
    run(toy, module, 2)
    module.save_pretrained(toy.folder / "out")
    names = {path.name for path in (toy.folder / "out").iterdir()}
    assert {"adapter_model.safetensors", "value_head.safetensors"} <= names
    from llm_agents.zoo.layout import load_heads

    heads = load_heads(toy.folder / "out", module.policy.hidden_size)
    assert torch.equal(heads["value_head"].layers[0].weight, module.critic.layers[0].weight)


@pytest.mark.slow
def test_it_learns_what_is_rewarded(toy: Any) -> None:
    config = ResponsePPOConfig(num_epochs=4, kl_coef=0.02, kl_target=None)
    module = make(toy, ppo=config, optimizer=OptimizerConfig(lr=1e-2))
    data = toy.data(batch_size=16, validation=None)
    rewards = [found["rollout/reward"] for found in run(toy, module, 160, data=data).metrics]
    assert sum(rewards[-5:]) / 5 > 3 * max(0.05, sum(rewards[:3]) / 3)
