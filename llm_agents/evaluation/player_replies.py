"""Models that are asked in words, behind a server or in this process, and a file of their replies.

A server is asked in OpenAI's protocol: ``chat/completions`` for replies, ``completions`` with
``echo`` and ``logprobs`` for the log-probs of a text's own tokens, as vLLM gives them.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from llm_agents.errors import UserError
from llm_agents.policies import LanguagePolicy
from llm_agents.rewards.annotation_backends import messages
from llm_agents.rewards.annotation_memory import cut_unfinished_line
from llm_agents.rewards.chat_server import (
    ChatServer,
    ServerFailureError,
    ServerRefusalError,
    chat_text,
)
from llm_agents.types import GenerationConfig, Prompt, Turn
from llm_agents.whole_files import write_text

log = logging.getLogger(__name__)

_PROBE = "The sky is blue today"
_GREETING: Prompt = (Turn("user", "Answer with the number 1 and nothing else."),)


@dataclass(frozen=True)
class Reply:
    """What a model said.

    Args:
        text: Its words.
        prompt_tokens: Tokens that it read; 0 where the server doesn't say.
        new_tokens: Tokens that it wrote; 0 where the server doesn't say.
        is_cut: Whether it met the limit of new tokens.
    """

    text: str
    prompt_tokens: int = 0
    new_tokens: int = 0
    is_cut: bool = False


@dataclass(frozen=True)
class Echo:
    """A text's own tokens with their log-probs.

    Args:
        tokens: As the server writes them.
        log_probs: Of each, None for the first.
    """

    tokens: tuple[str, ...]
    log_probs: tuple[float | None, ...]


@dataclass(frozen=True)
class ReplySettings:
    """How replies are drawn.

    Args:
        temperature: 0 is the likeliest reply; None leaves it to the server.
        max_new_tokens: Longest reply.
    """

    temperature: float | None = 0.0
    max_new_tokens: int = 16

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise UserError(f"expected a temperature from 0 to 2, got {self.temperature}")
        if self.max_new_tokens < 1:
            raise UserError(f"expected at least 1 new token, got {self.max_new_tokens}")


Keep = Callable[[int, Reply], None]


class Speaker(Protocol):
    """What answers questions, drawing replies by its settings."""

    settings: ReplySettings

    def identity(self) -> Mapping[str, object]:
        """Return what replies depend on besides the question, as plain JSON values."""

    def ask(self, dialogues: Sequence[Prompt], seeds: Sequence[int], keep: Keep) -> None:
        """Ask, and tell `keep` of each reply with its number as soon as it comes.

        Args:
            dialogues: N questions.
            seeds: N seeds below 2³¹; a reply at temperature 0 does not depend on it.
            keep: Told of N replies.
        """


class PolicySpeaker:
    """A language model in this process, asked through its chat template.

    Raises:
        UserError: It has no chat template.
    """

    def __init__(self, policy: LanguagePolicy, settings: ReplySettings) -> None:
        if not policy.tokenizer.chat_template:
            raise UserError(
                f"`{policy.base}` has no chat template, so that it can't be asked in words: let it "
                "play with `--mode score`"
            )
        if settings.temperature is None:
            raise UserError("`--temperature server` is for a server: give a number")
        self.policy, self.settings = policy, settings
        self._config = GenerationConfig(settings.max_new_tokens, settings.temperature)

    def identity(self) -> Mapping[str, object]:
        """Return names, a digest of the weights, and how replies are drawn."""
        digest = hashlib.sha256()
        for name, value in sorted(self.policy.model.state_dict().items()):
            digest.update(name.encode())
            if isinstance(value, torch.Tensor):
                flat = value.detach().cpu().contiguous().flatten()
                digest.update(flat.view(torch.uint8).numpy().data)
        return {"model": self.policy.base, "weights": digest.hexdigest(), **asdict(self.settings)}

    def ask(self, dialogues: Sequence[Prompt], seeds: Sequence[int], keep: Keep) -> None:
        """Ask all at once."""
        prompts = [self.policy.encode_prompt(dialogue, "chat") for dialogue in dialogues]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        ends = self.policy.generation_vocabulary().end_ids
        found = self.policy.generate(prompts, self._config, generators)
        for number, (prompt, ids) in enumerate(zip(prompts, found, strict=True)):
            is_cut = len(ids) == self._config.max_new_tokens and ids[-1] not in ends
            keep(number, Reply(self.policy.decode(ids), len(prompt), len(ids), is_cut))


class ServerSpeaker:
    """A language model behind an OpenAI-compatible server.

    Args:
        server: The server.
        model: Its name for the model.
        settings: How replies are drawn.
    """

    def __init__(self, server: ChatServer, model: str, settings: ReplySettings) -> None:
        self.server, self.model, self.settings = server, model, settings
        self._limit = "max_tokens"

    def identity(self) -> Mapping[str, object]:
        """Return the server, its name for the model, and how replies are drawn."""
        return {"model": self.model, "host": self.server.host, **asdict(self.settings)}

    def ask(self, dialogues: Sequence[Prompt], seeds: Sequence[int], keep: Keep) -> None:
        """Ask, several at a time."""
        bodies = [self._body(*asked) for asked in zip(dialogues, seeds, strict=True)]
        self.server.post_all("chat/completions", bodies, _read_reply, keep)

    def echo(self, texts: Sequence[str], keep: Callable[[int, Echo], None]) -> None:
        """Ask for the log-probs of texts, several at a time.

        Raises:
            UserError: The server gives none.
        """

        def expect(number: int, echo: Echo | None) -> None:
            if echo is None:
                raise self.without_echo()
            keep(number, echo)

        bodies = [self._echo_body(text) for text in texts]
        self.server.post_all("completions", bodies, _read_echo, expect)

    def without_echo(self) -> UserError:
        """Return what a server raises that gives no log-probs of a text's own tokens."""
        return UserError(
            f"the server at {self.server.endpoint} gives no log-probs of a text's own tokens with "
            f"`{self.model}` (`echo` and `logprobs` of completions, as vLLM has them): let it play "
            "with `--mode choose` or `--mode write`"
        )

    def has_echo(self) -> bool:
        """Return whether the server gives log-probs of a text's own tokens.

        Raises:
            UserError: The server can't be reached, or wants another key.
        """
        server = replace(self.server, attempts=min(2, self.server.attempts))
        read = partial(_read_echo, asked=_PROBE)
        try:
            return server.post("completions", self._echo_body(_PROBE), read) is not None
        except (ServerFailureError, ServerRefusalError) as error:
            if error.status in (None, 401, 403):  # nobody is there, or not for us
                raise
            log.info("no scoring by log-probs: %s", error)
        except UserError as error:  # another protocol
            log.info("no scoring by log-probs: %s", error)
        return False

    def greet(self) -> None:
        """Ask something simple, to find faults of address, key and model before the first episode.

        Models that know the limit of new tokens by OpenAI's newer name alone are told so.

        Raises:
            UserError: The server refuses, fails, or speaks another protocol.
        """
        try:
            self.server.post("chat/completions", self._body(_GREETING, 0), _read_reply)
        except ServerRefusalError as error:
            if error.status == 400 and "temperature" in error.reason:
                raise UserError(f"{error}; leave it to the server: --temperature server") from error
            newer = "max_completion_tokens"
            if error.status != 400 or newer not in error.reason or self._limit == newer:
                raise
            self._limit = newer
            self.greet()

    def _body(self, dialogue: Prompt, seed: int) -> dict[str, Any]:
        """Return a question as the server reads it."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages(dialogue),
            self._limit: self.settings.max_new_tokens,
        }
        if self.settings.temperature is not None:
            body["temperature"] = self.settings.temperature
        if self.settings.temperature != 0:
            body["seed"] = seed
        return body

    def _echo_body(self, text: str) -> dict[str, Any]:
        """Return a request for a text's log-probs; one token is written, and dropped."""
        return {
            "model": self.model,
            "prompt": text,
            "max_tokens": 1,
            "temperature": 0,
            "echo": True,
            "logprobs": 1,
        }


