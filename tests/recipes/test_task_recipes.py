"""A-LoL's other tasks and PPO: every objective by override, the papers' numbers, the names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_agents.config.chain import first_stage
from llm_agents.config.loading import load_recipe
from llm_agents.functional.lol import ALGORITHMS
from llm_agents.rewards.tasks import TASKS

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
FOLDERS = (RECIPES, RECIPES / "paper")


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf8"))
    return found


def arguments(recipe: dict[str, Any], section: str = "model") -> dict[str, Any]:
    found: dict[str, Any] = recipe[section]["init_args"]
    return found


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("task", sorted(TASKS))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_objective_of_a_task_is_an_override(task: str, algorithm: str, folder: Path) -> None:
    options = [("model.algorithm", algorithm)]
    if algorithm == "a_lol_kl":
        options.append(("model.kl_coef", "0.2"))
    if algorithm == "nll":
        options.append(("model.options.training_rewards", "stored"))
    document = load_recipe(folder / f"a_lol_{task}.yaml", [], options)
    assert arguments(document.values)["algorithm"] == algorithm  # type: ignore[arg-type]
    first = first_stage(document)
    if first is None:
        assert (task, folder.name) == ("comet", "paper"), "its reference is comet-distill"
    else:
        assert arguments(first.values)["algorithm"] == "nll"  # type: ignore[arg-type]
        assert arguments(first.values)["options"]["training_rewards"] == "stored"  # type: ignore[arg-type]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("task", sorted(TASKS))
def test_a_tasks_recipe_names_it_and_selects_as_the_paper_does(task: str, folder: Path) -> None:
    """Trap 40, and the selection rules: faithfulness for WoW and both, the sum for the others."""
    recipe = read(folder / f"a_lol_{task}.yaml")
    assert recipe["evaluation"]["task"] == task
    selected = TASKS[task].selected_by  # type: ignore[index]
    wanted = None if selected == "final_reward" else selected
    assert arguments(recipe)["options"].get("select_by") == wanted
    generation = arguments(recipe)["generation"]
    # A small model that may not say the knowledge's words again can't be faithful to it.
    is_grounded = folder.name != "paper" and task in ("wow", "faithdial", "faithdial_wow")
    penalty = generation.get("repetition_penalty", 1.0)
    assert (generation["num_beams"], penalty) == (2, 1.0 if is_grounded else 2.5)
    if task == "comet":
        assert generation["stop_strings"] == ["."]
        assert generation["max_new_tokens"] == 30


@pytest.mark.parametrize("task", sorted(TASKS))
def test_a_tasks_paper_recipe_has_the_releases_numbers(task: str) -> None:
    recipe = read(RECIPES / "paper" / f"a_lol_{task}.yaml")
    model, data, trainer = arguments(recipe), arguments(recipe, "data"), recipe["trainer"]
    is_comet = task == "comet"
    base = "checkpoints/comet-distill" if is_comet else "microsoft/DialoGPT-medium"
    assert model["policy"]["init_args"] == {"base": base}, "all weights train"
    assert model["optimizer"] == {
        "name": "adamw", "lr": 2e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01,
        "schedule": "linear",
    }  # fmt: skip
    value = {key: model["value"][key] for key in ("epochs", "lr", "batch_size")}
    assert value == {"epochs": 5, "lr": 2e-5, "batch_size": 32}
    assert model["clip_epsilon"] == 0.2
    assert model["options"]["epochs"] == (1 if is_comet else 3)
    assert model["options"]["if_none_better"] == "reference"
    assert (data["batch_size"], data["eval_batch_size"]) == (16 if is_comet else 8, 32)
    accumulated = trainer["accumulate_grad_batches"]
    assert accumulated == (1 if is_comet else 2)
    # The release clips the sum over micro-batches at 1; ours are means.
    assert trainer["gradient_clip_val"] == pytest.approx(1 / accumulated)
    validations = 1 / trainer["val_check_interval"]
    assert validations == pytest.approx(16 if is_comet else 3 * 2, rel=1e-4)
    assert (data["max_prompt_tokens"], data["max_response_tokens"]) == (
        512,
        30 if is_comet else 128,
    )
    assert model["reward"]["init_args"]["task"] == task
    if not is_comet:
        reference = recipe["reference"]
        assert reference["model"]["options"]["epochs"] == 6
        assert 1 / reference["trainer"]["val_check_interval"] == pytest.approx(12, rel=1e-4)
    assert recipe["seed_everything"] == 901
    assert recipe["reproduces"][0]["paper_value"] is None, "no table could be read"


def test_ppos_paper_recipe_has_the_releases_numbers() -> None:
    recipe = read(RECIPES / "paper" / "ppo_hha.yaml")
    model, data = arguments(recipe), arguments(recipe, "data")
    assert model["ppo"] == {
        "num_epochs": 4, "accumulate": 4, "chunk_weights": "equal", "gamma": 1.0,
        "gae_lambda": 0.95, "whiten": True, "normalize_scores": True, "clip_epsilon": 0.2,
        "value_clip": 0.2, "value_coef": 0.1, "kl_coef": 0.2, "kl_target": 6.0,
        "kl_horizon": 10000, "max_ratio": 10.0, "max_grad_norm": None,
    }  # fmt: skip
    assert model["kl_reference"] == "start"
    sampling = {key: model["sampling"][key] for key in ("temperature", "top_p", "top_k")}
    assert sampling == {"temperature": 1.0, "top_p": 0.95, "top_k": 50}
    assert (model["sampling"]["max_new_tokens"], data["batch_size"]) == (128, 16)
    assert model["optimizer"]["lr"] == 2e-5
    assert recipe["trainer"]["max_steps"] == 6000 * 4
    assert recipe["trainer"]["val_check_interval"] == 100 * 4
