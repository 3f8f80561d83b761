"""COMET: the layouts of its files, what the preparation keeps, and what the data module encodes."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from llm_agents.data import CometData, CometPreparation, CometRules, HeldOut
from llm_agents.data.comet import RELATIONS, Triple, comet_prompt, read_triples
from llm_agents.errors import UserError
from llm_agents.policies.text import TextCodec
from llm_agents.policies.tiny import tiny_tokenizer
from llm_agents.rewards import CallableReward
from llm_agents.types import Prompt, Turn

FOLDER = os.environ.get("LLM_AGENTS_COMET_DATA")

ATOMIC10X = [
    ("PersonX runs", "xEffect", "gets tired", "train", 0.9),
    ("PersonX runs", "xWant", "to drink", "train", 0.8),
    ("PersonX swims", "xNeed", "a lake", "val", 0.7),
    ("PersonX swims", "xReact", "wet", "val", 0.6),
    ("PersonX sings", "xAttr", "loud", "test", 0.5),
]


class Codec(TextCodec):
    """A tiny model's tokenizer with a window."""

    def __init__(self, family: str = "llama") -> None:
        super().__init__(tiny_tokenizer(family), is_encoder_decoder=False)
        self.context_length: int | None = 1024


def atomic10x(path: Path, rows: Sequence[tuple[str, str, str, str, float]] = ATOMIC10X) -> str:
    keys = ("head", "relation", "tail", "split", "p_valid_model")
    path.write_text("".join(json.dumps(dict(zip(keys, r, strict=True))) + "\n" for r in rows))
    return str(path)


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()]


def length(prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
    return [min(1.0, len(response) / 100) for response in responses]


LENGTH = CallableReward(length, low=0.0, high=1.0, name="length", version="1")


def test_the_prompt_is_the_releases_to_the_blank_at_its_end() -> None:
    assert comet_prompt("PersonX runs", "xEffect") == (
        Turn("user", "<head> PersonX runs </head> <relation> xEffect </relation> [GEN] "),
    )


def test_the_four_layouts(tmp_path: Path) -> None:
    assert list(read_triples(atomic10x(tmp_path / "a.jsonl")))[3:] == [
        Triple("PersonX swims", "xReact", "wet", "validation", 0.6),
        Triple("PersonX sings", "xAttr", "loud", "test", 0.5),
    ]
    three = tmp_path / "test.tsv"
    three.write_text("PersonX runs\txEffect\tgets tired\nPersonX runs\txNeed\tnone\n")
    assert [t.tail for t in read_triples(str(three))] == ["gets tired", "none"]
    evaluation = tmp_path / "b.tsv.gz"
    evaluation.write_bytes(gzip.compress(b"PersonX @@ home @@ xNeed\ta key| a house | none\n"))
    assert list(read_triples(str(evaluation))) == [
        Triple("PersonX @@ home", "xNeed", tail) for tail in ("a key", "a house", "none")
    ]
    outputs = tmp_path / "c.json"
    row = {"head": "h", "relation": "xNeed", "tails": ["a", "b"], "generations": ["c"]}
    outputs.write_text(json.dumps([{**row, "greedy": "c"}]))
    assert [t.tail for t in read_triples(str(outputs))] == ["a", "b"]
    assert [t.tail for t in read_triples(str(outputs), machine_tails=True)] == ["c"]


def test_a_stray_quote_joins_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "test.tsv"
    path.write_text('PersonX says "hi\txNeed\tto "wait\nPersonX runs\txNeed\tshoes\n')
    assert [(t.head, t.tail) for t in read_triples(str(path))] == [
        ('PersonX says "hi', 'to "wait'),
        ("PersonX runs", "shoes"),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "PersonX runs\n", r"a\.tsv:1: expected head, relation and tail, or .* got 1"),
        ("a.tsv", "PersonX runs\ta| b\n", r"a\.tsv:1: expected head"),
        ("a.jsonl", '{"head": "h"}\n', r"a\.jsonl:1: expected text in `relation`, got no such key"),
        (
            "a.jsonl",
            '{"head": "h", "relation": "r", "tail": "t", "split": "dev"}\n',
            r"expected `split` train, val or test, got 'dev'",
        ),
        (
            "a.jsonl",
            '{"head": "h", "relation": "r", "tail": "t", "p_valid_model": "high"}\n',
            r"expected a number in `p_valid_model`, got 'high'",
        ),
        ("a.jsonl", '{"head": "h", "relation": "r", "tails": 3}\n', r"a list of texts in `tails`"),
    ],
)
def test_a_row_in_no_layout_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        list(read_triples(str(path)))


