"""Grounded dialogues: the rules of their files, labels, splits by dialogue, and what is encoded."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from llm_agents.data import (
    DropReport,
    HeldOut,
    LabelScores,
    OfflineDataModule,
    TokenLimit,
    WowData,
    WowPreparation,
    WowRules,
)
from llm_agents.data.grounded import GroundedTurn, faithfulness_of, read_turns
from llm_agents.errors import UserError
from llm_agents.policies.text import TextCodec
from llm_agents.policies.tiny import tiny_tokenizer
from llm_agents.rewards import DiversityReward
from llm_agents.types import Turn

FOLDER = os.environ.get("LLM_AGENTS_WOW_DATA")

DIALOGUE = {
    "chosen_topic": "Tea",
    "dialog": [
        {"speaker": "1_Wizard", "text": "Hello!", "checked_sentence": {"t_0": "Tea is a drink."}},
        {"speaker": "0_Apprentice", "text": " I like tea. "},
        {"speaker": "1_Wizard", "text": "A drink!", "checked_sentence": {"t_0": "Tea is a drink."}},
        {"speaker": "0_Apprentice", "text": "Where from?"},
        {
            "speaker": "1_Wizard",
            "text": "No idea.",
            "checked_sentence": {"no_passages_used": "no_passages_used"},
        },
        {"speaker": "0_Apprentice", "text": "Guess."},
        {"speaker": "1_Wizard", "text": "China?", "checked_sentence": {}},
        {"speaker": "0_Apprentice", "text": "Yes."},
        {
            "speaker": "1_Wizard",
            "text": "As I said.",
            "checked_sentence": {"t_1": "Tea comes from China.", "t_2": "x"},
        },
    ],
}
FAITHDIAL = [
    {"dialog_idx": 7, "knowledge": "k1", "history": ["a", "b", "c"], "response": "r1", "BEGIN": []},
    {"dialog_idx": 7, "knowledge": "k2", "history": ["a"], "response": "r2", "BEGIN": None},
]


class Codec(TextCodec):
    """A tiny model's tokenizer with a window."""

    def __init__(self, family: str = "gpt2") -> None:
        super().__init__(tiny_tokenizer(family), is_encoder_decoder=False)
        self.context_length: int | None = 4096


def turns_of(path: Path, content: object) -> tuple[list[GroundedTurn], DropReport]:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf8")
    report = DropReport()
    return list(read_turns(str(path), "train", report)), report


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()]


# --- Wizard of Wikipedia


def test_a_wizards_turn_without_knowledge_is_no_example_but_stays_in_the_history(
    tmp_path: Path,
) -> None:
    turns, report = turns_of(tmp_path / "train.json", [DIALOGUE])
    assert [(turn.knowledge, turn.response) for turn in turns] == [
        ("Tea is a drink.", "Hello!"),
        ("Tea is a drink.", "A drink!"),
        ("Tea comes from China.", "As I said."),
    ]
    assert turns[0].history == ()
    assert turns[1].history == (Turn("assistant", "Hello!"), Turn("user", "I like tea."))
    assert [turn.text for turn in turns[2].history] == [
        "Hello!",
        "I like tea.",
        "A drink!",
        "Where from?",
        "No idea.",
        "Guess.",
        "China?",
        "Yes.",
    ]
    roles = [turn.role for turn in turns[2].history]
    assert roles == ["assistant", "user"] * 4  # no two of the user's turns in a row
    assert report.rows == 5
    assert report.dropped == {"no knowledge was chosen": 2}
    assert {turn.dialogue for turn in turns} == {"train-0"}


def test_a_response_without_history_is_dropped_unless_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text(json.dumps([DIALOGUE]))
    numbers = WowPreparation(str(path), None, None).run(tmp_path)
    assert numbers["train"]["counts"]["dropped"] == {"no history": 1, "no knowledge was chosen": 2}
    (first, _) = read(tmp_path / "train.jsonl")
    assert first["prompt"] == [
        {"role": "system", "content": "Knowledge: Tea is a drink."},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "I like tea."},
    ]
    assert first["response"] == "A drink!"
    assert first["meta_data"]["knowledge"] == "Tea is a drink."
    rules = WowRules(require_history=False)
    folder = str(tmp_path / "all")
    every = WowPreparation(str(path), None, None, rules=rules, output_folder=folder).run(tmp_path)
    assert every["train"]["counts"]["kept"] == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"dialog": 3}], r"\[1\]: expected a list of turns in `dialog`, got 3"),
        ([{"dialog": [3]}], r"expected a turn to be an object, got 3"),
        ([{"dialog": [{"speaker": "Wizard"}]}], r"expected text in `text`"),
        ([{"utterances": 3}], r"expected a list in `utterances`, got 3"),
        ([{"knowledge": "k", "response": "r", "history": 3}], r"expected texts in `history`"),
        ([{"response": "r"}], r"expected text in `knowledge`"),
        ("knowledge,history,begin_label,vrm_label\nk,h,generic,x\n", r"one column with the resp"),
        ("evidence,history,response,BEGIN,VRM\nk,h,r,lovely,x\n", r":2: expected BEGIN labels"),
    ],
)
def test_rows_in_no_layout_are_named(tmp_path: Path, content: object, message: str) -> None:
    name = "a.csv" if isinstance(content, str) else "a.json"
    with pytest.raises(UserError, match=message):
        turns_of(tmp_path / name, content)


