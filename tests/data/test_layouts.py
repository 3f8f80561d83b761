"""Every layout and every form of file that the docs list, read to the turns that they promise."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict

from llm_agents.data import Example, read_examples
from llm_agents.data.dataset_rows import _loaded, dataset_rows
from llm_agents.errors import UserError
from llm_agents.types import Prompt, Turn

PAGE = Path(__file__).parents[2] / "docs/bring_your_own.md"
ANSWER = re.compile(r"(?P<mark>\*\*|~~|)(?P<text>.+?)(?P=mark)(?: \((?P<reward>[-\d.]+)\))?")
Expected = tuple[Prompt, tuple[str, ...], tuple[float, ...] | None, int]


def table() -> dict[str, tuple[dict[str, Any], Expected]]:
    """Return the rows of the page's table: what is read, and what it is to become."""
    lines = PAGE.read_text().partition("<!-- layouts: ")[2].splitlines()[3:]
    rows = {}
    for line in lines[: lines.index("")]:
        name, row, becomes = re.split(r"(?<!\\) ?\| ?", line)[1:4]
        content = json.loads(row.replace("\\|", "|").strip("`"))
        rows[name] = (content, expected(becomes.replace("¶", "\n")))
    return rows


def expected(text: str) -> Expected:
    """Return what the page's last column says: turns, responses, rewards and the good one."""
    turns, _, answers = text.partition(" →")
    prompt = tuple(Turn(*turn.split(": ", 1)) for turn in turns.split(" / "))
    found = [ANSWER.fullmatch(one.strip()) for one in answers.split(", ") if one.strip()]
    matches = [match for match in found if match is not None]
    assert len(matches) == len(found)
    rewards = tuple(float(match["reward"]) for match in matches if match["reward"])
    marks = [match["mark"] for match in matches]
    preferred = -1 if "~~" in marks else marks.index("**") if "**" in marks else 0
    return prompt, tuple(match["text"] for match in matches), rewards or None, preferred


TABLE = table()


def test_the_page_lists_all_layouts() -> None:
    assert len(TABLE) == 26


def jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def array(path: Path, rows: list[dict[str, Any]], indent: int | None = None) -> str:
    path.write_text(json.dumps(rows, indent=indent))
    return str(path)


def cells(path: Path, rows: list[dict[str, Any]], write: Callable[[Any], str] = json.dumps) -> str:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerow(rows[0])
        for row in rows:
            writer.writerow(v if isinstance(v, str) else write(v) for v in row.values())
    return str(path)


def parquet(path: Path, rows: list[dict[str, Any]]) -> str:
    Dataset.from_list(rows).to_parquet(path)
    return str(path)


def saved(path: Path, rows: list[dict[str, Any]]) -> str:
    Dataset.from_list(rows).save_to_disk(path)
    return str(path)


def saved_splits(path: Path, rows: list[dict[str, Any]]) -> str:
    other = Dataset.from_list([{"prompt": "of another split"}])
    DatasetDict(train=Dataset.from_list(rows), validation=other).save_to_disk(path)
    return str(path)


def compressed(path: Path, rows: list[dict[str, Any]]) -> str:
    plain = Path(jsonl(path.with_suffix(".plain"), rows))
    path.write_bytes(gzip.compress(plain.read_bytes()))
    return str(path)


def compressed_cells(path: Path, rows: list[dict[str, Any]]) -> str:
    plain = Path(cells(path.with_suffix(".plain"), rows))
    path.write_bytes(gzip.compress(plain.read_bytes()))
    return str(path)


def folder(path: Path, rows: list[dict[str, Any]]) -> str:
    path.mkdir()
    Dataset.from_list(rows).to_parquet(path / "train-00000-of-00001.parquet")
    return str(path)


