"""Annotators' questions to a language model behind an OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.rewards.annotation_backends import (
    AnnotationBackend,
    answers_from_likeliest,
    file_name_of,
    messages,
    plain_text,
)
from llm_agents.rewards.annotation_prompts import JudgeTemplate
from llm_agents.rewards.chat_server import ChatServer, chat_text
from llm_agents.types import GenerationConfig, Prompt

_PATHS: dict[JudgeTemplate, str] = {"chat": "chat/completions", "plain": "completions"}


class ServerBackend(AnnotationBackend):
    """A language model behind any server that speaks OpenAI's protocol, such as vLLM's.

    ``chat`` goes to ``chat/completions``, ``plain`` to ``completions``. Log-probs of answers are
    read off the likeliest first tokens, so a server that lists none can only generate. ``top_k``
    and ``repetition_penalty`` are sent where they do something; OpenAI's own servers know neither.

    Args:
        endpoint: Address of the server up to ``/v1``.
        model: Its name for the model.
        parallel: Requests at a time.
        timeout: Seconds until a request counts as failed.
        attempts: Requests before a question is given up.
        key_variable: Environment variable that holds the key, if the server wants one.
        likeliest: First tokens that are asked for with their log-probs; servers allow up to 20.
    """

    def __init__(
        self,
        endpoint: str,
        model: str,
        *,
        parallel: int = 8,
        timeout: float = 120.0,
        attempts: int = 6,
        key_variable: str = "OPENAI_API_KEY",
        likeliest: int = 20,
    ) -> None:
        if likeliest < 2:
            raise UserError(f"expected `likeliest` of at least 2, got {likeliest}")
        self.model, self.likeliest = model, likeliest
        self.server = ChatServer(endpoint, timeout, attempts, parallel, key_variable)

    @property
    def name(self) -> str:
        """Return the model's name as part of file names."""
        return file_name_of(self.model)

    def identity(self) -> dict[str, object]:
        """Return the server's name for the model; where the server is does not matter."""
        return {"backend": "server", "model": self.model, "likeliest": self.likeliest}

    def generate(
        self,
        prompts: Sequence[Prompt],
        template: JudgeTemplate,
        sampling: GenerationConfig,
        seeds: Sequence[int],
    ) -> list[str]:
        """Return a reply to each prompt."""
        found: dict[int, str] = {}
        for replies in self.replies(prompts, template, sampling, seeds):
            found |= replies
        return [found[place] for place in range(len(prompts))]

    def replies(
        self,
        prompts: Sequence[Prompt],
        template: JudgeTemplate,
        sampling: GenerationConfig,
        seeds: Sequence[int],
    ) -> Iterator[dict[int, str]]:
        """Yield each reply as soon as the server gives it."""
        if sampling.num_beams > 1:
            raise UserError("a server does no beam search: set `sampling.num_beams: 1`")
        settings: dict[str, Any] = {
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.top_k:
            settings["top_k"] = sampling.top_k
        if sampling.repetition_penalty != 1:
            settings["repetition_penalty"] = sampling.repetition_penalty
        if sampling.stop_strings:
            settings["stop"] = list(sampling.stop_strings)
        bodies = [
            self._body(prompt, template) | settings | {"seed": seed}
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        read = chat_text if template == "chat" else _plain_text
        yield from self.server.post_each(_PATHS[template], bodies, read)

    def answer_log_probs(
        self, prompts: Sequence[Prompt], template: JudgeTemplate, answers: Sequence[str]
    ) -> Tensor:
        """Return ``[N, A]`` log-probs of answers as first words; see `answers_from_likeliest`."""
        found: dict[int, list[float]] = {}
        for rows in self.log_prob_rows(prompts, template, answers):
            found |= rows
        rows_in_order = [found[place] for place in range(len(prompts))]
        return torch.tensor(rows_in_order, dtype=torch.float64).reshape(len(prompts), len(answers))

    def log_prob_rows(
        self, prompts: Sequence[Prompt], template: JudgeTemplate, answers: Sequence[str]
    ) -> Iterator[dict[int, list[float]]]:
        """Yield the log-probs of each prompt's answers as soon as the server gives them."""
        # As the model has them: neither sharpened nor cut.
        settings: dict[str, Any] = {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0}
        if template == "chat":
            settings |= {"logprobs": True, "top_logprobs": self.likeliest}
        else:
            settings |= {"logprobs": self.likeliest}
        bodies = [self._body(prompt, template) | settings for prompt in prompts]
        read = _chat_likeliest if template == "chat" else _plain_likeliest
        for replies in self.server.post_each(_PATHS[template], bodies, read):
            yield {
                place: answers_from_likeliest(self._listed(found), answers)
                for place, found in replies.items()
            }

    def _body(self, prompt: Prompt, template: JudgeTemplate) -> dict[str, Any]:
        """Return the part of a request that holds the prompt."""
        if template == "plain":
            return {"model": self.model, "prompt": plain_text(prompt)}
        return {"model": self.model, "messages": messages(prompt)}

    def _listed(self, found: dict[str, float] | None) -> dict[str, float]:
        """Return log-probs of tokens; raise if the server gave none."""
        if not found:
            raise UserError(
                f"the server at {self.server.endpoint} gives no log-probs of `{self.model}`: "
                "annotate with `GeneratedAnnotator`, or serve the model with vLLM"
            )
        return found


def _plain_text(reply: Any) -> str:  # noqa: ANN401  # JSON
    """Return the text of a completion."""
    return str(reply["choices"][0]["text"] or "")


def _chat_likeliest(reply: Any) -> dict[str, float] | None:  # noqa: ANN401  # JSON
    """Return the log-probs of a chat reply's first tokens, or None without any."""
    found = reply["choices"][0].get("logprobs")
    if not found or not found.get("content"):
        return None
    likeliest: dict[str, float] = {}
    for entry in found["content"][0]["top_logprobs"]:
        likeliest.setdefault(str(entry["token"]), float(entry["logprob"]))
    return likeliest


def _plain_likeliest(reply: Any) -> dict[str, float] | None:  # noqa: ANN401  # JSON
    """Return the log-probs of a completion's first tokens, or None without any."""
    found = reply["choices"][0].get("logprobs")
    if not found or not found.get("top_logprobs"):
        return None
    return {str(token): float(value) for token, value in found["top_logprobs"][0].items()}
