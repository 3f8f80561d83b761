"""The named classifiers: label, activation, separators, truncation, pooling; public anchors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2Model,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from llm_agents.errors import UserError
from llm_agents.policies import LanguagePolicy
from llm_agents.rewards import AttributeReward
from llm_agents.rewards.knowledge import with_knowledge
from llm_agents.types import Prompt, Turn
from tests.closeness import assert_rounding

HISTORY = (Turn("user", "Hi"), Turn("assistant", "Hello"), Turn("user", "Any news?"))
GROUNDED = with_knowledge("Cats purr.", HISTORY)
RELEASED = (
    Turn("user", "Knowledge: Cats purr.{e}Hi{e}Hello{e}Any news?{e}".format(e="<|endoftext|>")),
)
SIZES: dict[str, Any] = {"vocab_size": 330, "initializer_range": 0.3}


@pytest.fixture(scope="module")
def tokenizers(cache_root: Path) -> dict[str, Any]:
    return {
        family: LanguagePolicy.from_pretrained(f"tiny-random-{family}", trainable=False).tokenizer
        for family in ("gpt2", "neox")
    }


@pytest.fixture(scope="module")
def ranker(tokenizers: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model of DialogRPT's kind: its padding id is the end token, which parts the turns."""
    folder = tmp_path_factory.mktemp("ranker")
    tokenizer = tokenizers["gpt2"]
    torch.manual_seed(4)
    config = GPT2Config(
        **SIZES,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=128,
        num_labels=1,
        pad_token_id=tokenizer.eos_token_id,
    )
    GPT2ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pair_critic(tokenizers: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a RoBERTa of two labels."""
    folder = tmp_path_factory.mktemp("critic")
    torch.manual_seed(5)
    config = RobertaConfig(
        **SIZES,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=600,
        num_labels=2,
        pad_token_id=1,
        type_vocab_size=1,
        id2label={0: "Entailment", 1: "Hallucination"},
        label2id={"Entailment": 0, "Hallucination": 1},
    )
    RobertaForSequenceClassification(config).save_pretrained(folder)
    tokenizers["neox"].save_pretrained(folder)
    return folder


def by_hand(folder: Path, ids: list[int], position: int) -> float:
    """Return the sigmoid of a ranker's logit at a position of a row without padding."""
    model = GPT2ForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        states = model.transformer(torch.tensor([ids])).last_hidden_state
        return float(model.score(states)[0, position, 0].sigmoid())


@pytest.mark.parametrize("prompt", [GROUNDED, RELEASED], ids=["turns", "released"])
@pytest.mark.parametrize("kind", ["engagement", "upvotes"])
def test_a_ranker_reads_history_and_response_at_its_last_token(
    ranker: Path, tokenizers: dict[str, Any], kind: str, prompt: Prompt
) -> None:
    reward = getattr(AttributeReward, kind)(str(ranker), device="cpu")
    end = tokenizers["gpt2"].eos_token
    ids = tokenizers["gpt2"](f"Hi{end}Hello{end}Any news?{end}Yes, much").input_ids
    score = reward([prompt, prompt], ["Yes, much", "No, and a longer answer that makes padding"])[0]
    assert float(score) == pytest.approx(by_hand(ranker, ids, -1), abs=1e-5)
    wrong = by_hand(ranker, ids, ids.index(tokenizers["gpt2"].eos_token_id) - 1)
    assert abs(float(score) - wrong) > 1e-3
    assert (reward.low, reward.high) == (0.0, 1.0)
    assert reward.name == {"engagement": "depth", "upvotes": "updown"}[kind]


def test_pad_is_the_end_token_and_the_answers_last_token_is_index_5(ranker: Path) -> None:
    """Ids [10, 11, e, 20, 21, 22, e, e]: counting other tokens gives 4, the first pad gives 1."""
    reward = AttributeReward.upvotes(str(ranker), device="cpu")
    end = reward.tokenizer.eos_token_id
    ids = [10, 11, end, 20, 21, 22]
    longer = [10, 11, end, 20, 21, 22, 23, 24]
    single = reward._forward([(ids, [0] * 6)]).sigmoid().item()
    batched = reward._forward([(ids, [0] * 6), (longer, [0] * 8)])[0].sigmoid().item()
    expected = by_hand(ranker, ids, 5)
    assert single == pytest.approx(expected, abs=1e-5)
    assert batched == pytest.approx(expected, abs=1e-5)
    for position in (4, 1):
        assert abs(expected - by_hand(ranker, ids, position)) > 1e-3


def test_an_empty_answer_is_read_at_the_separator(ranker: Path) -> None:
    reward = AttributeReward.upvotes(str(ranker), device="cpu")
    end = reward.tokenizer.eos_token
    ids = reward.tokenizer(f"Hi{end}").input_ids
    for prompts, answers in (([HISTORY[:1]], [""]), ([HISTORY[:1]] * 2, ["", "more words"])):
        score = reward(prompts, answers)[0]
        assert float(score) == pytest.approx(by_hand(ranker, ids, -1), abs=1e-5)
    assert reward.model.config.pad_token_id == reward.tokenizer.eos_token_id


def test_long_dialogues_lose_their_beginning(ranker: Path) -> None:
    reward = AttributeReward.engagement(str(ranker), max_tokens=50, device="cpu")
    prompts = [(Turn("user", start * 90),) for start in "xy"]
    scores = reward(prompts, ["an answer that is long enough to fill the whole window " * 2] * 2)
    assert_rounding(scores[0], scores[1])


def test_fluency_reads_the_response_alone(pair_critic: Path) -> None:
    reward = AttributeReward.fluency(str(pair_critic), device="cpu")
    scores = reward([GROUNDED, HISTORY[:1]], ["A sentence.", "A sentence.<|endoftext|>"])
    ids = torch.tensor([reward.tokenizer("A sentence.").input_ids])
    with torch.no_grad():
        expected = reward.model(ids).logits.softmax(-1)[0, 1]
    assert_rounding(scores, expected.expand(2))


@pytest.mark.parametrize("prompt", [GROUNDED, RELEASED], ids=["turns", "released"])
def test_faithfulness_reads_knowledge_and_response_as_a_pair(
    pair_critic: Path, prompt: Prompt
) -> None:
    reward = AttributeReward.faithfulness(str(pair_critic), device="cpu")
    ids = torch.tensor([reward.tokenizer("Cats purr.", "They do.").input_ids])
    with torch.no_grad():
        expected = reward.model(ids).logits.softmax(-1)[0, 0]
    found = reward([prompt], ["They do."])
    assert_rounding(found, expected[None])


def test_faithfulness_needs_knowledge_and_the_right_labels(
    pair_critic: Path, tmp_path: Path
) -> None:
    reward = AttributeReward.faithfulness(str(pair_critic), device="cpu")
    with pytest.raises(UserError, match="begins with `Knowledge"):
        reward([HISTORY], ["x"])
    reward.model.config.id2label = {0: "Hallucination", 1: "Entailment"}
    reward.model.save_pretrained(tmp_path)
    reward.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"expected label 0 of .* to be Entailment"):
        AttributeReward.faithfulness(str(tmp_path), device="cpu")