FORMS: dict[str, Callable[[Path, list[dict[str, Any]]], Any]] = {
    "a.jsonl": jsonl,
    "a.jsonl.gz": compressed,
    "line.json": array,
    "lines.json": lambda path, rows: array(path, rows, indent=1),
    "a.csv": cells,
    "python.csv": lambda path, rows: cells(path, rows, str),
    "a.csv.gz": compressed_cells,
    "a.tsv": cells,
    "a.parquet": parquet,
    "no_ending": parquet,
    "saved": saved,
    "saved_splits": saved_splits,
    "folder": folder,
    "list": lambda _, rows: rows,
    "dataset": lambda _, rows: Dataset.from_list(rows),
    "splits": lambda _, rows: DatasetDict(train=Dataset.from_list(rows)),
}


def parts(example: Example) -> Expected:
    return example.prompt, example.responses, example.rewards, example.preferred


@pytest.mark.parametrize("name", TABLE)
def test_a_layout_becomes_what_the_page_says(tmp_path: Path, name: str) -> None:
    row, right = TABLE[name]
    examples, report = read_examples(jsonl(tmp_path / "a.jsonl", [row, row]))
    assert [parts(example) for example in examples] == [right, right]
    assert not report.unread
    ((layout, count),) = report.layouts.items()
    assert count == 2
    assert layout.endswith(f"({', '.join(row)})")


@pytest.mark.parametrize("form", [form for form in FORMS if form != "a.jsonl"])
def test_every_layout_is_read_from_every_form(tmp_path: Path, form: str) -> None:
    layouts = list(TABLE.items())
    if "saved" in form or form in ("folder", "a.parquet", "no_ending"):
        layouts = layouts[::4]  # each takes the libraries a while
    for number, (name, (row, right)) in enumerate(layouts):
        (tmp_path / str(number)).mkdir()
        source = FORMS[form](tmp_path / str(number) / form, [row, row])
        found = [parts(example) for example in read_examples(source)[0]]
        assert found == [right, right], name


def test_rows_of_several_layouts_in_one_file_are_counted_apart(tmp_path: Path) -> None:
    rows = [row for row, _ in TABLE.values()]
    examples, report = read_examples(jsonl(tmp_path / "a.jsonl", rows))
    assert [parts(example) for example in examples] == [right for _, right in TABLE.values()]
    assert sum(report.layouts.values()) == len(rows)
    assert report.layouts["preference (prompt, chosen, rejected)"] == 3


def test_unread_keys_are_named_once_with_their_rows_and_nulls_are_not(tmp_path: Path) -> None:
    row = {"prompt": "q", "responses": ["a", "b"], "chosen": None, "rejected": None, "id": 3}
    more = {**row, "reward": 0.5, "id": None, "source": "x"}
    (one, two), report = read_examples(jsonl(tmp_path / "a.jsonl", [row, more]))
    assert one.responses == two.responses == ("a", "b")
    assert report.unread == {"id": 1, "reward": 1, "source": 1}
    assert str(report) == (
        "2 of 2 rows kept; 2 read as responses (prompt, responses); keys not read: `id` (1 rows), "
        "`reward` (1 rows), `source` (1 rows)"
    )
    assert report.as_dict()["unread"] == {"id": 1, "reward": 1, "source": 1}


@pytest.mark.parametrize(
    ("row", "right"),
    [
        ({"prompt": None, "messages": [{"role": "user", "content": "q"}]}, ((), None)),
        ({"prompt": "q", "response": None, "responses": ["a"], "rewards": None}, (("a",), None)),
        ({"prompt": "q", "responses": ["a", "b"], "rewards": [None, None]}, (("a", "b"), None)),
        ({"prompt": "q", "completion": "a", "label": None, "reward": None}, (("a",), None)),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "score_chosen": None}, (("a", "b"), None)),
        ({"prompt": "q", "response": "a", "knowledge": None, "preferred": None}, (("a",), None)),
        (
            {"prompt": "q", "response": "a", "chosen": float("nan"), "rejected": float("nan")},
            (("a",), None),
        ),
    ],
)
def test_null_counts_as_absent(row: dict[str, Any], right: tuple[object, object]) -> None:
    ((example,), _) = read_examples([row])
    assert example.prompt == (Turn("user", "q"),)
    assert (example.responses, example.rewards) == right