def _read_reply(reply: Any) -> Reply:  # noqa: ANN401  # JSON
    """Return what a chat's reply says."""
    choice, usage = reply["choices"][0], reply.get("usage") or {}
    return Reply(
        chat_text(reply),
        int(usage.get("prompt_tokens") or 0),
        int(usage.get("completion_tokens") or 0),
        choice.get("finish_reason") == "length",
    )


def _read_echo(reply: Any, asked: str = "") -> Echo | None:  # noqa: ANN401  # JSON
    """Return a text's tokens and log-probs without what was written; None if they aren't there."""
    choice, usage = reply["choices"][0], reply.get("usage") or {}
    if not str(choice["text"]).startswith(asked):
        return None
    found = choice.get("logprobs") or {}
    tokens, values = found.get("tokens") or [], found.get("token_logprobs") or []
    length = len(tokens) - int(usage.get("completion_tokens", 1))
    log_probs = [None if value is None else float(value) for value in values[:length]]
    # Servers that ignore `echo` list what was written alone.
    if length < 2 or len(values) != len(tokens) or None in log_probs[1:]:
        return None
    return Echo(tuple(map(str, tokens[:length])), tuple(log_probs))


class ReplyJournal:
    """Answers by what was asked, in a file that grows with each: nothing is asked twice.

    Args:
        path: File of JSON lines, of an evaluation that was cut short if it is there; None keeps
            answers in memory alone.

    Attributes:
        used: Keys of the answers that were asked for.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.used: set[str] = set()
        self._known: dict[str, dict[str, Any]] = {}
        if path is not None and path.is_file():
            self._read(path)

    def answers(
        self,
        asked: Sequence[object],
        ask: Callable[[list[int], Callable[[int, dict[str, Any]], None]], None],
    ) -> list[dict[str, Any]]:
        """Return an answer to each of `asked`, plain JSON values.

        Args:
            asked: All that an answer depends on, as plain JSON values.
            ask: Gets the numbers of those without an answer, equal ones once, and a function to
                tell of each answer by its place among them.
        """
        keys = [_digest(entry) for entry in asked]
        first = {key: number for number, key in reversed(list(enumerate(keys)))}
        missing = [number for key, number in first.items() if key not in self._known]
        missing.sort()
        if missing:
            ask(missing, lambda place, answer: self._keep(keys[missing[place]], answer))
        self.used.update(keys)
        return [self._known[key] for key in keys]

    def used_answers(self) -> list[dict[str, Any]]:
        """Return the answers that were asked for, each once."""
        return [self._known[key] for key in sorted(self.used)]

    def finish(self, path: Path | None) -> None:
        """Give the answers that were asked for a file of their own, or drop all."""
        if path is not None and self.used:
            lines = [
                json.dumps({"key": key, **answer}) + "\n"
                for key, answer in self._known.items()
                if key in self.used
            ]
            write_text(path, "".join(lines))
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _keep(self, key: str, answer: dict[str, Any]) -> None:
        """Keep an answer, in the file too."""
        self._known[key] = answer
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf8") as file:
                file.write(json.dumps({"key": key, **answer}) + "\n")

    def _read(self, path: Path) -> None:
        """Read what is there; what is no answer is asked for again."""
        cut_unfinished_line(path)
        for line in path.read_text(encoding="utf8").splitlines():
            try:
                entry = json.loads(line)
                self._known[entry.pop("key")] = entry
            except (ValueError, KeyError, TypeError, AttributeError):
                log.warning("a line of `%s` holds no answer: it is asked for again", path)
        if self._known:
            log.info("going on after %d answers that came before", len(self._known))


def _digest(asked: object) -> str:
    """Return what an answer is found by."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]
