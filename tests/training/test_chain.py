"""Recipes of two stages: the reference is trained first, once, and the second starts from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from llm_agents.cli import main
from llm_agents.config.loading import load_recipe
from llm_agents.config.reading import RecipeError
from llm_agents.zoo import load_pretrained

pytestmark = pytest.mark.usefixtures("sketches")
ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "a_lol_hha.yaml"
TINY = ROOT / "recipes" / "overlays" / "tiny.yaml"
NLL = "{model: {algorithm: nll, sampling: uniform, optimizer: {lr: 1e-2}}, trainer: {max_steps: 3}}"


def run(folder: Path, *more: str) -> int:
    words = ["run", str(RECIPE), "--overlay", str(TINY), "--run.folder", str(folder)]
    return main([*words, "--reference", NLL, *more])


def recipe_in(folder: Path) -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load((folder / "recipe.yaml").read_text("utf8"))
    return found


def test_the_second_stage_starts_from_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run(folder) == 0
    first, second = recipe_in(folder / "reference"), recipe_in(folder)
    assert first["model"]["init_args"]["algorithm"] == "nll"  # type: ignore[index]
    assert first["model"]["init_args"]["optimizer"]["lr"] == 1e-2  # type: ignore[index]
    assert first["trainer"]["max_steps"] == 3  # type: ignore[index]
    assert first["run"]["stages"] == ["fit"]  # type: ignore[index]
    policy = second["model"]["init_args"]["policy"]["init_args"]  # type: ignore[index]
    assert policy["adapter"] == str(folder / "reference" / "adapter")
    assert "reference" not in second
    assert second["model"]["init_args"]["algorithm"] == "a_lol_seq"  # type: ignore[index]
    assert not (folder / "reference" / "results.json").exists()
    assert json.loads((folder / "results.json").read_text("utf8"))["details"]["method"]
    reference = load_file(folder / "reference" / "adapter" / "adapter_model.safetensors")
    assert any(bool(weights.any()) for name, weights in reference.items() if "lora_B" in name)


def test_what_is_done_is_not_done_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert run(folder) == 0
    adapter = folder / "reference" / "adapter" / "adapter_model.safetensors"
    before = adapter.stat().st_mtime_ns
    shutil.rmtree(folder / "checkpoints")
    (folder / "results.json").unlink()
    with caplog.at_level("INFO"):
        assert run(folder, "--resume", "auto") == 0
    assert "the reference is trained" in caplog.text
    assert adapter.stat().st_mtime_ns == before
    assert (folder / "results.json").is_file()
    assert run(folder) == 2
    assert "holds a run: continue it" in capsys.readouterr().err


def test_a_chain_of_whole_models(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    lr = ("--model.optimizer.lr", "1e-3")
    assert run(folder, "--model.policy.lora", "null", *lr) == 0
    policy = recipe_in(folder)["model"]["init_args"]["policy"]["init_args"]  # type: ignore[index]
    assert policy["base"] == str(folder / "reference" / "adapter")
    assert policy["adapter"] is None
    start = load_pretrained(str(folder / "reference" / "adapter"))
    end = load_pretrained(str(folder / "adapter"))
    weights = dict(start.model.named_parameters())  # type: ignore[union-attr]
    moved = [
        name
        for name, parameter in end.model.named_parameters()  # type: ignore[union-attr]
        if not torch.equal(parameter, weights[name])
    ]
    assert moved, "the second stage has trained what the first left behind"


def test_without_a_section_there_is_one_stage(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run(folder, "--reference", "null") == 0
    assert not (folder / "reference").exists()


def test_faults_of_both_stages_are_named_together() -> None:
    options = [
        ("reference", "{model: {algoritm: nll, clip_epsilon: much}, trainer: {max_stepz: 3}}"),
        ("model.algorithm", "a_lool"),
    ]
    with pytest.raises(RecipeError) as caught:
        load_recipe(RECIPE, [], options)
    text = str(caught.value)
    assert "did you mean a_lol" in text
    assert "reference.model: expected a key of ALoL, got `algoritm`" in text.replace(
        "reference.model.algoritm: ", "reference.model: "
    )
    assert "reference.model.clip_epsilon" in text
    assert "reference.trainer.max_stepz" in text
    with pytest.raises(RecipeError, match="expected keys to lay over the recipe, got a text"):
        load_recipe(RECIPE, [], [("reference", "nll")])
    collect = ROOT / "recipes" / "cloning_collect_babyai_go_to_local.yaml"
    with pytest.raises(RecipeError, match="expected no `reference` beside `job`"):
        load_recipe(collect, [], [("reference", "{run: {name: a}}")])


def test_help_knows_the_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(RECIPE), "--help"]) == 0
    assert "reference: What is trained first" in capsys.readouterr().out
