"""Players by name that were not trained in a world: models behind servers, and bare models."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.evaluation.episodes import World
from llm_agents.evaluation.outside_players import AskedPlayer, Mode, OutsidePlayer, ScoringPlayer
from llm_agents.evaluation.player_questions import AskingMode, Order
from llm_agents.evaluation.player_replies import (
    PolicySpeaker,
    ReplyJournal,
    ReplySettings,
    ServerSpeaker,
)
from llm_agents.functional.action_scores import Normalization
from llm_agents.methods import TWOSOME
from llm_agents.policies import LanguagePolicy
from llm_agents.rewards.chat_server import ChatServer
from llm_agents.served_models import ServedModel
from llm_agents.types import Agent, Choice, Decisions, Episode, Turn

log = logging.getLogger(__name__)

_UNFINISHED, TRANSCRIPT = ".unfinished_replies.jsonl", "replies.jsonl"


@dataclass(frozen=True)
class PlayerOptions:
    """How a model that was not trained in a world plays it; None is the default of its kind.

    Args:
        mode: How an action is come to: ``score`` draws from the log-probs of the offered actions,
            ``choose`` asks for a number, ``write`` for the action's words; ``auto`` scores where
            log-probs can be had, and lets choose elsewhere.
        normalization: Of scores: length that an action's log-prob is divided by (``word``).
        template: Of scores, in this process: the world's prompt as it stands (``plain``), or as a
            user's turn of the model's chat template (``chat``).
        order: Of lists that are shown: ``shuffled``, as ``listed``, or in ``both`` directions.
        temperature: Of replies (0); ``server`` leaves it to the server.
        max_new_tokens: Longest reply (16).
        key_variable: Environment variable that holds the server's key (``OPENAI_API_KEY``).
        parallel: Requests at a time (8).
        timeout: Seconds until a request counts as failed (120).
        attempts: Requests before a question is given up (6).
    """

    mode: Mode = "auto"
    normalization: Normalization | None = None
    template: Literal["plain", "chat"] | None = None
    order: Order | None = None
    temperature: float | Literal["server"] | None = None
    max_new_tokens: int | None = None
    key_variable: str | None = None
    parallel: int | None = None
    timeout: float | None = None
    attempts: int | None = None

    def given(self) -> tuple[str, ...]:
        """Return the names of the options that were given."""
        return tuple(
            field.name for field in fields(self) if getattr(self, field.name) not in (None, "auto")
        )

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Raise if an option was given that would have no effect.

        Raises:
            UserError: Names the option.
        """
        wrong = [name for name in self.given() if name in names]
        if wrong:
            raise UserError(f"expected no --{wrong[0].replace('_', '-')}: {why}")

    def replies(self) -> ReplySettings:
        """Return how replies are drawn."""
        temperature: float | None = 0.0
        if self.temperature is not None:
            temperature = None if self.temperature == "server" else self.temperature
        longest = self.max_new_tokens
        return ReplySettings(
            temperature, ReplySettings.max_new_tokens if longest is None else longest
        )

    def server(self, endpoint: str) -> ChatServer:
        """Return the client."""
        names = ("key_variable", "parallel", "timeout", "attempts")
        given = {name: getattr(self, name) for name in names}
        return ChatServer(endpoint, **{k: v for k, v in given.items() if v is not None})


_OF_SCORES = ("normalization", "template")
OF_REPLIES = ("order", "temperature", "max_new_tokens")
OF_SERVERS = ("key_variable", "parallel", "timeout", "attempts")
ALL_OPTIONS = ("mode", *_OF_SCORES, *OF_REPLIES, *OF_SERVERS)


