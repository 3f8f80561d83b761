"""Sequence classifiers as rewards: labels, activations, text formats, padding, batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from llm_agents.errors import UserError
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.rewards import ClassifierReward, TextFormat
from llm_agents.types import Turn

PROMPTS = [
    (Turn("user", "Hi"),),
    (Turn("user", "What is a cat?"), Turn("assistant", "An animal."), Turn("user", "And a dog?")),
    (Turn("user", "Why {is} the sky blue, and why is it red in the evening?"),),
]
ANSWERS = ["Hello.", "Another animal, which barks", "Light scatters. " * 3]
JOINED = TextFormat(text="{prompt}{eos}{response}")
SIZES: dict[str, Any] = {"vocab_size": 320, "initializer_range": 0.3}
SMALL: dict[str, Any] = {
    **SIZES,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


@pytest.fixture(scope="module")
def tokenizers(cache_root: Path) -> dict[str, Any]:
    return {
        family: LanguagePolicy.from_pretrained(f"tiny-random-{family}", trainable=False).tokenizer
        for family in ("gpt2", "llama", "neox")
    }


def build(kind: str, num_labels: int, pad: int | None = None) -> Any:
    torch.manual_seed(4)
    if kind == "gpt2":
        config: Any = GPT2Config(
            **SIZES, n_embd=32, n_layer=2, n_head=4, num_labels=num_labels, pad_token_id=pad
        )
        return GPT2ForSequenceClassification(config).eval()
    if kind == "llama":
        config = LlamaConfig(**SMALL, num_labels=num_labels, pad_token_id=pad)
        return LlamaForSequenceClassification(config).eval()
    if kind == "roberta":
        config = RobertaConfig(**SMALL, num_labels=num_labels, pad_token_id=1, type_vocab_size=1)
        return RobertaForSequenceClassification(config).eval()
    config = BertConfig(**SMALL, num_labels=num_labels, pad_token_id=0)
    return BertForSequenceClassification(config).eval()


def reward_of(model: Any, tokenizer: Any, **options: Any) -> ClassifierReward:
    return ClassifierReward(model, tokenizer, name="tiny", version="1", **options)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 16])
@pytest.mark.parametrize(
    ("kind", "family", "pad"),
    [
        ("gpt2", "gpt2", None),
        ("gpt2", "gpt2", 0),
        ("llama", "llama", None),
        ("bert", "neox", None),
        ("roberta", "neox", None),
    ],
)
def test_scores_do_not_depend_on_the_batch(
    tokenizers: dict[str, Any], kind: str, family: str, pad: int | None, batch_size: int
) -> None:
    reward = reward_of(
        build(kind, 1, pad),
        tokenizers[family],
        activation="sigmoid",
        format=JOINED,
        batch_size=batch_size,
    )
    together = reward(PROMPTS, ANSWERS)
    alone = torch.cat([reward([p], [a]) for p, a in zip(PROMPTS, ANSWERS, strict=True)])
    assert together.shape == (3,)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    assert len(set(together.tolist())) == 3


def test_an_end_token_between_the_turns_does_not_end_the_text(tokenizers: dict[str, Any]) -> None:
    """Pad is the end token, which also parts the turns: the answer's last token must be read."""
    tokenizer = tokenizers["gpt2"]
    end = tokenizer.eos_token_id
    model = build("gpt2", 1, pad=end)
    reward = reward_of(model, tokenizer, activation="none", format=JOINED)
    short, long = "Hello", "Hello, and more words that make the other row need padding"
    ids = [*tokenizer("Hi", add_special_tokens=False).input_ids, end]
    ids += tokenizer(short, add_special_tokens=False).input_ids
    states = model.transformer(torch.tensor([ids])).last_hidden_state
    by_position = model.score(states)[0, :, 0]
    score = reward([PROMPTS[0]] * 2, [short, long])[0]
    torch.testing.assert_close(score, by_position[len(ids) - 1], rtol=1e-5, atol=1e-5)
    assert not torch.isclose(score, by_position[ids.index(end) - 1])


