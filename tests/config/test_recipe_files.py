from __future__ import annotations

from pathlib import Path

import pytest

from llm_agents.cli import main
from llm_agents.config.loading import load_recipe
from llm_agents.config.recipe_files import (
    bundled_folder,
    grouped,
    listing,
    overlay_path,
    recipe_name,
    recipe_path,
    summary,
)
from llm_agents.errors import UserError

BUNDLED = bundled_folder()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("a_lol_hha", "a_lol_hha.yaml"),
        ("a_lol_hha.yaml", "a_lol_hha.yaml"),
        ("recipes/a_lol_hha.yaml", "a_lol_hha.yaml"),
        ("paper/a_lol_hha", "paper/a_lol_hha.yaml"),
        ("recipes/paper/a_lol_hha", "paper/a_lol_hha.yaml"),
    ],
)
def test_a_name_is_the_packages_recipe_in_any_folder(name: str, file: str) -> None:
    assert recipe_path(name) == BUNDLED / file
    assert load_recipe(name, ["tiny"]).values == load_recipe(BUNDLED / file, ["tiny"]).values


@pytest.mark.parametrize(
    "name", ["tiny", "tiny.yaml", "overlays/tiny", "recipes/overlays/tiny.yaml"]
)
def test_an_overlay_has_a_name_too(name: str) -> None:
    assert overlay_path(name) == BUNDLED / "overlays" / "tiny.yaml"


@pytest.mark.parametrize(
    "mine", ["a_lol_hha", "a_lol_hha.yaml", "a_lol_hha.yml", "recipes/a_lol_hha.yaml"]
)
def test_a_file_here_wins(mine: str, tmp_path: Path) -> None:
    (tmp_path / mine).parent.mkdir(exist_ok=True)
    (tmp_path / mine).write_text("model: 1\n")
    assert recipe_path("a_lol_hha").resolve() == tmp_path / mine


def test_a_folder_of_the_same_name_is_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "a_lol_hha").mkdir()
    assert recipe_path("a_lol_hha") == BUNDLED / "a_lol_hha.yaml"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x.yaml").write_text("model: 1\n")
    with pytest.raises(UserError, match=r"mine is a folder: did you mean mine/x\.yaml\?"):
        recipe_path("mine")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("a_lol_hah", "did you mean a_lol_hha"),
        ("recipes/twosome.yaml", "did you mean twosome_overcooked"),
        ("paper/a_lol_hah", "did you mean .*a_lol_hha"),
        ("qqqqqqq", "there is none at qqqqqqq: `lightning run` lists those that come"),
        ("../nowhere/x.yaml", "there is none at"),
    ],
)
def test_a_name_that_is_none_gets_its_neighbours(name: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        recipe_path(name)
    with pytest.raises(UserError, match="that come with the package: tiny"):
        overlay_path("tinny")


def test_every_recipe_is_listed_once_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == 0
    assert capsys.readouterr().out == f"{listing(10_000)}\n"
    rows = [each for _, inside in grouped() for each in inside]
    files = list(BUNDLED.rglob("*.yaml"))
    assert len(rows) == len(files) > 70
    assert len({each.name for each in rows}) == len(rows)
    for each in rows:
        assert len(each.what) > 20, each
        assert not each.what.startswith("lightning"), each
    assert all(len(line) <= 60 for line in listing(60).splitlines()[1:])


def test_a_recipe_here_is_listed_first_and_may_say_nothing_of_itself(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text("model: 1\n")
    title, rows = next(grouped())
    assert title == "in recipes/ of this folder"
    assert [each.name for each in rows] == ["mine"]
    path = tmp_path / "two.yaml"
    path.write_text("# A first line that\n# goes on. And more.\n# Needs: a core\nmodel: 1\n")
    assert summary(path, "two") == ("two", "A first line that goes on", "a core")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("recipes/a_lol_hha.yaml", "a_lol_hha"),
        ("/x/recipes/paper/a_lol_hha.yaml", "paper/a_lol_hha"),
        ("mine/test.yaml", "test"),
    ],
)
def test_a_recipe_gives_its_runs_a_name(path: str, name: str) -> None:
    assert recipe_name(Path(path)) == name


def test_an_entry_s_recipe_is_found_from_every_folder() -> None:
    path = recipe_path("zoo:motif-nethack")
    assert path.parts[-3:] == ("checkpoints", "motif-nethack", "recipe.yaml")
    with pytest.raises(UserError, match=r"no `zoo:motif-nethak`: did you mean `motif-nethack`"):
        recipe_path("zoo:motif-nethak")