def test_atomic10x_keeps_its_splits_and_scores(tmp_path: Path) -> None:
    source = atomic10x(tmp_path / "a.jsonl")
    other = tmp_path / "test.tsv"
    other.write_text("PersonX eats\txEffect\tis full\nPersonX eats\txEffect\tis full of joy\n")
    job = CometPreparation(source, source, str(other), own_test=source, reward=LENGTH)
    numbers = job.run(tmp_path)
    train = read(tmp_path / "train.jsonl")
    assert [row["response"] for row in train] == ["gets tired", "to drink"]
    assert train[0]["reward_components"] == {"p_valid_model": 0.9, "final_reward": 0.9}
    assert train[0]["prompt"] == comet_prompt("PersonX runs", "xEffect")[0].text
    assert [row["response"] for row in read(tmp_path / "val.jsonl")] == ["a lake", "wet"]
    assert [row["response"] for row in read(tmp_path / "train_test.jsonl")] == ["loud"]
    (best,) = read(tmp_path / "test.jsonl")  # one row a prompt, that with the highest score
    assert best["response"] == "is full of joy"
    assert best["reward_components"] == pytest.approx({"length": 0.14, "final_reward": 0.14})
    assert numbers["test"]["counts"]["dropped"] == {"not the best response to its prompt": 1}
    assert len({str(row["id"]) for row in train}) == 2


def test_what_the_rules_drop_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(
        "h @@ xNeed\ta| None| a| | b\nh @@ oReact\tc\nh @@ xWant\ta\n",
    )
    numbers = CometPreparation(str(path), None, None).run(tmp_path)
    assert numbers["train"]["counts"] == {
        "rows": 7,
        "kept": 3,
        "dropped": {
            "another relation": 1,
            "no head or no tail": 1,
            "repeated": 1,
            "the tail is none": 1,
        },
        "changed": {},
    }
    rules = CometRules(relations=None, drop_none=False, drop_repeated=False)
    everything = CometPreparation(
        str(path), None, None, rules=rules, output_folder=str(tmp_path / "x")
    )
    assert everything.run(tmp_path)["train"]["counts"]["kept"] == 6


def heads(path: Path) -> set[object]:
    found = set()
    for row in read(path):
        meta = row["meta_data"]
        assert isinstance(meta, Mapping)
        found.add(meta["head"])
    return found


