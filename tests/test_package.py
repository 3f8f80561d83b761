"""What the wheel holds, and that it is enough without the repository."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def wheel_files() -> set[Path]:
    """Return the files of this checkout that the wheel's settings name, besides Python's own."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    named = next(n.value for n in tree.body if isinstance(n, ast.Assign))
    folders = {"llm_agents": "llm_agents", **ast.literal_eval(named)}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]
    assert set(patterns) == set(folders)
    found = (ROOT / folders[name] for name in patterns)
    return {
        path
        for folder, wanted in zip(found, patterns.values(), strict=True)
        for pattern in wanted
        for path in folder.glob(pattern)
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("pattern", "at_least"),
    [
        ("recipes/**/*.yaml", 70),
        ("checkpoints/*/**/*", 200),
        ("llm_agents/data/samples/*", 20),
        ("llm_agents/**/*.html", 1),
        ("llm_agents/**/*.md", 1),
    ],
)
def test_the_wheel_holds_what_recipes_and_zoo_need(pattern: str, at_least: int) -> None:
    wanted = {path for path in ROOT.glob(pattern) if path.is_file()}
    assert len(wanted) >= at_least
    assert wanted <= wheel_files()


@pytest.mark.slow
def test_a_wheel_in_an_empty_folder_trains_plays_and_shows(tmp_path: Path) -> None:
    """Build the wheel, unpack it beside the libraries of this environment, and work elsewhere."""
    source, unpacked, work = (tmp_path / name for name in ("source", "unpacked", "work"))
    work.mkdir()
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in names:
        if name and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(unpacked), str(source)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}

    def said(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "llm_agents", *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=work,
            env=environment,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    where = "import llm_agents; print(llm_agents.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where], capture_output=True, text=True, env=environment, cwd=work
    )
    assert found.stdout.startswith(str(unpacked))
    assert "paper/a_lol_hha" in said("run")
    assert "nll-hha-smollm2-135m-instruct" in said("zoo", "list")
    said("run", "a_lol_hha", "--overlay", "tiny", "--run.folder", "mine")
    assert (work / "mine" / "results.json").is_file()
    said("run", "twosome_overcooked_tomato_salad", "--overlay", "tiny")
    said("watch", "twosome_overcooked_tomato_salad", "--max-steps", "2", "--html", "page.html")
    assert "<html" in (work / "page.html").read_text()
