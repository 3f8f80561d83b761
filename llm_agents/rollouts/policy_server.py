"""Language models of one process that others ask: to score, to generate, to learn.

`TextRollouts` needs none of this: it keeps worlds in processes and models in one. This is for
programs that are written around a loop of their own, in several processes, as those for Lamorel
are. What waits at the same time is scored in one pass.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.functional.action_scores import Normalization
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.modes import evaluation
from llm_agents.types import Choice, GenerationConfig

Function = Callable[..., Any]
"""What else a server does: takes the policy first, and then what the client gives."""

_DEFAULT = "policy"


@dataclass(frozen=True)
class _Request:
    """What a client asks.

    Args:
        kind: What is to be done.
        policy: Name of the policy.
        arguments: For it.
    """

    kind: Literal["score", "generate", "call"]
    policy: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class _Answer:
    """What a client gets: a value, or what went wrong."""

    value: Any = None
    fault: str | None = None
    is_users: bool = False


class PolicyClient:
    """Asks the models of a `PolicyServer`; can be handed to another process.

    Args:
        connection: To the server; each client has its own.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def score(
        self,
        choices: Sequence[Choice],
        normalization: Normalization = "sum",
        *,
        policy: str = _DEFAULT,
    ) -> list[Tensor]:
        """Return the scores of each choice's actions, ``[A]`` float32.

        Args:
            choices: Prompts, with lists of different lengths if need be.
            normalization: What an action's log-prob is divided by.
            policy: Which model.
        """
        found = self._ask("score", policy, tuple(choices), normalization)
        return [torch.from_numpy(scores) for scores in found]

    def generate(
        self,
        prompts: Sequence[str],
        config: GenerationConfig | None = None,
        *,
        seed: int = 0,
        policy: str = _DEFAULT,
    ) -> list[str]:
        """Return what a model goes on with after each prompt.

        Args:
            prompts: Texts.
            config: How to generate.
            seed: Of the draws, if it samples: give each client its own.
            policy: Which model.
        """
        found: list[str] = self._ask(
            "generate", policy, tuple(prompts), config or GenerationConfig(), seed
        )
        return found

    def call(self, function: str, *arguments: object, policy: str = _DEFAULT) -> Any:  # noqa: ANN401  (what the function returns)
        """Return what a function of the server says: a head's output, or an update's losses.

        Args:
            function: Its name.
            arguments: What it takes after the policy; they must survive pickling.
            policy: Which model.
        """
        return self._ask("call", policy, function, arguments)

    def close(self) -> None:
        """Ask nothing more; the server ends when its last client has closed."""
        self._connection.close()

    def _ask(self, kind: Literal["score", "generate", "call"], policy: str, *arguments: Any) -> Any:  # noqa: ANN401  (the answer's own type)
        """Send a request and wait for the answer."""
        self._connection.send(_Request(kind, policy, arguments))
        try:
            answer: _Answer = self._connection.recv()
        except EOFError as error:
            raise RuntimeError("the server of the policy has ended without an answer") from error
        if answer.fault is not None:
            raise UserError(answer.fault) if answer.is_users else RuntimeError(answer.fault)
        return answer.value