def toxichat(folder: Path, tokenizer: Any, prefix: str, *, pickled: bool) -> dict[str, Any]:
    """Write a classifier of ToxiChat's kind and return its weights."""
    from safetensors.torch import save_file

    torch.manual_seed(6)
    config = GPT2Config(**SIZES, n_embd=32, n_layer=2, n_head=4, n_positions=512)
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    body = {f"{prefix}{key}": value for key, value in GPT2Model(config).state_dict().items()}
    head = torch.nn.Linear(32, 2)
    weights = {**body, "judge.weight": head.weight.data, "judge.bias": head.bias.data}
    weights["lm_head.weight"] = torch.zeros(330, 32)
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors")
    return weights


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_safety_reads_the_last_end_token(
    tokenizers: dict[str, Any], tmp_path: Path, prefix: str
) -> None:
    tokenizer = tokenizers["gpt2"]
    weights = toxichat(tmp_path, tokenizer, prefix, pickled=False)
    reward = AttributeReward.safety(str(tmp_path), device="cpu")
    end = tokenizer.eos_token
    ids = torch.tensor([tokenizer(f"Hi{end}Fine.{end}").input_ids])
    body = GPT2Model(GPT2Config.from_pretrained(tmp_path)).eval()
    body.load_state_dict(
        {
            key.removeprefix(prefix): value
            for key, value in weights.items()
            if not key.startswith(("judge", "lm_head"))
        }
    )
    with torch.no_grad():
        state = body(ids).last_hidden_state[0, -1]
    expected = (weights["judge.weight"] @ state + weights["judge.bias"]).softmax(-1)[0]
    for batch in (["Fine."], ["Fine.", "A longer answer, so that the first is padded"]):
        found = reward([HISTORY[:1]] * len(batch), batch)
        assert found.shape == (len(batch),)
        assert_rounding(found[0], expected)
    assert reward.max_tokens == 511
    cut = reward([(Turn("user", "long " * 400),)], ["Fine."])
    assert cut.isfinite().all()


def test_safetys_files_are_checked(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"found none of model\.safetensors"):
        AttributeReward.safety(str(tmp_path))
    toxichat(tmp_path, tokenizers["gpt2"], "transformer.", pickled=True)
    with pytest.raises(UserError, match="set `pickled_weights`"):
        AttributeReward.safety(str(tmp_path))
    with pytest.raises(UserError, match="at most 511"):
        AttributeReward.safety(str(tmp_path), max_tokens=512)
    reward = AttributeReward.safety(str(tmp_path), pickled_weights=True, device="cpu")
    assert reward([HISTORY], ["x"]).shape == (1,)
    weights = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    del weights["judge.weight"]
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="one linear layer of two labels"):
        AttributeReward.safety(str(tmp_path), pickled_weights=True)


@pytest.mark.hub
@pytest.mark.parametrize("batched", [False, True])
def test_dialog_rpts_public_anchors(batched: bool) -> None:
    reward = AttributeReward.upvotes(pickled_weights=True, device="cpu")
    prompt = (Turn("user", "I love NLP!"),)
    answers = ["Me too!", "Here’s a free textbook (URL) in case anyone needs it."]
    if batched:
        scores = reward([prompt] * 2, answers)
    else:
        scores = torch.cat([reward([prompt], [answer]) for answer in answers])
    torch.testing.assert_close(scores, torch.tensor([0.111, 0.613]), rtol=0, atol=2e-3)


@pytest.mark.hub
def test_an_entailed_response_is_faithful() -> None:
    reward = AttributeReward.faithfulness(pickled_weights=True, device="cpu")
    prompt = with_knowledge("Blue is one of the three primary colours.", HISTORY)
    scores = reward([prompt] * 2, ["Blue is a primary colour.", "I painted my boat red in 1921."])
    assert scores[0] > 0.5 > scores[1]
