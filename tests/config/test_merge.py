from __future__ import annotations

import pytest

from llm_agents.config.merge import lay_over
from llm_agents.config.options import override
from llm_agents.config.reading import Document, read_text

BASE = """\
model:
  class_path: a.A
  init_args:
    policy: {class_path: p.P.load, init_args: {base: x, lora: {r: 4}}}
    reward: null
    tests: [one, two]
trainer: {max_steps: 3}
"""


def base() -> Document:
    return read_text(BASE, "base.yaml")


def model(document: Document) -> dict[str, object]:
    found = document.values["model"]
    assert isinstance(found, dict)
    return found


def arguments(document: Document) -> dict[str, object]:
    found = model(document)["init_args"]
    assert isinstance(found, dict)
    return found


def laid(text: str) -> Document:
    return lay_over(base(), read_text(text, "over.yaml"))


def test_an_overlay_merges_deeply_and_may_leave_init_args_out() -> None:
    found = laid("model: {policy: {lora: {alpha: 8}, base: y}}\ntrainer: {devices: 1}\n")
    assert arguments(found)["policy"] == {
        "class_path": "p.P.load",
        "init_args": {"base": "y", "lora": {"r": 4, "alpha": 8}},
    }
    assert found.values["trainer"] == {"max_steps": 3, "devices": 1}


def test_init_args_written_out_mean_the_same() -> None:
    short = laid("model: {policy: {base: y}}\n")
    long = laid("model: {init_args: {policy: {init_args: {base: y}}}}\n")
    assert short.values == long.values


def test_another_class_replaces_the_arguments() -> None:
    found = laid("model: {class_path: b.B, init_args: {beta: 1}}\n")
    assert model(found) == {"class_path": "b.B", "init_args": {"beta": 1}}


def test_the_same_class_keeps_them() -> None:
    found = laid("model: {class_path: a.A, init_args: {beta: 1}}\n")
    assert set(arguments(found)) == {"policy", "reward", "tests", "beta"}


def test_lists_are_replaced() -> None:
    assert arguments(laid("model: {tests: [three]}\n"))["tests"] == ["three"]


def test_a_questioned_key_is_laid_only_over_an_existing_one() -> None:
    text = "model:\n  reward?: {class_path: r.R}\n  value?: {lr: 1}\n  policy:\n    rank?: 3\n"
    found = laid(text)
    assert arguments(found)["reward"] == {"class_path": "r.R"}
    assert "value" not in arguments(found)
    assert "value?" not in arguments(found)
    assert "rank" not in str(found.values)


def test_a_starred_key_is_laid_only_where_the_class_takes_it() -> None:
    recipe = """\
data: {class_path: llm_agents.rollouts.TextRollouts, init_args: {world: toy-lamp}}
model: {class_path: nowhere.Nothing, init_args: {}}
trainer: {}
"""
    overlay = """\
data: {num_steps*: 8, batch_size*: 2, world*: toy-chest}
model: {lr*: 1.0}
trainer: {max_steps*: 2, max_stops*: 2}
run: {log_every*: 1, log_evry*: 1}
job*: {class_path: a.Job}
"""
    found = lay_over(read_text(recipe, "base.yaml"), read_text(overlay, "over.yaml"))
    assert found.values["data"]["init_args"] == {"world": "toy-chest", "num_steps": 8}
    assert found.values["model"]["init_args"] == {}
    assert found.values["trainer"] == {"max_steps": 2}
    assert found.values["run"] == {"log_every": 1}
    assert "job" not in found.values
    assert str(found.place(("data", "init_args", "num_steps"))) == "over.yaml: line 1"


def test_a_starred_section_is_laid_only_over_a_recipe_of_its_kind() -> None:
    recipe = read_text("job: {class_path: nowhere.Nothing}\n", "base.yaml")
    overlay = "trainer*: {max_steps: 2}\nrun: {name*: a, log_every*: 1}\nseed_everything*: 1\n"
    found = lay_over(recipe, read_text(overlay, "over.yaml"))
    assert found.values == {
        "job": {"class_path": "nowhere.Nothing"},
        "run": {"name": "a"},
        "seed_everything": 1,
    }
    assert str(found.place(("run", "name"))) == "over.yaml: line 2"


def test_the_place_of_a_laid_value_is_the_overlay() -> None:
    found = laid("\nmodel:\n  policy:\n    base: y\n")
    assert str(found.place(("model", "init_args", "policy", "init_args", "base"))) == (
        "over.yaml: line 4"
    )
    assert found.place(("trainer", "max_steps")).source == "base.yaml"


def test_neither_side_is_changed() -> None:
    first, second = base(), read_text("model: {policy: {base: y}}\n", "over.yaml")
    lay_over(first, second)
    assert first.values == base().values
    assert second.values == {"model": {"policy": {"base": "y"}}}


@pytest.mark.parametrize(
    ("option", "text", "key", "expected"),
    [
        ("model.algorithm", "r_lol", "algorithm", "r_lol"),
        ("model.init_args.algorithm", "r_lol", "algorithm", "r_lol"),
        ("model.tests.1", "three", "tests", ["one", "three"]),
        ("model.tests", "[3]", "tests", [3]),
        ("model.reward.path", "x", "reward", {"path": "x"}),
        ("model.value.lr", "1e-4", "value", {"lr": 1e-4}),
        ("model.reward", "{class_path: r.R}", "reward", {"class_path": "r.R"}),
    ],
)
def test_an_option_sets_one_value(option: str, text: str, key: str, expected: object) -> None:
    found = override(base(), option, text)
    assert arguments(found)[key] == expected
    assert found.faults == []


def test_an_option_reaches_through_several_classes() -> None:
    found = override(base(), "model.policy.lora.r", "8")
    assert arguments(found)["policy"] == {
        "class_path": "p.P.load",
        "init_args": {"base": "x", "lora": {"r": 8}},
    }
    key = ("model", "init_args", "policy", "init_args", "lora", "r")
    assert str(found.place(key)) == "--model.policy.lora.r"


@pytest.mark.parametrize("option", ["model", "model.class_path"])
def test_an_option_may_name_another_class(option: str) -> None:
    assert model(override(base(), option, "b.B")) == {"class_path": "b.B"}


def test_a_mapping_given_as_option_is_merged() -> None:
    found = override(base(), "trainer", "{devices: 1}")
    assert found.values["trainer"] == {"max_steps": 3, "devices": 1}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("model.tests.7", "expected a position below 2 in the list `model.tests`, got 7"),
        ("model.tests.last", "expected a position below 2 in the list `model.tests`, got last"),
    ],
)
def test_an_option_outside_a_list_is_a_fault(option: str, message: str) -> None:
    assert message in str(override(base(), option, "x").faults[0])