@pytest.mark.parametrize("text", ["{prompt}{eos}{response}{eos}", "{prompt}{eos}{response}"])
def test_without_a_padding_token_the_last_real_token_is_read(
    tokenizers: dict[str, Any], text: str
) -> None:
    """Also where the text ends in the token with which a tokenizer without pad would pad."""
    tokenizer = tokenizers["gpt2"]
    model = build("gpt2", 1, pad=None)
    reward = reward_of(model, tokenizer, activation="none", format=TextFormat(text))
    found = reward(PROMPTS, ANSWERS)
    for row, (prompt, answer) in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
        rendered, _ = reward.format.render(prompt, answer, tokenizer)
        expected = model(torch.tensor([tokenizer(rendered).input_ids])).logits[0, 0]
        torch.testing.assert_close(found[row], expected, rtol=1e-5, atol=1e-5)
    assert model.config.pad_token_id is None


@pytest.mark.parametrize("label", [1, "LABEL_1", "label_1"])
def test_softmax_of_a_label_given_by_name_or_index(
    tokenizers: dict[str, Any], label: str | int
) -> None:
    model = build("bert", 3)
    reward = reward_of(model, tokenizers["neox"], label=label)
    expected = reward.logits(PROMPTS, ANSWERS).softmax(-1)[:, 1]
    torch.testing.assert_close(reward(PROMPTS, ANSWERS), expected)
    assert (reward.low, reward.high) == (0.0, 1.0)


def test_scale_and_offset_move_the_range(tokenizers: dict[str, Any]) -> None:
    model = build("bert", 2)
    plain = reward_of(model, tokenizers["neox"], label=0)
    turned = reward_of(model, tokenizers["neox"], label=0, scale=-2.0, offset=1.0)
    torch.testing.assert_close(turned(PROMPTS, ANSWERS), 1.0 - 2.0 * plain(PROMPTS, ANSWERS))
    assert (turned.low, turned.high) == (-1.0, 1.0)
    assert turned.version != plain.version


