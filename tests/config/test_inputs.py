"""What a recipe reads: found beside it, named where it is missing, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_agents.cli import main
from llm_agents.config.inputs import INPUTS, missing
from llm_agents.config.loading import load_recipe
from llm_agents.config.recipe_files import bundled_folder
from llm_agents.config.schema import signature
from llm_agents.config.sources import locate

TEXT = (bundled_folder() / "a_lol_hha.yaml").read_text(encoding="utf8")
ROWS = '{"prompt": "a", "response": "b"}\n'


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder; ``mine/exp.yaml`` beside it reads ``rows.jsonl``."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    mine = tmp_path / "mine"
    mine.mkdir()
    text = TEXT.replace("train: sample", "train: rows.jsonl")
    assert text != TEXT
    (mine / "exp.yaml").write_text(text)
    return folder


def train_of(*words: tuple[str, str]) -> object:
    """Return the training data of the recipe with options."""
    return load_recipe("../mine/exp.yaml", (), words).values["data"]["init_args"]["train"]  # type: ignore[index,call-overload]


def test_a_path_in_a_recipe_is_looked_for_beside_it_first(work: Path) -> None:
    (work / "rows.jsonl").write_text(ROWS)
    assert train_of() == "rows.jsonl"  # there is none beside the recipe
    (work.parent / "mine" / "rows.jsonl").write_text(ROWS)
    assert train_of() == "../mine/rows.jsonl"
    assert train_of(("data.train", "rows.jsonl")) == "rows.jsonl"  # typed: below the working folder
    assert train_of(("data.train", "[rows.jsonl]")) == ["rows.jsonl"]


def test_folders_splits_and_lists_too(work: Path) -> None:
    mine = work.parent / "mine"
    (mine / "set").mkdir()
    (mine / "sample").mkdir()  # a word is no path
    text = TEXT.replace("train: sample", "train: ['set:train', sample, sample:hha, owner/name]")
    (mine / "exp.yaml").write_text(text)
    assert train_of() == ["../mine/set:train", "sample", "sample:hha", "owner/name"]


def test_a_missing_file_is_named_and_nothing_is_left(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "../mine/exp.yaml"]) == 2
    said = capsys.readouterr().err
    assert "../mine/exp.yaml: line" in said
    assert "data.train: expected data at `rows.jsonl`, but there is none" in said
    words = ["--data.train", "rows.jsonl", "--model.policy.adapter", "nll-hha"]
    assert main(["run", "a_lol_hha", *words, "--model.reward.path", "runs/nothing"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: 3 faults in the recipe, nothing was started\n")
    assert "--data.train: expected data at `rows.jsonl`" in said
    assert "no folder or entry `nll-hha`: did you mean `nll-hha-smollm2-135m-instruct`" in said
    assert "no folder or entry `runs/nothing`" in said
    assert list(work.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("sample", "data"),
        ("sample:wow", "data"),
        ("held_out", "data"),
        ("owner/name", "data"),
        ("owner/name/folder@v1:train", "data"),
        ("squad", "data"),
        ("owner/adapter", "trained"),
        ("dpo-hha-llama-7b", "trained"),
        ("reward-hha-smollm2-135m-instruct", "trained"),
        ("smollm2-135m-instruct", "base"),
        ("gpt2", "base"),
        ("owner/model", "base"),
    ],
)
def test_what_is_here_or_may_be_on_the_hub_passes(text: str, kind: str) -> None:
    assert missing(text, kind) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("rows.csv", "data", "expected data at `rows.csv`, but there is none (looked from"),
        ("nodir/rows", "file", "there is no folder `nodir`"),
        ("./rows", "data", "expected data at `./rows`"),
        ("/no/such/rows", "data", "there is no folder `/no/such`"),
        ("runs/x/rows", "data", "expected data at `runs/x/rows`"),
        ("pairs", "folder", "expected a folder at `pairs`"),
        ("nothing", "trained", "there is no folder or entry `nothing`"),
        ("zoo:nothing", "trained", "there is no folder or entry `zoo:nothing`"),
        ("./nothing", "base", "there is no such file or folder"),
        ("model.gguf", "base", "there is no such file or folder"),
        (".", "base", "has no config.json, so it is no model"),
        (".", "trained", "`.` holds none"),
    ],
)
def test_what_is_not_here_is_refused(text: str, kind: str, message: str) -> None:
    assert message in str(missing(text, kind))  # type: ignore[arg-type]


def test_a_neighbour_is_named(work: Path) -> None:
    (work / "my_rows.jsonl").write_text(ROWS)
    assert "did you mean `my_rows.jsonl`?" in str(missing("my_row.jsonl", "data"))


def test_every_input_is_an_argument_of_its_class() -> None:
    for path, names in INPUTS.items():
        definition = locate(path)
        assert definition is not None, path
        known = signature(definition)
        assert known is not None, path
        assert all(known.get(name) is not None for name in names), path
