"""Small random models of many families, and the scores of actions one sequence at a time.

`one_by_one` is the yardstick: it uses transformers and nothing of ours but the token ids. Several
families compute softmax, norms, angles or states in float32 whatever their dtype: what is compared
in float64 is equal but for the rounding of float32 (`tests/closeness.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llm_agents.policies.action_trie import ActionTrie
from llm_agents.policies.action_types import EncodedChoice, NodeStates
from llm_agents.policies.plain_head import head_input, output_head
from llm_agents.policies.tiny import tiny_tokenizer

VOCAB = 320
WINDOW = 16

_NAMES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_WIDTH = {
    **_NAMES,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
_LLAMA = {**_WIDTH, "num_key_value_heads": 2, "intermediate_size": 128}
_HEADS = {**_LLAMA, "head_dim": 16}
_BART = {
    **_NAMES,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 512,
    "decoder_start_token_id": 2,
}
_T5 = {
    **_NAMES,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "tie_word_embeddings": False,
}

_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _LLAMA),
    "qwen2": ("qwen2", _LLAMA),
    "qwen3": ("qwen3", _HEADS),
    "gpt2": ("gpt2", {**_NAMES, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}),
    "gpt_neox": ("gpt_neox", {**_WIDTH, "intermediate_size": 128}),
    "opt": ("opt", {**_WIDTH, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    "gemma": ("gemma", _HEADS),
    "phi": ("phi", {**_WIDTH, "intermediate_size": 128}),
    "mistral": ("mistral", {**_LLAMA, "sliding_window": None}),
    "cohere": ("cohere", {**_LLAMA, "logit_scale": 0.3}),
    "granite": ("granite", {**_LLAMA, "logits_scaling": 3.0}),
    "stablelm": ("stablelm", _LLAMA),
    "mistral_window": ("mistral", {**_LLAMA, "sliding_window": WINDOW}),
    "qwen2_window": (
        "qwen2",
        {**_LLAMA, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "gemma2_window": ("gemma2", {**_HEADS, "sliding_window": WINDOW}),
    "gemma3_window": (
        "gemma3_text",
        {
            **_HEADS,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gpt_neo": (
        "gpt_neo",
        {
            **_WIDTH,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
            "intermediate_size": 128,
        },
    ),
    "gpt_neo_global": (
        "gpt_neo",
        {
            **_WIDTH,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global"], 2]],
            "intermediate_size": 128,
        },
    ),
    "bloom": ("bloom", {**_WIDTH, "n_layer": 2, "n_head": 4}),
    "mpt": ("mpt", {**_NAMES, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 512}),
    "falcon_alibi": ("falcon", {**_WIDTH, "alibi": True, "new_decoder_architecture": False}),
    "mamba": ("mamba", {**_NAMES, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}),
    "bart": ("bart", _BART),
    "t5": ("t5", _T5),
    "t5_tied": ("t5", {**_T5, "tie_word_embeddings": True}),
    "mt5": ("mt5", _T5),
    "umt5": ("umt5", _T5),
}

TREE = (
    "llama",
    "qwen2",
    "qwen3",
    "gpt2",
    "gpt_neox",
    "opt",
    "gemma",
    "phi",
    "mistral",
    "cohere",
    "granite",
)
WINDOWED = ("mistral_window", "qwen2_window", "gemma2_window", "gemma3_window", "gpt_neo")
EXPAND = ("stablelm", "bloom", "mpt", "falcon_alibi", *WINDOWED)
ENCODER_DECODER = ("t5", "t5_tied", "mt5", "umt5", "bart")


def build(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return the random model of a family, in eval mode, with weights that show in the scores."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind, settings = _SETTINGS[family]
    config = AutoConfig.for_model(kind, **copy.deepcopy(settings))
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    make: Callable[..., Any] = auto.from_config
    model = make(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(0.1 * noise)
            else:
                parameter.copy_(0.05 * noise + (0 if name.endswith("bias") else 1))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(generator=generator)
    return model.to(dtype).eval()


def write(family: str, folder: Path, tokenizer: str = "llama") -> str:
    """Write the model of a family with a tokenizer that fits, and return the folder."""
    build(family).save_pretrained(folder)
    tiny_tokenizer(tokenizer).save_pretrained(folder)
    return str(folder)


def random_choices(seed: int, number: int, longest: int = 40) -> list[EncodedChoice]:
    """Return choices of several lengths; some share the beginning of prompts, most of actions."""
    generator = torch.Generator().manual_seed(seed)

    def ids(low: int, high: int, below: int = VOCAB) -> tuple[int, ...]:
        size = int(torch.randint(low, high + 1, (), generator=generator))
        return tuple(torch.randint(3, below, (size,), generator=generator).tolist())

    common = ids(longest // 2, longest // 2)
    choices = []
    for place in range(number):
        prompt = (common if place % 2 else ()) + ids(1, longest - longest // 2)
        # Few different tokens, so that actions begin alike.
        actions = tuple(dict.fromkeys(ids(1, 5, below=6) for _ in range(3 + place % 4)))
        choices.append(EncodedChoice(prompt, actions, (1,) * len(actions)))
    return choices


def tries_of(choices: Sequence[EncodedChoice]) -> list[ActionTrie]:
    return [ActionTrie.build(choice.action_ids) for choice in choices]


def one_by_one(model: Any, choices: Sequence[EncodedChoice]) -> list[Tensor]:
    """Return each choice's action log-probs, one unpadded sequence after another."""
    return [
        torch.stack([_log_prob(model, choice.prompt_ids, ids) for ids in choice.action_ids])
        for choice in choices
    ]


def _log_prob(model: Any, prompt: Sequence[int], action: Sequence[int]) -> Tensor:
    target = torch.tensor(action)
    if model.config.is_encoder_decoder:
        start = model.config.decoder_start_token_id
        logits = model(
            input_ids=torch.tensor([prompt]),
            decoder_input_ids=torch.tensor([[start, *action[:-1]]]),
            use_cache=False,
        ).logits[0]
    else:
        ids = torch.tensor([[*prompt, *action[:-1]]])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :]
    log_probs = logits.log_softmax(-1)
    return log_probs[torch.arange(len(target)), target].sum()


def scores_of(model: Any, found: NodeStates, choices: Sequence[EncodedChoice]) -> list[Tensor]:
    """Return each choice's action log-probs from node states."""
    logits = found.logits
    if logits is None:
        logits = output_head(model)(head_input(model, found.states))
    log_probs = logits - logits.logsumexp(-1, keepdim=True)
    scores, start = [], 0
    for trie, count in zip(tries_of(choices), found.counts, strict=True):
        edges = log_probs[start + torch.tensor(trie.edge_nodes), torch.tensor(trie.edge_tokens)]
        empty = edges.new_zeros(trie.edge_actions[-1] + 1)
        scores.append(empty.index_add(0, torch.tensor(trie.edge_actions), edges))
        start += count
    return scores


def largest_difference(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    pairs = zip(first, second, strict=True)
    return max(float((a.double() - b.double()).detach().abs().max()) for a, b in pairs)


def gradients_of(model: Any, scores: Sequence[Tensor]) -> Tensor:
    """Return the gradient, as one vector, of a loss to which every action of a list counts."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    loss = sum((part.softmax(0) ** 2).sum() + part.mean() for part in scores)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(found, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])


def relative_difference(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())
