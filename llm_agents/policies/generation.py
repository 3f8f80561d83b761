"""Responses from prompts: greedy, sampled, or by beam search.

A prompt's response does not depend on what else is in its batch: padding is masked and positions
are given, and a sampled prompt has random numbers of its own, drawn before anything is batched.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.types import GenerationConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Vocabulary:
    """What generation must know of the tokens.

    Args:
        end_ids: Tokens that end a response.
        decode: From ids to text, blanks kept, special tokens left out.
        context_length: Tokens that a row may have; None if there is no bound.
    """

    end_ids: frozenset[int]
    decode: Decode
    context_length: int | None


def generate(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    vocabulary: Vocabulary,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
    keep_stop: bool = False,
) -> list[list[int]]:
    """Return the ids of a response to each prompt, its end token included where there is one.

    Args:
        model: Model with its output head, in eval mode.
        prompts: Ids of N prompts, none empty.
        config: How to generate.
        vocabulary: End tokens, decoding, window.
        generator: Source of the random numbers of sampling, or one for each prompt; torch's global
            one if None.
        keep_stop: Leave in what was decided: all ids up to the one that completed a stop string.

    Returns:
        N lists of ids. A stop string and what follows it is not in them, unless `keep_stop`.
    """
    check_generation(config)
    _check_prompts(prompts, vocabulary.context_length, bool(model.config.is_encoder_decoder))
    uniforms: Tensor | None = None
    if config.temperature > 0:
        uniforms = _random_numbers((len(prompts), config.max_new_tokens), generator)
    order = sorted(range(len(prompts)), key=lambda row: -len(prompts[row]))
    responses: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(order), config.batch_size):
        chosen = order[start : start + config.batch_size]
        batch = [list(prompts[row]) for row in chosen]
        if config.num_beams > 1:
            made = _beam_search(model, batch, config, vocabulary)
        else:
            numbers = None if uniforms is None else uniforms[chosen]
            made = _decode_batch(model, batch, config, vocabulary, numbers)
        for row, ids in zip(chosen, made, strict=True):
            responses[row] = ids if keep_stop else cut(ids, config.stop_strings, vocabulary)
    return responses


def _random_numbers(
    shape: tuple[int, int], generator: torch.Generator | Sequence[torch.Generator] | None
) -> Tensor:
    """Return float64 numbers in [0, 1), a row a prompt."""
    if isinstance(generator, Sequence):
        if len(generator) != shape[0]:
            raise ValueError(f"expected {shape[0]} generators, one a prompt, got {len(generator)}")
        return torch.cat([_random_numbers((1, shape[1]), one) for one in generator])
    device = "cpu" if generator is None else generator.device
    return torch.rand(shape, generator=generator, device=device, dtype=torch.float64)


def check_generation(config: GenerationConfig) -> None:
    """Raise a `UserError` for settings that contradict each other or lie out of range."""
    faults = {
        "max_new_tokens": (config.max_new_tokens >= 1, "at least 1"),
        "temperature": (config.temperature >= 0, "at least 0 (0 is greedy)"),
        "top_p": (0 < config.top_p <= 1, "in (0, 1]"),
        "top_k": (config.top_k >= 0, "at least 0 (0 keeps all)"),
        "num_beams": (config.num_beams >= 1, "at least 1"),
        "repetition_penalty": (config.repetition_penalty > 0, "above 0 (1 is none)"),
        "batch_size": (config.batch_size >= 1, "at least 1"),
        "stop_strings": (all(config.stop_strings), "without empty strings"),
    }
    for name, (is_right, expected) in faults.items():
        if not is_right:
            raise UserError(f"expected `{name}` {expected}, got {getattr(config, name)!r}")
    if config.num_beams > 1 and config.temperature > 0:
        raise UserError(
            "beam search does not sample: set `temperature: 0`, or `num_beams: 1` to sample"
        )


def _check_prompts(
    prompts: Sequence[Sequence[int]], context_length: int | None, has_encoder: bool
) -> None:
    """Raise for an empty prompt, or one that leaves no room for a token."""
    for row, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"expected at least one token in each prompt, prompt {row} has none")
        room = None if context_length is None else context_length - len(prompt)
        if room is not None and room < (0 if has_encoder else 1):
            raise UserError(
                f"prompt {row} has {len(prompt)} tokens and the model's window {context_length}: "
                "lower `max_prompt_tokens`"
            )


def _decode_batch(
    model: PreTrainedModel,
    prompts: list[list[int]],
    config: GenerationConfig,
    vocabulary: Vocabulary,
    uniforms: Tensor | None,
) -> list[list[int]]:
    """Decode token by token; rows that have ended leave the batch."""
    stepper = _Stepper(model, prompts)
    has_encoder = bool(model.config.is_encoder_decoder)
    tail = max((len(text.encode()) for text in config.stop_strings), default=0) + 1
    tokens: list[list[int]] = [[] for _ in prompts]
    active = list(range(len(prompts)))
    logits = stepper.prefill()
    seen = _seen_tokens(prompts, logits, config, has_encoder)
    for step in range(config.max_new_tokens):
        numbers = None if uniforms is None else uniforms[active, step].to(logits.device)
        chosen = choose_tokens(logits, config, seen, numbers)
        if seen is not None:
            seen.scatter_(1, chosen[:, None], True)
        keep = []
        for place, (row, token) in enumerate(zip(active, chosen.tolist(), strict=True)):
            tokens[row].append(token)
            length = len(tokens[row]) + (0 if has_encoder else len(prompts[row]))
            is_full = vocabulary.context_length is not None and length >= vocabulary.context_length
            if token in vocabulary.end_ids or is_full:
                continue
            if tail > 1 and _has_stop(tokens[row][-tail:], config.stop_strings, vocabulary):
                continue
            keep.append(place)
        if not keep or step + 1 == config.max_new_tokens:
            break
        if len(keep) < len(active):
            index = torch.tensor(keep, device=logits.device)
            active, chosen = [active[place] for place in keep], chosen[index]
            stepper.keep(index)
            seen = None if seen is None else seen[index]
        logits = stepper.step(chosen)
    return tokens


def choose_tokens(
    logits: Tensor, config: GenerationConfig, seen: Tensor | None, uniforms: Tensor | None
) -> Tensor:
    """Return one token a row.

    Args:
        logits: ``[B, V]``.
        config: Temperature, top-k, top-p and repetition penalty.
        seen: ``[B, V]`` bool, True = token occurred; None without a penalty.
        uniforms: ``[B]`` float64 in [0, 1): where in the distribution a row's token is taken;
            None is greedy.

    Returns:
        ``[B]`` int64.
    """
    logits = logits.float()
    if seen is not None:
        penalty = config.repetition_penalty
        penalized = torch.where(logits < 0, logits * penalty, logits / penalty)
        logits = torch.where(seen, penalized, logits)
    if uniforms is None:
        return logits.argmax(-1)
    logits = logits / config.temperature
    if 0 < config.top_k < logits.shape[-1]:
        least = logits.topk(config.top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if config.top_p < 1:
        ordered, order = logits.sort(descending=True, stable=True)
        probabilities = ordered.double().softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        outside = torch.zeros_like(logits, dtype=torch.bool)
        logits = logits.masked_fill(outside.scatter(1, order, before >= config.top_p), -torch.inf)
    cumulative = logits.double().softmax(-1).cumsum(-1)
    targets = uniforms[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    return tokens.clamp(max=logits.shape[-1] - 1)


def _seen_tokens(
    prompts: list[list[int]], logits: Tensor, config: GenerationConfig, has_encoder: bool
) -> Tensor | None:
    """Return ``[B, V]`` bool, True = the token is in the prompt; None without a penalty."""
    if config.repetition_penalty == 1:
        return None
    seen = torch.zeros_like(logits, dtype=torch.bool)
    if not has_encoder:
        for row, prompt in enumerate(prompts):
            seen[row, torch.tensor(prompt, device=logits.device)] = True
    return seen


def _has_stop(ids: list[int], stop_strings: tuple[str, ...], vocabulary: Vocabulary) -> bool:
    """Tell whether the text of the last ids holds a stop string."""
    text = vocabulary.decode(ids)
    return any(stop in text for stop in stop_strings)


def cut(ids: list[int], stop_strings: tuple[str, ...], vocabulary: Vocabulary) -> list[int]:
    """Return `ids` up to the end token, or up to the last token before a stop string begins."""
    end = next((i + 1 for i, token in enumerate(ids) if token in vocabulary.end_ids), len(ids))
    ids = ids[:end]
    text = vocabulary.decode(ids)
    found = [place for stop in stop_strings if (place := text.find(stop)) >= 0]
    if not found:
        return ids
    low, high = 0, len(ids)  # the longest prefix whose text ends before the stop string
    while low < high:
        middle = (low + high + 1) // 2
        if len(vocabulary.decode(ids[:middle])) <= min(found):
            low = middle
        else:
            high = middle - 1
    return ids[:low]


class _Stepper:
    """Runs a model over left-padded prompts and then one token a row at a time.

    Args:
        model: Causal or encoder-decoder model.
        prompts: Ids of each prompt.
    """

    def __init__(self, model: PreTrainedModel, prompts: list[list[int]]) -> None:
        from transformers import DynamicCache, EncoderDecoderCache

        self.model = model
        parameters = inspect.signature(model.forward).parameters
        self.cache_name = "cache" if "cache" in parameters else "past_key_values"
        self.keeps_last = "logits_to_keep" in parameters
        self.takes_positions = "position_ids" in parameters
        device = next(model.parameters()).device
        self.ids, self.mask = left_padded(prompts, device)
        self.is_padded = not bool(self.mask.all())
        self.positions = (self.mask.long().cumsum(1) - 1).clamp(min=0)
        self.encoder_outputs: Any = None
        self.cache: Any
        if model.config.is_encoder_decoder:
            self.cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        else:  # the configuration says which layers see a window only
            self.cache = DynamicCache(config=model.config)

    def prefill(self) -> Tensor:
        """Return ``[B, V]`` logits of the first response token."""
        if not self.model.config.is_encoder_decoder:
            return self._causal(self.ids, self.positions)
        encoder = self.model.get_encoder()
        self.encoder_outputs = encoder(input_ids=self.ids, attention_mask=self._attention())
        return self._decoder(self.ids.new_full((len(self.ids), 1), decoder_start_id(self.model)))

    def step(self, tokens: Tensor) -> Tensor:
        """Return ``[B, V]`` logits after one more token (``[B]``) of each row."""
        if self.model.config.is_encoder_decoder:
            return self._decoder(tokens[:, None])
        self.mask = torch.cat((self.mask, self.mask.new_ones(len(tokens), 1)), 1)
        self.positions = self.positions[:, -1:] + 1
        return self._causal(tokens[:, None], self.positions)

    def keep(self, index: Tensor) -> None:
        """Drop all rows but `index`."""
        self.mask, self.positions = self.mask[index], self.positions[index]
        self.cache.batch_select_indices(index)
        if self.encoder_outputs is not None:
            states = self.encoder_outputs.last_hidden_state[index]
            self.encoder_outputs = type(self.encoder_outputs)(last_hidden_state=states)

    def _attention(self) -> Tensor | None:
        """Return the mask, or None while no row has padding."""
        return self.mask.long() if self.is_padded else None

    def _causal(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Run a causal model on the newest ids."""
        arguments: dict[str, Any] = {self.cache_name: self.cache}
        if self.keeps_last:
            arguments["logits_to_keep"] = 1
        if self.takes_positions:
            arguments["position_ids"] = positions
        output = self.model(
            input_ids=ids, attention_mask=self._attention(), use_cache=True, **arguments
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _decoder(self, ids: Tensor) -> Tensor:
        """Run the decoder on the newest ids."""
        output = self.model(
            encoder_outputs=self.encoder_outputs,
            attention_mask=self._attention(),
            decoder_input_ids=ids,
            use_cache=True,
            **{self.cache_name: self.cache},
        )
        logits: Tensor = output.logits[:, -1]
        return logits


def decoder_start_id(model: PreTrainedModel) -> int:
    """Return the token that a decoder begins with."""
    start = model.config.decoder_start_token_id
    if start is None:
        raise UserError(
            f"{type(model).__name__} has no `decoder_start_token_id` in its config.json"
        )
    return int(start)


def left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ``[B, P]`` ids and mask of prompts padded on the left with 0."""
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.int64)
    mask = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = True
    return ids.to(device), mask.to(device)


def _beam_search(
    model: PreTrainedModel,
    prompts: list[list[int]],
    config: GenerationConfig,
    vocabulary: Vocabulary,
) -> list[list[int]]:
    """Run transformers' beam search."""
    import transformers

    ids, mask = left_padded(prompts, next(model.parameters()).device)
    # transformers 5.20 penalizes what padding holds, 5.24 does not: let it be of the prompt.
    ids = torch.where(mask, ids, ids[:, -1:])
    ends = sorted(vocabulary.end_ids)
    has_encoder = bool(model.config.is_encoder_decoder)
    room = config.max_new_tokens
    if vocabulary.context_length is not None and not has_encoder:
        room = min(room, vocabulary.context_length - ids.shape[1])
    make: Any = transformers.GenerationConfig
    settings = make(
        max_new_tokens=room,
        num_beams=config.num_beams,
        do_sample=False,
        repetition_penalty=config.repetition_penalty,
        eos_token_id=ends,
        pad_token_id=ends[0],
        length_penalty=1.0,
        no_repeat_ngram_size=0,
        early_stopping=False,
        decoder_start_token_id=decoder_start_id(model) if has_encoder else None,
    )
    beam_search: Any = model.generate
    with _without_own_settings(model):
        output = beam_search(input_ids=ids, attention_mask=mask.long(), generation_config=settings)
    start = 1 if has_encoder else ids.shape[1]
    return [row[start:] for row in output.tolist()]


@contextmanager
def _without_own_settings(model: PreTrainedModel) -> Iterator[None]:
    """Set aside what a model's generation_config.json says, which fills in all that isn't given."""
    import transformers

    make: Any = transformers.GenerationConfig
    own, model.generation_config = model.generation_config, make()
    try:
        yield
    finally:
        model.generation_config = own
