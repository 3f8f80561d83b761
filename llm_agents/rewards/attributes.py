"""The named classifiers of A-LoL's dialogue tasks, each with its label, activation and text.

- `AttributeReward.fluency`: is the response a well-formed sentence (CoLA)?
- `AttributeReward.faithfulness`: does the knowledge entail it (FaithCritic)?
- `AttributeReward.engagement`: will it be answered (DialogRPT)?
- `AttributeReward.upvotes`: will it be liked (DialogRPT)?
- `AttributeReward.safety`: is it inoffensive (ToxiChat)?

The sums of a task are in `llm_agents.rewards.tasks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import torch
from torch import Tensor, nn

from llm_agents.errors import UserError
from llm_agents.rewards.classifier import ClassifierReward, TextFormat
from llm_agents.rewards.dialogue import without_end_tokens
from llm_agents.rewards.end_token_classifier import load_end_token_classifier
from llm_agents.types import Prompt

FLUENCY_MODEL = "textattack/roberta-base-CoLA"
FAITHFULNESS_MODEL = "McGill-NLP/roberta-large-faithcritic"
ENGAGEMENT_MODEL = "microsoft/DialogRPT-depth"
UPVOTES_MODEL = "microsoft/DialogRPT-updown"

RESPONSE_ALONE = TextFormat(text="{response}")
KNOWLEDGE_AND_RESPONSE = TextFormat(text="{knowledge}", text_pair="{response}")
DIALOG_RPT = TextFormat(
    text="{history}{response}", user="{text}{eos}", assistant="{text}{eos}", separator=""
)
TOXICHAT = TextFormat(
    text="{history}{response}{eos}", user="{text}{eos}", assistant="{text}{eos}", separator=""
)

Precision = Literal["float32", "bfloat16", "float16"]


class AttributeReward(ClassifierReward):
    """A classifier of one attribute of a response; end tokens written in a response are left out.

    Its constructor is `ClassifierReward`'s; recipes use the class methods.
    """

    def logits(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        """Return ``[B, labels]`` logits, float32 on the CPU."""
        return super().logits(prompts, [without_end_tokens(text) for text in responses])

    @classmethod
    def fluency(
        cls,
        model: str = FLUENCY_MODEL,
        *,
        revision: str | None = None,
        pickled_weights: bool = False,
        batch_size: int = 32,
        max_tokens: int = 512,
        dtype: Precision = "float32",
        device: str | None = None,
    ) -> Self:
        """Load the probability that the response, read alone, is a well-formed sentence.

        Args:
            model: Hub id or folder; label 1 is "acceptable".
            revision: Revision on the Hub.
            pickled_weights: Allow weights that are only there as a pickle, read without running it.
            batch_size: Texts a pass; the scores do not depend on it.
            max_tokens: Longer responses lose their end.
            dtype: Type of the weights.
            device: Where it runs; the accelerator by default, if there is one.
        """
        return cls.from_pretrained(
            model,
            name="fluency",
            revision=revision,
            pickled_weights=pickled_weights,
            label=1,
            activation="softmax",
            format=RESPONSE_ALONE,
            batch_size=batch_size,
            max_tokens=max_tokens,
            truncation="right",
            dtype=dtype,
            device=device,
        )

    @classmethod
    def faithfulness(
        cls,
        model: str = FAITHFULNESS_MODEL,
        *,
        revision: str | None = None,
        pickled_weights: bool = False,
        batch_size: int = 16,
        max_tokens: int = 512,
        dtype: Precision = "float32",
        device: str | None = None,
    ) -> Self:
        """Load the probability that the prompt's knowledge entails the response.

        Args:
            model: Hub id or folder; label 0 is "Entailment".
            revision: Revision on the Hub.
            pickled_weights: Allow weights that are only there as a pickle, read without running it.
            batch_size: Texts a pass; the scores do not depend on it.
            max_tokens: Of longer pairs, the longer text loses its end.
            dtype: Type of the weights.
            device: Where it runs; the accelerator by default, if there is one.

        Raises:
            UserError: The model calls label 0 a hallucination.
        """
        reward = cls.from_pretrained(
            model,
            name="faithdial",
            revision=revision,
            pickled_weights=pickled_weights,
            label=0,
            activation="softmax",
            format=KNOWLEDGE_AND_RESPONSE,
            batch_size=batch_size,
            max_tokens=max_tokens,
            truncation="right",
            dtype=dtype,
            device=device,
        )
        first = str((reward.model.config.id2label or {}).get(0, ""))
        if first.lower().startswith(("halluc", "contra", "not")):
            raise UserError(
                f"expected label 0 of `{model}` to be Entailment, got {first}: load it with "
                "`ClassifierReward.from_pretrained` and say which label counts"
            )
        return reward

    @classmethod
    def engagement(
        cls,
        model: str = ENGAGEMENT_MODEL,
        *,
        revision: str | None = None,
        pickled_weights: bool = False,
        batch_size: int = 32,
        max_tokens: int | None = None,
        dtype: Precision = "float32",
        device: str | None = None,
    ) -> Self:
        """Load the probability that the response starts a long exchange.

        Args:
            model: Hub id or folder of a DialogRPT ranker.
            revision: Revision on the Hub.
            pickled_weights: Allow weights that are only there as a pickle, read without running it.
            batch_size: Texts a pass; the scores do not depend on it.
            max_tokens: Longer dialogues lose their beginning; the model's window by default. The
                ranker was trained on 50 tokens at most.
            dtype: Type of the weights.
            device: Where it runs; the accelerator by default, if there is one.
        """
        return cls._ranker(
            model, "depth", revision, pickled_weights, batch_size, max_tokens, dtype, device
        )

    @classmethod
    def upvotes(
        cls,
        model: str = UPVOTES_MODEL,
        *,
        revision: str | None = None,
        pickled_weights: bool = False,
        batch_size: int = 32,
        max_tokens: int | None = None,
        dtype: Precision = "float32",
        device: str | None = None,
    ) -> Self:
        """Load the probability that the response gets more upvotes than another.

        Args:
            model: Hub id or folder of a DialogRPT ranker.
            revision: Revision on the Hub.
            pickled_weights: Allow weights that are only there as a pickle, read without running it.
            batch_size: Texts a pass; the scores do not depend on it.
            max_tokens: Longer dialogues lose their beginning; the model's window by default. The
                ranker was trained on 50 tokens at most.
            dtype: Type of the weights.
            device: Where it runs; the accelerator by default, if there is one.
        """
        return cls._ranker(
            model, "updown", revision, pickled_weights, batch_size, max_tokens, dtype, device
        )

    @classmethod
    def safety(
        cls,
        model: str,
        *,
        pickled_weights: bool = False,
        batch_size: int = 32,
        max_tokens: int = 511,
        dtype: Precision = "float32",
        device: str | None = None,
    ) -> Self:
        """Load the probability that the response, read after its dialogue, is safe.

        Args:
            model: Folder of ToxiChat's DialoGPT classifier, which is not on the Hub: its weights,
                ``config.json`` and tokenizer. Label 0 is "safe".
            pickled_weights: Allow weights that are only there as a pickle, read without running it.
            batch_size: Texts a pass; the scores do not depend on it.
            max_tokens: Longer dialogues lose their beginning; the classifier knows fewer than 512.
            dtype: Type of the weights; the release's is float16.
            device: Where it runs; the accelerator by default, if there is one.

        Raises:
            UserError: The folder holds no such classifier, or `max_tokens` is above 511.
        """
        if max_tokens > 511:
            raise UserError(f"expected max_tokens of at most 511 for safety, got {max_tokens}")
        loaded, tokenizer, version = load_end_token_classifier(
            model, pickled_weights=pickled_weights, dtype=dtype
        )
        target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        nn.Module.to(loaded, target)
        return cls(
            loaded,
            tokenizer,
            name="safe",
            version=version,
            label=0,
            activation="softmax",
            format=TOXICHAT,
            batch_size=batch_size,
            max_tokens=max_tokens,
            truncation="left",
        )

    @classmethod
    def _ranker(
        cls,
        model: str,
        name: str,
        revision: str | None,
        pickled_weights: bool,
        batch_size: int,
        max_tokens: int | None,
        dtype: Precision,
        device: str | None,
    ) -> Self:
        """Load a DialogRPT ranker: the sigmoid of its logit at the response's last token."""
        return cls.from_pretrained(
            model,
            name=name,
            revision=revision,
            pickled_weights=pickled_weights,
            label=0,
            activation="sigmoid",
            format=DIALOG_RPT,
            batch_size=batch_size,
            max_tokens=max_tokens,
            truncation="left",
            dtype=dtype,
            device=device,
        )
