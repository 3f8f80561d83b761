"""Language models that answer annotators' questions: the interface, and a model in this process."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.base_model import DtypeName, Quantization
from llm_agents.policies.model_digest import model_digest
from llm_agents.policies.modes import evaluation
from llm_agents.rewards.annotation_prompts import JudgeTemplate
from llm_agents.types import Choice, GenerationConfig, Prompt

_CHOICES_A_CALL = 256


class AnnotationBackend(ABC):
    """A language model that is asked by annotators.

    A prompt is a dialogue; for the template ``plain`` it is one turn with a text that ends in an
    unfinished clause.

    Attributes:
        replies_together: Replies that `replies` asks for in one call.
        answers_together: Prompts whose log-probs `log_prob_rows` asks for in one call.
    """

    replies_together = 16
    answers_together = 32

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the model's name as part of file names; see `file_name_of`."""

    @abstractmethod
    def identity(self) -> dict[str, object]:
        """Return what the answers depend on, as plain JSON values."""

    @abstractmethod
    def generate(
        self,
        prompts: Sequence[Prompt],
        template: JudgeTemplate,
        sampling: GenerationConfig,
        seeds: Sequence[int],
    ) -> list[str]:
        """Return a reply to each prompt.

        Args:
            prompts: N prompts; there may be none.
            template: How a prompt becomes text.
            sampling: How replies are drawn.
            seeds: N seeds below 2³¹: a reply depends on its own prompt and seed alone.
        """

    @abstractmethod
    def answer_log_probs(
        self, prompts: Sequence[Prompt], template: JudgeTemplate, answers: Sequence[str]
    ) -> Tensor:
        """Return how likely each prompt is followed by each answer.

        Args:
            prompts: N prompts; there may be none.
            template: How a prompt becomes text.
            answers: A distinct words.

        Returns:
            ``[N, A]`` float64 log-probs on the CPU; a row of NaN where the model says something
            else altogether.
        """

    def replies(
        self,
        prompts: Sequence[Prompt],
        template: JudgeTemplate,
        sampling: GenerationConfig,
        seeds: Sequence[int],
    ) -> Iterator[dict[int, str]]:
        """Yield the replies of `generate` by the prompt's place, as they come.

        Raises:
            UserError: A prompt can't be answered; what was answered has been yielded.
        """
        for start in range(0, len(prompts), self.replies_together):
            part = slice(start, start + self.replies_together)
            found = self.generate(prompts[part], template, sampling, seeds[part])
            yield dict(enumerate(found, start))

    def log_prob_rows(
        self, prompts: Sequence[Prompt], template: JudgeTemplate, answers: Sequence[str]
    ) -> Iterator[dict[int, list[float]]]:
        """Yield the rows of `answer_log_probs` by the prompt's place, as they come.

        Raises:
            UserError: A prompt can't be answered; what was answered has been yielded.
        """
        for start in range(0, len(prompts), self.answers_together):
            part = prompts[start : start + self.answers_together]
            rows = self.answer_log_probs(part, template, answers).tolist()
            yield dict(enumerate(rows, start))