def test_pairs_carry_token_types(tokenizers: dict[str, Any]) -> None:
    """The second text has token type 1 in the models that know types."""
    tokenizer, model = tokenizers["neox"], build("bert", 1)
    pair = TextFormat(text="{prompt}", text_pair="{response}")
    reward = reward_of(model, tokenizer, activation="none", format=pair)
    encoded = tokenizer("Hi", "Hello.", return_token_type_ids=True)
    assert set(encoded.token_type_ids) == {0, 1}
    expected = model(**{key: torch.tensor([value]) for key, value in encoded.items()}).logits[0, 0]
    found = reward([PROMPTS[0]], ["Hello."])[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_long_texts_lose_the_side_that_is_named(tokenizers: dict[str, Any]) -> None:
    model, tokenizer = build("gpt2", 1), tokenizers["gpt2"]
    options: dict[str, Any] = {"activation": "none", "format": JOINED, "max_tokens": 30}
    left = reward_of(model, tokenizer, truncation="left", **options)
    right = reward_of(model, tokenizer, truncation="right", **options)
    starts = [(Turn("user", "x" * 200 + " so"),), (Turn("user", "y" * 200 + " so"),)]
    same = left(starts, ["the end is read here, " * 9] * 2)
    assert same[0] == same[1]
    ends = right([starts[0]] * 2, ["one", "two"])
    assert ends[0] == ends[1]
    assert left.max_tokens == 30


def test_an_empty_answer_has_a_score(tokenizers: dict[str, Any]) -> None:
    reward = reward_of(build("gpt2", 1), tokenizers["gpt2"], activation="sigmoid", format=JOINED)
    assert reward([()], [""]).shape == (1,)
    assert reward([], []).shape == (0,)
    only = TextFormat(text="{response}")
    bare = reward_of(build("gpt2", 1), tokenizers["gpt2"], activation="sigmoid", format=only)
    assert bare([(), ()], ["", "x"]).isfinite().all()


def test_turns_and_last_turn_are_written_as_asked(tokenizers: dict[str, Any]) -> None:
    tokenizer = tokenizers["llama"]
    layout = TextFormat(
        text="{prompt}|{last}|{response}{eos}",
        user="<u>{text}{eos}",
        assistant="<a>{text}",
        separator=" ",
    )
    text, pair = layout.render(PROMPTS[1], "R", tokenizer)
    assert text == "<u>What is a cat?</s> <a>An animal. <u>And a dog?</s>|And a dog?|R</s>"
    assert pair is None
    assert layout.render(PROMPTS[2], "{x}", tokenizer)[0].endswith("|{x}</s>")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"text": "{prompt}"}, "the reward would not read the answer"),
        ({"text": "{prompt}{answer}"}, r"got \['answer'\]"),
        ({"user": "{prompt}"}, r"in the text format's `user`, got \['prompt'\]"),
        ({"text": "chat", "text_pair": "{response}"}, "leave `text_pair` out"),
        ({"text_pair": "{response}"}, "more than once"),
    ],
)
def test_text_formats_are_checked(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        TextFormat(**options)


def test_the_chat_template_can_write_the_dialogue(tokenizers: dict[str, Any]) -> None:
    tokenizer = LanguagePolicy.from_pretrained("tiny-random-qwen2", trainable=False).tokenizer
    reward = reward_of(
        build("llama", 1), tokenizer, activation="sigmoid", format=TextFormat("chat")
    )
    text, _ = reward.format.render(PROMPTS[1], "Yes", tokenizer)
    assert text.index("What is a cat?") < text.index("An animal.") < text.index("Yes")
    assert reward(PROMPTS, ANSWERS).shape == (3,)


@pytest.mark.parametrize(
    ("labels", "options", "expected"),
    [
        (2, {}, "has the labels 0 = LABEL_0, 1 = LABEL_1: say which one counts"),
        (2, {"label": 2}, "has no label 2"),
        (2, {"label": "entailment"}, "has 0 labels called `entailment`"),
        (1, {}, "whose softmax is always 1"),
        (1, {"activation": "none", "batch_size": 0}, "batch_size of at least 1, got 0"),
    ],
)
def test_settings_are_checked(
    tokenizers: dict[str, Any], labels: int, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        reward_of(build("bert", labels), tokenizers["neox"], **options)


def test_the_token_limit_is_the_models_own(tokenizers: dict[str, Any]) -> None:
    assert reward_of(build("roberta", 2), tokenizers["neox"], label=0).max_tokens == 510


@pytest.fixture
def folder(tokenizers: dict[str, Any], tmp_path: Path) -> Path:
    model = build("bert", 2)
    model.config.id2label = {0: "Entailment", 1: "Hallucination"}
    model.save_pretrained(tmp_path / "critic")
    tokenizers["neox"].save_pretrained(tmp_path / "critic")
    return tmp_path / "critic"


def test_a_folder_loads_and_scores_the_same(folder: Path, tokenizers: dict[str, Any]) -> None:
    loaded = ClassifierReward.from_pretrained(str(folder), label="entailment", device="cpu")
    assert loaded.name == "critic"
    model = build("bert", 2)
    expected = reward_of(model, AutoTokenizer.from_pretrained(folder), label=0)(PROMPTS, ANSWERS)
    torch.testing.assert_close(loaded(PROMPTS, ANSWERS), expected)


def test_the_version_follows_the_weights(folder: Path) -> None:
    before = ClassifierReward.from_pretrained(str(folder), label=0).version
    assert before == ClassifierReward.from_pretrained(str(folder), label=0).version
    model = build("bert", 2)
    torch.nn.init.normal_(model.classifier.weight)
    model.save_pretrained(folder)
    assert ClassifierReward.from_pretrained(str(folder), label=0).version != before


def test_a_model_without_a_trained_head_is_refused(folder: Path) -> None:
    build("bert", 2).bert.save_pretrained(folder)
    with pytest.raises(UserError, match=r"no trained weights for classifier\.bias"):
        ClassifierReward.from_pretrained(str(folder), label=0)


def test_pickled_weights_are_read_only_when_asked_for(folder: Path) -> None:
    weights = build("bert", 2).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="set `pickled_weights`"):
        ClassifierReward.from_pretrained(str(folder), label=0)
    reward = ClassifierReward.from_pretrained(str(folder), label=0, pickled_weights=True)
    assert reward(PROMPTS, ANSWERS).shape == (3,)


def test_a_model_that_is_no_classifier_is_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "clip"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="is no sequence classifier"):
        ClassifierReward.from_pretrained(str(folder), label=0)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot load the classifier"):
        ClassifierReward.from_pretrained(str(tmp_path / "nothing"))


# --- adapters of PEFT -----------------------------------------------------------------------------


