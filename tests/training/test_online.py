from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from llm_agents.cli import main
from llm_agents.evaluation import read_episode_results
from llm_agents.training.counting import passes
from llm_agents.training.metrics import read_rows

RECIPE = """\
seed_everything: 3
model:
  class_path: llm_agents.methods.{method}
  init_args:
    policy:
      class_path: llm_agents.policies.LanguagePolicy.from_pretrained
      init_args:
        base: tiny-random-llama
        lora: {{r: 4, alpha: 8, dropout: 0.1, top_layers: 1}}
    critic_widths: [16]
    ppo: {{num_epochs: 2, num_minibatches: 2}}
data:
  class_path: llm_agents.rollouts.TextRollouts
  init_args: {{world: toy-chest, num_worlds: 2, num_steps: 8, total_frames: 96}}
trainer: {{accelerator: cpu}}
run: {{checkpoint_every: 32, log_every: 32, keep_checkpoints: 9}}
evaluation: {{episodes: 4, num_worlds: 2, worlds: [toy-lamp]}}
"""

Run = Callable[..., int]


@pytest.fixture
def online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs an online recipe in an empty folder, as the command would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parent)

    def run(*words: str, method: str = "POAD") -> int:
        Path("online.yaml").write_text(RECIPE.format(method=method))
        return main(["run", "online.yaml", *words])

    return run


FIT_ONLY = ("--run.stages", "[fit]")


def assert_same_curve(first: str, second: str) -> None:
    """Check that two runs met the same worlds and learnt the same, bit by bit."""
    rows = [read_rows(Path(folder, "metrics.csv")) for folder in (first, second)]
    assert [row["step"] for row in rows[0]] == [16, 32, 48, 64, 80, 96]
    for mine, theirs in zip(*rows, strict=True):
        names = {name for name in mine if not name.startswith("time/")}
        assert names == {name for name in theirs if not name.startswith("time/")}
        assert {name: mine[name] for name in names} == {name: theirs[name] for name in names}
    last = "checkpoints/step-00000096.ckpt"
    states = [torch.load(Path(run, last), weights_only=True) for run in (first, second)]
    for name, value in states[0]["state_dict"].items():
        assert torch.equal(value, states[1]["state_dict"][name]), name


def test_a_count_passes_multiples_that_it_jumps_over() -> None:
    assert [passes(step - 48, step, 100) for step in (48, 96, 144, 192, 240)] == [
        False,
        False,
        True,
        False,
        True,
    ]


def test_a_run_trains_plays_and_leaves_results_and_pictures(
    online: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert online("--run.folder", "out") == 0
    found = {path.name for path in Path("out").iterdir()}
    pictures = {"learning_curve.png", "action_probabilities.png", "token_credit.png"}
    assert found == pictures | {
        *("recipe.yaml", "versions.json", "metrics.csv", "tensorboard", "checkpoints", "adapter"),
        "results.json",
    }
    said = capsys.readouterr().err
    assert "32/96 decisions" in said
    assert "decisions/s" in said
    rows = read_rows(Path("out/metrics.csv"))
    assert [row["step"] for row in rows] == [16, 32, 48, 64, 80, 96]  # decisions, not updates
    assert all(row["step"] == row["rollout/frames"] for row in rows)
    assert all(row["train/first_ratio_error"] < 1e-5 for row in rows)
    names = sorted(path.name for path in Path("out/checkpoints").iterdir())
    assert names == [f"step-000000{step}.ckpt" for step in (32, 64, 96)]
    results = read_episode_results("out")
    assert [(e.world, e.agent, e.is_trained_on) for e in results.worlds] == [
        (world, agent, world == "toy-chest")
        for world in ("toy-chest", "toy-lamp")
        for agent in ("trained", "zero-shot", "random")
    ]
    assert all(entry.num_episodes == 4 for entry in results.worlds)
    assert results.details["method"] == "poad"
    assert results.details["behaviour"] == "decomposed"
    for entry in results.worlds:
        assert entry.optimal_return is not None
        assert entry.discounted_return.mean <= entry.optimal_return + 1e-6
    adapter = {path.name for path in Path("out/adapter").iterdir()}
    assert pictures | {"agent.json", "results.json", "value_head.safetensors"} <= adapter
    info = json.loads(Path("out/adapter/llm_agents.json").read_text())
    assert (info["method"], info["task"], info["heads"]) == ("poad", "toy-chest", ["value_head"])


def test_a_checkpoint_holds_neither_the_base_nor_a_pickle(online: Run) -> None:
    online("--run.folder", "out", *FIT_ONLY)
    saved = torch.load(Path("out/checkpoints/step-00000096.ckpt"), weights_only=True)
    assert all("lora" in name or name.startswith("critic.") for name in saved["state_dict"])


WARM_UP = ("--model.ppo.warm_up_frames", "64", "--data.warm_up_frames", "64")


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("POAD", ()),
        ("TWOSOME", ("--model.ppo.kl_coef", "0.1")),
        ("TWOSOME", (*WARM_UP, "--data.total_frames", "32")),
    ],
    ids=["tokens", "reference", "warm-up"],
)
def test_a_killed_run_continues_the_same_curve(
    online: Run, method: str, options: tuple[str, ...]
) -> None:
    online("--run.folder", "whole", *FIT_ONLY, *options, method=method)
    callback = "{class_path: toy_method.SignalAt, init_args: "
    callback += "{batch: 3, name: SIGTERM, where: sent}}"
    words = ("--run.folder", "again", *FIT_ONLY, *options, "--trainer.callbacks", f"[{callback}]")
    assert online(*words, method=method) == 143
    assert online(*words, "--resume", "auto", method=method) == 0
    assert_same_curve("whole", "again")