# --- FaithDial


def test_faithdial_by_row_and_by_dialogue_is_the_same(tmp_path: Path) -> None:
    flat, _ = turns_of(tmp_path / "a.json", FAITHDIAL)
    utterances = [{k: v for k, v in row.items() if k != "dialog_idx"} for row in FAITHDIAL]
    nested, report = turns_of(tmp_path / "b.json", [{"dialog_idx": 7, "utterances": utterances}])
    assert [(t.knowledge, t.history, t.response) for t in flat] == [
        (t.knowledge, t.history, t.response) for t in nested
    ]
    assert flat[0].history == (Turn("user", "a"), Turn("assistant", "b"), Turn("user", "c"))
    assert {turn.dialogue for turn in flat} == {"a-7"}
    assert len({turn.dialogue for turn in nested}) == 1
    assert report.rows == 2


def test_the_union_is_shuffled_and_no_two_rows_have_one_id(tmp_path: Path) -> None:
    paths = []
    for folder in ("wow", "faithdial"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "train.json"  # the same name, and rows numbered from 0 in both
        path.write_text(json.dumps(FAITHDIAL * 10))
        paths.append(str(path))
    orders = []
    for seed in (1, 1, 2):
        folder_name = str(tmp_path / f"out{len(orders)}")
        rules = WowRules(shuffle=True, seed=seed)
        job = WowPreparation(paths, paths, None, rules=rules, output_folder=folder_name)
        job.run(tmp_path)
        rows = read(Path(folder_name) / "train.jsonl")
        orders.append([row["id"] for row in rows])
        validation = [row["id"] for row in read(Path(folder_name) / "val.jsonl")]
        assert validation == [f"validation-{place}-{n}" for place in range(2) for n in range(20)]
    assert orders[0] == orders[1] != orders[2]
    assert len(set(orders[0])) == 40
    assert sorted(orders[0]) == sorted(orders[2])


def test_rows_with_one_id_keep_their_own_rewards(tmp_path: Path) -> None:
    rows = [
        {"id": 0, "prompt": f"p{n}", "response": "r", "reward_components": {"final_reward": n}}
        for n in (1.0, 3.0)
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = OfflineDataModule(str(path), str(path), template="eos", reward_range=(0.0, 4.0))
    data.connect(Codec())
    data.setup("fit")
    assert data.table_rewards().tolist() == [1.0, 3.0]
    assert [row for batch in data.validation_batches(2) for row in batch.rows.tolist()] == [0, 1]


# --- audits


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("Entailment", "entailment"),
        ("entailmentt,uncooperative", "entailment uncooperative"),
        ("entailment. uncooperative", "entailment uncooperative"),
        ("Partial Hallucination", "partial"),
        ("entailment,hallucination", "partial"),
        ("hallucinated", "unfaithful"),
        ("Generic", "unfaithful"),
        ("Uncooperative", "unfaithful"),
        (" generic,\nhallucination ", "unfaithful"),
    ],
)
def test_labels_as_people_wrote_them(label: str, said: str) -> None:
    assert faithfulness_of(label) == said


AUDIT = """knowledge,history,gpt2,begin_label,vrm_label
k1,,r1,entailment,x
k2,h2,"r2, ""more"" r2",hallucination,x
k3,[],r3,generic,x
k4,h4,r4,"entailment,uncooperative",x
k5,h5,,generic,x
k6,h6,r6,,x
k7,,r7,"entailment,hallucination",x
k1,h8,r8,entailment,x
"""


def test_an_audits_rows_labels_and_dialogues(tmp_path: Path) -> None:
    turns, report = turns_of(tmp_path / "a.csv", AUDIT)
    assert [turn.response for turn in turns] == ["r1", 'r2, "more" r2', "r3", "r4", "r7", "r8"]
    assert [turn.dialogue for turn in turns] == ["a-1", "a-1", "a-2", "a-2", "a-3", "a-3"]
    assert turns[1].history == (Turn("user", "h2"),)
    assert turns[2].history == ()
    assert report.dropped == {"no label": 1, "no response": 1}
    gold, _ = turns_of(tmp_path / "b.csv", "evidence,history,response,BEGIN,VRM\nk,h,r,Generic,x\n")
    assert gold == [GroundedTurn("k", (Turn("user", "h"),), "r", "", "unfaithful")]


