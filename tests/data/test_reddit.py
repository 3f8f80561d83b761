"""Reddit: what the preparation keeps of the comments, where it goes, and what is encoded."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from llm_agents.data import RedditData, RedditPreparation, RedditRules, TokenLimit
from llm_agents.data.reddit import Comment, read_comments, tidy_comment
from llm_agents.errors import UserError
from llm_agents.policies.text import TextCodec
from llm_agents.policies.tiny import tiny_tokenizer
from llm_agents.rewards import CallableReward

COLUMNS = ["id", "text", "score", "parent_text", "parent_score"]


class Codec(TextCodec):
    """A tiny model's tokenizer with a window."""

    def __init__(self) -> None:
        super().__init__(tiny_tokenizer("gpt2"), is_encoder_decoder=False)
        self.context_length: int | None = 1024


def comments(path: Path, rows: list[tuple[str, str, str, str]]) -> str:
    """Write rows of text, score, parent and the parent's score as Kaggle does."""
    with path.open("w", newline="", encoding="utf8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows([n, *row] for n, row in enumerate(rows))
    return str(path)


def numbered(path: Path, count: int, sign: str) -> str:
    factor = 1 if sign == "pos" else -1
    rows = [(f"{sign} {n}", str(factor * n), f"parent {n}", "1") for n in range(count)]
    return comments(path, rows)


def read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()]


def rules(**changes: object) -> RedditRules:
    return RedditRules(**{"num_test": 3, "num_validation": 2, **changes})  # type: ignore[arg-type]


def test_quotes_and_line_breaks_of_a_csv_are_part_of_a_comment(tmp_path: Path) -> None:
    path = comments(
        tmp_path / "a.csv",
        [
            ('He said "no",\n\nthen left.', "66", "a, b", "7"),
            ("x", "-2946", "y", ""),
            ("", "1", "z", "1"),
        ],
    )  # fmt: skip
    assert list(read_comments(path)) == [
        Comment("a, b", 'He said "no",\n\nthen left.', 66.0, 7.0),
        Comment("y", "x", -2946.0, None),
        None,
    ]


def test_a_missing_column_or_number_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,score\nx,1\n")
    with pytest.raises(UserError, match=r"columns text, parent_text and score, got text, score"):
        list(read_comments(str(path)))
    path.write_text("text,score,parent_text\nx,many,y\n")
    with pytest.raises(UserError, match=r"a\.csv:2: expected a number in `score`, got 'many'"):
        list(read_comments(str(path)))


@pytest.mark.parametrize(
    ("text", "tidy"),
    [
        (" a \n\n b\tc ", "a b c"),
        ("see https://example.org/x?y=1#z.", "see <URL>."),
        ("[here](http://example.org/a_(b)) or www.example.org!", "[here](<URL>) or <URL>!"),
        ("awww. ok", "awww. ok"),
        ("<URL> stays", "<URL> stays"),
    ],
)
def test_blanks_and_addresses(text: str, tidy: str) -> None:
    assert tidy_comment(text) == tidy


def test_the_first_are_the_test_the_next_validation_the_rest_training(tmp_path: Path) -> None:
    positive = numbered(tmp_path / "p.csv", 12, "pos")
    negative = numbered(tmp_path / "n.csv", 10, "neg")
    job = RedditPreparation(positive, negative, train_on="both", rules=rules())
    numbers = job.run(tmp_path)
    names = ("pos_train", "neg_train", "val", "test")
    found = {name: read(tmp_path / f"{name}.jsonl") for name in names}
    assert {name: len(rows) for name, rows in found.items()} == {
        "pos_train": 7,
        "neg_train": 5,
        "val": 4,
        "test": 6,
    }
    signs = [row["response"].split()[0] for row in found["test"]]
    assert signs == ["pos"] * 3 + ["neg"] * 3  # concatenated, not mixed
    assert [row["response"].split()[0] for row in found["val"]] == ["pos"] * 2 + ["neg"] * 2
    assert [row["id"] for row in found["test"]] == [*(f"pos-{n}" for n in range(3)),
                                                    *(f"neg-{n}" for n in range(3))]  # fmt: skip
    texts = [row["response"] for rows in found.values() for row in rows]
    assert sorted(texts) == sorted(
        [*(f"pos {n}" for n in range(12)), *(f"neg {n}" for n in range(10))]
    )
    row = found["pos_train"][0]
    number = row["response"].split()[1]
    assert row["prompt"] == f"parent {number}"
    assert row["meta_data"] == {"task": "reddit", "sign": "pos", "score": number}
    assert numbers["deciles"]["pos"] == pytest.approx([1.1 * n for n in range(11)])
    assert numbers["deciles"]["neg"][0] == -9


