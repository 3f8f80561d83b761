from __future__ import annotations

from pathlib import Path

import pytest

from llm_agents.config.check import check_recipe
from llm_agents.config.loading import load_recipe
from llm_agents.config.options import override
from llm_agents.config.reading import Document, RecipeError, read_text

RECIPE = """\
seed_everything: 901
model:
  class_path: llm_agents.methods.ALoL
  init_args:
    policy:
      class_path: llm_agents.policies.LanguagePolicy.from_pretrained
      init_args: {base: tiny-random-llama, lora: {r: 4, targets: [q_proj, v_proj]}}
    reward:
      class_path: llm_agents.rewards.CallableReward
      init_args: {function: "m:f", low: 0, high: 1.0}
    optimizer: {lr: 1e-4, betas: [0.9, 0.999]}
data:
  class_path: llm_agents.data.HHAData
  init_args: {train: sample, test: [sample]}
trainer: {max_steps: 2, precision: 32-true, gradient_clip_val: 0.3}
evaluation: {num_prompts: 4, bootstrap: {samples: 100}}
reproduces: [{paper: a, table: b, metric: c}]
publish: null
"""
ROOT = Path(__file__).resolve().parents[2]


def recipe() -> Document:
    return read_text(RECIPE, "r.yaml")


def faults(document: Document) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        check_recipe(document)
    return [str(fault) for fault in caught.value.faults]


def test_a_sound_recipe_passes() -> None:
    check_recipe(recipe())


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        (
            "model.algoritm",
            "r_lol",
            "expected a key of ALoL, got `algoritm`; did you mean algorithm?",
        ),
        ("model.algorithm", "r_lo", "got 'r_lo'; did you mean r_lol?"),
        ("model.beta_1", "1", "expected a key of ALoL, got `beta_1`; known: policy, reward"),
        ("model.warmup_steps", "1", "did you mean optimizer.warmup_steps?"),
        ("model.policy.lora.r", "four", "expected a whole number, got 'four'"),
        ("model.policy.lora.rank", "4", "expected a key of LoraConfig, got `rank`"),
        ("model.policy.dtype", "float33", "did you mean float32?"),
        ("model.policy.trainable", "yes", "expected true or false, got 'yes'; write true"),
        (
            "model.policy",
            "3",
            "expected `class_path` and `init_args` of a LanguagePolicy, got a number",
        ),
        (
            "model.optimizer.lr",
            "'1e-4'",
            "expected a number, got '1e-4', a text; write 1e-4 without",
        ),
        (
            "model.optimizer.betas",
            "[0.9]",
            "expected a list [a number, a number], got 1 items: [0.9]",
        ),
        ("model.optimizer.betas.0", "x", "expected a number, got 'x'"),
        ("model.optimizer.warmup_steps", "1e1", "expected a whole number, got 10.0; write 10"),
        ("model.optimizer", "[1]", "expected keys of OptimizerConfig or null, got [1]"),
        (
            "trainer.max_step",
            "3",
            "expected a key of Trainer, got `max_step`; did you mean max_steps?",
        ),
        ("trainer.max_steps", "true", "expected a whole number, got true"),
        ("trainer.precision", "31", "got 31"),
        (
            "data.train",
            "[3]",
            "expected a text, a list of (a text) or a list of (a mapping), got [3]",
        ),
        ("evaluation.bootstrap.sample", "3", "did you mean samples?"),
        ("run.stages", "[fit, eval]", "expected fit or evaluate, got 'eval'"),
        ("modl", "3", "expected a section of a recipe, got `modl`; did you mean model?"),
        ("seed_everything", "-1", "expected a whole number from 0, got -1"),
        ("seed_everything", "true", "expected a whole number from 0, got true"),
        ("publish.repo", "a/b", "did you mean repo_id?"),
    ],
)
def test_each_kind_of_fault_says_what_was_expected(option: str, value: str, message: str) -> None:
    found = faults(override(recipe(), option, value))
    assert len(found) == 1
    assert found[0].startswith(f"--{option}: ")
    assert message in found[0]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("llm_agents.methods.ALol", "has no `ALol`; did you mean llm_agents.methods.ALoL?"),
        ("llm_agents.method.ALoL", "has no `method`; did you mean llm_agents.ALoL?"),
        ("ALoL", "did you mean llm_agents.methods.ALoL?"),
        ("llm_agents.policies.LoraConfig", "which is a LoraConfig"),
        ("no_such.Method", "no package `no_such` is installed"),
    ],
)
def test_a_wrong_class_is_named_with_the_nearest(path: str, message: str) -> None:
    document = override(recipe(), "model.class_path", path)
    found = faults(document)
    assert message in found[0]


def test_a_package_of_an_extra_names_the_extra() -> None:
    document = override(recipe(), "model.class_path", "minihack.Method")
    if "no package" in faults(document)[0]:
        assert "pip install 'llm-agents[nethack]'" in faults(document)[0]


def test_a_reward_is_no_policy() -> None:
    text = "{class_path: llm_agents.rewards.PolicyReward.from_pretrained, init_args: {path: x}}"
    (found,) = faults(override(recipe(), "model.policy", text))
    assert "expected a LanguagePolicy" in found
    assert "which is a PolicyReward" in found


def test_missing_keys_are_faults() -> None:
    text = "model: {class_path: llm_agents.methods.ALoL}\ntrainer: {max_steps: 1}\n"
    assert faults(read_text(text, "r.yaml")) == [
        "r.yaml: line 1: model.policy: expected a LanguagePolicy; it is missing and ALoL has no "
        "default"
    ]
    assert faults(read_text("trainer: {max_steps: 1}\n", "r.yaml")) == [
        "r.yaml: line 1: expected the section `model`; it is missing"
    ]


def test_keys_beside_class_path_are_told_where_they_belong() -> None:
    text = RECIPE.replace(
        "  init_args: {train: sample", "  batch_size: 3\n  init_args: {train: sample"
    )
    (found,) = faults(read_text(text, "r.yaml"))
    assert found.startswith("r.yaml: line 14: data.batch_size: expected it below `init_args:`")


def test_all_faults_come_at_once_in_the_order_of_the_text() -> None:
    text = (
        RECIPE.replace("max_steps", "max_step")
        .replace("base:", "bas:")
        .replace("lr: 1e-4", "lr: x")
    )
    document = override(read_text(text + "trainer: {}\n", "r.yaml"), "data.batch_size", "x")
    found = faults(document)
    assert [message.partition(": expected")[0] for message in found] == [
        "r.yaml: line 7: model.policy.bas",
        "r.yaml: line 7: model.policy.base",
        "r.yaml: line 11: model.optimizer.lr",
        "r.yaml: line 15: trainer.max_step",
        "r.yaml: line 19: trainer",
        "--data.batch_size",
    ]


def test_a_fault_in_an_overlay_names_the_overlay(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE)
    (tmp_path / "o.yaml").write_text("\nmodel:\n  policy:\n    bas: x\n")
    with pytest.raises(RecipeError, match=r"o\.yaml: line 4: model\.policy\.bas"):
        load_recipe(tmp_path / "r.yaml", [tmp_path / "o.yaml"])


def test_every_recipe_is_sound_alone_and_under_the_tiny_overlay() -> None:
    overlay = ROOT / "recipes" / "overlays" / "tiny.yaml"
    recipes = [*ROOT.glob("recipes/*.yaml"), *ROOT.glob("recipes/paper/*.yaml")]
    assert len(recipes) >= 10
    for path in recipes:
        load_recipe(path)
        load_recipe(path, [overlay])
