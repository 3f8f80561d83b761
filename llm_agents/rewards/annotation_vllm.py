"""Annotators' questions to a language model in this process, computed by vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from llm_agents.errors import MissingExtraError, UserError
from llm_agents.rewards.annotation_backends import (
    AnnotationBackend,
    answers_from_likeliest,
    file_name_of,
    messages,
    plain_text,
)
from llm_agents.rewards.annotation_prompts import JudgeTemplate
from llm_agents.types import GenerationConfig, Prompt

if TYPE_CHECKING:
    from types import ModuleType

VLLMDtype = Literal["auto", "float16", "bfloat16", "float32"]


class VLLMBackend(AnnotationBackend):
    """A language model that vLLM runs in this process; it is loaded when it is first asked.

    Log-probs of answers are read off the likeliest first tokens. To share a model between several
    annotating processes, serve it with ``vllm serve`` and take `ServerBackend`.

    Args:
        model: Folder or Hub id.
        revision: Branch, tag or commit on the Hub.
        num_gpus: GPUs that each layer is spread over.
        dtype: Type of the weights; Motif's annotations were made in float16.
        max_context: Longest prompt with reply in tokens; the model's window by default.
        memory_share: Share of each GPU's memory that vLLM takes.
        likeliest: First tokens whose log-probs are looked at.
    """

    replies_together = 256  # vLLM fills its batches from many requests
    answers_together = 256

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        num_gpus: int = 1,
        dtype: VLLMDtype = "float16",
        max_context: int | None = None,
        memory_share: float = 0.9,
        likeliest: int = 20,
    ) -> None:
        if likeliest < 2 or num_gpus < 1:
            raise UserError(
                f"expected `likeliest` of at least 2 and `num_gpus` of at least 1, got {likeliest} "
                f"and {num_gpus}"
            )
        self.model, self.revision, self.num_gpus, self.dtype = model, revision, num_gpus, dtype
        self.max_context, self.memory_share, self.likeliest = max_context, memory_share, likeliest

    @cached_property
    def engine(self) -> Any:  # noqa: ANN401  # vllm.LLM, from an optional package
        """Return vLLM's model."""
        return _vllm().LLM(
            model=self.model,
            revision=self.revision,
            tensor_parallel_size=self.num_gpus,
            dtype=self.dtype,
            max_model_len=self.max_context,
            gpu_memory_utilization=self.memory_share,
            max_logprobs=self.likeliest,
            enable_prefix_caching=True,  # the examples come first in every question
        )

    @property
    def name(self) -> str:
        """Return the model's name as part of file names."""
        return file_name_of(self.model)

    def identity(self) -> dict[str, object]:
        """Return what the answers depend on."""
        return {
            "backend": "vllm",
            "model": self.name,
            "revision": self.revision,
            "dtype": self.dtype,
            "likeliest": self.likeliest,
        }

    def generate(
        self,
        prompts: Sequence[Prompt],
        template: JudgeTemplate,
        sampling: GenerationConfig,
        seeds: Sequence[int],
    ) -> list[str]:
        """Return a reply to each prompt."""
        if sampling.num_beams > 1:
            raise UserError("vLLM samples without beams here: set `sampling.num_beams: 1`")
        if not prompts:
            return []
        settings = [
            _vllm().SamplingParams(
                max_tokens=sampling.max_new_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                repetition_penalty=sampling.repetition_penalty,
                stop=list(sampling.stop_strings),
                seed=seed,
            )
            for seed in seeds
        ]
        return [str(row.outputs[0].text) for row in self._run(prompts, template, settings)]

    def answer_log_probs(
        self, prompts: Sequence[Prompt], template: JudgeTemplate, answers: Sequence[str]
    ) -> Tensor:
        """Return ``[N, A]`` log-probs of answers as first words; see `answers_from_likeliest`."""
        rows = []
        if prompts:
            one_token = _vllm().SamplingParams(
                max_tokens=1, temperature=1.0, seed=0, logprobs=self.likeliest
            )
            for row in self._run(prompts, template, [one_token] * len(prompts)):
                likeliest: dict[str, float] = {}
                for token in row.outputs[0].logprobs[0].values():
                    likeliest.setdefault(str(token.decoded_token), float(token.logprob))
                rows.append(answers_from_likeliest(likeliest, answers))
        return torch.tensor(rows, dtype=torch.float64).reshape(len(prompts), len(answers))

    def _run(
        self, prompts: Sequence[Prompt], template: JudgeTemplate, settings: Sequence[object]
    ) -> list[Any]:
        """Return vLLM's output for each prompt, in order."""
        if template == "plain":
            texts = [plain_text(prompt) for prompt in prompts]
            return list(self.engine.generate(texts, list(settings), use_tqdm=False))
        talks = [messages(prompt) for prompt in prompts]
        return list(self.engine.chat(talks, list(settings), use_tqdm=False))


def _vllm() -> ModuleType:
    """Import vLLM."""
    try:
        return import_module("vllm")
    except ImportError as error:
        raise MissingExtraError("vllm", "vllm", "to annotate with vLLM in this process") from error
