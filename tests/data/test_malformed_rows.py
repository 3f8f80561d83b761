"""Rows that can't be read: named by file and line, or counted, whatever is wrong with them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from llm_agents.data import OfflineDataModule, RowRules, read_examples
from llm_agents.data.raw_rows import raw_rows
from llm_agents.errors import UserError

GOOD = b'{"prompt": "q", "response": "a", "reward": 0.5}'
MALFORMED = {
    "half a surrogate": (
        rb'{"prompt": "\ud800 x", "response": "a"}',
        "valid Unicode, got '\\ud800'",
    ),
    "the other half": (rb'{"prompt": "q", "response": "x \udfff"}', "valid Unicode"),
    "a surrogate in a message": (
        rb'{"prompt": [{"role": "user", "content": "\ud83d"}], "response": "a"}',
        "valid Unicode",
    ),
    "a surrogate in a key": (rb'{"prompt": "q", "response": "a", "\ud800": 1}', "valid Unicode"),
    "Unicode blanks": ("\u00a0\u2003\u3000".encode(), "expected one JSON object a line, got"),
    "a line separator": ("\u2028".encode(), "expected one JSON object a line, got"),
    "400 digits": (
        b'{"prompt": "q", "response": "a", "reward": 1%s}' % (b"0" * 400),
        "finite number",
    ),
    "5000 digits": (b'{"prompt": "q", "response": "a", "reward": 1%s}' % (b"0" * 5000), "digits"),
    "1e999": (b'{"prompt": "q", "response": "a", "reward": 1e999}', "finite number"),
    "an index of 400 digits": (
        b'{"prompt": "q", "responses": ["a", "b"], "preferred": 1%s}' % (b"0" * 400),
        "from 0 to 1",
    ),
    "100000 brackets": (b"[" * 100_000, "expected one JSON object a line, got"),
    "100000 braces": (b'{"a":' * 100_000, "expected one JSON object a line, got"),
    "deep and closed": (b'{"prompt": %s%s}' % (b"[" * 9_000, b"]" * 9_000), "expected"),
    "NUL": (b"\x00\x00\x00", "expected one JSON object a line, got"),
    "NUL in a text": (b'{"prompt": "q\x00", "response": "a"}', "control character"),
    "Latin-1": (b'{"prompt": "caf\xe9", "response": "a"}', "expected UTF-8 text"),
    "UTF-16": ("{}".encode("utf-16"), "expected UTF-8 text"),
    "a key twice": (b'{"prompt": "q", "prompt": "r", "response": "a"}', "got 'prompt' twice"),
    "a key twice inside": (
        b'{"prompt": [{"role": "user", "content": "a", "content": "b"}], "response": "a"}',
        "got 'content' twice",
    ),
    "a key twice, deep": (b'{"prompt": "q", "meta": {"x": [[{"y": 1, "y": 1}]]}}', "'y' twice"),
    "a list": (b"[1, 2]", "got [1, 2]"),
    "a text": (b'"prompt"', "got 'prompt'"),
    "null": (b"null", "got None"),
    "cut off": (b'{"prompt": "q"', "expected one JSON object a line, got"),
    "two in a line": (GOOD + GOOD, "Extra data"),
    "a comma behind": (GOOD + b",", "Extra data"),
}


def write(path: Path, *lines: bytes) -> str:
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("place", [1, 3])
def test_a_malformed_line_is_named_or_counted_and_the_rest_is_read(
    tmp_path: Path, name: str, place: int
) -> None:
    bad, message = MALFORMED[name]
    lines = [GOOD] * 4
    lines[place - 1] = bad
    path = write(tmp_path / "a.jsonl", *lines)
    with pytest.raises(UserError) as fault:
        read_examples(path)
    assert str(fault.value).startswith(f"{path}:{place}: expected ")
    assert message in str(fault.value)
    assert str(fault.value).endswith("leave it out with data.rules.on_malformed: skip")
    assert len(str(fault.value)) < len(path) + 500
    examples, report = read_examples(path, on_malformed="skip")
    assert len(examples) == 3
    assert report.dropped == {"malformed": 1}
    assert (report.rows, report.kept) == (4, 3)


@pytest.mark.parametrize(
    "lines",
    [
        (b"\xef\xbb\xbf" + GOOD, GOOD),
        (GOOD, b"\xef\xbb\xbf" + GOOD),  # of files put one behind the other
        (GOOD + b"\r", GOOD + b"\r"),
        (b"", GOOD, b"  \t\r", GOOD, b""),
        (b"[" + GOOD + b"," + GOOD + b"]",),
        (b"\xef\xbb\xbf [", GOOD + b",\r", GOOD, b"]", b""),
    ],
)
def test_what_programs_put_around_lines_is_no_fault(tmp_path: Path, lines: tuple[bytes]) -> None:
    for data in (b"\n".join(lines), gzip.compress(b"\n".join(lines))):
        (tmp_path / "a.json").write_bytes(data)  # gzip is told by its bytes, whatever the name
        examples, report = read_examples(str(tmp_path / "a.json"))
        assert [example.responses for example in examples] == [("a",)] * 2
        assert not report.dropped


def test_a_damaged_archive_gives_what_came_before(tmp_path: Path) -> None:
    lines = [b'{"prompt": "q%d", "response": "%s"}' % (i, b"%d" % (i * i) * 9) for i in range(4000)]
    whole = gzip.compress(b"\n".join(lines))
    path = tmp_path / "a.jsonl.gz"
    for data in (whole[: len(whole) // 2], whole[:-4], whole[:-40] + b"xxxx" + whole[-36:]):
        path.write_bytes(data)
        with pytest.raises(
            UserError, match=r"a\.jsonl\.gz:\d+: expected a complete gzip file"
        ) as one:
            read_examples(str(path))
        assert "data.rules.on_malformed" in str(one.value)
        examples, report = read_examples(str(path), on_malformed="skip")
        assert [example.prompt[0].text for example in examples] == [
            f"q{i}" for i in range(len(examples))
        ]
        assert len(examples) > 1000
        assert 1 <= report.dropped["malformed"] <= 2  # the end, and the line that it cuts
    with pytest.raises(UserError, match="expected a complete gzip file"):
        list(raw_rows(str(path)))


def test_items_of_an_array_are_named_by_their_number(tmp_path: Path) -> None:
    items = [GOOD, b"3", b'{"prompt": "q", "response": "a", "response": "b"}', GOOD]
    path = write(tmp_path / "a.json", b"[", b",\n".join(items), b"]")
    with pytest.raises(UserError, match=r"a\.json\[2\]: expected .* got 3"):
        read_examples(path)
    examples, report = read_examples(path, on_malformed="skip")
    assert (len(examples), report.dropped) == (2, {"malformed": 2})


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        (b"[" + GOOD + b",\n" + GOOD, ":2:", "expected a comma or the array's only end, got ''"),
        (b"[" + GOOD + b",\n" + GOOD + b"]\nrest", ":2:", "only end, got ']\\nrest'"),
        (
            b"[" + GOOD + b",\n" + GOOD + b",\n{]",
            ":3:",
            "expected one JSON object a line, got '{]'",
        ),
        (b"[\n" + GOOD + b",\n" + GOOD + b",\n]", ":4:", "got ']'"),
        (b"[\n" + GOOD + b",\n" + GOOD + b'\n{"caf\xe9": 1}]', ":4:", "expected UTF-8 text"),
    ],
)
def test_a_broken_array_is_named_by_its_line(
    tmp_path: Path, text: bytes, where: str, message: str
) -> None:
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(UserError) as fault:
        read_examples(str(tmp_path / "a.json"))
    assert f"a.json{where} " in str(fault.value)
    assert message in str(fault.value)


CSV = b'prompt,response,reward\nq,"a ""b""\nc",0.5\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"q,a", "expected 3 fields like the first line"),
        (b"q,a,1,2", "expected 3 fields like the first line"),
        (b"q,caf\xe9,1", "expected UTF-8 text"),
        (b'q,"a" b,1', "expected CSV, got"),
        (b"q,a,high", "expected a finite number in `reward`, got 'high'"),
        (b"q,a,nan", "expected a finite number in `reward`, got nan"),
        (b",a,1", "`prompt`"),
    ],
)
def test_malformed_lines_of_a_table(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf" + CSV + line + b"\nr,d,1\n")
    with pytest.raises(UserError, match=rf"a\.csv:4: .*({message})"):
        read_examples(str(tmp_path / "a.csv"))
    examples, report = read_examples(str(tmp_path / "a.csv"), on_malformed="skip")
    assert [(e.responses, e.rewards) for e in examples] == [
        (('a "b"\nc',), (0.5,)),
        (("d",), (1.0,)),
    ]
    assert report.dropped == {"malformed": 1}


def test_texts_of_a_table_stay_texts_and_empty_cells_are_none(tmp_path: Path) -> None:
    rows = 'prompt,response,reward,preferred\n"[1, 2]",42,1,\n3.0,[a],,0\n"{""x"": 1}","",,\n'
    (tmp_path / "a.csv").write_text(rows)
    examples, _ = read_examples(str(tmp_path / "a.csv"))
    found = [(e.prompt[0].text, e.responses, e.rewards) for e in examples]
    assert found == [("[1, 2]", ("42",), (1.0,)), ("3.0", ("[a]",), None), ('{"x": 1}', (), None)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "\ud800", "response": "a"}, "valid Unicode"),
        ({"prompt": "q", "response": "a", "reward": 10**400}, "finite number"),
        ({"prompt": "q", "response": "a", "reward": 10**5000}, "finite number"),
        ({"prompt": "q", "response": 10**5000}, "of type str or list, got int"),
        (None, "got None"),
    ],
)
def test_faults_of_rows_in_memory(row: Any, message: str) -> None:
    good = json.loads(GOOD)
    with pytest.raises(UserError, match=rf"^rows\[1\]: expected .*{message}"):
        read_examples([good, row])
    examples, report = read_examples([good, row, good], on_malformed="skip")
    assert (len(examples), report.dropped) == (2, {"malformed": 1})


def test_numbers_and_arrays_of_other_libraries_are_read() -> None:
    import numpy as np

    row = {"prompt": "q", "responses": np.array(["a", "b"]), "rewards": np.array([1, 2.5])}
    one = {"prompt": "q", "response": "a", "reward": np.float32(0.5), "label": np.bool_(True)}
    examples, _ = read_examples([row, one, {**row, "responses": ("a", "b")}])
    assert [e.rewards for e in examples] == [(1.0, 2.5), (0.5,), (1.0, 2.5)]
    frame = Dataset.from_list([{"prompt": "q", "responses": ["a"]}]).to_pandas()
    assert read_examples(frame.to_dict("records"))[0][0].responses == ("a",)


def test_rows_without_a_response_name_the_keys_that_they_had(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "text": "a", "id": i} for i in range(3)]
    data = OfflineDataModule(rows, rules=RowRules())
    from tests.data.test_module import connected

    with pytest.raises(
        UserError, match=r"3 dropped \(no response beside prompt, text, id\); .*keys n"
    ):
        connected(data)
