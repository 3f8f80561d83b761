"""docs/glam.md: its recipes are sound, every entry of GLAM's and Lamorel's settings is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llm_agents.cli import main

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "glam.md").read_text(encoding="utf8")
RECIPES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)

GLAM_ENTRIES = [
    "path",
    "seed",
    "number_envs",
    "num_steps",
    "max_episode_steps",
    "frames_per_proc",
    "reward_shaping_beta",
    "discount",
    "gae_lambda",
    "lr",
    "beta1",
    "beta2",
    "adam_eps",
    "entropy_coef",
    "value_loss_coef",
    "max_grad_norm",
    "clip_eps",
    "epochs",
    "batch_size",
    "action_space",
    "saving_path_logs",
    "saving_path_model",
    "name_experiment",
    "name_model",
    "name_environment",
    "load_embedding",
    "use_action_heads",
    "template_test",
    "nbr_obs",
    "number_episodes",
    "language",
    "zero_shot",
    "modified_action_space",
    "new_action_space",
    "spm_path",
    "random_agent",
    "bot",
    "get_example_trajectories",
    "im_learning",
    "im_path",
]
LAMOREL_ENTRIES = [
    "log_level",
    "gloo_timeout",
    "allow_subgraph_use_whith_gradient",
    "n_rl_processes",
    "n_llm_processes",
    "accelerate_args",
    "model_type",
    "model_path",
    "pretrained",
    "minibatch_size",
    "pre_encode_inputs",
    "load_in_4bit",
    "llm_args.seed",
    "use_gpu",
    "model_parallelism_size",
    "synchronize_gpus_after_scoring",
    "empty_cuda_cache_after_scoring",
]


def test_every_entry_of_the_configurations_is_told() -> None:
    assert len(GLAM_ENTRIES) == 40
    assert len(LAMOREL_ENTRIES) == 17
    section = PAGE.split("### Every entry of the configuration")[1]
    told = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    names = {name for cell in told for name in re.findall(r"`([^`]*)`", cell)}
    for entry in GLAM_ENTRIES + LAMOREL_ENTRIES:
        assert any(name == entry or entry in re.split(r"\.(?!seed)", name) for name in names), entry


@pytest.mark.parametrize("recipe", RECIPES, ids=range(len(RECIPES)))
def test_a_recipe_of_the_page_is_sound(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(recipe, encoding="utf8")
    assert main(["run", str(file), "--print_config"]) == 0, capsys.readouterr().err


def test_the_page_shows_a_recipe_of_every_agent() -> None:
    assert len(RECIPES) == 4
    for name in ("GLAM", "DRRN", "SymbolicPPO", "Cloning"):
        assert sum(f"llm_agents.methods.{name}\n" in recipe for recipe in RECIPES) == 1
