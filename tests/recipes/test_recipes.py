"""Every recipe: sound as it stands, and run from training to results under the tiny overlay."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml

from llm_agents.cli import main

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
TINY = RECIPES / "overlays" / "tiny.yaml"
FILES = [*sorted(RECIPES.glob("*.yaml")), *sorted((RECIPES / "paper").glob("*.yaml"))]
SECTIONS = [
    "seed_everything",
    "model",
    "data",
    "trainer",
    "run",
    "evaluation",
    "reproduces",
    "publish",
]


def name_of(path: Path) -> str:
    return str(path.relative_to(RECIPES))


def test_all_recipes_are_found() -> None:
    assert len(FILES) == 10
    default, paper = ({p.name for p in FILES if (p.parent.name == "paper") is is_paper}
                      for is_paper in (False, True))  # fmt: skip
    assert default == paper


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_recipe_is_laid_out_like_the_others(path: Path) -> None:
    text = path.read_text(encoding="utf8")
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert len(head) <= 8
    assert any(line.startswith("# Needs: ") for line in head)
    assert f"# lightning run recipes/{name_of(path)}" in head
    keys = list(yaml.safe_load(text))
    assert keys == [key for key in SECTIONS if key in keys]
    assert "&" not in text
    assert "$" not in text


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_recipe_is_sound_as_it_stands(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(path), "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["model"]["class_path"].startswith("llm_agents.methods.")


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_recipe_runs_to_its_results_under_the_tiny_overlay(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    status = main(["run", str(path), "--overlay", str(TINY), "--run.folder", str(folder)])
    assert status == 0
    results = json.loads((folder / "results.json").read_text(encoding="utf8"))
    assert [test["name"] for test in results["tests"]] == ["sample"]
    assert (folder / "adapter" / "adapter_model.safetensors").stat().st_size > 0
    with (folder / "metrics.csv").open(encoding="utf8") as lines:
        losses = [row for row in csv.DictReader(lines) if row.get("train/loss")]
    assert losses


PAPER = {
    "a_lol_hha": {"algorithm": "a_lol_seq", "clip_epsilon": 0.9, "sampling": "good_priority"},
    "nll_hha": {"algorithm": "nll", "sampling": "uniform"},
    "dpo_hha": {"beta": 0.1, "reference_free": False},
    "pro_hha": {"sft_weight": 0.05},
}


@pytest.mark.parametrize("name", sorted(PAPER))
def test_a_paper_recipe_has_the_papers_numbers(name: str) -> None:
    recipe = yaml.safe_load((RECIPES / "paper" / f"{name}.yaml").read_text(encoding="utf8"))
    model, data = recipe["model"]["init_args"], recipe["data"]["init_args"]
    assert {key: model[key] for key in PAPER[name]} == PAPER[name]
    policy = model["policy"]["init_args"]
    assert policy["base"] == "huggyllama/llama-7b"
    assert policy["adapter"] == "timdettmers/qlora-hh-rlhf-7b"
    assert (policy["quantization"], policy["compute_dtype"]) == ("nf4", "float16")
    assert policy.get("double_quantization", False) is False
    assert model["optimizer"] == {
        "name": "paged_adamw_32bit",
        "lr": 2e-4,
        "betas": [0.9, 0.999],
        "eps": 1e-6,
        "weight_decay": 0.01,
        "schedule": "constant",
    }
    assert (data["max_prompt_tokens"], data["max_response_tokens"]) == (640, 128)
    trainer = recipe["trainer"]
    accumulation = trainer["accumulate_grad_batches"]
    examples = data["batch_size"] * accumulation
    assert examples == 16
    assert trainer["max_steps"] == 9000
    assert trainer["val_check_interval"] == 900
    # The release clips the sum over micro-batches at 0.3; ours are means.
    assert trainer["gradient_clip_val"] == pytest.approx(0.3 / accumulation)
    assert recipe["seed_everything"] == 901
