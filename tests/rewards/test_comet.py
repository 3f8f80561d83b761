"""The COMET critic: statements, names, repair of texts, folders, conversion."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, RobertaConfig

from llm_agents.errors import UserError
from llm_agents.rewards import CometCritic, CometCriticConversion
from llm_agents.rewards.comet import (
    FIRST_NAMES,
    RELATION_PHRASES,
    CometCriticNetwork,
    Statement,
    read_statement,
    repair_text,
    spoken,
)
from llm_agents.types import Prompt, Turn
from tests.rewards.keras_critic import keras_weights

HEAD = "PersonX decides to see a therapist"
TAILS = ["feels better", "PersonY is glad, and so is everybody else", "", "x"]


def prompt(relation: str = "xEffect", head: str = HEAD) -> Prompt:
    return (Turn("user", f"<head> {head} </head> <relation> {relation} </relation> [GEN] "),)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a tiny RoBERTa's configuration and tokenizer, one token a character."""
    folder = tmp_path_factory.mktemp("roberta")
    characters = sorted(set(map(chr, range(32, 127))))
    names = ["<s>", "<pad>", "</s>", "<unk>", *characters]
    raw = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    ).save_pretrained(folder)
    config(len(names)).save_pretrained(folder)
    return folder


def config(vocab_size: int) -> RobertaConfig:
    return RobertaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=160,
        type_vocab_size=1,
        pad_token_id=1,
    )


@pytest.fixture(scope="module")
def folder(base: Path) -> Path:
    """Write a random critic beside its tokenizer."""
    torch.manual_seed(7)
    network = CometCriticNetwork(RobertaConfig.from_pretrained(base), width=8)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    target = base / "critic"
    network.save_pretrained(target)
    for file in base.glob("tokenizer*"):
        (target / file.name).write_bytes(file.read_bytes())
    return target


def critic(folder: Path, **options: Any) -> CometCritic:
    return CometCritic.from_pretrained(str(folder), device="cpu", **options)


def test_a_prompt_and_a_tail_make_a_statement() -> None:
    assert read_statement(prompt(), " feels better<|endoftext|>") == (
        HEAD,
        "xEffect",
        "feels better",
    )
    with pytest.raises(UserError, match="expected a prompt `<head>"):
        read_statement((Turn("user", "Hi"),), "x")
    with pytest.raises(UserError, match=r"knows the relations HinderedBy, .* got AtLocation"):
        read_statement(prompt("AtLocation"), "x")


@pytest.mark.parametrize("relation", RELATION_PHRASES)
def test_names_take_the_place_of_persons(relation: str) -> None:
    first, second = spoken(Statement("PersonX sees PersonY", relation, "Person Y and PersonX"))
    names = re.fullmatch(r"(\w+) sees (\w+)", first)
    assert names is not None
    assert names[1] != names[2]
    assert {names[1], names[2]} <= set(FIRST_NAMES)
    phrase = RELATION_PHRASES[relation].replace("PersonX", names[1])
    assert second == f"{phrase} {names[2]} and {names[1]}"


def test_a_statement_always_gets_the_same_names() -> None:
    one = Statement("PersonX runs", "xEffect", "is tired")
    assert spoken(one) == spoken(one)
    assert len({spoken(one, draw) for draw in range(6)}) > 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PersonXâ€™s cafÃ©", "PersonX’s café"),
        ("café", "café"),
        ("“quoted”", "“quoted”"),
        ("â€œquotedâ€\x9d", "“quoted”"),
        ("日本", "日本"),
        ("plain", "plain"),
    ],
)
def test_texts_read_in_the_wrong_encoding_are_put_right(text: str, expected: str) -> None:
    assert repair_text(text) == expected


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_scores_do_not_depend_on_the_batch(folder: Path, batch_size: int) -> None:
    reward = critic(folder, batch_size=batch_size)
    together = reward([prompt()] * 4, TAILS)
    alone = torch.cat([reward([prompt()], [tail]) for tail in TAILS])
    assert together.shape == (4,)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    assert len(set(together.tolist())) == 4
    assert torch.equal(together, reward([prompt()] * 4, TAILS))


def test_several_draws_are_averaged(folder: Path) -> None:
    reward = critic(folder, num_draws=3)
    texts = [spoken(read_statement(prompt(), TAILS[0]), draw) for draw in range(3)]
    ids = [torch.tensor([reward.tokenizer(*pair).input_ids]) for pair in texts]
    with torch.no_grad():
        logits = [reward.network(row, torch.ones_like(row)) for row in ids]
    expected = torch.cat(logits).sigmoid().mean()
    torch.testing.assert_close(reward([prompt()], TAILS[:1])[0], expected, rtol=1e-5, atol=1e-6)
    assert reward.version != critic(folder).version


def test_settings_are_checked(folder: Path, base: Path) -> None:
    with pytest.raises(UserError, match="num_draws and batch_size of at least 1"):
        critic(folder, num_draws=0)
    with pytest.raises(UserError, match=r"expected `critic_head.safetensors`"):
        critic(base)


def test_the_conversion_writes_a_folder_that_loads(
    base: Path, folder: Path, tmp_path: Path
) -> None:
    network = CometCriticNetwork.from_folder(folder)
    np.savez(tmp_path / "critic.npz", **keras_weights(network))
    job = CometCriticConversion(source=str(tmp_path / "critic.npz"), base=str(base))
    found = job.run(tmp_path / "run")
    converted = critic(tmp_path / "run" / "critic")
    torch.testing.assert_close(
        converted([prompt()] * 4, TAILS), critic(folder)([prompt()] * 4, TAILS)
    )
    expected = converted([prompt()], ["feels better"])[0]
    assert found["test_statement_score"] == pytest.approx(float(expected))
    assert (found["encoder_tensors"], found["transposed"], found["head_tensors"]) == (39, 13, 4)
    json.dumps(found)
