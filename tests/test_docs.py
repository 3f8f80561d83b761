"""README and docs: the generated tables are up to date, links lead somewhere, commands parse."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from llm_agents import tables
from llm_agents.cli import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "recipes" / "README.md"]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf8"), re.DOTALL)


def test_generated_tables_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main(["--check"]) == 0, capsys.readouterr().out


def test_a_table_that_is_out_of_date_is_noticed() -> None:
    text = "a\n<!-- generated:x -->\nold\n<!-- /generated:x -->\nb"
    assert tables.fill(text, "x", "new") == text.replace("old", "new")
    with pytest.raises(ValueError, match="expected the marks"):
        tables.fill("no marks", "x", "new")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text(encoding="utf8")):
        assert (path.parent / target).exists(), target


def run_commands() -> list[str]:
    found = []
    for path in PAGES:
        for block in blocks(path, "bash"):
            lines = block.replace("\\\n", " ").splitlines()
            found += [line for line in lines if line.startswith("lightning run ")]
    return found


def test_the_readme_shows_commands() -> None:
    assert len(run_commands()) >= 4


@pytest.fixture
def greenhouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Put the world of the page on environments where it can be imported; return its check."""
    world, *checks = blocks(ROOT / "docs" / "bring_your_own_environment.md", "python")
    (tmp_path / "greenhouse.py").write_text(world, encoding="utf8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "\n".join(checks)


@pytest.mark.parametrize("command", run_commands())
def test_a_command_that_the_docs_show_is_sound(
    command: str,
    greenhouse: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)[1:]
    if "--help" not in words:
        words.append("--print_config")
    assert main(words) == 0
    assert capsys.readouterr().out


@pytest.mark.slow
def test_the_readmes_first_lines_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (code,) = blocks(ROOT / "README.md", "python")
    (printed,) = blocks(ROOT / "README.md", "text")
    assert len(code.splitlines()) <= 10
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_a_world_of_the_readers_own_is_checked_and_trained_in(
    greenhouse: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exec(compile(greenhouse, "bring_your_own_environment.md", "exec"), {})
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(
        """
model:
  class_path: llm_agents.methods.POAD
  init_args:
    policy:
      class_path: llm_agents.policies.LanguagePolicy.from_pretrained
      init_args: {base: tiny-random-llama, lora: {r: 2, alpha: 4, top_layers: 1}}
    critic_widths: [8]
data:
  class_path: llm_agents.rollouts.TextRollouts
  init_args: {world: greenhouse:Greenhouse, num_worlds: 2, num_steps: 4, total_frames: 8}
trainer: {accelerator: cpu, enable_progress_bar: false}
evaluation: {episodes: 2, num_worlds: 1, baselines: [random], pictures: false}
"""
    )
    assert main(["run", "a.yaml", "--run.folder", "out"]) == 0
    assert main(["watch", "out", "--max-steps", "2", "--html", "a.html"]) == 0
    assert "The tomato is" in Path("a.html").read_text(encoding="utf8")


@pytest.mark.slow
def test_an_answer_of_the_hha_entry_ends_at_its_stop_string(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (code,) = blocks(ROOT / "docs" / "a_lol.md", "python")
    exec(compile(code, "a_lol.md", "exec"), {})
    said = capsys.readouterr().out
    assert len(said.split()) > 3
    assert "###" not in said


@pytest.mark.slow
def test_the_zoos_first_lines_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (code,) = blocks(ROOT / "docs" / "zoo.md", "python")
    exec(compile(code, "zoo.md", "exec"), {})
    assert "smollm2-135m-instruct" in capsys.readouterr().out


def variables_read() -> set[str]:
    """Return the environment variables that the package names in its code."""
    read = re.compile(r"environ(?:\.get|\.setdefault|\.pop)?[\(\[]\s*\"([A-Z][A-Z0-9_]+)\"")
    named = re.compile(r"\"((?:LLM_AGENTS|PL|HF|OPENAI)_[A-Z0-9_]+)\"")
    found: set[str] = set()
    for path in (ROOT / "llm_agents").rglob("*.py"):
        if path.name == "attacks.py":  # sets a secret of its own, for a sandbox to keep
            continue
        text = path.read_text(encoding="utf8")
        found |= {*read.findall(text), *named.findall(text)}
    return found


def test_every_environment_variable_is_on_the_page_of_caches() -> None:
    found = variables_read()
    assert {"LLM_AGENTS_CACHE", "LLM_AGENTS_VERBOSE", "LLM_AGENTS_RUN_FOLDER"} <= found
    page = (ROOT / "docs" / "caches.md").read_text(encoding="utf8")
    assert not {name for name in found if f"`{name}`" not in page}


def test_the_page_of_caches_names_every_folder_below() -> None:
    """Each place where the code puts something into the cache is a row of the page."""
    below = re.compile(r"cache_folder\(\) / \"(\w+)\"")
    found = {
        name
        for path in (ROOT / "llm_agents").rglob("*.py")
        for name in below.findall(path.read_text(encoding="utf8"))
    }
    assert len(found) >= 5
    page = (ROOT / "docs" / "caches.md").read_text(encoding="utf8")
    assert not {name for name in found if f"| `{name}/` |" not in page}
