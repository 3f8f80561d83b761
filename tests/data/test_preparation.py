"""Prepared files: scores in batches, nothing lost or done twice whatever happens on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from llm_agents.data import DropReport, read_examples
from llm_agents.data.held_out import HeldOut, part_groups
from llm_agents.data.preparation import Preparation, with_diversity
from llm_agents.data.prepared import PreparedFile, TaskRow
from llm_agents.data.raw_rows import raw_rows, source_digest, tsv_rows
from llm_agents.data.token_limit import TokenLimit
from llm_agents.errors import UserError
from llm_agents.rewards import CallableReward, DiversityReward, SumReward
from llm_agents.rewards.knowledge import knowledge_of
from llm_agents.types import Prompt, Reward, Turn

ROOT = Path(__file__).resolve().parents[2]


class CutOffError(RuntimeError):
    """Stands for whatever ends a process."""


class Words(Reward):
    """Scores a response by its words, writes down what it is asked, and may fail on the way."""

    def __init__(self, fail_at: str | None = None) -> None:
        self.name, self.version, self.low, self.high = "words", "1", 0.0, 100.0
        self.fail_at = fail_at
        self.batches: list[list[str]] = []

    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        if self.fail_at in responses:
            raise CutOffError
        self.batches.append(list(responses))
        return torch.tensor([float(len(text.split())) for text in responses])


def rows(count: int = 7, stored: Mapping[int, float] | None = None) -> list[TaskRow]:
    return [
        TaskRow(
            id=f"row-{n}",
            prompt=(Turn("user", f"q{n // 2}"),),
            response=" ".join(["word"] * n + [f"end{n}"]),
            meta={"n": str(n)},
            stored={"given": stored[n]} if stored and n in stored else {},
        )
        for n in range(count)
    ]


class Plain(Preparation):
    """Prepares rows that it is given."""

    def __init__(
        self,
        given: Sequence[TaskRow],
        reward: Reward | None,
        *,
        batch_size: int = 3,
        trusts_stored: bool = False,
        keeps_best: bool = False,
        diversity: bool = False,
        version: int = 1,
    ) -> None:
        super().__init__(
            reward=reward,
            diversity=diversity,
            batch_size=batch_size,
            output_folder=None,
            trusts_stored=trusts_stored,
        )
        self.given, self.keeps_best, self.version = given, keeps_best, version

    def _rows(self, report: DropReport) -> Iterator[TaskRow]:
        for row in self.given:
            report.rows += 1
            if row.response.endswith("end5"):
                report.dropped["five"] += 1
            else:
                yield row

    def files(self) -> Sequence[PreparedFile]:
        return [PreparedFile("train", self._rows, self.keeps_best)]

    def settings(self) -> Mapping[str, object]:
        return {"version": self.version}

    def fitting_responses(self) -> Iterator[str]:
        return (row.response for row in self.given)


def read(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


def test_rows_are_scored_in_batches_and_counted(tmp_path: Path) -> None:
    reward = Words()
    numbers = Plain(rows(8), reward).run(tmp_path)
    assert [len(batch) for batch in reward.batches] == [3, 3, 1]  # the last batch has one row
    found = read(tmp_path)
    assert [row["id"] for row in found] == [f"row-{n}" for n in (0, 1, 2, 3, 4, 6, 7)]
    assert found[2]["reward_components"] == {"words": 3.0, "final_reward": 3.0}
    assert found[2]["meta_data"] == {"n": "2"}
    report = numbers["train"]
    assert report == {
        "counts": {"rows": 8, "kept": 7, "dropped": {"five": 1}, "changed": {}},
        "rewards": {
            name: {"rows": 7, "mean": 30 / 7, "min": 1.0, "max": 8.0}
            for name in ("words", "final_reward")
        },
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.jsonl", "train.report.json"]


def test_the_files_are_read_by_the_data_modules_reader(tmp_path: Path) -> None:
    Plain(rows(4), Words()).run(tmp_path)
    examples, report = read_examples(str(tmp_path / "train.jsonl"))
    assert report.kept == 4
    assert [example.rewards for example in examples] == [(1.0,), (2.0,), (3.0,), (4.0,)]
    assert examples[3].prompt == (Turn("user", "q1"),)
    assert examples[3].responses == ("word word word end3",)
    assert examples[3].meta["n"] == "3"


@pytest.mark.parametrize("fail_at", [0, 3, 6])
@pytest.mark.parametrize("half_line", [b"", b'{"id": "row-', b"\xc3"])
def test_an_interrupted_job_goes_on_behind_the_last_whole_row(
    tmp_path: Path, fail_at: int, half_line: bytes
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    expected = Plain(rows(10), Words(), batch_size=2).run(whole)
    text = rows(10)[fail_at].response
    with pytest.raises(CutOffError):
        Plain(rows(10), Words(text), batch_size=2).run(broken)
    assert not (broken / "train.jsonl").exists()
    part = broken / ".train.jsonl.part"
    done = part.read_bytes().count(b"\n")
    assert done == fail_at - fail_at % 2 if fail_at < 5 else done == 4
    with part.open("ab") as lines:
        lines.write(half_line)
    again = Words()
    numbers = Plain(rows(10), again, batch_size=2).run(broken)
    assert sum(map(len, again.batches)) == 9 - done
    assert (broken / "train.jsonl").read_bytes() == (whole / "train.jsonl").read_bytes()
    assert (broken / "train.report.json").read_bytes() == (whole / "train.report.json").read_bytes()
    assert numbers["train"] == expected["train"]
    assert not part.exists()


def test_a_finished_file_is_left_as_it_is(tmp_path: Path) -> None:
    first = Plain(rows(), Words()).run(tmp_path)
    before = (tmp_path / "train.jsonl").stat().st_mtime_ns
    (tmp_path / ".train.jsonl.part").write_text("left over")
    again = Words()
    second = Plain(rows(), again).run(tmp_path)
    assert not again.batches
    assert second["train"] == first["train"]
    assert (tmp_path / "train.jsonl").stat().st_mtime_ns == before
    assert not (tmp_path / ".train.jsonl.part").exists()


def test_other_settings_do_not_go_on_with_a_file(tmp_path: Path) -> None:
    with pytest.raises(CutOffError):
        Plain(rows(), Words("word word word end3")).run(tmp_path)
    for other in (
        Plain(rows(), Words(), version=2),
        Plain(rows(), CallableReward(lambda p, r: [0.0] * len(r), name="x", version="1")),
        Plain(rows(), Words(), trusts_stored=True),
    ):
        with pytest.raises(UserError, match=r"expected the settings that .*train\.jsonl was begun"):
            other.run(tmp_path)
    Plain(rows(), Words(), batch_size=5).run(tmp_path)  # another size of batches changes nothing


def test_settings_may_be_corrected_before_the_first_row(tmp_path: Path) -> None:
    with pytest.raises(CutOffError):
        Plain(rows(), Words("end0")).run(tmp_path)
    Plain(rows(), Words(), version=2).run(tmp_path)
    assert json.loads((tmp_path / "train.report.json").read_text())["settings"]["version"] == 2


def test_a_file_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("mine\n")
    with pytest.raises(UserError, match="this job has not written it"):
        Plain(rows(), Words()).run(tmp_path)
    assert (tmp_path / "train.jsonl").read_text() == "mine\n"


def test_no_row_left_is_refused_with_the_counts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none is left: 0 of 1 rows kept; 1 dropped \(five\)"):
        Plain(rows(6)[5:], Words()).run(tmp_path)
    assert not (tmp_path / "train.jsonl").exists()


def test_stored_scores_are_trusted_or_added_to(tmp_path: Path) -> None:
    stored = {0: 0.5, 2: 0.25}
    for trusts, totals in ((True, [0.5, 2.0, 0.25]), (False, [1.5, 2.0, 3.25])):
        folder = tmp_path / str(trusts)
        folder.mkdir()
        Plain(rows(3, stored), Words(), trusts_stored=trusts).run(folder)
        assert [row["reward_components"]["final_reward"] for row in read(folder)] == totals
    assert read(folder)[0]["reward_components"] == {
        "given": 0.5,
        "words": 1.0,
        "final_reward": 1.5,
    }


def test_without_a_reward_the_stored_score_is_all_there_is(tmp_path: Path) -> None:
    numbers = Plain(rows(3, {1: 0.75}), None).run(tmp_path)
    found = read(tmp_path)
    assert "reward_components" not in found[0]
    assert found[1]["reward_components"] == {"given": 0.75, "final_reward": 0.75}
    assert numbers["train"]["rewards"]["given"]["rows"] == 1


def test_two_scores_of_one_name_are_refused(tmp_path: Path) -> None:
    reward = SumReward({"given": Words()})
    with pytest.raises(UserError, match="both have a score called given"):
        Plain(rows(3, {1: 0.75}), reward).run(tmp_path)


def test_a_sum_is_written_part_by_part(tmp_path: Path) -> None:
    length = CallableReward(lambda p, r: [len(t) / 100 for t in r], name="length", version="1")
    Plain(rows(3), SumReward({"words": Words(), "length": length}, weights={"length": 2.0})).run(
        tmp_path
    )
    scores = read(tmp_path)[2]["reward_components"]
    assert scores == pytest.approx({"words": 3.0, "length": 0.14, "final_reward": 3.28})


def test_of_each_prompt_the_best_row_is_kept(tmp_path: Path) -> None:
    given = rows(7)
    given[0], given[1] = given[1], given[0]  # the better one comes first
    numbers = Plain(given, Words(), keeps_best=True).run(tmp_path)
    assert [row["id"] for row in read(tmp_path)] == ["row-1", "row-3", "row-4", "row-6"]
    counts = numbers["train"]["counts"]
    assert counts["dropped"] == {"five": 1, "not the best response to its prompt": 2}
    assert counts["kept"] == 4
    assert numbers["train"]["rewards"]["words"]["rows"] == 4


def test_the_best_row_needs_scores(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a `reward` to choose the best response"):
        Plain(rows(), None, keeps_best=True).run(tmp_path)
    Plain(rows(), None, keeps_best=False).run(tmp_path)


def test_the_diversity_is_fitted_kept_and_a_part_of_the_reward(tmp_path: Path) -> None:
    numbers = Plain(rows(4), Words(), diversity=True).run(tmp_path)
    assert set(numbers["train"]["rewards"]) == {"words", "tfidf", "final_reward"}
    loaded = DiversityReward.from_file(str(tmp_path / "tfidf.json"))
    fitted = DiversityReward.fit(row.response for row in rows(4))
    assert loaded.version == fitted.version
    scores = read(tmp_path)[3]["reward_components"]
    assert scores["tfidf"] == pytest.approx(fitted.score("word word word end3"))
    assert scores["final_reward"] == pytest.approx(4 + scores["tfidf"])
    with pytest.raises(UserError, match="part called `tfidf` already"):
        with_diversity(SumReward({"tfidf": Words()}), fitted)
    weighted = with_diversity(SumReward({"words": Words()}, weights={"words": 2.0}), fitted)
    assert isinstance(weighted, SumReward)
    assert weighted.weights == {"words": 2.0, "tfidf": 1.0}
    assert with_diversity(None, fitted) is fitted


def test_a_batch_of_no_rows_is_refused() -> None:
    with pytest.raises(UserError, match="`batch_size` of at least 1"):
        Plain(rows(), Words(), batch_size=0)


# --- groups


def test_groups_stay_whole_and_near_their_shares() -> None:
    counts = {f"g{n}": 1 + n % 5 for n in range(200)}
    parts = part_groups(counts, HeldOut(0.1, 0.2))
    assert set(parts) == set(counts)
    total = sum(counts.values())
    sizes = {
        split: sum(counts[g] for g, found in parts.items() if found == split) / total
        for split in ("train", "validation", "test")
    }
    assert sizes == pytest.approx({"train": 0.7, "validation": 0.1, "test": 0.2}, abs=0.005)
    assert parts == part_groups(dict(reversed(counts.items())), HeldOut(0.1, 0.2))
    assert parts != part_groups(counts, HeldOut(0.1, 0.2, seed=1))


def test_a_group_too_large_for_a_share_is_trained_on() -> None:
    assert part_groups({"all": 100}, HeldOut(0.1, 0.2)) == {"all": "train"}
    assert set(part_groups({"a": 1, "b": 1}, HeldOut(0.0, 0.0)).values()) == {"train"}
    with pytest.raises(UserError, match="leave something to train on"):
        HeldOut(0.5, 0.5)


# --- raw files


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf8")
    return str(path)


def test_json_lines_arrays_and_csv_are_told_by_their_content(tmp_path: Path) -> None:
    lines = write(tmp_path / "a.jsonl", '\n{"x": 1}\n\n{"x": 2}\n')
    array = write(tmp_path / "b.json", ' [{"x": 1},\n {"x": 2}]\n')
    table = write(tmp_path / "c.csv", 'x,y\n1,"a ""b""\nc, d"\n2,\n')
    assert [row["x"] for _, row in raw_rows(lines)] == [1, 2]
    assert [where for where, _ in raw_rows(lines)] == [f"{lines}:2", f"{lines}:4"]
    assert [row["x"] for _, row in raw_rows(array)] == [1, 2]
    assert [row for _, row in raw_rows(table)] == [
        {"x": "1", "y": 'a "b"\nc, d'},
        {"x": "2", "y": ""},
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.jsonl",
            '{"x": 1}\n{"x":\n',
            r"a\.jsonl:2: expected one JSON object a line, got '\{\"x\":'",
        ),
        ("a.jsonl", "[1]\n", r"a\.jsonl\[1\]: expected an object, got int"),
        ("a.jsonl", "", r"a\.jsonl: expected at least one row, got an empty file"),
        ("a.csv", "x,y\n1\n", r"a\.csv:2: expected 2 fields like the first line"),
        ("a.csv", "x,y\n1,2,3\n", r"a\.csv:2: expected 2 fields like the first line"),
        ("a.csv", 'x,y\n1,"2\n', r"a\.csv:2: expected CSV, got unexpected end of data"),
    ],
)
def test_malformed_rows_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(raw_rows(write(tmp_path / name, text)))


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    damaged = tmp_path / "a.tsv.gz"
    damaged.write_bytes(b"\x1f\x8bno")
    with pytest.raises(UserError, match="expected a complete gzip file"):
        list(tsv_rows(damaged))
    (tmp_path / "b.csv").write_bytes(b"x\n\xff\n")
    with pytest.raises(UserError, match="expected UTF-8 text"):
        list(raw_rows(str(tmp_path / "b.csv")))
    with pytest.raises(UserError, match="no such file"):
        list(raw_rows(str(tmp_path / "missing.jsonl")))


def test_a_folder_of_a_data_set_is_read_like_one_of_the_hub(tmp_path: Path) -> None:
    folder = tmp_path / "named"
    folder.mkdir()
    write(folder / "train.jsonl", '{"x": 1}\n')
    write(folder / "test.jsonl", '{"x": 2}\n{"x": 3}\n')
    assert [row["x"] for _, row in raw_rows(str(folder), "test")] == [2, 3]
    assert [row["x"] for _, row in raw_rows(f"{folder}:train", "test")] == [1]


def test_what_a_file_holds_is_its_digest(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", "x"), write(tmp_path / "b", "x")
    assert (
        source_digest(first) == source_digest(second) != source_digest(write(tmp_path / "c", "y"))
    )
    assert source_digest("owner/name:train") == "owner/name:train"


def test_tokens_are_counted_with_an_end_token_for_each_text() -> None:
    limit = TokenLimit(6, "tiny-random-llama")
    one, two = limit.count("how are you"), limit.count("fine")
    assert limit.count("how are you", "fine") == one + two
    assert limit.allows("") is True
    assert limit.allows("fine " * 20) is False
    with pytest.raises(UserError, match="`max_tokens` of at least 1"):
        TokenLimit(0)
    with pytest.raises(UserError, match="no-such-tokenizer"):
        TokenLimit(1, "./no-such-tokenizer").count("a")


# --- the common format


def test_common_rows_of_one_response_with_reward_and_knowledge(tmp_path: Path) -> None:
    row = {"prompt": "Tea?", "response": "A drink.", "reward": 0.5, "knowledge": "Tea is a drink."}
    release = {
        "id": 0,
        "prompt_or_input_text": "Knowledge: k<|endoftext|>h<|endoftext|>",
        "references": "r<|endoftext|>",
        "reward_components": {"fluency": 0.25, "final_reward": 0.75},
        "meta_data": {"a": 1},
    }
    path = write(tmp_path / "a.jsonl", json.dumps(row) + "\n" + json.dumps(release) + "\n")
    (first, second), _ = read_examples(path)
    assert first.rewards == (0.5,)
    assert knowledge_of(first.prompt) == "Tea is a drink."
    assert first.prompt[1:] == (Turn("user", "Tea?"),)
    assert second.responses == ("r<|endoftext|>",)
    assert second.rewards == (0.75,)
    both = {**row, "prompt": [{"role": "system", "content": "s"}]}
    with pytest.raises(UserError, match="without a system turn beside `knowledge`"):
        read_examples(write(tmp_path / "b.jsonl", json.dumps(both) + "\n"))


def test_bundled_samples_by_name() -> None:
    assert len(read_examples("sample", samples="wow")[0]) == 84
    assert len(read_examples("sample:faithdial", role="test")[0]) == 24
    for wrong in ("sample:", "sample:nothing"):
        with pytest.raises(UserError, match="expected `sample`, or `sample:` and one of comet"):
            read_examples(wrong)


# --- the command


@pytest.mark.slow
def test_a_killed_command_goes_on(tmp_path: Path) -> None:
    (tmp_path / "slow_reward.py").write_text(
        "import time\n"
        "def score(prompts, responses):\n"
        "    time.sleep(0.05 * len(responses))\n"
        "    return [len(text) / 1000 for text in responses]\n"
    )
    words = [sys.executable, "-m", "llm_agents", "run", str(ROOT / "recipes/wow_prepare.yaml")]
    words += ["--job.reward.class_path", "llm_agents.rewards.CallableReward"]
    words += ["--job.reward.function", "slow_reward:score", "--job.batch_size", "4"]
    words += ["--job.reward.low", "0", "--job.reward.high", "1"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}

    def options(name: str) -> list[str]:
        return ["--run.folder", str(tmp_path / name), "--job.output_folder", str(tmp_path / name)]

    subprocess.run([*words, *options("whole")], env=environment, cwd=tmp_path, check=True)
    process = subprocess.Popen([*words, *options("killed")], env=environment, cwd=tmp_path)
    part = tmp_path / "killed" / ".train.jsonl.part"
    while process.poll() is None and not (part.exists() and part.stat().st_size):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "train.jsonl").exists()
    again = [*words, *options("killed"), "--resume", "auto"]
    subprocess.run(again, env=environment, cwd=tmp_path, check=True)
    for name in ("train", "val", "test"):
        whole, killed = (tmp_path / one / f"{name}.jsonl" for one in ("whole", "killed"))
        assert killed.read_bytes() == whole.read_bytes()