class PolicyBackend(AnnotationBackend):
    """A language model in this process; it is loaded when it is first asked.

    Log-probs of answers are exact. Prompts that begin alike, as those with the same examples do,
    are computed from where they differ.

    Args:
        base: Base model: alias, folder, GGUF file or Hub id.
        adapter: Folder or Hub id of an adapter in PEFT's format.
        revision: Branch, tag or commit of `base` on the Hub.
        quantization: Hold the base in 4 or 8 bits.
        dtype: Type of the weights that are not quantized.
        device: Where it runs; the accelerator by default, if there is one.
    """

    def __init__(
        self,
        base: str,
        *,
        adapter: str | None = None,
        revision: str | None = None,
        quantization: Quantization | None = None,
        dtype: DtypeName = "float32",
        device: str | None = None,
    ) -> None:
        self.base, self.adapter, self.revision = base, adapter, revision
        self.quantization, self.dtype, self.device = quantization, dtype, device

    @cached_property
    def policy(self) -> LanguagePolicy:
        """Return the model, frozen and in evaluation mode."""
        policy = LanguagePolicy.from_pretrained(
            self.base,
            adapter=self.adapter,
            quantization=self.quantization,
            dtype=self.dtype,
            revision=self.revision,
            trainable=False,
        )
        target = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        if self.quantization is None:  # quantized weights are placed when they are loaded
            policy = policy.to(target)
        return policy

    @property
    def name(self) -> str:
        """Return the model's name as part of file names."""
        return file_name_of(self.base)

    def identity(self) -> dict[str, object]:
        """Return the model's names and a digest of its weights; loads it."""
        return {
            "backend": "policy",
            "model": self.name,
            "weights": weights_digest(self.policy),
            "quantization": self.quantization,
            "dtype": self.dtype,
        }

    def generate(
        self,
        prompts: Sequence[Prompt],
        template: JudgeTemplate,
        sampling: GenerationConfig,
        seeds: Sequence[int],
    ) -> list[str]:
        """Return a reply to each prompt."""
        if not prompts:
            return []
        ids = [self.policy.encode_prompt(prompt, template) for prompt in prompts]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        replies = self.policy.generate(ids, sampling, generators)
        return [self.policy.decode(reply) for reply in replies]

    def answer_log_probs(
        self, prompts: Sequence[Prompt], template: JudgeTemplate, answers: Sequence[str]
    ) -> Tensor:
        """Return ``[N, A]`` exact log-probs."""
        found = [torch.zeros(0, len(answers), dtype=torch.float64)]
        with torch.no_grad(), evaluation(self.policy):
            for start in range(0, len(prompts), _CHOICES_A_CALL):
                choices = [
                    Choice(self.policy.text.render(prompt, template), tuple(answers))
                    for prompt in prompts[start : start + _CHOICES_A_CALL]
                ]
                found.append(self.policy.score_actions(choices, "sum").scores.double().cpu())
        return torch.cat(found)


def file_name_of(model: str) -> str:
    """Return a model's name as part of a file name: without folders and dots, in small letters.

    Example:
        >>> file_name_of("org/Llama-3.2-1B_chat")
        'llama-3-2-1b-chat'
    """
    name = re.sub(r"[^a-z0-9]+", "-", Path(model).name.lower()).strip("-")
    if not name:
        raise UserError(f"expected a model's name, got {model!r}")
    return name


def plain_text(prompt: Prompt) -> str:
    """Return a prompt of the template ``plain`` as one text."""
    return "\n".join(turn.text for turn in prompt)


def messages(prompt: Prompt) -> list[dict[str, str]]:
    """Return a prompt as OpenAI's protocol has it."""
    return [{"role": turn.role, "content": turn.text} for turn in prompt]


def weights_digest(policy: LanguagePolicy) -> str:
    """Return 12 hexadecimal digits that change with any weight or setting of the model."""
    return model_digest(policy.model)[:12]


def answers_from_likeliest(likeliest: Mapping[str, float], answers: Sequence[str]) -> list[float]:
    """Return the log-probs of `answers` from those of the likeliest first tokens.

    A token counts for the one answer that begins with it, blanks around it left out. An answer
    without a token is as likely as the least likely one known, which bounds it from above.

    Args:
        likeliest: Log-prob of each token that the model may say next, the likeliest ones only.
        answers: Distinct words.

    Returns:
        A log-prob for each answer; NaN for all if none of them has a token.
    """
    tokens: dict[str, list[float]] = {answer: [] for answer in answers}
    for token, log_prob in likeliest.items():
        begun = [answer for answer in answers if token.strip() and answer.startswith(token.strip())]
        if len(begun) == 1:
            tokens[begun[0]].append(log_prob)
    if not any(tokens.values()):
        return [math.nan] * len(answers)
    least = min(likeliest.values())
    return [
        float(torch.tensor(found, dtype=torch.float64).logsumexp(0)) if found else least
        for found in tokens.values()
    ]