class PolicyServer:
    """Answers clients, one request of each at a time, until all of them have closed.

    Args:
        policies: The model, or several by name.
        functions: What clients may `call`: takes the policy first. One that changes weights is an
            update: all that was asked before it is answered before it.

    Scores and texts come without dropout; a function finds the policy in the mode that it is in.
    """

    def __init__(
        self,
        policies: LanguagePolicy | Mapping[str, LanguagePolicy],
        functions: Mapping[str, Function] | None = None,
    ) -> None:
        named = {_DEFAULT: policies} if isinstance(policies, LanguagePolicy) else dict(policies)
        self.policies: dict[str, LanguagePolicy] = named
        self.functions = dict(functions or {})
        self._own: list[Connection] = []
        self._given: list[Connection] = []

    def client(self) -> PolicyClient:
        """Return a new client, to be handed to one process or thread."""
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        self._own.append(ours)
        self._given.append(theirs)
        return PolicyClient(theirs)

    def handed_over(self) -> None:
        """Close this process's copies of the clients' ends, once other processes have them.

        Otherwise a process that dies is never noticed. Threads share the ends: leave it out there.
        """
        for connection in self._given:
            connection.close()
        self._given = []

    def serve(self) -> None:
        """Answer until every client has closed."""
        open_ends = list(self._own)
        while open_ends:
            requests: list[tuple[Connection, _Request]] = []
            for connection in wait(open_ends):
                assert isinstance(connection, Connection)
                try:
                    requests.append((connection, connection.recv()))
                except (EOFError, ConnectionResetError):
                    open_ends.remove(connection)
            for connection, answer in self._answers(requests):
                with suppress(BrokenPipeError, ConnectionResetError):  # it has ended since
                    connection.send(answer)

    def _answers(
        self, requests: Sequence[tuple[Connection, _Request]]
    ) -> list[tuple[Connection, _Answer]]:
        """Return the answers to what waits: to scores first, all of a kind in one pass."""
        kinds: dict[tuple[str, str], list[tuple[Connection, _Request]]] = {}
        answers = []
        for connection, request in requests:
            if request.kind == "score":
                key = (request.policy, request.arguments[1])
                kinds.setdefault(key, []).append((connection, request))
        for waiting in kinds.values():
            found = self._guarded(self._scores, [request for _, request in waiting])
            values = [found] * len(waiting) if found.fault else map(_Answer, found.value)
            answers += [(c, a) for (c, _), a in zip(waiting, values, strict=True)]
        for connection, request in requests:
            if request.kind != "score":
                answers.append((connection, self._guarded(self._other, request)))
        return answers

    def _guarded(self, answer: Callable[[Any], Any], request: object) -> _Answer:
        """Return an answer, or what the request was wrong about: the server goes on."""
        try:
            return _Answer(answer(request))
        except UserError as error:
            return _Answer(fault=str(error), is_users=True)
        except (ValueError, TypeError, RuntimeError) as error:
            return _Answer(fault=f"{type(error).__name__}: {error}")

    def _policy(self, name: str) -> LanguagePolicy:
        """Return a policy by name."""
        if name not in self.policies:
            raise UserError(f"expected a policy of {', '.join(self.policies)}, got {name!r}")
        return self.policies[name]

    @torch.no_grad()
    def _scores(self, requests: Sequence[_Request]) -> list[list[np.ndarray]]:
        """Return the scores that several requests ask for, of one policy.

        They go as arrays: tensors would go through shared memory, each with a file of its own.
        """
        policy, normalization = self._policy(requests[0].policy), requests[0].arguments[1]
        choices = [choice for request in requests for choice in request.arguments[0]]
        with evaluation(policy):
            scores = policy.score_actions(choices, normalization).scores.cpu().numpy()
        rows = [row[: len(c.actions)].copy() for row, c in zip(scores, choices, strict=True)]
        found, start = [], 0
        for request in requests:
            count = len(request.arguments[0])
            found.append(rows[start : start + count])
            start += count
        return found

    def _other(self, request: _Request) -> Any:  # noqa: ANN401  (what was asked for)
        """Return generated texts, or what a function says."""
        policy = self._policy(request.policy)
        if request.kind == "generate":
            prompts, config, seed = request.arguments
            ids = [policy.encode_text(prompt, begin=True) for prompt in prompts]
            generator = torch.Generator().manual_seed(seed)
            made = policy.generate(ids, config, generator)
            return [policy.text.decode_exactly(response) for response in made]
        name, arguments = request.arguments
        if name not in self.functions:
            known = ", ".join(self.functions) or "none"
            raise UserError(f"expected a function of {known}, got {name!r}")
        return self.functions[name](policy, *arguments)
