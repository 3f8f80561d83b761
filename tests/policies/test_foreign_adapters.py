"""Adapters made by plain PEFT: as a start, beside the reference, written again, merged."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from llm_agents.errors import UserError
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.policies.bundled import resolve_base

IDS = torch.tensor([[5, 6, 7, 3, 4, 9, 11]])
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def lora(**options: Any) -> peft.LoraConfig:
    return peft.LoraConfig(**{"target_modules": ["q_proj"], "task_type": "CAUSAL_LM", **options})


KINDS: dict[str, Callable[[], Any]] = {
    "head": lambda: lora(target_modules=["q_proj", "lm_head"]),
    "embedding": lambda: lora(target_modules=["q_proj", "embed_tokens"]),
    "saved embedding": lambda: lora(modules_to_save=["embed_tokens"]),
    "saved tied embedding": lambda: lora(
        modules_to_save=["embed_tokens"], ensure_weight_tying=True
    ),
    "saved tied ends": lambda: lora(
        modules_to_save=["embed_tokens", "lm_head"], ensure_weight_tying=True
    ),
    "saved head": lambda: lora(modules_to_save=["lm_head"]),
    "tokens": lambda: lora(trainable_token_indices=[3, 4, 5]),
    "dora": lambda: lora(use_dora=True),
    "rslora": lambda: lora(use_rslora=True, r=4, lora_alpha=32),
    "pissa": lambda: lora(init_lora_weights="pissa"),
    "patterns": lambda: lora(
        target_modules=["q_proj", "v_proj"],
        rank_pattern={"v_proj": 3},
        alpha_pattern={"v_proj": 32},
    ),
    "biases of none": lambda: lora(bias="lora_only"),
    "ia3": lambda: peft.IA3Config(
        target_modules=["k_proj", "down_proj"],
        feedforward_modules=["down_proj"],
        task_type="CAUSAL_LM",
    ),
    "loha": lambda: peft.LoHaConfig(target_modules=["q_proj"], r=2, task_type="CAUSAL_LM"),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    """Return the folders of a tiny base whose ends are tied, and of one whose are not."""
    source = Path(resolve_base("tiny-random-llama").source)
    found = {}
    for tied in (True, False):
        folder = tmp_path_factory.mktemp("base") / f"tied-{tied}"
        config = AutoConfig.from_pretrained(source)
        config.tie_word_embeddings = tied
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        for name in TOKENIZER:
            shutil.copy(source / name, folder / name)
        found[tied] = str(folder)
    return found


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits.float()


def made_by_peft(base: str, config: Any, folder: Path) -> Tensor:
    """Write an adapter of noise, and return the logits of it as PEFT loads it."""
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), copy.deepcopy(config))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(folder)
    again = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    return logits(again.eval())


def close(found: Tensor, expected: Tensor) -> None:
    size = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6 * size + 1e-6)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_adapter_of_peft_trains_on_from_where_it_is(
    bases: dict[bool, str], kind: str, tied: bool, tmp_path: Path
) -> None:
    base = bases[tied]
    expected = made_by_peft(base, KINDS[kind](), tmp_path / "adapter")
    assert not torch.allclose(expected, logits(AutoModelForCausalLM.from_pretrained(base)))
    policy = LanguagePolicy.from_pretrained(base, adapter=str(tmp_path / "adapter")).eval()
    close(logits(policy.model), expected)
    with policy.reference():
        close(logits(policy.model), expected)

    with torch.no_grad():
        for _, parameter in policy.trainable_parameters():
            parameter += 0.1
    moved = logits(policy.model)
    assert not torch.allclose(moved, expected)
    with policy.reference():
        close(logits(policy.model), expected)
    close(logits(policy.model), moved)

    policy.save_adapter(tmp_path / "again")
    again = LanguagePolicy.from_pretrained(base, adapter=str(tmp_path / "again"), trainable=False)
    close(logits(again.model), moved)
    plain = AutoModelForCausalLM.from_pretrained(base)
    close(logits(peft.PeftModel.from_pretrained(plain, tmp_path / "again").eval()), moved)

    report = policy.merge(tmp_path / "merged")
    assert report.max_logit_difference <= 1e-4
    merged = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged"))
    torch.testing.assert_close(merged, moved, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        lora(target_modules=["lm_head"], ensure_weight_tying=True),
        lora(target_modules=["embed_tokens", "q_proj"], ensure_weight_tying=True),
        peft.TrainableTokensConfig(token_indices=[3, 4], target_modules=["embed_tokens"]),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_peft_holds_no_second_copy_of_is_loaded_frozen_and_refused_as_a_start(
    bases: dict[bool, str], config: Any, tmp_path: Path
) -> None:
    expected = made_by_peft(bases[True], config, tmp_path / "adapter")
    with pytest.raises(UserError, match=r"can't be trained further: PEFT .* holds no second copy"):
        LanguagePolicy.from_pretrained(bases[True], adapter=str(tmp_path / "adapter"))
    frozen = LanguagePolicy.from_pretrained(
        bases[True], adapter=str(tmp_path / "adapter"), trainable=False
    )
    close(logits(frozen.model), expected)
    frozen.merge(tmp_path / "merged")
    merged = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged"))
    torch.testing.assert_close(merged, expected, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_trained_biases_of_a_base_are_no_start(tmp_path: Path) -> None:
    base = resolve_base("tiny-random-gpt2").source
    config = lora(target_modules=["c_attn"], bias="lora_only", fan_in_fan_out=True)
    expected = made_by_peft(base, config, tmp_path / "adapter")
    with pytest.raises(UserError, match=r"has trained biases of its base \(`bias: lora_only`\)"):
        LanguagePolicy.from_pretrained("tiny-random-gpt2", adapter=str(tmp_path / "adapter"))
    frozen = LanguagePolicy.from_pretrained(
        "tiny-random-gpt2", adapter=str(tmp_path / "adapter"), trainable=False
    )
    close(logits(frozen.model), expected)
    frozen.merge(tmp_path / "merged")
    merged = LanguagePolicy.from_pretrained(str(tmp_path / "merged"), lora=LoraConfig(r=2))
    torch.testing.assert_close(logits(merged.eval().model), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
        peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
    ],
)
def test_adapters_of_the_input_are_refused_for_what_they_are(
    bases: dict[bool, str], config: Any, tmp_path: Path
) -> None:
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(bases[False]), config)
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"is of type P\w+_TUNING, which changes the input"):
        LanguagePolicy.from_pretrained(bases[False], adapter=str(tmp_path))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_adapter_with_another_embedding_than_the_bases_is_refused(
    bases: dict[bool, str], tmp_path: Path
) -> None:
    """PEFT would write it over the base's, from where no saved adapter would bring it back."""
    model = AutoModelForCausalLM.from_pretrained(bases[False])
    adapted = peft.get_peft_model(model, lora(target_modules=["q_proj", "lm_head"]))
    with torch.no_grad():
        model.lm_head.base_layer.weight[7] += 1
    adapted.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"\(base_model.model.lm_head.base_layer.weight\) whose"):
        LanguagePolicy.from_pretrained(bases[False], adapter=str(tmp_path))