def test_a_run_goes_on_from_an_older_checkpoint(online: Run) -> None:
    online("--run.folder", "whole", *FIT_ONLY)
    online("--run.folder", "again", *FIT_ONLY)
    for step in (64, 96):
        Path(f"again/checkpoints/step-000000{step}.ckpt").unlink()
    assert online("--run.folder", "again", *FIT_ONLY, "--resume", "auto") == 0
    assert_same_curve("whole", "again")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--trainer.max_steps", "5"), "expected no `trainer.max_steps`, got 5"),
        (("--trainer.gradient_clip_val", "1.0"), "so set `model.ppo.max_grad_norm`"),
        (("--trainer.accumulate_grad_batches", "2"), "so set `model.ppo.accumulate`"),
        (("--evaluation.generation", "{}"), "expected no `evaluation.generation`"),
        (("--evaluation.episodes", "0"), "expected `evaluation.episodes` of at least 1"),
        (("--evaluation.worlds", "[toy-chest]"), "expected worlds in `evaluation.worlds` that are"),
        (("--evaluation.worlds", "[toy-lump]"), "toy-lamp"),
        (("--model.ppo.warm_up_frames", "32"), "expected one number of warm-up steps"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_training(
    online: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, str], expected: str
) -> None:
    assert online("--run.folder", "out", *words) == 2
    assert expected in capsys.readouterr().err
    assert not Path("out/metrics.csv").exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run."""
    folder = tmp_path_factory.mktemp("trained")
    recipe = folder / "online.yaml"
    recipe.write_text(RECIPE.format(method="POAD"))
    words = ("--data.total_frames", "16", "--evaluation.pictures", "false")
    words += ("--evaluation.worlds", "[]", "--evaluation.baselines", "[random]")
    assert main(["run", str(recipe), "--run.folder", str(folder / "run"), *words]) == 0
    return folder / "run"


def test_a_trained_agent_plays_other_worlds_by_name(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["evaluate", str(trained), "--env", "toy-lamp", "--episodes", "3", "--out", str(out)]
    assert main([*words, "--behaviour", "list"]) == 0
    results = read_episode_results(out)
    assert [(entry.world, entry.agent) for entry in results.worlds] == [
        ("toy-lamp", "trained"),
        ("toy-lamp", "random"),
    ]
    assert results.overall.num_episodes == 3
    assert results.details["behaviour"] == "list"
    assert "toy-lamp (never trained in)" in capsys.readouterr().out


def test_evaluating_again_gives_the_same_numbers(trained: Path, tmp_path: Path) -> None:
    assert main(["evaluate", str(trained), "--out", str(tmp_path)]) == 0
    first, again = read_episode_results(trained), read_episode_results(tmp_path)
    assert first.episodes == again.episodes


def test_a_bare_model_plays_zero_shot(tmp_path: Path) -> None:
    words = ["evaluate", "tiny-random-gpt2", "--env", "toy-lamp", "--episodes", "2"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    agents = [entry.agent for entry in read_episode_results(tmp_path).worlds]
    assert agents == ["zero-shot", "random"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--num-prompts", "3"), "plays worlds: leave --num-prompts out"),
        (("--env", "nowhere"), "nowhere"),
        (("--env", "toy-lamp", "--reward", "x"), "leave --reward out"),
    ],
)
def test_options_of_the_other_kind_are_refused(
    trained: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    assert main(["evaluate", str(trained), *words]) == 2
    assert expected in capsys.readouterr().err


def test_episodes_of_a_bare_model_need_a_world(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "tiny-random-gpt2", "--episodes", "2"]) == 2
    assert "unless --env names a world: leave --episodes out" in capsys.readouterr().err


def test_plotting_runs_of_one_recipe_and_of_another(online: Run) -> None:
    online("--run.folder", "runs/poad/1", *FIT_ONLY)
    online("--run.folder", "runs/poad/2", *FIT_ONLY, "--seed_everything", "4")
    assert main(["plot", "runs/poad/1", "other=runs/poad/2", "--out", "curves.png"]) == 0
    assert Path("curves.png").stat().st_size > 5000


def test_plotting_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(tmp_path)]) == 2
    assert "expected the folder of a finished run" in capsys.readouterr().err