def served_player(
    name: str, options: PlayerOptions, journal: ReplyJournal | None = None
) -> tuple[OutsidePlayer, dict[str, Any]]:
    """Return a model behind a server as a player, and what results tell of it.

    The server is asked twice, to find what it can do and what is wrong before the first episode.

    Args:
        name: ``openai:MODEL@URL``.
        options: How it plays.
        journal: Keeps what is answered.

    Raises:
        UserError: The server can't be reached, refuses, or can't do what was asked for.
    """
    served = ServedModel.read(name)
    variable = options.key_variable
    if variable is not None and variable.isidentifier() and not os.environ.get(variable):
        raise UserError(
            f"expected a key in ${variable}, which is not set: export it, or leave "
            "--key-variable out"
        )
    options.refuse(("template",), f"the server of `{served.label}` has its own")
    speaker = ServerSpeaker(options.server(served.endpoint), served.model, options.replies())
    mode = options.mode
    if mode == "auto":
        mode = "score" if speaker.has_echo() else "choose"
        log.info("`%s` plays by `--mode %s`", served.label, mode)
    elif mode == "score" and not speaker.has_echo():
        raise speaker.without_echo()
    details: dict[str, Any] = {
        "method": "served",
        "policy": served.label,
        "model": served.model,
        "host": served.host,
        "mode": mode,
    }
    if mode == "score":
        options.refuse(OF_REPLIES, "actions are drawn from their scores as they are")
        normalization = options.normalization or "word"
        scoring = ScoringPlayer(speaker, normalization, journal)
        return scoring, {**details, "normalization": normalization}
    options.refuse(_OF_SCORES, f"nothing is scored where the model is to {mode}")
    speaker.greet()
    order = options.order or "shuffled"
    asked = AskedPlayer(speaker, mode, order, journal)
    return asked, {**details, **_of_replies(order, speaker.settings)}


def asked_policy(
    policy: LanguagePolicy,
    mode: AskingMode,
    options: PlayerOptions,
    journal: ReplyJournal | None = None,
) -> tuple[AskedPlayer, dict[str, Any]]:
    """Return a model in this process that is asked in words, and what results tell of it.

    Raises:
        UserError: It has no chat template.
    """
    options.refuse(_OF_SCORES, f"nothing is scored where the model is to {mode}")
    speaker = PolicySpeaker(policy, options.replies())
    order = options.order or "shuffled"
    details = {"method": "asked", "policy": policy.base, "mode": mode}
    return (
        AskedPlayer(speaker, mode, order, journal),
        {**details, **_of_replies(order, speaker.settings)},
    )


def _of_replies(order: Order, settings: ReplySettings) -> dict[str, Any]:
    """Return what results tell of how replies are drawn."""
    temperature = "server" if settings.temperature is None else settings.temperature
    return {
        "order": order,
        "temperature": temperature,
        "max_new_tokens": settings.max_new_tokens,
    }


class ChatPrompted:
    """Scores actions as the assistant's words in the model's chat template.

    Args:
        agent: Decides; its policy is a language model with a chat template.
    """

    def __init__(self, agent: TWOSOME) -> None:
        self.agent = agent
        self.policy = agent.policy

    def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
        """Draw an action for each choice."""
        return self.agent.act([self._framed(choice) for choice in choices], generator)

    def state_values(self, choices: Sequence[Choice]) -> Tensor:
        """Return ``[E]`` values of an untrained critic."""
        return self.agent.state_values([self._framed(choice) for choice in choices])

    def _framed(self, choice: Choice) -> Choice:
        """Return the choice with its prompt in the template."""
        turns = (Turn("user", choice.prompt),)
        return replace(choice, prompt=self.policy.text.render(turns, "chat"))


def counted(
    worlds: Sequence[World], player: OutsidePlayer, counts: dict[str, dict[str, int]]
) -> list[World]:
    """Return worlds that put into `counts`, by their names, what became of a player's questions."""

    def play(
        world: World, agent: Agent, num_episodes: int, generator: torch.Generator
    ) -> list[Episode]:
        before = Counter(player.counts)
        episodes = world.play(agent, num_episodes, generator)
        if agent is player:
            counts[world.name] = dict(player.counts - before)
        return episodes

    return [replace(world, play=partial(play, world)) for world in worlds]


def journal_in(folder: Path) -> ReplyJournal:
    """Return the journal of an evaluation, with the answers of one that was cut short."""
    return ReplyJournal(folder / _UNFINISHED)


def finish_journal(player: OutsidePlayer, folder: Path) -> None:
    """Keep what was said as ``replies.jsonl``; scores are dropped."""
    is_asked = isinstance(player, AskedPlayer)
    player.journal.finish(folder / TRANSCRIPT if is_asked else None)
