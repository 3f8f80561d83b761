"""Behavioural cloning: what it minimizes is what acts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_agents.errors import UserError
from llm_agents.methods import Cloning, OptimizerConfig, load_agent
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.types import Choice, Demonstrations
from tests.closeness import assert_rounding
from tests.methods.online import Metrics, trainer

MakePolicy = Callable[..., LanguagePolicy]
LORA = LoraConfig(r=8, alpha=16, targets="all-linear")
COLORS = ("red", "green", "blue")
ACTIONS = tuple(f"press the {color} button" for color in COLORS)
BATCH = Demonstrations(
    choices=tuple(Choice(f"A lamp shines {color}. You should", ACTIONS) for color in COLORS),
    index=torch.arange(3),
)
RAGGED = Demonstrations(
    choices=(BATCH.choices[0], Choice("A wall. You should", ("drop", "pick up the ball"))),
    index=torch.tensor([2, 0]),
)


class Batches:
    """The same batch over and over."""

    def __init__(self, batch: Demonstrations, count: int) -> None:
        self.batch, self.count = batch, count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Demonstrations]:
        for _ in range(self.count):
            yield self.batch


class Several(Batches):
    """Batches one after another."""

    def __init__(self, batches: list[Demonstrations]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Demonstrations]:
        yield from self.batches


def agent(make_policy: MakePolicy, family: str = "llama", **options: Any) -> Cloning:
    torch.manual_seed(0)
    options.setdefault("optimizer", OptimizerConfig(lr=1e-2))
    return Cloning(make_policy(family, lora=LORA, weights=0.2), **options)


def fit(module: Cloning, count: int, folder: Path, batch: Demonstrations = BATCH) -> Metrics:
    metrics = Metrics()
    trainer(folder, metrics, num_sanity_val_steps=0).fit(
        module, Batches(batch, count), Batches(batch, 1)
    )
    return metrics


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_the_losses_are_those_of_single_actions(make_policy: MakePolicy, family: str) -> None:
    module = agent(make_policy, family)
    found = module.losses(RAGGED)
    token_sum, num_tokens, list_sum = 0.0, 0, 0.0
    for choice, index in zip(RAGGED.choices, RAGGED.index.tolist(), strict=True):
        scores = module.policy.score_actions([choice], "sum")
        own = scores.token_log_probs[0, index][scores.token_mask[0, index]].detach()
        token_sum, num_tokens = token_sum - float(own.sum()), num_tokens + len(own)
        list_sum -= float(scores.scores[0].detach().log_softmax(0)[index])
    assert int(found.num_tokens) == num_tokens, "neither padding nor an end token counts"
    assert float(found.token_nll) == pytest.approx(token_sum / num_tokens, abs=1e-4)
    assert float(found.list_nll) == pytest.approx(list_sum / 2, abs=1e-4)
    losses = {
        kind: float(agent(make_policy, family, loss=kind).losses(RAGGED).loss.detach())
        for kind in ("list", "tokens", "both")
    }
    assert losses["list"] == pytest.approx(float(found.list_nll), abs=1e-5)
    assert losses["tokens"] == pytest.approx(float(found.token_nll), abs=1e-5)
    assert losses["both"] == pytest.approx(losses["list"] + losses["tokens"], abs=1e-5)


@pytest.mark.parametrize("loss", ["list", pytest.param("tokens", marks=pytest.mark.slow)])
def test_what_is_learnt_is_what_acts(make_policy: MakePolicy, tmp_path: Path, loss: Any) -> None:
    module = agent(make_policy, loss=loss)
    fit(module, 40, tmp_path)
    found = module.act(BATCH.choices, torch.Generator().manual_seed(0))
    assert found.index.tolist() == [0, 1, 2]
    assert float(found.log_probs.exp().min()) > 0.85
    assert module.outcome["val_accuracy"] == 1
    assert module.outcome["kept"] == "last"
    assert float(module.outcome["val_list_nll"]) < 0.15
    shown = module.trainer.progress_bar_metrics
    assert shown["loss"] == pytest.approx(float(module.trainer.callback_metrics["train/loss"]))


def test_validation_is_a_mean_over_steps_and_not_over_batches(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    module = agent(make_policy, optimizer=OptimizerConfig(lr=0.0))
    parts = [
        Demonstrations(BATCH.choices[:1], BATCH.index[:1]),
        Demonstrations(BATCH.choices[1:], BATCH.index[1:]),
    ]
    run = trainer(tmp_path, num_sanity_val_steps=0)
    run.validate(module, Several(parts), verbose=False)
    whole = module.losses(BATCH)
    assert float(run.callback_metrics["val/list_nll"]) == pytest.approx(
        float(whole.list_nll), abs=1e-4
    )
    assert float(run.callback_metrics["val/token_nll"]) == pytest.approx(
        float(whole.token_nll), abs=1e-4
    )


def test_a_saved_agent_acts_alike(make_policy: MakePolicy, tmp_path: Path) -> None:
    module = agent(make_policy, normalization="token")
    fit(module, 3, tmp_path / "run")
    module.save_pretrained(tmp_path / "agent")
    described = json.loads((tmp_path / "agent" / "agent.json").read_text())
    assert described["options"] == {"normalization": "token"}
    policy = LanguagePolicy.from_pretrained(
        module.policy.base, adapter=str(tmp_path / "agent"), trainable=False
    )
    again = load_agent(tmp_path / "agent", policy)
    assert isinstance(again, Cloning)
    first = module.act(BATCH.choices, torch.Generator().manual_seed(1))
    second = again.act(BATCH.choices, torch.Generator().manual_seed(1))
    assert_rounding(first.log_probs, second.log_probs)
    assert torch.equal(again.state_values(BATCH.choices), torch.zeros(3))


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_a_cloned_adapter_is_where_ppo_begins(
    make_policy: MakePolicy, tmp_path: Path, family: str
) -> None:
    from llm_agents.methods import GLAM

    module = agent(make_policy, family)
    fit(module, 3, tmp_path / "run")
    module.save_pretrained(tmp_path / "agent")
    policy = LanguagePolicy.from_pretrained(module.policy.base, adapter=str(tmp_path / "agent"))
    learner = GLAM(policy, critic_widths=(8,))
    first = module.act(BATCH.choices, torch.Generator().manual_seed(1))
    second = learner.act(BATCH.choices, torch.Generator().manual_seed(1))
    assert_rounding(first.log_probs, second.log_probs)
    assert any(True for _ in policy.trainable_parameters())


def test_the_schedule_of_the_release() -> None:
    config = OptimizerConfig(lr=5e-4, schedule="cosine", warmup_steps=62)
    scales = [config.lr_scale(step, 6250) for step in (0, 61, 62, 3156, 6249, 6250)]
    assert scales[0] == pytest.approx(1 / 63)
    assert scales[1] == pytest.approx(62 / 63)
    assert scales[2] == 1.0
    assert scales[3] == pytest.approx(0.5, abs=1e-3)
    assert scales[4] == pytest.approx(0.0, abs=1e-6)
    assert scales[5] == 0.0


def test_only_the_adapter_learns_and_is_kept(make_policy: MakePolicy, tmp_path: Path) -> None:
    module = agent(make_policy)
    base = {n: p.detach().clone() for n, p in module.named_parameters() if not p.requires_grad}
    fit(module, 2, tmp_path)
    assert all(torch.equal(p, base[n]) for n, p in module.named_parameters() if n in base)
    checkpoint: dict[str, Any] = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(checkpoint)
    assert checkpoint["state_dict"]
    assert all("lora" in name for name in checkpoint["state_dict"])
    module.on_load_checkpoint(checkpoint)
    checkpoint["state_dict"].popitem()
    with pytest.raises(UserError, match="does not fit the policy"):
        module.on_load_checkpoint(checkpoint)


def test_faults_are_refused(make_policy: MakePolicy, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="list, tokens or both"):
        agent(make_policy, loss="words")
    frozen = Cloning(make_policy("llama", trainable=False))
    with pytest.raises(UserError, match="nothing of the policy trains"):
        fit(frozen, 1, tmp_path)
    broken = agent(make_policy)
    with torch.no_grad():
        next(p for _, p in broken.policy.trainable_parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match="the loss is nan"):
        fit(broken, 1, tmp_path)
    assert "prompt" in (tmp_path / "non_finite_batch.json").read_text()
