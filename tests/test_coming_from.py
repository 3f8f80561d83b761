"""The page for users of the releases: each command of ours on it is one that can be given."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from llm_agents.cli import main

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf8")
RELEASES = ("Motif", "GLAM and Lamorel", "A-LoL", "TWOSOME", "POAD")


def ours() -> list[tuple[str, str]]:
    """Return the rows of all tables: release's command, and ours."""
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)
    return [row for row in rows if row[0] != "release"]


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def commands() -> list[str]:
    found = [span for _, text in ours() for span in spans(text)]
    runs = [span for span in found if span.startswith("lightning run ")]
    return list(dict.fromkeys(runs))


def settings() -> list[tuple[str, str]]:
    """Return settings that stand alone in a cell, each with a recipe of its section's."""
    recipes = {
        "Motif": (
            "paper/motif_nethack",
            "paper/motif_annotate_nethack",
            "paper/motif_reward_nethack",
        ),
        "GLAM and Lamorel": ("paper/glam_babyai_go_to_local",),
        "A-LoL": ("paper/a_lol_comet", "paper/ppo_hha"),
        "TWOSOME": ("paper/twosome_overcooked_tomato_salad",),
        "POAD": ("paper/poad_virtualhome_food_preparation",),
    }
    found = []
    for part in PAGE.split("\n## ")[1:]:
        name = part.splitlines()[0]
        prefix = ""
        for line in part.splitlines():
            for span in spans(line.rpartition(" | ")[2]) if line.startswith("| ") else []:
                if re.match(r"--(model|data|trainer|job|run|seed_everything)\b", span):
                    prefix = span.split()[0].rpartition(".")[0]
                elif re.fullmatch(r"\.\w+", span):
                    span = prefix + span
                else:
                    continue
                found += [(key, name) for key in re.findall(r"--([\w.]+)", span)]
    return [(key, recipe) for key, name in dict.fromkeys(found) for recipe in [recipes[name]]]


def test_the_page_speaks_of_all_releases() -> None:
    for name in RELEASES:
        assert f"\n## {name}\n" in PAGE
    assert len(ours()) >= 90
    assert len(commands()) >= 35


@pytest.mark.parametrize("command", commands())
def test_a_command_is_one_that_can_be_given(
    command: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*shlex.split(command)[1:], "--print_config"]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(("key", "recipes"), settings())
def test_a_setting_is_one_of_the_recipes(
    key: str, recipes: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = ""
    for recipe in recipes:
        main(["run", recipe, "--help", key.partition(".")[0]])  # some have no such section
        shown += capsys.readouterr().out
    assert re.search(rf"\b{re.escape(key)}\b", shown), f"{key} is a key of none of {recipes}"


def test_recipes_that_are_named_are_there() -> None:
    for _, text in ours():
        for span in spans(text):
            if re.fullmatch(r"paper/\w+", span):
                assert (ROOT / "recipes" / f"{span}.yaml").is_file(), span
