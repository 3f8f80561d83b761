"""Tiny random models with real tokenizers: every family that tests and the tiny overlay need.

Two layers, hidden size 64, weights large enough that positions, masks and biases all show in the
log-probs. The tokenizers differ as those of the real families do: with and without a begin token,
with and without a padding token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from llm_agents.messages import quietly

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

TINY_VERSION = 1  # raise it when weights or tokenizers change
_SEED = 901
_VOCAB_SIZE = 320
_CONTEXT = 1024
_HIDDEN = 64

_SENTENCES = (
    "How can I help you today? I would like to know what the weather is like.",
    "You can find the answer in the book on the table, and then go to the kitchen.",
    "I'm sorry, but I can't help with that. Is there something else I could do for you?",
    "The agent opens the door and sees a red ball, a blue key and a green box.",
    "Yes, that is a good idea: take the bread, put it in the oven and wait for ten minutes.",
)


@dataclass(frozen=True)
class _Tokens:
    """Special tokens of one family, in the order of their ids."""

    special: tuple[str, ...]
    eos: str
    bos: str | None = None
    pad: str | None = None
    adds_begin: bool = False
    adds_end: bool = False


_TOKENS = {
    "llama": _Tokens(("<unk>", "<s>", "</s>"), eos="</s>", bos="<s>", adds_begin=True),
    "gpt2": _Tokens(("<|endoftext|>",), eos="<|endoftext|>", bos="<|endoftext|>"),
    "neox": _Tokens(
        ("<|endoftext|>", "<|padding|>"),
        eos="<|endoftext|>",
        bos="<|endoftext|>",
        pad="<|padding|>",
    ),
    "opt": _Tokens(("<s>", "<pad>", "</s>"), eos="</s>", bos="</s>", pad="<pad>", adds_begin=True),
    "qwen2": _Tokens(
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), eos="<|im_end|>", pad="<|endoftext|>"
    ),
    "t5": _Tokens(("<pad>", "</s>"), eos="</s>", pad="<pad>", adds_end=True),
}

_WIDTH: dict[str, int | bool] = {
    "hidden_size": _HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": _CONTEXT,
}
_LLAMA = {**_WIDTH, "num_key_value_heads": 2, "intermediate_size": 128}
_SHAPES: dict[str, dict[str, int | bool]] = {
    "llama": _LLAMA,
    "qwen2": {**_LLAMA, "tie_word_embeddings": True},
    "gpt2": {"n_embd": _HIDDEN, "n_layer": 2, "n_head": 4, "n_positions": _CONTEXT},
    "neox": {**_WIDTH, "intermediate_size": 128},
    "opt": {**_WIDTH, "ffn_dim": 128, "word_embed_proj_dim": _HIDDEN},
    "t5": {
        "d_model": _HIDDEN,
        "d_kv": 16,
        "d_ff": 128,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
        "tie_word_embeddings": False,  # tied ones are scaled down: nearly uniform
    },
}
_MODEL_TYPES = {"neox": "gpt_neox"}  # where the name differs

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<' + message['role'] + '>\\n' + message['content'] + eos_token + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>\\n' }}{% endif %}"
)
_CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_tiny(family: str, folder: Path) -> None:
    """Write the tiny random model of `family` and its tokenizer to `folder`."""
    with quietly():
        tiny_model(family).save_pretrained(folder)
        tiny_tokenizer(family).save_pretrained(folder)


def tiny_model(family: str) -> PreTrainedModel:
    """Build the tiny random model of `family`; the same weights whenever it is called.

    Matrices are normal with deviation 0.1, biases 0.05, norm weights 1 ± 0.1.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    auto = AutoModelForSeq2SeqLM if family == "t5" else AutoModelForCausalLM
    build: Callable[..., PreTrainedModel] = auto.from_config
    with torch.random.fork_rng(devices=[]):  # building draws weights that are then overwritten
        model = build(_config(family), dtype=torch.float32)
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(0.1 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.05 * noise)
            else:
                parameter.copy_(1 + 0.1 * noise)
    model.train(False)
    return model


def tiny_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Train the byte-level BPE tokenizer of `family` on a few sentences: at most 320 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokens = _TOKENS[family]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB_SIZE,
        special_tokens=list(tokens.special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    before = f"{tokens.bos} " if tokens.adds_begin else ""
    after = f" {tokens.eos}" if tokens.adds_end else ""
    if before or after:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{before}$A{after}",
            pair=f"{before}$A{after} {before}$B{after}",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in tokens.special],
        )
    wrap: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast
    return wrap(
        tokenizer_object=tokenizer,
        bos_token=tokens.bos,
        eos_token=tokens.eos,
        pad_token=tokens.pad,
        chat_template=_CHATML_TEMPLATE if family == "qwen2" else _CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=_CONTEXT,
    )


def _config(family: str) -> PreTrainedConfig:
    """Return the configuration of the tiny model of `family`."""
    from transformers import AutoConfig

    tokens = _TOKENS[family]
    ids = {
        "vocab_size": _VOCAB_SIZE,
        "bos_token_id": tokens.special.index(tokens.bos) if tokens.bos else None,
        "eos_token_id": tokens.special.index(tokens.eos),
        "pad_token_id": tokens.special.index(tokens.pad) if tokens.pad else None,
    }
    return AutoConfig.for_model(_MODEL_TYPES.get(family, family), **ids, **_SHAPES[family])