def adapter_of_peft(
    tmp_path: Path, tokenizer: Any, kind: str, num_labels: int, **options: Any
) -> tuple[Path, Any]:
    """Write a language model, and an adapter that makes a classifier of it; return both."""
    import peft
    from transformers import AutoModelForSequenceClassification

    whole = build(kind, 2)
    body = {"llama": "model", "bert": "bert", "roberta": "roberta", "gpt2": "transformer"}[kind]
    getattr(whole, body).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    base = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "base", num_labels=num_labels
    )
    target = {"llama": "q_proj", "bert": "query", "roberta": "query", "gpt2": "c_attn"}[kind]
    settings = {"task_type": "SEQ_CLS", "target_modules": [target], **options}
    model = peft.get_peft_model(base, peft.LoraConfig(**settings))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter", model.eval()


@pytest.mark.parametrize("num_labels", [1, 2, 3])
@pytest.mark.parametrize(
    ("kind", "family"), [("llama", "llama"), ("bert", "neox"), ("roberta", "neox")]
)
def test_an_adapter_with_its_head_scores_as_in_peft(
    tokenizers: dict[str, Any], tmp_path: Path, kind: str, family: str, num_labels: int
) -> None:
    folder, model = adapter_of_peft(tmp_path, tokenizers[family], kind, num_labels)
    label = num_labels - 1
    reward = ClassifierReward.from_pretrained(
        str(folder), label=label, activation="none", device="cpu"
    )
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        text, _ = reward.format.render(prompt, answer, reward.tokenizer)
        ids = torch.tensor([reward.tokenizer(text)["input_ids"]])
        with torch.no_grad():
            expected = model(input_ids=ids).logits[0, label]
        assert float(reward([prompt], [answer])) == pytest.approx(float(expected), abs=1e-5)
    again = ClassifierReward.from_pretrained(str(folder), label=label, activation="none")
    assert again.version == reward.version


@pytest.mark.parametrize("num_labels", [1, 2])
def test_an_adapter_without_its_head_is_refused(
    tokenizers: dict[str, Any], tmp_path: Path, num_labels: int
) -> None:
    folder, _ = adapter_of_peft(tmp_path, tokenizers["llama"], "llama", num_labels)
    tensors = load_file(folder / "adapter_model.safetensors")
    kept = {key: value for key, value in tensors.items() if "score" not in key}
    assert len(kept) == len(tensors) - 1
    save_file(kept, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"holds no trained weights for score\.weight"):
        ClassifierReward.from_pretrained(str(folder), label=0, activation="none")


def test_half_a_head_is_refused_too(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    folder, _ = adapter_of_peft(tmp_path, tokenizers["neox"], "roberta", 2)
    tensors = load_file(folder / "adapter_model.safetensors")
    kept = {key: value for key, value in tensors.items() if "classifier.dense" not in key}
    save_file(kept, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"holds no trained weights for classifier\.dense\.bias"):
        ClassifierReward.from_pretrained(str(folder), label=0)


def test_an_adapter_of_a_language_model_is_no_classifier(
    tokenizers: dict[str, Any], tmp_path: Path
) -> None:
    policy = LanguagePolicy.from_pretrained("tiny-random-llama", lora=LoraConfig(r=2))
    policy.save_adapter(tmp_path)
    with pytest.raises(UserError, match=r"holds no trained weights for score\.weight"):
        ClassifierReward.from_pretrained(str(tmp_path), label=0)


def test_an_adapter_on_a_trained_classifier_needs_no_head(
    tokenizers: dict[str, Any], tmp_path: Path
) -> None:
    """The head is the base's own; one of another number of labels takes its place."""
    import peft
    from transformers import AutoModelForSequenceClassification

    build("bert", 2).save_pretrained(tmp_path / "base")
    tokenizers["neox"].save_pretrained(tmp_path / "base")
    for labels, task in ((2, "FEATURE_EXTRACTION"), (1, "SEQ_CLS")):
        base = AutoModelForSequenceClassification.from_pretrained(
            tmp_path / "base", num_labels=labels, ignore_mismatched_sizes=True
        )
        config = peft.LoraConfig(target_modules=["query"], task_type=task)
        model = peft.get_peft_model(base, config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter += 0.1
        model.save_pretrained(tmp_path / "adapter")
        reward = ClassifierReward.from_pretrained(
            str(tmp_path / "adapter"), label=0, activation="none", device="cpu"
        )
        expected = reward_of(model.get_base_model(), reward.tokenizer, label=0, activation="none")(
            PROMPTS, ANSWERS
        )
        torch.testing.assert_close(reward(PROMPTS, ANSWERS), expected)