def test_columns_of_one_table_may_be_null_in_turn(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "responses": ["a"]}, {"prompt": "r", "chosen": "b", "rejected": "c"}]
    examples, report = read_examples(parquet(tmp_path / "a.parquet", rows))
    # Arrow's columns are those of the first row unless both name them.
    both = [{"chosen": None, "rejected": None, **rows[0]}, {"responses": None, **rows[1]}]
    examples, report = read_examples(parquet(tmp_path / "b.parquet", both))
    assert [example.responses for example in examples] == [("a",), ("b", "c")]
    assert not report.unread


@pytest.mark.parametrize(
    ("fields", "rewards"),
    [
        ({"chosen-rating": 4, "rejected-rating": 2.5}, (4.0, 2.5)),
        ({"chosen_score": 4, "rejected_score": 2.5}, (4.0, 2.5)),
        ({"rewards": [1, 2]}, (1.0, 2.0)),
        ({}, None),
    ],
)
def test_scores_of_a_pair_have_several_names(
    fields: dict[str, Any], rewards: tuple[float, ...] | None
) -> None:
    ((example,), report) = read_examples(
        [{"prompt": "q", "chosen": "a", "rejected": "b", **fields}]
    )
    assert example.rewards == rewards
    assert not report.unread


def test_ratings_of_annotations_are_averaged_and_half_rated_rows_are_counted() -> None:
    marks = {"help": {"Rating": "4"}, "truth": {"Rating": "1"}, "x": {"Rating": "N/A"}}
    rated = {"response": "a", "annotations": marks}
    whole = {"instruction": "q", "completions": [rated, {"response": "b", "score": 3}]}
    half = {"instruction": "q", "completions": [rated, {"response": "b"}]}
    (one, two), report = read_examples([whole, half])
    assert (one.rewards, one.preferred) == ((2.5, 3.0), 1)
    assert (two.rewards, two.preferred) == (None, 0)
    assert list(report.changed.values()) == [1]


@pytest.mark.parametrize("label", [False, 0, "False", "0"])
def test_a_label_makes_a_response_good_or_bad_under_any_name(label: object) -> None:
    rows = [{"prompt": "q", name: "a", "label": label} for name in ("response", "completion")]
    examples, _ = read_examples(rows)
    assert [(e.rewards, e.preferred, e.good_response) for e in examples] == [((0.0,), -1, None)] * 2
    ((good,), _) = read_examples([{**rows[0], "label": not bool(int(label == True))}])  # noqa: E712
    assert (good.rewards, good.preferred) == ((1.0,), 0)


MARKED = "\n\nHuman: {a}\n\nAssistant: {b}\n\nHuman: {c}\n\nAssistant:"


@pytest.mark.parametrize(
    ("between", "words"),
    [
        ("\n\n", "plain"),
        ("\n\n\n", "a turn that ends in a line break"),
        ("\n\n\n\n", "two blank lines"),
        ("\r\n\r\n", "line ends of Windows"),
        ("\n \n", "a blank in the blank line"),
        ("\n\t\n\n", "a tab in it"),
        (" \n\n ", "blanks around"),
    ],
)
def test_marks_are_found_however_the_turn_before_ends(between: str, words: str) -> None:
    text = f"{between}Human: Hi{between}Assistant: Hello{between}Human: And?{between}Assistant: "
    for rule in ("keep", "drop"):
        ((example,), report) = read_examples(
            [{"chosen": text + "Also.", "rejected": text + "Never."}], roleless_paragraphs=rule
        )
        assert example.prompt == (
            Turn("user", "Hi"),
            Turn("assistant", "Hello"),
            Turn("user", "And?"),
        )
        assert example.responses == ("Also.", "Never."), words
        assert not report.changed


def test_a_mark_in_a_line_or_after_a_single_line_break_is_text() -> None:
    text = "\n\nHuman: Write a play.\n\nAssistant: As you like:\nHuman: ho! said Assistant: hi"
    ((example,), _) = read_examples([{"chosen": text, "rejected": text}])
    assert example.prompt == (Turn("user", "Write a play."),)
    assert example.responses[0] == "As you like:\nHuman: ho! said Assistant: hi"