def test_labels_are_stored_as_the_score_of_faithfulness(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(AUDIT)
    rules = WowRules(require_history=False, labels=LabelScores(uncooperative=0.9))
    numbers = WowPreparation(str(path), None, None, rules=rules).run(tmp_path)
    rows = read(tmp_path / "train.jsonl")
    scores = [row["reward_components"]["faithdial"] for row in rows]
    assert scores == [1.0, 0.0, 0.0, 0.9, 0.5, 1.0]
    assert [row["reward_components"]["final_reward"] for row in rows] == scores
    assert rows[0]["prompt"] == [{"role": "system", "content": "Knowledge: k1"}]
    assert rows[3]["meta_data"]["label"] == "entailment uncooperative"
    assert numbers["train"]["rewards"]["faithdial"]["mean"] == pytest.approx(3.4 / 6)


def test_no_dialogue_and_no_knowledge_is_on_two_sides(tmp_path: Path) -> None:
    lines = ["knowledge,history,{},begin_label,vrm_label"]
    for dialogue in range(30):
        for place in range(4):
            history = f"h{dialogue}-{place}" if place else ""
            knowledge = f"k{dialogue}-{place}" if dialogue % 10 else f"shared-{place}"
            lines.append(f"{knowledge},{history},r{{}},generic,x")
    paths = []
    for model in ("one", "two"):
        path = tmp_path / f"{model}.csv"
        path.write_text("\n".join(lines).replace("{}", model) + "\n")
        paths.append(str(path))
    job = WowPreparation(
        paths, "held_out", "held_out",
        held_out=HeldOut(0.1, 0.2), rules=WowRules(require_history=False, labels=LabelScores()),
    )  # fmt: skip
    job.run(tmp_path)
    found = {name: read(tmp_path / f"{name}.jsonl") for name in ("train", "val", "test")}
    assert sum(map(len, found.values())) == 240
    assert [len(found[name]) for name in ("val", "test")] == [24, 48]
    for names in (("train", "val"), ("train", "test"), ("val", "test")):
        first, second = ({row["meta_data"]["knowledge"] for row in found[name]} for name in names)
        assert not first & second
        dialogues = [{row["meta_data"]["dialogue"] for row in found[name]} for name in names]
        assert not dialogues[0] & dialogues[1]


# --- long texts


def test_a_long_history_loses_its_oldest_utterances_then_the_last_ones_beginning(
    tmp_path: Path,
) -> None:
    limit = TokenLimit(40, "tiny-random-gpt2")
    short, long = "a b c", " ".join(f"w{n}" for n in range(200))
    assert limit.count(short, short) <= 40 < limit.count(long)
    rows = [
        {"knowledge": "k", "history": [long, short, short], "response": "r"},
        {"knowledge": "k", "history": [short, long], "response": "r"},
        {"knowledge": "k", "history": [short], "response": "r"},
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows))
    numbers = WowPreparation(str(path), None, None, rules=WowRules(history=limit)).run(tmp_path)
    assert numbers["train"]["counts"]["changed"] == {"histories shortened": 2}
    first, second, third = (row["prompt"] for row in read(tmp_path / "train.jsonl"))
    assert [turn["content"] for turn in first] == ["Knowledge: k", short, short]
    kept = second[1]["content"]
    assert second[0]["content"] == "Knowledge: k"
    assert len(second) == 2
    assert long.endswith(" " + kept)
    assert limit.count(kept) <= 40
    more = len(kept.split()) + 1
    assert limit.count(" ".join(long.split()[-more:])) > 40  # as much as fits
    assert [turn["content"] for turn in third] == ["Knowledge: k", short]


