"""Truncation, end tokens, tables: what of a text becomes ids."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch

from llm_agents.data import DropReport, Example
from llm_agents.data.base import Ragged, collate_tokens, pad
from llm_agents.data.encoding import (
    ResponseTable,
    SplitEncoder,
    TextLimits,
    Truncation,
    encode_prompts,
    encode_responses,
)
from llm_agents.data.templates import Template
from llm_agents.errors import UserError
from llm_agents.policies.text import TextCodec
from llm_agents.policies.tiny import tiny_tokenizer
from llm_agents.types import Prompt, Turn

LONG = " ".join(f"word{i}" for i in range(200))


class Codec(TextCodec):
    """A tiny model's tokenizer with a window."""

    def __init__(self, family: str = "llama", window: int | None = None) -> None:
        super().__init__(tiny_tokenizer(family), is_encoder_decoder=family == "t5")
        self.context_length = window


def encoder(
    codec: Codec,
    max_prompt: int | None = 100,
    max_response: int = 20,
    truncation: Truncation = "left",
    template: Template = "alol",
) -> SplitEncoder:
    return SplitEncoder(codec, TextLimits(template, max_prompt, max_response, truncation))


def user(text: str) -> Prompt:
    return (Turn("user", text),)


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_a_long_response_loses_its_end_token_and_is_counted(family: str) -> None:
    codec = Codec(family)
    one, report = encoder(codec, max_response=128), DropReport()
    ids = one.response(LONG, report)
    assert len(ids) == 128
    assert codec.end_id not in ids
    assert report.changed == {"responses truncated (no end token)": 1}


@pytest.mark.parametrize("family", ["llama", "gpt2", "neox", "opt", "qwen2", "t5"])
@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_an_empty_response_is_one_scored_token(family: str, text: str) -> None:
    codec, report = Codec(family), DropReport()
    assert encoder(codec).response(text, report) == [codec.end_id]
    assert report.changed == {"responses empty": 1}


def test_a_response_of_just_the_limit_keeps_its_end_token() -> None:
    codec, report = Codec(), DropReport()
    whole = codec.encode_response("I can help")
    fits = encoder(codec, max_response=len(whole)).response("I can help", report)
    assert fits == whole
    assert not report.changed
    cut = encoder(codec, max_response=len(whole) - 1).response("I can help", report)
    assert cut == whole[:-1]
    assert report.changed == {"responses truncated (no end token)": 1}


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_left_truncation_keeps_the_begin_token_and_the_end_of_the_prompt(family: str) -> None:
    codec, report = Codec(family), DropReport()
    whole = codec.encode_prompt(user(LONG))
    ids = encoder(codec).prompt(user(LONG), report)
    begin = codec.begin_ids
    assert len(ids) == 100
    assert ids[: len(begin)] == begin
    assert ids[len(begin) :] == whole[len(whole) - 100 + len(begin) :]
    assert report.changed == {"prompts truncated": 1}


def test_truncation_by_turns_drops_the_oldest_and_keeps_the_system_line() -> None:
    codec, report = Codec(), DropReport()
    turns = (
        Turn("system", "Knowledge: blue."),
        Turn("user", "old " * 30),
        Turn("assistant", "older " * 5),
        Turn("user", "Why is it blue?"),
    )
    ids = encoder(codec, 120, truncation="turns").prompt(turns, report)
    text = codec.decode(ids)
    assert text.startswith("Knowledge: blue.\n### Assistant: older older")
    assert text.endswith("### Human: Why is it blue? ### Assistant:")
    assert "old old" not in text
    assert report.changed == {"prompts truncated": 1}


def test_truncation_by_turns_shortens_a_last_turn_that_alone_is_too_long() -> None:
    codec, report = Codec(), DropReport()
    turns = (Turn("system", "Knowledge."), Turn("user", "old"), Turn("user", LONG))
    ids = encoder(codec, 100, truncation="turns").prompt(turns, report)
    text = codec.decode(ids)
    assert text.startswith("Knowledge.\n### Human: word")
    assert text.endswith("word199 ### Assistant:")
    assert 90 <= len(ids) <= 100
    assert report.changed == {"prompts truncated": 1}


def test_a_system_line_longer_than_the_limit_is_cut_and_counted() -> None:
    codec, report = Codec(), DropReport()
    turns = (Turn("system", LONG), Turn("user", "Hi"))
    ids = encoder(codec, 50, truncation="turns").prompt(turns, report)
    assert len(ids) == 50
    assert codec.decode(ids).endswith("### Human: Hi ### Assistant:")
    assert report.changed["prompts whose system line was truncated"] == 1


@pytest.mark.parametrize("limit", [None, 5000])
def test_a_prompt_longer_than_the_window_leaves_room_for_the_response(limit: int | None) -> None:
    codec, report = Codec(window=150), DropReport()
    ids = encoder(codec, limit, max_response=50).prompt(user(LONG), report)
    assert len(ids) == 100
    assert report.changed == {"prompts truncated": 1}
    assert len(encoder(Codec("t5", window=150), limit, 50).prompt(user(LONG), report)) > 150


def test_a_window_that_holds_no_prompt_is_refused() -> None:
    with pytest.raises(UserError, match=r"window of at least 136 tokens .* got 130: lower"):
        encoder(Codec(window=130), max_response=128)


@pytest.mark.parametrize("name", ["max_prompt", "max_response"])
def test_limits_below_one_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"`data.{name}_tokens` of at least 1, got 0"):
        encoder(Codec(), **{name: 0})


