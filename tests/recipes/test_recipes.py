"""Every recipe: sound as it stands, and run from training to results under the tiny overlay."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml

from llm_agents.cli import main

pytestmark = pytest.mark.usefixtures("sketches")
RECIPES = Path(__file__).resolve().parents[2] / "recipes"
TINY = RECIPES / "overlays" / "tiny.yaml"
FILES = [*sorted(RECIPES.glob("*.yaml")), *sorted((RECIPES / "paper").glob("*.yaml"))]
# Stages of Motif need what the one before them made: see test_motif_recipes.py; those of GLAM's
# experiments need BabyAI: see test_glam_recipes.py. Those that prepare data have no results of a
# training: see test_preparation_recipes.py.
ALONE = [
    path
    for path in FILES
    if not path.name.startswith("motif_")
    and "_babyai_" not in path.name
    and not path.stem.endswith("_prepare")
]
# Each task and each world runs once by `make test`, half of them in the paper's form: the other
# halves, which differ from what runs there in numbers and in the task, run by `make test-slow`.
ELSEWHERE = {
    *(f"a_lol_{task}" for task in ("faithdial", "reddit_neg", "wow")),
    *(f"paper/a_lol_{task}" for task in ("comet", "faithdial_wow", "reddit_pos")),
    *("twosome_overcooked_tomato_lettuce_salad", "twosome_virtualhome_food_preparation"),
    *("paper/twosome_overcooked_tomato_salad", "paper/twosome_virtualhome_entertainment"),
    *("poad_overcooked_tomato_salad", "poad_virtualhome_entertainment"),
    *("paper/poad_overcooked_tomato_lettuce_salad", "paper/poad_virtualhome_food_preparation"),
    *("paper/reward_comet", "paper/reward_wow"),
}
SECTIONS = [
    "seed_everything",
    "job",
    "model",
    "data",
    "trainer",
    "run",
    "evaluation",
    "reference",
    "reproduces",
    "publish",
]


def name_of(path: Path) -> str:
    return str(path.relative_to(RECIPES))


def test_all_recipes_are_found() -> None:
    assert len(FILES) == 79
    assert len(ALONE) == 44
    assert {name_of(path.with_suffix("")) for path in ALONE} > ELSEWHERE
    for name in ELSEWHERE:  # is run in the other form
        assert (
            name.removeprefix("paper/") if "paper" in name else f"paper/{name}"
        ) not in ELSEWHERE
    default, paper = ({p.name for p in FILES if (p.parent.name == "paper") is is_paper}
                      for is_paper in (False, True))  # fmt: skip
    assert default - paper == {"cloning_dagger_babyai_go_to_red_ball.yaml"}, "GLAM has no DAgger"
    assert paper <= default


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
    if "job" in printed:
        assert printed["job"]["class_path"].startswith("llm_agents.data.")
    else:
        assert printed["model"]["class_path"].startswith("llm_agents.methods.")


def marked(path: Path) -> object:
    """Return a recipe as a parameter that is slow where others run most of its code."""
    is_elsewhere = name_of(path.with_suffix("")) in ELSEWHERE
    return pytest.param(path, marks=pytest.mark.slow if is_elsewhere else (), id=name_of(path))


@pytest.mark.parametrize("path", [marked(path) for path in ALONE])
def test_a_recipe_runs_to_its_results_under_the_tiny_overlay(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    status = main(["run", str(path), "--overlay", str(TINY), "--run.folder", str(folder)])
    assert status == 0
    results = json.loads((folder / "results.json").read_text(encoding="utf8"))
    data = yaml.safe_load(path.read_text(encoding="utf8"))["data"]["init_args"]
    if "world" in data:
        assert results["worlds"][0]["world"] == data["world"]
        loss, optimum = "train/policy_loss", results["worlds"][0]["optimal_return"]
        assert optimum == pytest.approx(OPTIMA[data["world"]], abs=1e-6)
    else:
        assert [test["name"] for test in results["tests"]] == ["sample"]
        loss = "train/loss"
    assert (folder / "adapter" / "adapter_model.safetensors").stat().st_size > 0
    with (folder / "metrics.csv").open(encoding="utf8") as lines:
        losses = [row for row in csv.DictReader(lines) if row.get(loss)]
    assert losses


# The best returns there are, computed from the worlds' rules; a return above is a bug.
OPTIMA = {
    "overcooked-tomato-salad": 0.920518,
    "overcooked-tomato-lettuce-salad": 0.947656,
    "virtualhome-food-preparation": 0.773781,
    "virtualhome-entertainment": 0.598737,
}


PAPER = {
    "a_lol_hha": {"algorithm": "a_lol_seq", "clip_epsilon": 0.9, "sampling": "good_priority"},
    "nll_hha": {"algorithm": "nll", "sampling": "uniform"},
    "dpo_hha": {"beta": 0.1, "reference_free": False},
    "pro_hha": {"sft_weight": 0.05},
}


# What the releases' scripts say; learning rates: see test below.
TWOSOME_PPO = {
    "gae_lambda": 0.95,
    "num_epochs": 1,
    "order": "phases",
    "num_minibatches": 4,
    "critic_minibatches": 4,
    "accumulate": 8,
    "chunk_weights": "equal",
    "normalize_advantages": "chunk",
    "unbiased_deviation": True,
    "clip_epsilon": 0.2,
    "value_clip": 0.2,
    "value_coef": 0.5,
    "entropy_coef": 0.01,
    "target_kl": 0.02,
    "on_target_kl": "stop",
    "max_grad_norm": 0.5,
    "eps": 1e-5,
    "anneal": True,
}
POAD_PPO = TWOSOME_PPO | {
    "macro_discount": False,
    "num_epochs": 5,
    "order": "interleaved",
    "num_minibatches": 2,
    "critic_minibatches": None,
    "normalize_advantages": "minibatch",
    "unbiased_deviation": False,
    "entropy_coef": 1e-4,
    "on_target_kl": "skip",
    "anneal": False,
}
ONLINE = {
    "twosome_overcooked_tomato_salad": (1, 500_000, 0.99, 1e-5, {"macro_discount": True}),
    "twosome_overcooked_tomato_lettuce_salad": (1, 500_000, 0.99, 1e-5, {"macro_discount": True}),
    "twosome_virtualhome_food_preparation": (10, 50_000, 0.95, 5e-5, {"macro_discount": False}),
    "twosome_virtualhome_entertainment": (100, 200_000, 0.95, 5e-5, {"macro_discount": False}),
    "poad_overcooked_tomato_salad": (1, 40_000, 0.99, 1e-5, {"accumulate": 1}),
    "poad_overcooked_tomato_lettuce_salad": (1, 40_000, 0.99, 1e-5, {"accumulate": 1}),
    "poad_virtualhome_food_preparation": (10, 6_000, 0.95, 5e-5, {"accumulate": 16}),
    "poad_virtualhome_entertainment": (10, 200_000, 0.95, 5e-5, {"accumulate": 16}),
}


@pytest.mark.parametrize("name", sorted(ONLINE))
def test_a_paper_recipe_of_an_agent_has_the_releases_numbers(name: str) -> None:
    recipe = yaml.safe_load((RECIPES / "paper" / f"{name}.yaml").read_text(encoding="utf8"))
    model, data = recipe["model"]["init_args"], recipe["data"]["init_args"]
    seed, frames, gamma, critic_lr, more = ONLINE[name]
    is_poad = name.startswith("poad")
    expected = (POAD_PPO if is_poad else TWOSOME_PPO) | more
    expected |= {"gamma": gamma, "critic_lr": critic_lr}
    ppo = dict(model["ppo"])
    released = {1e-5: 5e-7, 2e-5: 1e-6}[ppo.pop("lr")]
    # AdamW in float16 moves a weight by lr / eps times its gradient, whose norm is at most 0.5.
    assert released / 1e-5 == pytest.approx({0.99: 0.05, 0.95: 0.1}[gamma])
    assert ppo == {key: value for key, value in expected.items() if value is not None}
    assert (data["num_worlds"], data["num_steps"], data["total_frames"]) == (4, 32, frames)
    assert data["bootstrap_at_limit"] is False
    assert recipe["seed_everything"] == seed
    policy = model["policy"]["init_args"]
    assert policy["base"] == ("meta-llama/Llama-2-7b-hf" if is_poad else "huggyllama/llama-7b")
    assert policy["dtype"] == "float16"
    assert policy["lora"]["targets"] == ["q_proj", "v_proj"]
    assert (policy["lora"]["r"], policy["lora"]["alpha"]) == (8, 16)
    assert model["normalization"] == "word"
    assert model["critic_widths"] == [1024, 512]
    if is_poad:
        assert (model["behaviour"], model["credit"]) == ("list", "poad")
        assert model["intra_trace"] == "lambda"


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


@pytest.mark.parametrize("path", [p for p in FILES if "overcooked" in p.name], ids=name_of)
def test_serving_pays_in_every_kitchen(path: Path) -> None:
    """Per action, and with a limit that bootstraps, a loop of wrong dishes is worth more."""
    recipe = yaml.safe_load(path.read_text(encoding="utf8"))
    by_steps = recipe["model"]["init_args"]["ppo"]["macro_discount"]
    bootstraps = recipe["data"]["init_args"].get("bootstrap_at_limit", True)
    assert by_steps or not bootstraps