def test_a_fresh_lora_on_a_tied_head_merges(bases: dict[bool, str], tmp_path: Path) -> None:
    config = LoraConfig(r=2, targets=("q_proj", "lm_head", "embed_tokens"))
    policy = LanguagePolicy.from_pretrained(bases[True], lora=config).eval()
    with torch.no_grad():
        for _, parameter in policy.trainable_parameters():
            parameter += 0.1
    policy.merge(tmp_path)
    merged = logits(AutoModelForCausalLM.from_pretrained(tmp_path))
    torch.testing.assert_close(merged, logits(policy.model), rtol=0, atol=1e-4)


def test_a_merge_that_changes_the_model_writes_nothing(
    bases: dict[bool, str], tmp_path: Path
) -> None:
    """The base that is loaded anew is another one by then."""
    folder = tmp_path / "base"
    shutil.copytree(bases[False], folder)
    policy = LanguagePolicy.from_pretrained(str(folder), lora=LoraConfig(r=2))
    other = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        other.model.norm.weight.mul_(1.1)
    other.save_pretrained(folder)
    with pytest.raises(UserError, match=r"differ from the policy's by .* nothing was written"):
        policy.merge(tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_what_peft_cannot_merge_is_an_error_of_ours(bases: dict[bool, str], tmp_path: Path) -> None:
    made_by_peft(bases[False], lora(lora_bias=True), tmp_path / "adapter")
    policy = LanguagePolicy.from_pretrained(bases[False], adapter=str(tmp_path / "adapter"))
    with pytest.raises(UserError, match="PEFT can't merge this adapter"):
        policy.merge(tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


# --- written and read again -----------------------------------------------------------------------


def test_save_pretrained_is_what_load_pretrained_reads(
    bases: dict[bool, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llm_agents import load_pretrained
    from llm_agents.policies.heads import ValueHead
    from llm_agents.zoo import load_heads

    shutil.copytree(bases[False], tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    policy = LanguagePolicy.from_pretrained("base", lora=LoraConfig(r=2)).eval()
    with torch.no_grad():
        for _, parameter in policy.trainable_parameters():
            parameter += 0.1
    head = ValueHead(policy.hidden_size, 2, 1.0, 0.0).eval()
    policy.save_pretrained("mine", heads={"value_head": head})
    monkeypatch.chdir(tmp_path.parent)  # a base named by a path is found from every folder
    again = load_pretrained(str(tmp_path / "mine"), device="cpu")
    assert torch.equal(logits(again.model), logits(policy.model))
    kept = load_heads(tmp_path / "mine", policy.hidden_size)["value_head"]
    assert all(torch.equal(kept.state_dict()[k], v) for k, v in head.state_dict().items())


def test_save_pretrained_of_a_whole_model(bases: dict[bool, str], tmp_path: Path) -> None:
    from llm_agents import load_pretrained

    policy = LanguagePolicy.from_pretrained(bases[True]).eval()
    with torch.no_grad():
        for _, parameter in policy.trainable_parameters():
            parameter += 0.01
    policy.save_pretrained(tmp_path / "mine")
    again = load_pretrained(str(tmp_path / "mine"), device="cpu")
    assert torch.equal(logits(again.model), logits(policy.model))


# --- models of several kinds of input -------------------------------------------------------------


@pytest.fixture(scope="module")
def multimodal(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a tiny Gemma 3 with a vision tower; its sizes lie in `text_config`."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = {
        "vocab_size": 320,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": 64,
        "max_position_embeddings": 512,
        "attention_dropout": 0.5,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    tokens = {"image_token_index": 300, "boi_token_index": 301, "eoi_token_index": 302}
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, **tokens)
    folder = tmp_path_factory.mktemp("gemma3")
    torch.manual_seed(0)
    Gemma3ForConditionalGeneration(config).save_pretrained(folder)
    for name in TOKENIZER:
        shutil.copy(Path(resolve_base("tiny-random-llama").source) / name, folder / name)
    return str(folder)


def test_sizes_in_a_text_config_are_read(multimodal: str, make_batch: Any, tmp_path: Path) -> None:
    from transformers import Gemma3ForConditionalGeneration

    from llm_agents.types import Choice, GenerationConfig

    options = {"lora": LoraConfig(r=2, targets="attention", top_layers=1)}
    policy = LanguagePolicy.from_pretrained(multimodal, trunk_cache=str(tmp_path), **options)
    sizes = policy.hidden_size, policy.num_layers, policy.vocab_size, policy.context_length
    assert sizes == (32, 3, 320, 512)
    trained = [name for name, _ in policy.trainable_parameters()]
    assert trained
    assert all(".language_model.layers.2." in name for name in trained), "no vision tower"
    assert policy.frozen_depth == 2

    plain = Gemma3ForConditionalGeneration.from_pretrained(multimodal).eval()
    batch = make_batch(policy, [("Is it warm?", "yes"), ("Who are you?", "nobody at all")])
    policy.train()  # no dropout of the base's in training either
    found = policy.log_probs(batch).detach()
    choice = Choice("You see a key. You should", ("take it", "go left", "go north quickly"))
    scores = policy.score_actions([choice], "sum")
    prompt = policy.encode_text(choice.prompt, begin=True)
    for row in range(3):
        action = scores.token_ids[0, row][scores.token_mask[0, row]]
        ids = torch.cat([torch.tensor(prompt), action])
        with torch.no_grad():
            rows = plain(input_ids=ids[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        expected = float(rows.gather(1, action[:, None]).sum())
        assert float(scores.scores.detach()[0, row]) == pytest.approx(expected, abs=1e-3)
    for row in range(2):
        own, said = batch.prompt_mask[row], batch.response_mask[row]
        first, second = batch.prompt_ids[row][own], batch.response_ids[row][said]
        with torch.no_grad():
            whole = plain(input_ids=torch.cat([first, second])[None]).logits[0]
        rows = whole[len(first) - 1 : -1].log_softmax(-1)
        expected_row = rows.gather(1, second[:, None])[:, 0]
        torch.testing.assert_close(found[row][said], expected_row, atol=1e-3, rtol=0)
    made = policy.generate([prompt], GenerationConfig(max_new_tokens=4))
    told = plain.generate(torch.tensor([prompt]), max_new_tokens=4, do_sample=False)
    assert made[0] == told[0, len(prompt) :].tolist()