@pytest.mark.parametrize("family", ["llama", "opt", "t5", "gpt2", "qwen2"])
def test_a_prompt_limit_without_room_names_the_setting(family: str) -> None:
    codec = Codec(family)
    around = len(codec.begin_ids) + len(codec.prompt_end_ids)
    for truncation in ("left", "turns"):
        options = {"max_response": 8, "template": "chat", "truncation": truncation}
        for limit in range(1, around + 1):
            with pytest.raises(UserError, match=rf"`data\.max_prompt_tokens`, got {limit} .*least"):
                encoder(codec, limit, **options)
        ids = encoder(codec, around + 1, **options).prompt(user("Hi"), DropReport())
        assert len(ids) == around + 1


def test_the_chat_template_brings_one_begin_token_and_no_blank() -> None:
    codec = Codec("llama")
    ids = encoder(codec, template="chat").prompt(user("Hi"), DropReport())
    assert ids.count(codec.begin_ids[0]) == 1
    assert codec.decode(ids).endswith("<assistant>")
    answer = encoder(codec, template="chat").response("Sure", DropReport())
    assert answer == [*codec.encode_text("Sure", begin=False), codec.end_id]
    blank = encoder(codec).response("Sure", DropReport())
    assert blank == [*codec.encode_text(" Sure", begin=False), codec.end_id]


EXAMPLES = [
    Example(user("one two"), ("a", "b c d"), (0.5, 0.25), 0, {}),
    Example(user("x"), ("longer answer than the rest",), None, 0, {}),
    Example(user("y"), ("", "z", "w"), (0.0, 1.0, 0.5), 1, {}),
]


def table(rewards: tuple[float, ...] = (0.5, 0.25, float("nan"), 0, 1, 0.5)) -> ResponseTable:
    return encode_responses(EXAMPLES, encoder(Codec("gpt2")), torch.tensor(rewards), DropReport())


def test_the_table_lists_every_response_with_its_prompt() -> None:
    found = table()
    assert len(found) == 6
    assert found.prompt_of.tolist() == [0, 0, 1, 2, 2, 2]
    assert found.preferred.tolist() == [True, False, True, False, True, False]
    prompts, texts = found.texts()
    assert texts == ["a", "b c d", "longer answer than the rest", "", "z", "w"]
    assert [p[0].text for p in prompts] == ["one two", "one two", "x", "y", "y", "y"]
    raw = found.raw_rewards()
    assert raw[2].isnan()
    assert raw[[0, 1, 3, 4, 5]].tolist() == [0.5, 0.25, 0.0, 1.0, 0.5]
    with pytest.raises(UserError, match=r"every prompt of x, got \[1, 2, 3\]"):
        found.num_responses("x")


@pytest.mark.parametrize("budget", [1, 150, 400, 10**6])
def test_batches_of_the_table_hold_every_response_once_within_the_budget(budget: int) -> None:
    found = table()
    batches = list(found.by_length(budget))
    assert sorted(row for batch in batches for row in batch) == list(range(6))
    widths = [int(found.lengths[rows].max()) for rows in batches]
    prompts = [int(found.prompt_of[row]) for batch in batches for row in batch]
    assert [prompt for prompt, _ in groupby(prompts)] == [1, 0, 2]  # by their longest row
    assert all(
        len(rows) * width <= budget or len(rows) == 1
        for rows, width in zip(batches, widths, strict=True)
    )


def test_padding_is_told_by_position_whatever_the_ids() -> None:
    codec = Codec("gpt2")  # its begin and end token are one
    found = encode_responses(EXAMPLES, encoder(codec, 1000, 40), torch.zeros(6), DropReport())
    batch = found.batch([0, 3, 2])
    assert batch.rows.tolist() == [0, 3, 2]
    whole = codec.encode_response("longer answer than the rest")
    assert batch.response_mask.sum(1).tolist() == [2, 1, len(whole)]
    last = batch.response_mask.sum(1) - 1
    assert batch.response_ids[range(3), last].tolist() == [codec.end_id] * 3
    assert batch.prompt_mask[:, -1].all()
    assert batch.response_mask[:, 0].all()
    for row, example in zip(range(3), (0, 2, 1), strict=True):
        ids = batch.prompt_ids[row][batch.prompt_mask[row]].tolist()
        assert ids == codec.encode_prompt(EXAMPLES[example].prompt)


def test_a_response_that_ends_in_two_end_tokens_scores_both() -> None:
    ids, mask = pad([torch.tensor([21, 22, 2]), torch.tensor([21, 22, 2, 2])], left=False)
    assert mask.tolist() == [[True, True, True, False], [True] * 4]
    assert ids[0, :3].tolist() == [21, 22, 2]


def test_only_training_batches_carry_their_rows() -> None:
    rewards = torch.zeros(6)
    found = encode_responses(EXAMPLES, encoder(Codec()), rewards, DropReport(), is_training=False)
    assert found.batch([0, 1]).rows.tolist() == [-1, -1]


def test_the_fingerprint_sees_rewards_ids_and_grouping() -> None:
    prints = {table().fingerprint, table((0.5, 0.25, 0, 0, 1, 0.5)).fingerprint}
    codec = encoder(Codec("gpt2"), max_response=3)
    prints.add(encode_responses(EXAMPLES, codec, torch.zeros(6), DropReport()).fingerprint)
    assert len(prints) == 3
    assert table().fingerprint == table().fingerprint


def test_prompt_tables_and_ragged_ids() -> None:
    prompts = encode_prompts(EXAMPLES, encoder(Codec()), DropReport())
    batch = prompts.batch([2, 0])
    assert [p[0].text for p in batch.prompts] == ["y", "one two"]
    assert batch.rows.tolist() == [2, 0]
    assert len(prompts) == 3
    ragged = Ragged([[1, 2], [], [3]])
    assert [ragged[i].tolist() for i in range(3)] == [[1, 2], [], [3]]
    assert len(ragged) == 3
    empty = collate_tokens([], [], [])
    assert len(empty) == 0
