"""The scripts of the page on Python, with a random model: they run, and do what the page says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from safetensors.torch import load_file

from llm_agents import TWOSOME, LanguagePolicy, LoraConfig, TextRollouts, evaluate
from llm_agents.cli import main
from llm_agents.envs.registry import world_path
from llm_agents.errors import UserError
from llm_agents.evaluation import EpisodeResults, Results

PAGE = Path(__file__).resolve().parents[1] / "docs" / "python.md"
WORLDS = PAGE.with_name("bring_your_own_environment.md")
FIRST, KEPT, LOADED, CALLBACKS, GOING_ON, LOGGERS, WANDB, OWN_WORLD, PLAYED = range(9)


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf8"), re.DOTALL)


def tiny(code: str) -> str:
    """Return a script with a random model of two layers in place of SmolLM2."""
    for ours, small in {
        "smollm2-135m-instruct": "tiny-random-llama",
        "top_layers=6": "top_layers=1",
        "total_frames=512": "total_frames=128",
        "episodes=50": "episodes=4",
    }.items():
        code = code.replace(ours, small)
    return code


SCRIPTS = [tiny(code) for code in blocks(PAGE, "python")]


def test_the_page_has_all_of_its_scripts() -> None:
    assert len(SCRIPTS) == 9
    assert "WandbLogger" in SCRIPTS[WANDB]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("python")
    (path / "greenhouse.py").write_text(blocks(WORLDS, "python")[0], encoding="utf8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.syspath_prepend(str(path))
        patch.delenv("PL_GLOBAL_SEED", raising=False)
        yield path


@pytest.fixture(scope="module")
def names(folder: Path) -> dict[str, Any]:
    """Run the first script; return what it defines, for those that go on from it."""
    found: dict[str, Any] = {"__name__": "page"}
    run(FIRST, found)
    return found


def run(number: int, names: dict[str, Any]) -> None:
    exec(compile(SCRIPTS[number], f"python.md, script {number + 1}", "exec"), names)


def test_a_lol_learns_from_a_list_of_dicts(names: dict[str, Any], folder: Path) -> None:
    assert names["trainer"].global_step == 20
    assert names["module"].outcome["step"] in (10, 20)
    assert names["data"].reports["train"].rows == 12
    assert names["module"].rewards.tolist()[:2] == pytest.approx([1 - 7 / 60, 0.0])
    assert (folder / "runs" / "brevity" / "advantages.png").is_file()


def test_what_was_trained_is_evaluated_kept_and_loaded(
    names: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(KEPT, names)
    results = names["results"]
    assert isinstance(results, Results)
    assert [(test.name, test.num_prompts) for test in results.tests] == [("rows", 4)]
    assert "reward: brevity" in capsys.readouterr().out
    kept = json.loads((folder / "brevity" / "results.json").read_text())
    assert kept["details"]["method"] == "a_lol_seq"
    trained = dict(names["module"].policy.named_parameters())
    run(LOADED, names)
    loaded = names["policy"]
    for name, parameter in loaded.named_parameters():
        if "lora" in name:
            assert torch.equal(parameter, trained[name]), name
    assert main(["publish", "brevity", "--repo", "me/brevity", "--dry-run", "--allow-dirty"]) in (
        0,
        2,
    )


def test_callbacks_and_going_on(names: dict[str, Any], folder: Path) -> None:
    run(CALLBACKS, names)
    assert len(names["rewards"].seen) == len(set(range(5, 21, 5)))
    stopped = {
        name: p.detach().clone() for name, p in names["trainer"].lightning_module.trainable()
    }
    last = folder / "runs" / "brevity" / "checkpoints" / "last.ckpt"
    saved = torch.load(last, weights_only=True)
    assert saved["global_step"] == 20
    assert all("lora" in name for name in saved["state_dict"])  # never the base
    run(GOING_ON, names)
    assert names["trainer"].global_step == 30
    assert set(dict(names["trainer"].lightning_module.trainable())) == set(stopped)


def test_loggers(names: dict[str, Any], folder: Path) -> None:
    run(LOGGERS, names)
    (csv,) = (folder / "runs" / "brevity" / "csv").rglob("metrics.csv")
    assert len(csv.read_text().splitlines()) >= 1 + 4  # a row each step
    assert list((folder / "runs" / "brevity" / "tensorboard").rglob("events.out.tfevents.*"))


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_weights_and_biases_offline(names: dict[str, Any], folder: Path) -> None:
    run(WANDB, names)
    assert list((folder / "runs" / "brevity" / "wandb").glob("offline-run-*"))


def test_twosome_in_an_own_world(
    names: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(OWN_WORLD, names)
    results = names["results"]
    assert isinstance(results, EpisodeResults)
    assert {entry.agent for entry in results.worlds} == {"trained", "zero-shot", "random"}
    assert results.overall.world == "greenhouse:Greenhouse"
    run(PLAYED, names)
    assert len(re.findall(r"^(?:True|False) \d$", capsys.readouterr().out, re.M)) == 3
    words = ["watch", "gardener", "--env", "greenhouse:Greenhouse", "--html", "gardener.html"]
    assert main(words) == 0
    assert "advantage of the action" in (folder / "gardener.html").read_text(encoding="utf8")


class KilledError(Exception):
    pass


class Kill(Callback):
    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        if trainer.fit_loop.batch_idx == 1:
            raise KilledError


def greenhouse_run(folder: Path, callbacks: list[Callback], resume: Path | None) -> TWOSOME:
    seed_everything(3)
    policy = LanguagePolicy.from_pretrained("tiny-random-llama", lora=LoraConfig(r=4, top_layers=1))
    agent = TWOSOME(policy)
    worlds = TextRollouts("greenhouse:Greenhouse", num_worlds=2, num_steps=8, total_frames=64)
    trainer = Trainer(
        max_epochs=1,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=any(isinstance(each, ModelCheckpoint) for each in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        default_root_dir=folder,
    )
    trainer.fit(agent, datamodule=worlds, ckpt_path=None if resume is None else str(resume))
    return agent


def test_an_agent_goes_on_from_a_checkpoint_after_each_rollout(
    folder: Path, tmp_path: Path
) -> None:
    whole = greenhouse_run(tmp_path, [], None)
    keep = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=1, save_last=True)
    with pytest.raises(KilledError):
        greenhouse_run(tmp_path, [keep, Kill()], None)
    resumed = greenhouse_run(tmp_path, [], tmp_path / "kept" / "last.ckpt")
    whole.save_pretrained(tmp_path / "whole")
    resumed.save_pretrained(tmp_path / "resumed")
    for name in ("adapter_model.safetensors", "value_head.safetensors"):
        expected, got = (load_file(tmp_path / part / name) for part in ("whole", "resumed"))
        assert expected.keys() == got.keys()
        for key, value in expected.items():
            assert torch.equal(value, got[key]), key


def test_the_recipe_that_the_page_shows_is_sound(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, loggers = blocks(PAGE, "yaml")
    (folder / "my_rewards.py").write_text("def brevity(prompts, responses):\n    return [0.0]\n")
    values = {**yaml.safe_load(recipe), "trainer": {**yaml.safe_load(recipe)["trainer"]}}
    values["trainer"].update(yaml.safe_load(loggers)["trainer"])
    path = tmp_path / "brevity.yaml"
    path.write_text(yaml.safe_dump(values, allow_unicode=True))
    assert main(["run", str(path), "--print_config"]) == 0, capsys.readouterr().err


# --- what the page relies on ---


def test_a_world_may_be_its_class(folder: Path) -> None:
    from greenhouse import Greenhouse  # type: ignore[import-not-found]

    assert world_path(Greenhouse) == "greenhouse:Greenhouse"
    data = TextRollouts([Greenhouse, "toy-lamp"], num_worlds=2, num_steps=4, total_frames=8)
    assert data.world_names == ["greenhouse:Greenhouse", "toy-lamp"]


@pytest.mark.parametrize("wrong", [3, None, object()])
def test_what_is_no_world_is_refused(wrong: object) -> None:
    with pytest.raises(UserError, match="expected the name of a world or its class"):
        world_path(wrong)


def test_a_world_inside_a_function_is_refused() -> None:
    class Inside:
        pass

    with pytest.raises(UserError, match="`Inside` is defined inside a function"):
        world_path(Inside)


def test_only_what_fits_together_is_evaluated(names: dict[str, Any]) -> None:
    worlds = TextRollouts("toy-lamp", num_worlds=1, num_steps=4, total_frames=4)
    with pytest.raises(UserError, match="got ALoL and TextRollouts"):
        evaluate(names["module"], worlds)
    data = type(names["data"])(names["rows"][:4])
    with pytest.raises(UserError, match="expected test data: give the data module `test`"):
        evaluate(names["module"], data)


# --- the notebook ---


def cells(kind: str) -> list[dict[str, Any]]:
    notebook = json.loads(PAGE.with_name("a_lol_in_python.ipynb").read_text(encoding="utf8"))
    assert notebook["nbformat"] == 4
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_the_notebook_is_the_page_s_first_scripts() -> None:
    def lines(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.strip()]

    page = "\n".join(blocks(PAGE, "python")[: LOADED + 1])
    assert lines("\n".join("".join(cell["source"]) for cell in cells("code"))) == lines(page)


def test_the_notebook_runs_from_its_first_cell_to_its_last(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}  # as a kernel has it
    for number, cell in enumerate(cells("code"), start=1):
        exec(compile(tiny("".join(cell["source"])), f"<cell {number}>", "exec"), names)
    said = capsys.readouterr().out
    assert "'kept': " in said
    assert "reward: brevity" in said
    assert names["trainer"].global_step == 20


def test_the_notebook_shows_a_real_run() -> None:
    """Each cell was run, in order; no path or name of the machine is in what it printed."""
    code = cells("code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    printed = "".join("".join(out["text"]) for cell in code for out in cell["outputs"])
    assert "step 20/20 · loss" in printed
    assert not re.search(r"/home/|/root/|/tmp/|/work/|/Users/", printed)
