from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from llm_agents.config.reading import RecipeError, dump, read_document, read_text, read_value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("2.5e-3", 2.5e-3),
        (".5", 0.5),
        ("3", 3),
        ("-1", -1),
        ("9_000", 9000),
        ("010", 10),
        ("true", True),
        ("on", "on"),
        ("no", "no"),
        ("00:12:00:00", "00:12:00:00"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("null", None),
        ("~", None),
        ("", None),
        ("'1e-4'", "1e-4"),
        ("[a, 1, 2.0]", ["a", 1, 2.0]),
        ("{a: 1}", {"a": 1}),
        ("{a: 1, a: 2}", "{a: 1, a: 2}"),
        ("a: b: c", "a: b: c"),
        ("-inf", "-inf"),
    ],
)
def test_plain_values_are_read_as_yaml_1_2(text: str, expected: object) -> None:
    found = read_value(text)
    assert found == expected
    assert type(found) is type(expected)


def test_infinity_and_nan_are_numbers() -> None:
    assert read_value(".inf") == math.inf
    assert math.isnan(float(str(read_value(".nan"))))


def test_each_key_has_its_line() -> None:
    document = read_text("a:\n  b: 1\n  c:\n  - 2\n  - d: 3\n", "f.yaml")
    assert document.place(("a", "b")).line == 2
    assert document.place(("a", "c", 1, "d")).line == 5
    assert document.place(("a", "c", 1, "missing")).line == 5
    assert str(document.place(())) == "f.yaml: line 1"


def test_a_key_that_comes_twice_is_a_fault_with_both_lines() -> None:
    document = read_text("a: 1\nb: 2\na: 3\n", "f.yaml")
    assert [str(fault) for fault in document.faults] == [
        "f.yaml: line 3: a: expected each key once, it is on line 1 already"
    ]


def test_anchors_and_tags_are_refused() -> None:
    document = read_text("a: &x {b: 1}\nc:\n  <<: *x\n", "f.yaml")
    assert "anchors" in str(document.faults[0])
    document = read_text("a: !!binary aGk=\n", "f.yaml")
    assert "tag" in str(document.faults[0])


def test_unreadable_yaml_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("model:\n  a: [1, 2\n  b: 3\n")
    with pytest.raises(RecipeError, match=r"bad\.yaml: line 3: expected YAML"):
        read_document(path)


@pytest.mark.parametrize(
    ("text", "got"), [("- 1\n", "a list"), ("", "nothing"), ("word", "a text")]
)
def test_a_recipe_is_a_mapping(tmp_path: Path, text: str, got: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=f"expected sections such as `model:`, got {got}"):
        read_document(path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(RecipeError, match="expected a recipe, a text in UTF-8: byte 3 is none"):
        read_document(path)


def test_what_is_dumped_is_read_back_the_same() -> None:
    values = {
        "a": 1e-06,
        "b": "1e-4",
        "c": "on",
        "d": [1, 2.5, None],
        "e": {"f": "00:12:00:00", "g": True, "h": math.inf, "i": "", "j": "3"},
        "k": [{"l": "ünïcode"}, []],
    }
    text = dump(values)
    assert read_text(text, "f").values == values
    assert yaml.safe_load(text)["c"] == "on"  # other readers see the same text
