"""OpenAssistant's GPT-NeoX reward models, which A-LoL's HHA task is scored with.

Stock transformers does not know their class: it is written and registered here, so that
``AutoModelForSequenceClassification.from_pretrained("OpenAssistant/oasst-rm-2.1-pythia-1.4b-epoch-2.5")``
works once this module is imported.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.gpt_neox.configuration_gpt_neox import GPTNeoXConfig
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXModel, GPTNeoXPreTrainedModel

from llm_agents.rewards.classifier import ClassifierReward, TextFormat

MODEL_TYPE = "gpt_neox_reward_model"
TRAINING_MODEL = "OpenAssistant/oasst-rm-2.1-pythia-1.4b-epoch-2.5"

OASST_FORMAT = TextFormat(
    text="{prompt}<|assistant|>{response}{eos}",
    user="<|prompter|>{text}{eos}",
    assistant="<|assistant|>{text}{eos}",
    system="<|system|>{text}{eos}",
    separator="",
)


class GPTNeoXRewardConfig(GPTNeoXConfig):  # type: ignore[no-untyped-call]  # transformers
    """GPT-NeoX's configuration, and where the reward is read.

    Args:
        pooling: ``last`` reads the last attended token, ``mean`` the mean over attended tokens.
    """

    model_type = MODEL_TYPE
    pooling: str | None = "last"

    def __post_init__(self, **kwargs: Any) -> None:  # noqa: ANN401  # transformers' own signature
        """Check the pooling, and report one output."""
        self.pooling = self.pooling or "last"  # null in configurations of old releases
        if self.pooling not in ("last", "mean"):
            raise ValueError(f"expected pooling last or mean, got {self.pooling!r}")
        kwargs["num_labels"] = 1
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]  # transformers


class GPTNeoXRewardModel(GPTNeoXPreTrainedModel):  # type: ignore[no-untyped-call]  # transformers
    """A GPT-NeoX body with one linear output.

        reward = out_proj(h[last])   or   out_proj(mean(h[attended]))

    Args:
        config: Sizes and pooling.
    """

    config_class = GPTNeoXRewardConfig

    def __init__(self, config: GPTNeoXRewardConfig) -> None:
        super().__init__(config)
        self.gpt_neox = GPTNeoXModel(config)
        self.out_proj = nn.Linear(config.hidden_size, 1)
        self.pooling = str(config.pooling)
        self.post_init()  # type: ignore[no-untyped-call]  # transformers

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        **kwargs: Any,  # noqa: ANN401  # passed to the body as they are
    ) -> SequenceClassifierOutput:
        """Return ``[B, 1]`` logits.

        Args:
            input_ids: ``[B, T]`` int64, padded on any side.
            attention_mask: ``[B, T]``, 1 = real token; all are if it is left out.
            kwargs: Passed to the body.
        """
        kwargs.pop("labels", None)
        kwargs.pop("token_type_ids", None)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        # Positions are given, so that padding on the left moves no rotary angle off its place.
        positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
        hidden = self.gpt_neox(
            input_ids, attention_mask=mask, position_ids=positions, use_cache=False, **kwargs
        ).last_hidden_state
        return SequenceClassifierOutput(logits=self.out_proj(pool(hidden, mask, self.pooling)))


def pool(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Return ``[B, H]``: the state of the last attended token, or the mean over attended tokens.

    Args:
        hidden: ``[B, T, H]`` hidden states.
        mask: ``[B, T]``, nonzero = attended; at least one in each row.
        pooling: ``last`` or ``mean``.
    """
    attended = mask.bool()
    if pooling == "mean":
        weights = attended.to(hidden.dtype).unsqueeze(-1)
        return (hidden * weights).sum(1) / weights.sum(1)
    steps = torch.arange(mask.shape[1], device=mask.device)
    last = steps.masked_fill(~attended, -1).amax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


def register() -> None:
    """Make the class known to transformers' Auto classes; a second call changes nothing."""
    AutoConfig.register(MODEL_TYPE, GPTNeoXRewardConfig, exist_ok=True)
    AutoModelForSequenceClassification.register(
        GPTNeoXRewardConfig, GPTNeoXRewardModel, exist_ok=True
    )


register()


class OpenAssistantReward(ClassifierReward):
    """A reward of OpenAssistant's GPT-NeoX models: their text format, sigmoid of the one logit.

    Each turn is its role token, its text and the end token; the answer is glued to a last role
    token. Texts over 1,024 tokens lose their beginning.
    """

    @classmethod
    def from_pretrained(  # type: ignore[override]  # label, activation and format are fixed here
        cls,
        model: str = TRAINING_MODEL,
        *,
        revision: str | None = None,
        pickled_weights: bool = False,
        batch_size: int = 32,
        max_tokens: int = 1024,
        activation: Literal["sigmoid", "none"] = "sigmoid",
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str | None = None,
    ) -> Self:
        """Load one of the models.

        Args:
            model: Hub id or folder. The release trains and validates with the 1.4B model (the
                default) and tests with the 6.9B one: their scores may not be compared.
            revision: Revision on the Hub.
            pickled_weights: Allow weights that are only there as a pickle, read without running it.
            batch_size: Texts a pass; the scores do not depend on it.
            max_tokens: Longer texts lose their beginning.
            activation: ``none`` gives raw logits, from which PRO takes its temperatures.
            dtype: Type of the weights.
            device: Where it runs; the accelerator by default, if there is one.
        """
        return super().from_pretrained(
            model,
            revision=revision,
            pickled_weights=pickled_weights,
            activation=activation,
            format=OASST_FORMAT,
            batch_size=batch_size,
            max_tokens=max_tokens,
            truncation="left",
            dtype=dtype,
            device=device,
        )
