"""What is typed for a key: text to the letter where the key takes text, YAML elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_agents.config.check import check_recipe
from llm_agents.config.loading import merged
from llm_agents.config.options import override
from llm_agents.config.reading import Value, dump, read_text

TEXTS = [
    "runs/exp #3",
    "1e3 x",
    "1e3",
    "007",
    "a: b",
    "[x",
    "[x]",
    "{a: 1}",
    "yes",
    "true",
    "-x",
    "- x",
    "%H",
    "~",
    "~/x",
    "'quoted'",
    '"so"',
    "a\\nb",
    "&x",
    "*x",
    "!tag y",
    "| z",
    "@x",
    "`x`",
    " blank at both ends ",
    "",
    "Größe 3 µm",
]


def given(option: str, text: str, recipe: str = "a_lol_hha") -> Value:
    """Return what a recipe holds after an option, once it was checked, written and read again."""
    document = override(merged(recipe, ["tiny"], []), option, text)
    check_recipe(document)
    again = read_text(dump(document.values), "again.yaml")
    assert not again.faults
    assert again.values == document.values
    found: Value = again.values
    for part in option.split("."):
        assert isinstance(found, dict)
        inside = found.get("init_args")
        found = inside[part] if isinstance(inside, dict) and part in inside else found[part]
    return found


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("option", ["run.folder", "model.policy.base", "data.train"])
def test_text_is_kept_to_the_letter(option: str, text: str) -> None:
    expected: Value = ["x"] if (option, text) == ("data.train", "[x]") else text  # takes lists too
    assert given(option, text) == expected


def test_a_path_is_kept_to_the_letter() -> None:
    assert given("job.directory", "pairs: #1", "motif_annotate_nethack") == "pairs: #1"


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("run.folder", "null", None),  # may be none
        ("model.policy.adapter", "null", None),
        ("model.policy.base", "null", "null"),  # may not
        ("data.test", "[a, b]", ["a", "b"]),
        ("data.test", "null", None),
        ("trainer.max_steps", "3", 3),
        ("model.optimizer.lr", "1e-3", 1e-3),
        ("model.policy.lora", "{r: 2}", {"r": 2}),
        ("model.policy.trainable", "false", False),
        ("run.checkpoint_minutes", "null", None),
        ("run.stages", "[fit]", ["fit"]),
    ],
)
def test_other_values_are_yaml(option: str, text: str, expected: Value) -> None:
    found = given(option, text)
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        assert found.items() >= expected.items()
    else:
        assert found == expected
        assert type(found) is type(expected)


def test_an_item_of_a_list_is_of_the_lists_kind() -> None:
    document = merged("a_lol_hha", ["tiny"], [("data.test", "[a, b]"), ("data.test.1", "x #2")])
    assert document.values["data"]["init_args"]["test"] == ["a", "x #2"]  # type: ignore[index,call-overload]


def test_what_no_signature_tells_is_yaml_but_for_comments(tmp_path: Path) -> None:
    document = read_text("model: {class_path: a.b.C, init_args: {x: 1}}\n", "r.yaml")
    assert override(document, "model.x", "2").values["model"]["init_args"]["x"] == 2  # type: ignore[index,call-overload]
    assert override(document, "model.x", "a #b").values["model"]["init_args"]["x"] == "a #b"  # type: ignore[index,call-overload]
