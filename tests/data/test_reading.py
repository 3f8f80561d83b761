"""Sources, formats and malformed rows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from llm_agents.data import read_examples
from llm_agents.data.dialogue_marks import split_dialogue
from llm_agents.data.reading import source_name
from llm_agents.errors import UserError
from llm_agents.types import Turn

PROMPT = ["<|prompter|>Hi", "<|assistant|>Hello", "<|prompter|>Bye ", "<|assistant|>"]
PRO = {
    "prefix": [PROMPT, PROMPT],
    "suffix": ["Good bye.", "No"],
    "reward": [1.5, -2],
    "sft_index": 0,
    "meta": {"path": "x", "line_num": 7, "task": "dialogue"},
}
HH = {
    "chosen": "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: Bye\n\nAssistant: Good bye.",
    "rejected": "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: Bye\n\nAssistant: No",
}
DIALOGUE = (Turn("user", "Hi"), Turn("assistant", "Hello"), Turn("user", "Bye"))
MESSAGES = [{"role": turn.role, "content": turn.text} for turn in DIALOGUE]


def write(path: Path, *rows: object) -> str:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl.gz"])
def test_pro_rows_plain_and_compressed(tmp_path: Path, name: str) -> None:
    examples, report = read_examples(write(tmp_path / name, PRO, "", PRO))
    assert len(examples) == 2
    assert report.rows == 2
    example = examples[0]
    assert example.prompt == (*DIALOGUE[:2], Turn("user", "Bye "))
    assert example.responses == ("Good bye.", "No")
    assert example.rewards == (1.5, -2.0)
    assert example.preferred == 0
    assert example.meta["line_num"] == "7"
    assert example.meta["source"].endswith(name)


def test_hh_rlhf_rows_split_like_pro(tmp_path: Path) -> None:
    examples, _ = read_examples(write(tmp_path / "a.jsonl", HH))
    assert examples[0].prompt == DIALOGUE
    assert examples[0].responses == ("Good bye.", "No")
    assert examples[0].rewards is None
    assert examples[0].preferred == 0


def test_dialogue_splitting_joins_turns_and_drops_or_keeps_roleless_paragraphs() -> None:
    text = "\n\nHuman: a\n\nHuman: b\n\nAssistant: list:\n\n1. x\n\n2. y\n\nHuman: c "
    dropped = split_dialogue(text, keep_paragraphs=False)
    assert dropped == (Turn("user", "a\nb"), Turn("assistant", "list:"), Turn("user", "c"))
    kept = split_dialogue(text)
    assert kept[1].text == "list:\n\n1. x\n\n2. y"


def test_roleless_paragraphs_are_an_option_of_the_reader(tmp_path: Path) -> None:
    row = {key: text + "\n\nmore" for key, text in HH.items()}
    path = write(tmp_path / "a.jsonl", row)
    kept, report = read_examples(path)
    assert kept[0].responses == ("Good bye.\n\nmore", "No\n\nmore")
    assert not report.changed
    dropped, report = read_examples(path, roleless_paragraphs="drop")
    assert dropped[0].responses == ("Good bye.", "No")
    lost = "rows that lost paragraphs without a role (data.rules.roleless_paragraphs: keep)"
    assert report.changed == {lost: 1}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            {**HH, "rejected": "\n\nHuman: Hi\n\nAssistant: No"},
            "dialogues differ in number of turns",
        ),
        ({**HH, "rejected": HH["rejected"].replace("Hello", "Hey")}, "prompts of the responses"),
        ({**PRO, "prefix": [PROMPT, PROMPT[2:]]}, "prompts of the responses"),
    ],
)
def test_pairs_without_a_common_prompt_are_counted(
    tmp_path: Path, row: object, reason: str
) -> None:
    first = HH if "chosen" in row else PRO
    examples, report = read_examples(write(tmp_path / "a.jsonl", first, row))
    assert len(examples) == 1
    ((found, count),) = report.dropped.items()
    assert found.startswith(reason)
    assert count == 1
    assert report.kept == 1


@pytest.mark.parametrize(
    ("row", "prompt", "responses", "rewards", "preferred"),
    [
        ({"prompt": "Say hi", "responses": ["hi", "ho"]}, "Say hi", ("hi", "ho"), None, 0),
        (
            {"prompt": "q", "responses": ["a", "b"], "rewards": [0.1, 2]},
            "q",
            ("a", "b"),
            (0.1, 2.0),
            1,
        ),
        (
            {"prompt": "q", "responses": ["a", "b"], "rewards": [0.1, 2], "preferred": 0},
            "q",
            ("a", "b"),
            (0.1, 2.0),
            0,
        ),
        (
            {
                "id": 3,
                "prompt_or_input_text": "q",
                "references": ["a"],
                "reward_components": {"fluency": 0.5, "final_reward": 0.5},
                "meta_data": {"k": 1},
            },
            "q",
            ("a",),
            (0.5,),
            0,
        ),
        ({"prompt": "q", "response": "a"}, "q", ("a",), None, 0),
        ({"prompt": "q"}, "q", (), None, 0),
    ],
)
def test_common_rows(
    tmp_path: Path,
    row: dict[str, object],
    prompt: str,
    responses: tuple[str, ...],
    rewards: tuple[float, ...] | None,
    preferred: int,
) -> None:
    (example,), _ = read_examples(write(tmp_path / "a.jsonl", row))
    assert example.prompt == (Turn("user", prompt),)
    assert (example.responses, example.rewards) == (responses, rewards)
    assert example.preferred == preferred


def test_messages_may_stand_for_any_dialogue(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    answer = {"role": "assistant", "content": "ok"}
    common = {"prompt": [system, *MESSAGES], "responses": ["ok"]}
    whole = {"chosen": [*MESSAGES, answer], "rejected": [*MESSAGES, answer]}
    beside = {"prompt": MESSAGES, "chosen": [answer], "rejected": "no"}
    repeated = {"prompt": MESSAGES, "chosen": [*MESSAGES, answer], "rejected": [*MESSAGES, answer]}
    (one,), _ = read_examples(write(tmp_path / "1.jsonl", common))
    assert one.prompt == (Turn("system", "Be brief."), *DIALOGUE)
    examples, _ = read_examples(write(tmp_path / "2.jsonl", whole, beside, repeated))
    assert [e.prompt for e in examples] == [DIALOGUE] * 3
    assert [e.responses for e in examples] == [("ok", "ok"), ("ok", "no"), ("ok", "ok")]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("{not json", "expected one JSON object a line, got '{not json'"),
        ("[1]", "got [1]"),
        ({"other": 1}, "expected `prefix` of type list, got no such key beside other"),
        ({**PRO, "suffix": None}, "expected `suffix` of type list, got no such key beside prefix"),
        ({**PRO, "suffix": ["only one"]}, "`prefix` and `suffix`"),
        ({**PRO, "suffix": ["a", None]}, "expected `suffix` to hold texts, got None"),
        ({**PRO, "suffix": "text"}, "expected `suffix` of type list, got 'text'"),
        ({**PRO, "prefix": [PROMPT[:-1]] * 2}, "bare <|assistant|>"),
        ({**PRO, "prefix": [["Hi", "<|assistant|>"]] * 2}, "expected <|prompter|>"),
        ({**PRO, "reward": [1.0]}, "expected `reward` to hold 2 numbers, got 1"),
        ({**PRO, "reward": [1.0, float("nan")]}, "a finite number in `reward`, got nan"),
        ({**PRO, "reward": [1.0, "2"]}, "a finite number in `reward`, got '2'"),
        ({**PRO, "sft_index": 2}, "expected `sft_index` from 0 to 1, got 2"),
    ],
)
def test_a_malformed_line_is_named_by_file_and_number(
    tmp_path: Path, row: object, expected: str
) -> None:
    path = write(tmp_path / "a.jsonl", PRO, PRO, row, PRO)
    with pytest.raises(UserError) as fault:
        read_examples(path)
    assert str(fault.value).startswith(f"{path}:3: expected ")
    assert expected in str(fault.value)
    assert "data.rules.on_malformed: skip" in str(fault.value)


@pytest.mark.parametrize(
    ("good", "bad", "expected"),
    [
        (HH, {**HH, "chosen": "no roles"}, "dialogue of Human and Assistant"),
        (HH, {**HH, "chosen": "\n\nHuman: Hi"}, "ends with Assistant"),
        (HH, {"chosen": HH["chosen"]}, "expected `rejected` of type str or list, got no such key"),
        (HH, {"prompt": "q", "chosen": MESSAGES, "rejected": "a"}, "one assistant message"),
        ({"prompt": "q"}, {"prompt": " "}, "expected `prompt` to be text or a list of messages"),
        ({"prompt": "q"}, {"prompt": [{"role": "robot", "content": ""}]}, "role user, assistant"),
        ({"prompt": "q"}, {"prompt": [*MESSAGES, {"role": "system", "content": ""}]}, "(first)"),
        ({"prompt": "q"}, {"prompt": 3}, "of type str or list, got 3"),
        ({"prompt": "q"}, {"prompt": "q", "responses": ["a"], "preferred": True}, "got True"),
        ({"prompt": "q"}, {"prompt": "q", "completion": "a", "label": "maybe"}, "true or false"),
        (
            {"prompt": "q"},
            {"completion": "a"},
            "expected `prompt` of type str or list, got no such",
        ),
        ({"prompt": "q"}, {"messages": []}, "a message of the user at least, before"),
        ({"prompt": "q"}, {"messages": [{"role": "assistant", "content": "a"}]}, "of the user at"),
        ({"prompt": "q"}, {"messages": [{"role": "tool", "content": "a"}]}, "role user, assistant"),
        ({"prompt": "q"}, {"prompt": "q", "completions": ["a"], "labels": [1]}, "by steps is not"),
        ({"prompt": "q"}, {"prompt": "q", "completions": [{"x": 1}]}, "objects with `response`"),
        (HH, {**HH, "score_chosen": 1}, "`score_chosen` and `score_rejected`, got one of them"),
        (HH, {"prompt": "q", "chosen": [*MESSAGES, *MESSAGES], "rejected": "a"}, "one assistant"),
    ],
)
def test_malformed_rows_of_the_other_formats(
    tmp_path: Path, good: object, bad: object, expected: str
) -> None:
    path = write(tmp_path / "a.jsonl", good, bad)
    with pytest.raises(UserError, match=r"a\.jsonl:2: expected ") as fault:
        read_examples(path)
    assert expected in str(fault.value)


def test_a_first_line_of_no_known_format_names_the_known_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"text": "q"})
    with pytest.raises(UserError, match=r"a\.jsonl:1: .*chosen and rejected.* the keys text;"):
        read_examples(path)


def test_malformed_rows_can_be_skipped_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", "{", PRO, {**PRO, "suffix": 1}, PRO)
    examples, report = read_examples(path, on_malformed="skip")
    assert len(examples) == 2
    assert report.dropped == {"malformed": 2}
    assert (report.rows, report.kept) == (4, 2)


def test_text_that_is_not_utf8_and_a_broken_archive(tmp_path: Path) -> None:
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b'{"prompt": "caf\xe9"}\n')
    with pytest.raises(UserError, match=r"latin\.jsonl:1: expected UTF-8"):
        read_examples(str(latin))
    marked = tmp_path / "marked.jsonl"
    marked.write_bytes(b'\xef\xbb\xbf{"prompt": "caf\xc3\xa9"}\n')
    assert read_examples(str(marked))[0][0].prompt[0].text == "café"
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(json.dumps(PRO).encode())[:-20])
    with pytest.raises(UserError, match=r"cut\.jsonl\.gz:\d+: expected a complete gzip file"):
        read_examples(str(cut))
    plain = tmp_path / "plain.jsonl.gz"
    plain.write_text(json.dumps(PRO))
    with pytest.raises(UserError, match="expected a complete gzip file"):
        read_examples(str(plain))


def test_empty_files_and_empty_lists_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    with pytest.raises(UserError, match=r"empty\.jsonl: expected at least one row"):
        read_examples(str(empty))
    with pytest.raises(UserError, match="at least one train source"):
        read_examples([])


@pytest.mark.parametrize("source", ["no/such/file.jsonl", "./nothing here", "/no/such.json.gz"])
def test_a_missing_file_says_where_it_was_looked_for(source: str) -> None:
    with pytest.raises(UserError, match="no such file") as fault:
        read_examples(source)
    assert str(Path.cwd()) in str(fault.value)


def test_lists_of_sources_are_read_in_order_each_in_its_own_format(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.jsonl", PRO), write(tmp_path / "b.jsonl", HH, HH)]
    examples, report = read_examples(paths)
    assert [Path(e.meta["source"]).name for e in examples] == ["a.jsonl", "b.jsonl", "b.jsonl"]
    assert report.rows == 3


def test_a_folder_is_read_through_datasets(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    write(folder / "train.jsonl", HH, HH)
    write(folder / "test.jsonl", HH)
    assert len(read_examples(str(folder))[0]) == 2
    assert len(read_examples(f"{folder}:test")[0]) == 1
    examples, _ = read_examples(str(folder), role="test")
    assert examples[0].prompt == DIALOGUE
    with pytest.raises(UserError, match=r"expected the split 'dev' in .*, got train, test"):
        read_examples(f"{folder}:dev")


def test_a_folder_with_common_columns(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    rows = [
        {"prompt": "q", "responses": ["a", "b"], "rewards": [0.0, 1.0]},
        {"prompt": "q2", "responses": ["c", "d"]},
    ]
    write(folder / "train.jsonl", *rows)
    examples, _ = read_examples(str(folder))
    assert examples[0].rewards == (0.0, 1.0)
    assert examples[1].rewards is None
    bad = tmp_path / "bad"
    bad.mkdir()
    write(bad / "train.jsonl", {"text": "no prompt"})
    with pytest.raises(UserError, match=r"\[train\]:1: expected an object with the keys"):
        read_examples(str(bad))


def test_the_hub_out_of_reach_names_the_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="the data set 'nobody/nothing:test'"):
        read_examples("nobody/nothing:test")


def test_the_bundled_samples_of_all_roles() -> None:
    sizes = {}
    for role in ("train", "validation", "test"):
        examples, report = read_examples("sample", role=role)
        sizes[role] = len(examples)
        assert not report.dropped
        assert all(len(e.responses) == 2 and e.rewards is not None for e in examples)
    assert sizes["train"] >= 100
    assert min(sizes.values()) >= 10


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("data/harmless_base.json.gz", "harmless_base"),
        ("held_out", "held_out"),
        ("sample", "sample"),
        ("owner/name:test", "name-test"),
        ("folder/", "folder"),
    ],
)
def test_source_names(source: str, name: str) -> None:
    assert source_name(source) == name
