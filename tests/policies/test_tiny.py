from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
)

from llm_agents.policies.bundled import TINY_FAMILIES
from llm_agents.policies.tiny import tiny_model, tiny_tokenizer, write_tiny

TEXTS = ["Hello, can you help?", " leading and trailing ", "naïve 日本 🙂\n\n\ttabs", "</x> $ 0"]


def logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    decoder = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model(input_ids=ids, **decoder).logits


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_loads_fast_and_equal(family, tmp_path):
    write_tiny(family, tmp_path)
    auto = AutoModelForSeq2SeqLM if family == "t5" else AutoModelForCausalLM
    start = time.perf_counter()
    model = auto.from_pretrained(tmp_path, use_safetensors=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert time.perf_counter() - start < 0.5
    again = tiny_model(family)
    ids = torch.tensor([tokenizer(TEXTS[0]).input_ids])
    assert torch.equal(logits(model, ids), logits(again, ids))
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.config.hidden_size == 64
    assert model.config.num_hidden_layers == 2
    assert sum(p.numel() for p in model.parameters()) < 300_000


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_tokenizer_round_trips_within_the_vocabulary(family, tmp_path):
    tiny_tokenizer(family).save_pretrained(tmp_path)
    write_tiny(family, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == tiny_model(family).config.vocab_size == 320
    for text in TEXTS:
        ids = tokenizer(text).input_ids
        assert max(ids) < 320
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len(tokenizer(" can help you").input_ids) < 10  # merges, not bytes alone


@pytest.mark.parametrize(
    ("family", "first", "last", "pad"),
    [
        ("llama", "<s>", None, None),
        ("gpt2", None, None, None),
        ("neox", None, None, "<|padding|>"),
        ("opt", "</s>", None, "<pad>"),
        ("qwen2", None, None, "<|endoftext|>"),
        ("t5", None, "</s>", "<pad>"),
    ],
)
def test_special_tokens_are_those_of_the_family(family, first, last, pad, tmp_path):
    write_tiny(family, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    plain = tokenizer("help", add_special_tokens=False).input_ids
    before = [tokenizer.convert_tokens_to_ids(first)] if first else []
    after = [tokenizer.convert_tokens_to_ids(last)] if last else []
    assert tokenizer("help").input_ids == before + plain + after
    assert tokenizer.pad_token == pad
    assert tokenizer.eos_token is not None


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_chat_template_ends_where_the_assistant_speaks(family):
    tokenizer = tiny_tokenizer(family)
    turns = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text.endswith("assistant>\n" if family != "qwen2" else "assistant\n")
    assert "hi" + tokenizer.eos_token in text
    shorter = tokenizer.apply_chat_template(turns, tokenize=False)
    assert text.startswith(shorter)
    assert len(shorter) < len(text)


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_positions_and_tokens_show_in_the_logits(family):
    model = tiny_model(family)
    found = logits(model, torch.tensor([[5, 6, 7, 6, 7]]))[0]
    assert float(found.std()) > 0.5
    assert float((found[2] - found[4]).abs().max()) > 0.1


def test_building_leaves_the_global_generator_alone(tmp_path: Path):
    torch.manual_seed(11)
    state = torch.get_rng_state()
    tiny_model("llama")
    assert torch.equal(torch.get_rng_state(), state)