def test_a_prompt_too_long_for_the_model_keeps_its_knowledge(tmp_path: Path) -> None:
    codec = Codec()
    history = [f"utterance number {n} of a very long talk" for n in range(60)]
    single = " ".join(f"w{n}" for n in range(2000))
    rows = [
        {
            "prompt": [{"role": "user", "content": text} for text in texts],
            "knowledge": "Tea is a drink.",
            "response": "r",
            "reward": 1.0,
        }
        for texts in (history, [single])
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = WowData(str(path), None, None)
    data.connect(codec)
    data.setup("fit")
    start = codec.encode_text("Knowledge: Tea is a drink.", begin=True)
    for batch in data.table_batches(10_000):
        for ids, mask in zip(batch.prompt_ids, batch.prompt_mask, strict=True):
            kept = ids[mask].tolist()
            assert len(kept) <= 512
            assert kept[: len(start) + 1] == [*start, codec.end_id]
            assert kept[-1] == codec.end_id
    assert data.reports["train"].changed["prompts truncated"] == 2
    assert "prompts whose system line was truncated" not in data.reports["train"].changed


def test_a_prompt_is_knowledge_and_turns_with_end_tokens() -> None:
    codec = Codec()
    eos = codec.tokenizer.eos_token
    data = WowData(train="sample:faithdial", validation=None, test=None)
    data.connect(codec)
    data.setup("fit")
    prompts, responses = data.table_texts()
    assert codec.render(prompts[1], "eos") == eos.join(
        [
            "Knowledge: A garden snail moves about one metre in an hour up to a metre in a few "
            "minutes.",
            "There are snails all over my salad bed.",
            "They carry their house along, a shell of one piece, and can pull back into it.",
            "How fast are they?",
            "",
        ]
    )
    assert responses[1] == "Anything from a metre in an hour to a metre in a few minutes."
    ids = codec.encode_response(responses[1], template="eos")
    assert codec.decode_exactly(ids[:-1]) == responses[1]
    assert ids[-1] == codec.end_id


def test_the_diversity_may_be_fitted_to_other_data(tmp_path: Path) -> None:
    WowPreparation(task="faithdial", diversity=True, fit_on="sample").run(tmp_path)
    found = DiversityReward.from_file(str(tmp_path / "tfidf.json"))
    wow = WowPreparation(task="wow")
    assert found.version == DiversityReward.fit(wow.fitting_responses()).version
    other = WowPreparation(task="faithdial")
    assert found.version != DiversityReward.fit(other.fitting_responses()).version


def test_words_for_bundled_data() -> None:
    both = WowPreparation(task="faithdial_wow")
    names = {split: [Path(one).name for one in paths] for split, paths in both.sources.items()}
    assert names == {
        "train": ["raw_wow_train.json", "raw_faithdial_train.json"],
        "validation": ["raw_wow_validation.json", "raw_faithdial_validation.json"],
        "test": ["raw_faithdial_test.json"],
        "fit_on": [],
    }
    chosen = WowPreparation(["sample:faithdial", "x.json"], None, "sample")
    found = [Path(one).name for one in chosen.sources["train"]]
    assert found == ["raw_faithdial_train.json", "x.json"]
    assert [Path(one).name for one in chosen.sources["test"]] == ["raw_faithdial_test.json"]


# --- the real files


@pytest.mark.skipif(not FOLDER, reason="real audits: set LLM_AGENTS_WOW_DATA to their folder")
def test_the_real_audits(tmp_path: Path) -> None:
    folder = Path(FOLDER or "")
    names = ["gold/wow.csv", *(f"model/{model}_wow.csv" for model in ("ctrl", "doha", "gpt2"))]
    said: dict[str, Counter[str | None]] = {}
    for name in names:
        report = DropReport()
        turns = list(read_turns(str(folder / name), "train", report))
        assert len(turns) == report.rows == 200
        said[name] = Counter(turn.faithfulness for turn in turns)
    keys = ("entailment", "entailment uncooperative", "partial", "unfaithful")
    assert {name: tuple(counts[key] for key in keys) for name, counts in said.items()} == {
        "gold/wow.csv": (57, 0, 83, 60),
        "model/ctrl_wow.csv": (40, 83, 10, 67),
        "model/doha_wow.csv": (25, 15, 58, 102),
        "model/gpt2_wow.csv": (23, 7, 30, 140),
    }
    paths = [str(folder / name) for name in names]
    rules = WowRules(require_history=False, labels=LabelScores())
    WowPreparation(paths, "held_out", "held_out", rules=rules).run(tmp_path)
    found = {name: read(tmp_path / f"{name}.jsonl") for name in ("train", "val", "test")}
    sizes = [len(found[name]) for name in ("train", "val", "test")]
    assert sizes == [538, 102, 160]
    again = WowPreparation(
        list(reversed(paths)),
        "held_out",
        "held_out",
        rules=rules,
        output_folder=str(tmp_path / "again"),
    )
    again.run(tmp_path)  # the order of the files changes no row's split
    assert {row["response"] for row in read(tmp_path / "again" / "test.jsonl")} == {
        row["response"] for row in found["test"]
    }
    knowledge = {n: {row["meta_data"]["knowledge"] for row in rows} for n, rows in found.items()}
    assert not knowledge["train"] & knowledge["test"]
    assert not knowledge["train"] & knowledge["val"]
    assert not knowledge["val"] & knowledge["test"]
    others = DropReport()
    count = sum(
        sum(1 for _ in read_turns(str(path), "train", others))
        for path in sorted((folder / "other").glob("*.csv.gz"))
    )
    assert count == 1_603  # of 1,604 with a label one has no response
    assert others.dropped == {"no label": 792, "no response": 1}