@pytest.mark.parametrize(
    "prompt",
    [
        MARKED,
        MARKED[2:],
        MARKED + " ",
        MARKED.replace("\n\n", "\r\n\r\n"),
        MARKED.removesuffix("\n\nAssistant:"),
        MARKED.replace("{b}", "{b}\n"),
    ],
)
@pytest.mark.parametrize("answer", [" Yes.\n\nIndeed.", "Yes.\n\nIndeed."])
def test_a_marked_prompt_gives_the_turns_of_the_whole_dialogue(prompt: str, answer: str) -> None:
    prompt = prompt.format(a="Hi", b="Hello", c="Tea?")
    turns = (Turn("user", "Hi"), Turn("assistant", "Hello"), Turn("user", "Tea?"))
    for row in (
        {"prompt": prompt, "chosen": answer, "rejected": answer},
        {"prompt": prompt, "responses": [answer, answer]},
        {"prompt": prompt, "completion": answer},
        {"prompt": prompt, "response": answer},
    ):
        ((example,), report) = read_examples([row])
        assert example.prompt == turns
        assert set(example.responses) == {"Yes.\n\nIndeed."}
        ((short,), report) = read_examples([row], roleless_paragraphs="drop")
        assert set(short.responses) == {"Yes."}
        assert list(report.changed.values()) == [1]
    ((bare,), _) = read_examples([{"prompt": prompt}])
    assert bare.prompt == turns


def test_a_text_that_mentions_a_mark_stays_one_turn() -> None:
    for text in ("Human: is that a name?", "Who said Human: hi?", "Hi\n\nHuman: you said"):
        ((example,), _) = read_examples([{"prompt": text, "response": "a"}])
        assert example.prompt == (Turn("user", text),)


def test_pairs_without_any_common_beginning_are_counted() -> None:
    rows = [{"chosen": "One.", "rejected": "Two."}, {"chosen": "The one", "rejected": "The two"}]
    (example,), report = read_examples(rows)
    assert example.prompt == (Turn("user", "The"),)
    assert report.dropped == {"chosen and rejected without a prompt or a common beginning": 1}


def test_a_saved_set_has_its_splits_by_role_or_by_name(tmp_path: Path) -> None:
    path = saved_splits(tmp_path / "set", [{"prompt": "q"}])
    ((found,), _) = read_examples(path, role="validation")
    assert found.prompt[0].text == "of another split"
    assert len(read_examples(f"{path}:train", role="test")[0]) == 1
    with pytest.raises(UserError, match=r"the split 'test' in .*, got train, validation: name one"):
        read_examples(path, role="test")
    alone = saved(tmp_path / "alone", [{"prompt": "q"}])
    assert len(read_examples(alone, role="test")[0]) == 1
    with pytest.raises(UserError, match="got a data set without splits"):
        read_examples(f"{alone}:train")
    shard = next((tmp_path / "alone").glob("*.arrow"))
    assert len(read_examples(str(shard))[0]) == 1


def test_a_configuration_of_a_data_set_is_named_like_a_folder(tmp_path: Path) -> None:
    for name in ("main", "other"):
        (tmp_path / name).mkdir()
        jsonl(tmp_path / name / "train.jsonl", [{"prompt": name}])
    configs = "".join(f"- config_name: {n}x\n  data_files: {n}/*\n" for n in ("main", "other"))
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    with pytest.raises(UserError, match=r"name one as .*/NAME"):
        list(dataset_rows(str(tmp_path), "train"))
    assert _loaded("x", str(tmp_path), "otherx")["train"][0] == {"prompt": "other"}


@pytest.mark.parametrize("content", [b"PK\x03\x04rest", b"\x28\xb5\x2f\xfdrest", b"BZh9rest"])
def test_an_archive_or_a_spreadsheet_says_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.jsonl: expected JSON, CSV, TSV or parquet, got a"):
        read_examples(str(tmp_path / "a.jsonl"))


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    path = Path(parquet(tmp_path / "a.parquet", [{"prompt": "q"}]))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match=r"a\.parquet: expected a parquet file, got damaged"):
        read_examples(str(path))
