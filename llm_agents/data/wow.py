"""The data module of dialogues that are grounded in knowledge: WoW, FaithDial, and both."""

from __future__ import annotations

from typing import ClassVar, Literal

from llm_agents.data.encoding import Truncation
from llm_agents.data.module import OfflineDataModule
from llm_agents.data.reading import Sources
from llm_agents.data.selection import PromptSplit, RowRules
from llm_agents.data.templates import Template


class WowData(OfflineDataModule):
    """Grounded dialogues, as `WowPreparation` or the A-LoL release writes them.

    The defaults are the release's: knowledge first, each turn followed by the end token, 512 prompt
    and 128 response tokens, rewards that are the sum of four. A long prompt loses its oldest turns;
    the knowledge stays.

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
        reward_range: Lowest and highest reward after the transform; None checks nothing.
        split_by_prompt: Hold prompts of `train` out; None trains on all.
        rules: What becomes of malformed, unfit and long rows.
        seed: Decides the order of the data; None takes the run's `seed_everything`, else 0.
    """

    samples: ClassVar[str] = "wow"
    replaces_samples: ClassVar[bool] = True

    def __init__(
        self,
        train: Sources = "sample",
        validation: Sources | None = "sample",
        test: Sources | None = "sample",
        *,
        template: Template = "eos",
        max_prompt_tokens: int | None = 512,
        max_response_tokens: int = 128,
        truncation: Truncation = "turns",
        batch_size: int = 8,
        eval_batch_size: int = 32,
        reward_transform: Literal["sigmoid", "none"] = "none",
        reward_range: tuple[float, float] | None = (0.0, 4.0),
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
            reward_range=reward_range,
            split_by_prompt=split_by_prompt,
            rules=rules,
            seed=seed,
        )