def test_whole_heads_are_held_out(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(
        "".join(f"head {n} @@ {r}\tx{n}| y{n}\n" for n in range(40) for r in ("xNeed", "xWant"))
    )
    rules = CometRules(best_test_tail=False)
    job = CometPreparation(
        str(path), "held_out", "held_out", rules=rules, held_out=HeldOut(0.1, 0.25)
    )
    numbers = job.run(tmp_path)
    found = [heads(tmp_path / f"{name}.jsonl") for name in ("train", "val", "test")]
    assert [len(part) for part in found] == [26, 4, 10]
    assert not found[0] & found[1] | found[0] & found[2] | found[1] & found[2]
    kept = [numbers[name]["counts"]["kept"] for name in ("train", "val", "test")]
    assert kept == [104, 16, 40]
    alone = CometPreparation(
        str(path), None, "held_out", held_out=HeldOut(0.1, 0.25), rules=rules,
        output_folder=str(tmp_path / "alone"),
    )  # fmt: skip
    assert alone.run(tmp_path)["train"]["counts"]["kept"] == 120  # nothing is lost
    with pytest.raises(UserError, match="expected `held_out` in `validation` or `test` alone"):
        CometPreparation("held_out")


def test_validation_rows_are_chosen_by_a_hash_and_keep_their_order(tmp_path: Path) -> None:
    rows = [(f"head {n}", "xNeed", f"t{n}", "val", 0.5) for n in range(100)]
    rows.append(("h", "xNeed", "t", "train", 0.5))
    source = atomic10x(tmp_path / "a.jsonl", rows)
    chosen: dict[int, list[int]] = {}
    for most in (10, 20):
        rules = CometRules(max_validation=most)
        folder = str(tmp_path / str(most))
        job = CometPreparation(source, source, None, rules=rules, output_folder=folder)
        counts = job.run(tmp_path)["val"]["counts"]
        assert counts["dropped"] == {"over the limit": 100 - most}
        found = [str(row["response"]) for row in read(Path(folder) / "val.jsonl")]
        chosen[most] = [int(tail[1:]) for tail in found]
        assert chosen[most] == sorted(chosen[most])
    assert set(chosen[10]) < set(chosen[20])
    assert len(chosen[20]) == 20


def test_a_number_out_of_range_is_refused() -> None:
    with pytest.raises(UserError, match="expected `max_validation`"):
        CometRules(max_validation=0)


# --- the data module


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_tails_end_without_an_end_token_unless_it_is_asked_for(family: str) -> None:
    codec = Codec(family)
    found = {}
    for append in (False, True):
        data = CometData(append_eos=append)
        data.connect(codec)
        data.setup("fit")
        batch = data.train_dataloader().__iter__().__next__()
        ends = [
            ids[mask].tolist()[-1]
            for ids, mask in zip(batch.tokens.response_ids, batch.tokens.response_mask, strict=True)
        ]
        found[append] = [token == codec.end_id for token in ends]
        assert bool(batch.tokens.response_mask.any(1).all())
    assert not any(found[False])
    assert all(found[True])


def test_prompt_and_tail_are_tokenized_apart_and_as_they_stand() -> None:
    codec = Codec("gpt2")
    prompt = comet_prompt("PersonX runs", "xEffect")
    assert codec.render(prompt, "verbatim").endswith("[GEN] ")
    ids = codec.encode_prompt(prompt, template="verbatim")
    assert codec.decode_exactly(ids).endswith("[GEN] ")
    tail = codec.encode_response("gets tired", template="verbatim")
    assert codec.decode_exactly(tail) == "gets tired"  # no blank of ours before it
    assert codec.encode_response("", template="verbatim") == [codec.end_id]


def test_an_empty_tail_keeps_one_scored_token(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "p", "response": "", "reward": 0.0}) + "\n")
    data = CometData(str(path), None, None)
    data.connect(Codec())
    data.setup("fit")
    (batch,) = data.table_batches(100)
    assert batch.response_mask.sum().item() == 1


def test_the_sample_has_rewards_of_plausible_and_absurd_tails() -> None:
    data = CometData()
    data.connect(Codec())
    data.setup()
    rewards = data.table_rewards()
    assert len(rewards) == 145
    assert float(rewards.min()) < 0.1
    assert float(rewards.max()) > 0.9
    assert data.test_names == ["sample"]
    assert int((rewards < 0.2).sum()) == 16
    assert torch.isfinite(rewards).all()


# --- the real files


@pytest.mark.skipif(not FOLDER, reason="real COMET data: set LLM_AGENTS_COMET_DATA to their folder")
def test_the_real_tails(tmp_path: Path) -> None:
    source = str(Path(FOLDER or "") / "atomic2020_system_eval.tsv.gz")
    triples = list(read_triples(source))
    assert len(triples) == 20_699
    assert sum(triple.tail == "none" for triple in triples) == 1_261
    prompts = {(triple.head, triple.relation) for triple in triples}
    assert (len(prompts), len({head for head, _ in prompts})) == (5_000, 3_021)
    relations = Counter(relation for _, relation in prompts)
    assert len(relations) == 23
    assert {name: relations[name] for name in RELATIONS} == {
        "xNeed": 396,
        "HinderedBy": 378,
        "xReact": 362,
        "xWant": 359,
        "xAttr": 355,
        "xEffect": 350,
        "xIntent": 349,
    }
    assert sum(triple.relation in RELATIONS for triple in triples) == 12_036
    rules = CometRules(best_test_tail=False)
    numbers = CometPreparation(source, "held_out", "held_out", rules=rules).run(tmp_path)
    counts = [numbers[name]["counts"] for name in ("train", "val", "test")]
    kept = [one["kept"] for one in counts]
    assert (
        sum(one["dropped"]["the tail is none"] for one in counts)
        + sum(kept)
        + sum(one["dropped"].get("repeated", 0) for one in counts)
        == 12_036
    )
    assert [share / sum(kept) for share in kept] == pytest.approx([0.7, 0.1, 0.2], abs=0.001)
    parts = [heads(tmp_path / f"{name}.jsonl") for name in ("train", "val", "test")]
    assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]
    outputs = str(Path(FOLDER or "") / "comet_bart_generations.json.gz")
    assert sum(1 for _ in read_triples(outputs, machine_tails=True)) == 45_000
