"""Helpful and Harmless Assistant dialogues, with the A-LoL release's settings."""

from __future__ import annotations

from typing import ClassVar, Literal

from llm_agents.data.encoding import Truncation
from llm_agents.data.module import OfflineDataModule
from llm_agents.data.reading import Sources
from llm_agents.data.selection import PromptSplit, RowRules
from llm_agents.data.source_parts import Paragraphs
from llm_agents.data.templates import Template


class HHAData(OfflineDataModule):
    """Anthropic's hh-rlhf dialogues, in PRO's scored format or as released.

    The defaults are the release's: its prompt layout, 640 prompt and 128 response tokens, stored
    logits through a sigmoid, no training row with a response that ends in ":". Stored scores of
    different files may come from different reward models: don't mix them in one training set
    (PRO's dev file has the 1.4B model's, its test files the 6.9B model's).

    Args:
        train: Training data: ``sample``, a JSON-lines file, a Hub id, or a list of these.
        validation: Prompts to answer during training; ``held_out`` takes those held out of `train`,
            and so does ``sample`` where `train` is data of your own.
        test: Test sets, each evaluated by itself; ``held_out`` and ``sample`` as in `validation`.
        template: How dialogues are written out.
        max_prompt_tokens: Longest prompt; None leaves it to the model's window.
        max_response_tokens: Longest response; a longer one loses its end and its end token.
        truncation: What a long prompt loses: its left end, or its oldest turns.
        batch_size: Rows (scored) or prompts (ranked) of a micro-batch.
        eval_batch_size: Prompts of a validation or test batch.
        reward_transform: Whether stored rewards are logits that a sigmoid brings to 0 … 1.
        drop_colon: Leave out training rows where any response ends with ":".
        split_by_prompt: Hold prompts of `train` out; None trains on all.
        rules: What becomes of malformed, unfit and long rows.
        seed: Decides the order of the data; None takes the run's `seed_everything`, else 0.
    """

    replaces_samples: ClassVar[bool] = True
    paragraphs: ClassVar[Paragraphs] = "drop"

    def __init__(
        self,
        train: Sources = "sample",
        validation: Sources | None = "sample",
        test: Sources | None = "sample",
        *,
        template: Template = "alol",
        max_prompt_tokens: int | None = 640,
        max_response_tokens: int = 128,
        truncation: Truncation = "left",
        batch_size: int = 4,
        eval_batch_size: int = 16,
        reward_transform: Literal["sigmoid", "none"] = "sigmoid",
        drop_colon: bool = True,
        split_by_prompt: PromptSplit | None = None,
        rules: RowRules | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            train,
            validation,
            test,
            template=template,
            max_prompt_tokens=max_prompt_tokens,
            max_response_tokens=max_response_tokens,
            truncation=truncation,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            reward_transform=reward_transform,
            reward_range=(0.0, 1.0),
            drop_colon=drop_colon,
            split_by_prompt=split_by_prompt,
            rules=rules,
            seed=seed,
        )