def test_the_draw_is_that_of_pandas(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    source = numbered(tmp_path / "p.csv", 50, "pos")
    other = numbered(tmp_path / "n.csv", 30, "neg")
    job = RedditPreparation(source, other, rules=rules(num_sampled=20, num_test=4))
    numbers = job.run(tmp_path)
    drawn = pandas.read_csv(source).sample(20, random_state=901).text.tolist()
    assert [row["response"] for row in read(tmp_path / "test.jsonl")][:4] == drawn[:4]
    assert [row["response"] for row in read(tmp_path / "val.jsonl")][:2] == drawn[4:6]
    assert [row["response"] for row in read(tmp_path / "pos_train.jsonl")] == drawn[6:]
    assert numbers["pos_train"]["counts"]["dropped"] == {"in another file": 6, "not drawn": 30}


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    fine = [(f"text {n}", "1", f"parent {n}", "1") for n in range(6)]
    bad = [
        ("", "1", "p", "1"),
        ("t", "1", "", "1"),
        ("[deleted]", "1", "p", "1"),
        ("t", "1", "[removed]", "1"),
        (" ", "1", "p", "1"),
        ("word " * 101, "1", "p", "1"),
        ("t", "1", "word " * 101, "1"),
        ("ab " * 40, "1", "p", "1"),
    ]
    source = comments(tmp_path / "a.csv", [*fine, *bad])
    limit = TokenLimit(60, "tiny-random-gpt2")
    assert limit.count("p", "ab " * 40) > 60
    assert all(limit.count(parent, text) <= 60 for text, _, parent, _ in fine)
    numbers = RedditPreparation(source, source, rules=rules(tokens=limit)).run(tmp_path)
    assert numbers["pos_train"]["counts"] == {
        "rows": 14,
        "kept": 1,
        "dropped": {
            "in another file": 5,
            "no text or no parent": 2,
            "taken down": 3,
            "too many tokens": 1,
            "too many words": 2,
        },
        "changed": {},
    }


def test_a_hundred_words_are_not_too_many(tmp_path: Path) -> None:
    rows = [(" ".join(["word"] * 100), "1", f"parent {n}", "1") for n in range(6)]
    source = comments(tmp_path / "a.csv", rows)
    numbers = RedditPreparation(source, source, rules=rules()).run(tmp_path)
    assert "too many words" not in numbers["pos_train"]["counts"]["dropped"]


def test_too_few_comments_are_refused(tmp_path: Path) -> None:
    source = numbered(tmp_path / "a.csv", 5, "pos")
    with pytest.raises(UserError, match=r"expected more than 5 comments .* got 5"):
        RedditPreparation(source, source, rules=rules()).run(tmp_path)
    empty = comments(tmp_path / "b.csv", [("", "1", "p", "1")])
    with pytest.raises(UserError, match="none has text and parent"):
        RedditPreparation(empty, source, rules=rules()).run(tmp_path)
    with pytest.raises(UserError, match="`num_test` of at least 1"):
        RedditRules(num_test=0)


def test_both_signs_share_validation_test_and_diversity(tmp_path: Path) -> None:
    calls: list[int] = []

    def count(prompts: object, responses: list[str]) -> list[float]:
        calls.append(len(responses))
        return [0.5] * len(responses)

    reward = CallableReward(count, low=0.0, high=1.0, name="half", version="1")
    folder = tmp_path / "shared"
    for sign in ("pos", "neg"):
        job = RedditPreparation(
            train_on=sign,  # type: ignore[arg-type]  # one of the two
            reward=reward,
            diversity=True,
            rules=rules(num_test=10, num_validation=10),
            batch_size=20,
            output_folder=str(folder),
        )
        job.run(tmp_path)
    assert calls == [20, 20, 20, 20, 20, 20]  # 40 to train on, val, test; then the others' 40 alone
    assert sorted(path.name for path in folder.glob("*.jsonl")) == [
        "neg_train.jsonl",
        "pos_train.jsonl",
        "test.jsonl",
        "val.jsonl",
    ]
    assert all(
        set(row["reward_components"]) == {"half", "tfidf", "final_reward"}  # type: ignore[arg-type]
        for path in folder.glob("*.jsonl")
        for row in read(path)
    )


def test_a_comment_follows_its_parents_end_token() -> None:
    codec = Codec()
    data = RedditData()
    data.connect(codec)
    data.setup()
    (batch, *_) = data.table_batches(10_000)
    (prompt,), (text, *_) = data.table_texts()[0][:1], data.table_texts()[1]
    row = batch.rows.tolist().index(0)
    ids = batch.prompt_ids[row][batch.prompt_mask[row]].tolist()
    assert ids == [*codec.encode_text(prompt[0].text, begin=True), codec.end_id]
    response = batch.response_ids[row][batch.response_mask[row]].tolist()
    assert response == [*codec.encode_text(text, begin=False), codec.end_id]
    assert data.table_size() == 40
    assert data.reward_range == (0.0, 5.0)
    assert len(data.test_sets["sample"]) == 20
