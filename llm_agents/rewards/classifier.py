"""Any sequence classifier of transformers as a reward: label, activation, scale, text format."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor, nn

from llm_agents.errors import UserError
from llm_agents.messages import quietly, say_once
from llm_agents.policies.adapter_files import WEIGHTS_FILE, locate_adapter
from llm_agents.policies.backbone import adapter_config, apply_adapter
from llm_agents.policies.bundled import resolve_base
from llm_agents.policies.chat_format import write_chat
from llm_agents.policies.model_digest import text_model_version
from llm_agents.rewards.dialogue import take_apart
from llm_agents.rewards.scores import batches_by_length, check_pairs, check_scores
from llm_agents.types import Prompt, Reward, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)
Activation = Literal["softmax", "sigmoid", "none"]
_HEAD = re.compile(r"(^|\.)(score|classifier|out_proj|classification_head\.\w+)\.weight$")
"""The last layer of a classifier, which has a row for each label."""


@dataclass(frozen=True)
class TextFormat:
    """What a classifier reads.

    Fields in braces are filled in: ``{prompt}`` the dialogue, ``{last}`` the text of its last turn,
    ``{response}``, ``{eos}`` the tokenizer's end token, and ``{text}`` within a turn. Of a dialogue
    that begins with ``Knowledge: …``, ``{knowledge}`` is that text and ``{history}`` the turns
    without it and without a system turn.

    Args:
        text: The text; ``chat`` writes the dialogue and the response with the tokenizer's own chat
            template.
        text_pair: Second text of a classifier of pairs, as of (prompt, response); None for
            one text.
        user: How a turn of the user is written within ``{prompt}`` and ``{history}``.
        assistant: How a turn of the assistant is written.
        system: How a system turn is written.
        separator: Between turns.

    Example:
        >>> TextFormat(text="{prompt}{eos}{response}").fill(
        ...     "{prompt}{eos}{response}", {"prompt": "Hi", "eos": "</s>", "response": "{Hello}"})
        'Hi</s>{Hello}'
    """

    text: str = "{prompt}\n{response}"
    text_pair: str | None = None
    user: str = "{text}"
    assistant: str = "{text}"
    system: str = "{text}"
    separator: str = "\n"

    def __post_init__(self) -> None:
        allowed = {"prompt", "last", "response", "eos", "knowledge", "history"}
        for name in ("text", "text_pair"):
            value = getattr(self, name)
            if value is not None:
                self._check(name, value, allowed)
        for name in ("user", "assistant", "system"):
            self._check(name, getattr(self, name), {"text", "eos"})
        both = self.text + (self.text_pair or "")
        if self.text != "chat" and "{response}" not in both:
            raise UserError(
                "expected `{response}` in the text format's `text` or `text_pair`, got "
                f"{self.text!r} and {self.text_pair!r}: the reward would not read the answer"
            )
        if both.count("{response}") > 1:
            raise UserError("the text format has `{response}` more than once: leave one out")
        if self.text == "chat" and self.text_pair is not None:
            raise UserError("the text format `chat` is one text: leave `text_pair` out")

    @staticmethod
    def _check(name: str, template: str, allowed: set[str]) -> None:
        """Raise if a template has a field that nothing fills."""
        fields = {field for _, field, _, _ in Formatter().parse(template) if field is not None}
        if fields - allowed:
            raise UserError(
                f"expected the fields {sorted(allowed)} in the text format's `{name}`, got "
                f"{sorted(fields - allowed)}"
            )

    @staticmethod
    def fill(template: str, values: dict[str, str]) -> str:
        """Fill in a template; braces in the values stay as they are."""
        return "".join(
            literal + ("" if field is None else values[field])
            for literal, field, _, _ in Formatter().parse(template)
        )

    def render(
        self, prompt: Prompt, response: str, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[str, str | None]:
        """Return the text and the second text, if there is one."""
        if self.text == "chat":
            turns = (*prompt, Turn("assistant", response))
            return write_chat(tokenizer, turns, generation_prompt=False), None
        eos = tokenizer.eos_token or ""
        values = {
            "prompt": self._written(prompt, eos),
            "last": prompt[-1].text if prompt else "",
            "response": response,
            "eos": eos,
        }
        both = self.text + (self.text_pair or "")
        if "{history}" in both or "{knowledge}" in both:
            knowledge, history = take_apart(prompt)
            if knowledge is None and "{knowledge}" in both:
                raise UserError(
                    "expected a prompt that begins with `Knowledge: …`, which the reward compares "
                    f"the response with, got {values['prompt'][:60]!r}"
                )
            values["knowledge"], values["history"] = knowledge or "", self._written(history, eos)
        second = None if self.text_pair is None else self.fill(self.text_pair, values)
        return self.fill(self.text, values), second

    def _written(self, turns: Prompt, eos: str) -> str:
        """Return turns as this format writes them."""
        return self.separator.join(
            self.fill(getattr(self, turn.role), {"text": turn.text, "eos": eos}) for turn in turns
        )


class ClassifierReward(Reward):
    """A sequence classifier as a judge of text.

        score = scale · activation(logits)[label] + offset

    Args:
        model: A model with ``logits`` of shape ``[B, labels]``.
        tokenizer: Its tokenizer.
        name: Name in logs and tables.
        version: Changes whenever the scores may change.
        label: Name or index of the label whose score counts; may be left out with one label.
        activation: ``softmax`` over the labels, ``sigmoid`` of the label's logit, or ``none``.
        scale: Multiplies the activated logit.
        offset: Is added to it.
        format: What the classifier reads.
        batch_size: Texts a pass; the scores do not depend on it.
        max_tokens: Longer texts are cut; the model's own limit by default.
        truncation: Side that a long text loses: dialogues keep their end with ``left``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str,
        version: str,
        label: str | int | None = None,
        activation: Activation = "softmax",
        scale: float = 1.0,
        offset: float = 0.0,
        format: TextFormat | None = None,  # the word that a recipe's reader expects
        batch_size: int = 16,
        max_tokens: int | None = None,
        truncation: Literal["left", "right"] = "left",
    ) -> None:
        if batch_size < 1:
            raise UserError(f"expected batch_size of at least 1, got {batch_size}")
        self.model, self.tokenizer = model.train(mode=False), tokenizer
        self.label = find_label(model, label, name)
        if activation == "softmax" and model.config.num_labels == 1:
            raise UserError(
                f"`{name}` has one label, whose softmax is always 1: set `activation` to sigmoid "
                "or none"
            )
        self.activation, self.scale, self.offset = activation, float(scale), float(offset)
        self.format = format or TextFormat()
        self.batch_size, self.truncation = batch_size, truncation
        self.max_tokens = max_tokens or token_limit(model, tokenizer)
        self.name = name
        setting = (self.label, activation, self.scale, self.offset, self.format)
        self.version = f"{version}:{self.max_tokens}:{truncation}:{setting}"
        ends = (0.0, 1.0) if activation != "none" else (-torch.inf, torch.inf)
        low, high = sorted(self.scale * end + self.offset for end in ends)
        self.low, self.high = low, high

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        *,
        name: str | None = None,
        revision: str | None = None,
        pickled_weights: bool = False,
        label: str | int | None = None,
        activation: Activation = "softmax",
        scale: float = 1.0,
        offset: float = 0.0,
        format: TextFormat | None = None,  # the word that a recipe's reader expects
        batch_size: int = 16,
        max_tokens: int | None = None,
        truncation: Literal["left", "right"] = "left",
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str | None = None,
    ) -> Self:
        """Load a classifier by Hub id or folder.

        Args:
            model: Hub id or folder.
            name: Name in logs and tables; the end of `model` by default.
            revision: Revision on the Hub.
            pickled_weights: Allow weights that are only there as a pickle; torch reads them without
                running code in them.
            label: Name or index of the label whose score counts; may be left out with one label.
            activation: ``softmax`` over the labels, ``sigmoid`` of the label's logit, or ``none``.
            scale: Multiplies the activated logit.
            offset: Is added to it.
            format: What the classifier reads.
            batch_size: Texts a pass; the scores do not depend on it.
            max_tokens: Longer texts are cut; the model's own limit by default.
            truncation: Side that a long text loses.
            dtype: Type of the weights.
            device: Where it runs; the accelerator by default, if there is one.
        """
        loaded, tokenizer = load_classifier(
            model, revision=revision, pickled_weights=pickled_weights, dtype=dtype
        )
        commit = getattr(loaded.config, "_commit_hash", None)
        version = f"{commit}:{dtype}" if commit else text_model_version(loaded, tokenizer)
        target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        nn.Module.to(loaded, target)
        return cls(
            loaded,
            tokenizer,
            name=name or model.rstrip("/").rpartition("/")[2],
            version=version,
            label=label,
            activation=activation,
            scale=scale,
            offset=offset,
            format=format,
            batch_size=batch_size,
            max_tokens=max_tokens,
            truncation=truncation,
        )

    def logits(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        """Return ``[B, labels]`` logits, float32 on the CPU."""
        check_pairs(prompts, responses)
        encoded = [self._encode(*pair) for pair in zip(prompts, responses, strict=True)]
        logits = torch.zeros(len(encoded), self.model.config.num_labels)
        for chosen in batches_by_length([ids for ids, _ in encoded], self.batch_size):
            logits[chosen] = self._forward([encoded[row] for row in chosen])
        return logits

    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        """Return ``[B]`` scores."""
        logits = self.logits(prompts, responses)
        if self.activation == "softmax":
            logits = logits.softmax(-1)
        chosen = logits[:, self.label]
        if self.activation == "sigmoid":
            chosen = chosen.sigmoid()
        scores = self.scale * chosen + self.offset
        return check_scores(
            scores, count=len(responses), name=self.name, low=self.low, high=self.high
        )

    def _encode(self, prompt: Prompt, response: str) -> tuple[list[int], list[int]]:
        """Return a text's ids and token types, cut to `max_tokens`."""
        first, second = self.format.render(prompt, response, self.tokenizer)
        self.tokenizer.truncation_side = self.truncation
        encoded = self.tokenizer(
            first,
            second,
            truncation=True,
            max_length=self.max_tokens,
            return_token_type_ids=True,
            add_special_tokens=self.format.text != "chat",
        )
        ids = list(encoded["input_ids"])
        if not ids:  # an empty text, and a tokenizer that adds nothing to it
            ids = [self.tokenizer.eos_token_id or 0]
        return ids, (list(encoded["token_type_ids"]) or [0] * len(ids))[: len(ids)]

    @torch.no_grad()
    def _forward(self, rows: Sequence[tuple[list[int], list[int]]]) -> Tensor:
        """Return ``[b, labels]`` logits of some rows, padded on the right."""
        config = self.model.config.get_text_config()
        width = max(len(ids) for ids, _ in rows)
        pad = restore = config.pad_token_id
        ends = {tokens[-1] for tokens, _ in rows}
        if not isinstance(pad, int) or not 0 <= pad < config.vocab_size or pad in ends:
            # Decoder classifiers read the last token that is not padding, told by its id. Where the
            # model has no padding token of its own, or a row ends in it (DialogRPT's is the end
            # token, which an empty answer leaves last), one that ends no row marks the padding.
            pad = next(token for token in range(len(ends) + 1) if token not in ends)
        ids = torch.full((len(rows), width), pad, dtype=torch.int64)
        types, mask = torch.zeros_like(ids), torch.zeros_like(ids)
        for row, (tokens, kinds) in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            types[row, : len(tokens)] = torch.tensor(kinds)
            mask[row, : len(tokens)] = 1
        given = {"input_ids": ids, "attention_mask": mask}
        if getattr(config, "type_vocab_size", 0) > 1:
            given["token_type_ids"] = types
        config.pad_token_id = pad
        try:
            output = self.model(
                **{key: value.to(self.model.device) for key, value in given.items()}
            )
        finally:
            config.pad_token_id = restore
        return output.logits.reshape(len(rows), self.model.config.num_labels).float().cpu()  # type: ignore[no-any-return]  # transformers is untyped here


def find_label(model: PreTrainedModel, label: str | int | None, name: str) -> int:
    """Return the index of a classifier's label, given by name or index."""
    names = model.config.id2label or {}
    labels = {int(index): str(text) for index, text in names.items()}
    known = ", ".join(f"{index} = {text}" for index, text in sorted(labels.items()))
    if label is None:
        if len(labels) != 1:
            raise UserError(f"`{name}` has the labels {known}: say which one counts, in `label`")
        return next(iter(labels))
    if isinstance(label, int):
        if label not in labels:
            raise UserError(f"`{name}` has no label {label}; it has {known}")
        return label
    matches = [index for index, text in labels.items() if text.lower() == label.lower()]
    if len(matches) != 1:
        raise UserError(f"`{name}` has {len(matches)} labels called `{label}`; it has {known}")
    return matches[0]


def token_limit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return how many tokens a classifier reads at most."""
    limits = [limit for limit in (tokenizer.model_max_length,) if limit < 10**9]
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        # RoBERTa's kind count positions from pad + 1.
        first = (model.config.pad_token_id or 0) + 1 if "roberta" in model.config.model_type else 0
        limits.append(positions - first)
    return min(limits, default=512)


def load_classifier(
    model: str, *, revision: str | None, pickled_weights: bool, dtype: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a sequence classifier and its tokenizer, remote code off."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from llm_agents.rewards import hha

    hha.register()
    adapter = _adapter_of(model, revision)
    if adapter is not None:
        return _load_adapted(model, adapter, pickled_weights=pickled_weights, dtype=dtype)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, revision=revision)
        say_once(log, "loading the classifier %s", model)
        with quietly(is_checked=True):
            loaded, report = AutoModelForSequenceClassification.from_pretrained(
                model,
                revision=revision,
                dtype=getattr(torch, dtype),
                use_safetensors=None if pickled_weights else True,
                output_loading_info=True,
            )
    except OSError as error:
        pickled = " (a pickle only: set `pickled_weights`)" if "safetensors" in str(error) else ""
        raise UserError(
            f"cannot load the classifier `{model}`{pickled}: {str(error).splitlines()[0]}"
        ) from error
    except ValueError as error:
        raise UserError(f"`{model}` is no sequence classifier: {error}") from error
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"`{model}` has no trained weights for {', '.join(missing[:4])}: it is not a trained "
            "sequence classifier, and its scores would be random"
        )
    return loaded, tokenizer


def _adapter_of(model: str, revision: str | None) -> Path | None:
    """Return the folder of a PEFT adapter that goes by the name `model`; None if it is none."""
    from transformers.utils.peft_utils import find_adapter_config_file

    if Path(model).is_dir() and not (Path(model) / "adapter_config.json").is_file():
        return None
    try:
        found = find_adapter_config_file(model, revision=revision)
    except OSError:  # there is nothing of that name: said where the model is loaded
        return None
    return None if found is None else locate_adapter(model, revision)


def _load_adapted(
    name: str, folder: Path, *, pickled_weights: bool, dtype: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a sequence classifier that is a base with a PEFT adapter, head included.

    Raises:
        UserError: The adapter has no trained head, is of a kind that changes the input, or does not
            fit its base.
    """
    from safetensors import safe_open
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    config = adapter_config(folder)
    base = resolve_base(str(config.base_model_name_or_path or ""), config.revision).source
    with safe_open(folder / WEIGHTS_FILE, framework="pt") as file:
        shapes = {
            key.removeprefix("base_model.model."): file.get_slice(key).get_shape()
            for key in file.keys()  # noqa: SIM118  # a file handle, not a mapping
        }
    heads = [shape[0] for key, shape in shapes.items() if _HEAD.search(key) and len(shape) == 2]
    try:
        with quietly(is_checked=True):
            loaded, report = AutoModelForSequenceClassification.from_pretrained(
                base,
                dtype=getattr(torch, dtype),
                use_safetensors=None if pickled_weights else True,
                output_loading_info=True,
                **({"num_labels": heads[-1], "ignore_mismatched_sizes": True} if heads else {}),
            )
        replaced = {key for key, *_ in report["mismatched_keys"]}
        untrained = sorted((set(report["missing_keys"]) | replaced) - set(shapes))
        if untrained:
            raise UserError(
                f"the adapter `{name}` holds no trained weights for {', '.join(untrained[:4])}: it "
                "is not a trained sequence classifier, and its scores would be random. PEFT saves "
                "the head of one with `task_type: SEQ_CLS`, or `modules_to_save`"
            )
        with torch.no_grad():
            for key in set(report["missing_keys"]) | replaced:  # the adapter's take their place
                loaded.get_parameter(key).zero_()
        adapted: Any = apply_adapter(loaded, folder, config)
        has_own = (folder / "tokenizer_config.json").is_file()
        tokenizer = AutoTokenizer.from_pretrained(folder if has_own else base)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"the adapter `{name}` makes no sequence classifier of its base `{base}`: "
            f"{str(error).strip().splitlines()[0]}"
        ) from error
    return adapted.get_base_model(), tokenizer
