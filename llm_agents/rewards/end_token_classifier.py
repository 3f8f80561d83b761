"""A GPT-2 classifier of dialogues that is read at the last end token, as ToxiChat's."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Model, GPT2PreTrainedModel

from llm_agents.errors import UserError
from llm_agents.policies.model_digest import text_model_version

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
_NUM_LABELS = 2
_BODY_MARK = "wte.weight"
_BODY_PARTS = ("wte.", "wpe.", "h.", "ln_f.")
_BUFFERS = (".attn.bias", ".attn.masked_bias")


class EndTokenClassifier(GPT2PreTrainedModel):  # type: ignore[no-untyped-call]  # transformers
    """GPT-2 with a linear layer on the state of the row's last end token.

        logits = W · h[last end token] + b

    Args:
        config: Sizes and the end token's id; there are two labels.
    """

    config_class = GPT2Config

    def __init__(self, config: GPT2Config) -> None:
        super().__init__(config)
        self.transformer = GPT2Model(config)
        self.dropout = nn.Dropout(config.embd_pdrop)
        self.classifier = nn.Linear(config.n_embd, _NUM_LABELS)
        self.post_init()  # type: ignore[no-untyped-call]  # transformers

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        **kwargs: Any,  # noqa: ANN401  # passed to the body as they are
    ) -> SequenceClassifierOutput:
        """Return ``[B, labels]`` logits.

        Args:
            input_ids: ``[B, T]`` int64, padded on the right.
            attention_mask: ``[B, T]``, 1 = real token; all are if it is left out.
            kwargs: Passed to the body.

        Raises:
            ValueError: A row has no end token.
        """
        kwargs.pop("token_type_ids", None)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        hidden = self.transformer(
            input_ids, attention_mask=mask, use_cache=False, **kwargs
        ).last_hidden_state
        is_end = (input_ids == self.config.eos_token_id) & mask.bool()
        if not bool(is_end.any(1).all()):
            raise ValueError("expected an end token in every row of a classifier that reads it")
        steps = torch.arange(input_ids.shape[1], device=input_ids.device)
        last = steps.masked_fill(~is_end, -1).amax(1)
        state = hidden[torch.arange(len(hidden), device=hidden.device), last]
        return SequenceClassifierOutput(logits=self.classifier(self.dropout(state)))


def load_end_token_classifier(
    folder: str, *, pickled_weights: bool, dtype: str
) -> tuple[EndTokenClassifier, PreTrainedTokenizerBase, str]:
    """Load a classifier from a folder, whatever its author called the parts.

    The body is found by the name of GPT-2's embedding, the head as the one matrix of two rows.

    Args:
        folder: Holds the weights, ``config.json`` and a tokenizer.
        pickled_weights: Allow ``pytorch_model.bin``; torch reads it without running code in it.
        dtype: Type of the weights.

    Returns:
        The model, its tokenizer, and a digest of both.

    Raises:
        UserError: A file is missing, or the weights are another model's.
    """
    from transformers import AutoTokenizer

    path = Path(folder).expanduser()
    file = next((path / name for name in WEIGHT_FILES if (path / name).is_file()), None)
    if file is None:
        raise UserError(
            f"found none of {', '.join(WEIGHT_FILES)} in `{folder}`: download the ToxiChat "
            "DialoGPT classifier and give its folder"
        )
    if file.suffix == ".bin" and not pickled_weights:
        raise UserError(f"the weights in `{folder}` are a pickle only: set `pickled_weights`")
    weights = _read(file)
    try:
        config = GPT2Config.from_pretrained(path, num_labels=_NUM_LABELS)
        tokenizer = AutoTokenizer.from_pretrained(path)
    except OSError as error:
        raise UserError(f"cannot read `{folder}`: {str(error).splitlines()[0]}") from error
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer in `{folder}` has no end token, which the classifier reads")
    config.eos_token_id = int(tokenizer.eos_token_id)
    model = EndTokenClassifier(config)
    found = _renamed(weights, folder)
    missing, unexpected = model.load_state_dict(found, strict=False)
    if missing or unexpected:
        raise UserError(
            f"the weights in `{folder}` are not a GPT-2 classifier's: missing "
            f"{', '.join(sorted(missing)[:3]) or 'none'}, unknown "
            f"{', '.join(sorted(unexpected)[:3]) or 'none'}"
        )
    nn.Module.to(model, getattr(torch, dtype))
    return model, tokenizer, text_model_version(model, tokenizer)


def _read(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a file."""
    if file.suffix == ".bin":
        loaded = torch.load(file, map_location="cpu", weights_only=True)
        return {key: value for key, value in loaded.items() if isinstance(value, Tensor)}
    from safetensors.torch import load_file

    return dict(load_file(file))


def _renamed(weights: dict[str, Tensor], folder: str) -> dict[str, Tensor]:
    """Return the body's and the head's tensors under our names."""
    marks = [key for key in weights if key.endswith(_BODY_MARK)]
    heads = [
        key.removesuffix("weight")
        for key, value in weights.items()
        if key.endswith("weight") and value.dim() == 2 and value.shape[0] == 2
    ]
    if len(marks) != 1 or len(heads) != 1 or f"{heads[0]}bias" not in weights:
        raise UserError(
            f"expected GPT-2 and one linear layer of two labels in `{folder}`, found "
            f"{len(marks)} embeddings and {len(heads)} such layers"
        )
    prefix, head = marks[0].removesuffix(_BODY_MARK), heads[0]
    found = {
        "classifier.weight": weights[f"{head}weight"],
        "classifier.bias": weights[f"{head}bias"],
    }
    left = []
    for key, value in weights.items():
        if key.startswith(head) or key.endswith(_BUFFERS):
            continue
        inner = key.removeprefix(prefix)
        if key.startswith(prefix) and inner.startswith(_BODY_PARTS):
            found[f"transformer.{inner}"] = value
        else:
            left.append(key)
    if left:
        log.info("%s: %s not used", folder, ", ".join(sorted(left)))
    return found
