"""Trained agents by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from lightning.pytorch import seed_everything

from llm_agents.data import CloningData
from llm_agents.entries import is_whole_model
from llm_agents.envs.registry import check_world
from llm_agents.errors import UserError
from llm_agents.evaluation import (
    EpisodeResults,
    GamesResults,
    RandomAgent,
    World,
    print_table,
)
from llm_agents.evaluation.baselines import BotAgent, WorldPlayer
from llm_agents.evaluation.episodes import BOT, RANDOM, TRAINED, ZERO_SHOT
from llm_agents.evaluation.outside_players import OutsidePlayer
from llm_agents.evaluation.player_replies import ReplyJournal
from llm_agents.functional.action_scores import Normalization
from llm_agents.methods import (
    TWOSOME,
    LoadedAgent,
    has_base,
    is_agent,
    load_agent,
    load_network_agent,
    read_agent,
)
from llm_agents.policies.bundled import ALIASES
from llm_agents.rollouts import SymbolicRollouts, TextRollouts
from llm_agents.rollouts.symbolic import SymbolicAgent
from llm_agents.served_models import is_served
from llm_agents.training.building import instantiate
from llm_agents.training.earlier_results import keep_beside
from llm_agents.training.nethack_agents import evaluate_games_of, nethack_folder
from llm_agents.training.outside_agents import (
    ALL_OPTIONS,
    OF_REPLIES,
    OF_SERVERS,
    ChatPrompted,
    PlayerOptions,
    asked_policy,
    counted,
    finish_journal,
    journal_in,
    served_player,
)
from llm_agents.training.playing import (
    TrainingWorlds,
    WorldData,
    agent_details,
    evaluate_in_worlds,
    unfinished_episodes,
    worlds_to_play,
)
from llm_agents.training.settings import EvaluationConfig
from llm_agents.types import Agent, Choice, Decisions
from llm_agents.zoo import load_policy
from llm_agents.zoo.hub import find_folder
from llm_agents.zoo.integrity import weights_digest

log = logging.getLogger(__name__)

SCRIPTED: Mapping[str, Callable[[], Agent | WorldPlayer]] = {RANDOM: RandomAgent, BOT: BotAgent}
"""Names of those that need no training."""


def agent_folder(name: str) -> Path | None:
    """Return the folder of the agent called `name`; None if what is there is no agent.

    Raises:
        UserError: There is nothing of that name.
    """
    if name in ALIASES or is_whole_model(Path(name)):
        return None
    folder = find_folder(name)
    return folder if is_agent(folder) else None


def agent_by_name(
    name: str,
    *,
    behaviour: Literal["decomposed", "trie", "list"] | None = None,
    device: str | None = None,
) -> LoadedAgent:
    """Load a trained agent, ready to act.

    Args:
        name: Zoo name, folder or Hub id.
        behaviour: What a POAD agent draws its actions from, if not what it was trained with.
        device: Where it runs; the accelerator by default, if there is one.

    Raises:
        UserError: It is no agent, or has no such choice.
    """
    folder = agent_folder(name)
    if folder is None:
        raise UserError(
            f"expected an agent, but `{name}` was not trained in a world: it has no `agent.json`"
        )
    options: dict[str, str] = {} if behaviour is None else {"behaviour": behaviour}
    if behaviour is not None and "behaviour" not in read_agent(folder)["options"]:
        raise UserError(
            f"`{name}` draws whole actions from their list: leave the behaviour out, it is a "
            "choice of POAD's"
        )
    if not has_base(folder):
        target = device or ("cuda" if torch.cuda.is_available() else "cpu")
        return load_network_agent(folder).to(target)
    policy = load_policy(str(folder), device=device)
    if behaviour == "list":
        options["tokens"] = "all"
    return load_agent(folder, policy, **options)


@dataclass(frozen=True)
class AgentRequest:
    """Which agent is to play which worlds.

    Args:
        name: Zoo name, folder, Hub id, alias of a base model, which then plays untrained, a model
            behind a server (``openai:MODEL@URL``), or one of `SCRIPTED`.
        recipe: Content of the recipe that it was trained with; empty if there is none.
        worlds: What is played; the recipe's worlds if empty.
        episodes: Episodes in each world; the recipe's number if None.
        behaviour: See `agent_by_name`.
        out: Where results go.
        reward: Reward of messages, in NetHack; the recipe's if None.
        options: How a model plays that was not trained in a world.
        is_own_recipe: Whether it was trained with the recipe.
    """

    name: str
    recipe: Mapping[str, Any]
    worlds: tuple[str, ...]
    episodes: int | None
    behaviour: Literal["decomposed", "trie", "list"] | None
    out: Path
    reward: str | None = None
    options: PlayerOptions = field(default_factory=PlayerOptions)
    is_own_recipe: bool = True

    def known(self, folder: Path | None) -> dict[str, Any]:
        """Return what results keep of the training: its seed, if the recipe tells it, and weights.

        Args:
            folder: Of the agent; None if nothing was trained.
        """
        seed = self.recipe.get("seed_everything")
        is_known = folder is not None and self.is_own_recipe and isinstance(seed, int)
        weights = None if folder is None else weights_digest(folder)
        return {
            **({"training_seed": seed} if is_known else {}),
            **({"weights": weights} if weights else {}),
        }


def evaluate_agent_named(request: AgentRequest) -> EpisodeResults | GamesResults:
    """Let an agent play, print a table and keep the results.

    Raises:
        UserError: It can't be found, or nothing says which worlds are to be played.
    """
    seed_everything(int(request.recipe.get("seed_everything") or 0), verbose=False)
    is_named = request.name not in SCRIPTED and not is_served(request.name)
    folder = nethack_folder(request.name) if is_named else None
    if folder is not None:
        request.options.refuse(ALL_OPTIONS, f"`{request.name}` plays as it was trained")
        games = evaluate_games_of(
            folder,
            request.name,
            request.recipe,
            tasks=request.worlds,
            num_games=request.episodes,
            reward=request.reward,
        )
        games = replace(games, details={**games.details, **request.known(folder)})
        kept = keep_beside(games, request.out)
        print_table(kept)
        return kept
    for world in request.worlds:
        check_world(world)
    is_asked = is_served(request.name) or request.options.mode in ("choose", "write")
    player = named_player(request, journal_in(request.out) if is_asked else None)
    if player.label == TRAINED:
        known = request.known(agent_folder(request.name))
        player = replace(player, details={**player.details, **known})
    home = home_of(request.recipe)
    if not (request.worlds or home.names):
        raise UserError(
            f"nothing says in which world `{request.name}` is to play: give `--env` with the name "
            "of one"
        )
    config = instantiate(EvaluationConfig, request.recipe.get("evaluation") or {})
    if request.episodes is not None:
        config = replace(config, episodes=request.episodes)
    if request.worlds:
        config = replace(config, worlds=())
    worlds = worlds_to_play(home, config, request.worlds)
    results = (
        _asked_results(player.agent, player, worlds, config, request.out)
        if isinstance(player.agent, OutsidePlayer)
        else _results(player, home, worlds, config, request.out)
    )
    print_table(results)
    return results


def _results(
    player: NamedPlayer,
    home: TrainingWorlds,
    worlds: list[World],
    config: EvaluationConfig,
    out: Path,
) -> EpisodeResults:
    """Let an agent play, and keep the results."""
    unfinished = unfinished_episodes(out, player.agent, home, worlds, config, player.details)
    results = evaluate_in_worlds(
        player.agent,
        worlds,
        config,
        name=player.name,
        details=player.details,
        label=player.label,
        unfinished=unfinished,
    )
    kept = keep_beside(results, out)
    unfinished.discard()
    return kept


def _asked_results(
    agent: OutsidePlayer,
    player: NamedPlayer,
    worlds: list[World],
    config: EvaluationConfig,
    out: Path,
) -> EpisodeResults:
    """Let a player from outside play, and keep the results with what became of its questions.

    What was cut short is played anew, with the answers that came before: it asks for the others.
    """
    counts: dict[str, dict[str, int]] = {}
    results = evaluate_in_worlds(
        agent,
        counted(worlds, agent, counts),
        config,
        name=player.name,
        details=player.details,
        label=player.label,
    )
    report = {**agent.report(), "seconds": round(agent.seconds, 3), "worlds": counts}
    results = replace(results, details={**results.details, "player": report})
    kept = keep_beside(results, out)
    finish_journal(agent, out)
    return kept


@dataclass(frozen=True)
class NamedPlayer:
    """Who plays.

    Args:
        agent: The agent.
        label: What it is called in results: ``trained``, ``zero-shot``, ``random`` or ``bot``.
        details: What is kept of it.
        name: What was evaluated, for tables.
    """

    agent: LoadedAgent | Agent | WorldPlayer
    label: str
    details: Mapping[str, Any]
    name: str

    def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
        """Return a decision for each choice.

        Raises:
            UserError: It plays by what a world is, not by what it shows.
        """
        if isinstance(self.agent, WorldPlayer | SymbolicAgent):
            raise UserError(f"`{self.name}` reads no text: it can't be asked for an action")
        return self.agent.act(choices, generator)

    def pick(self, prompt: str, actions: Sequence[str], *, seed: int = 0) -> str:
        """Return the action that it takes after a prompt.

        Args:
            prompt: Ends in an unfinished clause that an action completes.
            actions: Distinct texts.
            seed: Of its draws.

        Example:
            >>> load_player("random").pick("To leave, you should", ["open the door"])
            'open the door'
        """
        draws = torch.Generator().manual_seed(seed)
        decisions = self.act([Choice(prompt, tuple(actions))], draws)
        return actions[int(decisions.index[0])]


def load_player(name: str, **options: Any) -> NamedPlayer:  # noqa: ANN401  (see PlayerOptions)
    """Load whatever plays text worlds, by name.

    Args:
        name: Zoo name, folder, Hub id or alias of an agent or of a language model, a model behind
            a server (``openai:MODEL@URL``), ``random`` or ``bot``.
        options: Of a model that was not trained in a world: see `PlayerOptions`.

    Returns:
        An object with `act`, for worlds of your own loop, and `pick`, for a single decision.

    Raises:
        UserError: There is none of that name, or an option has no effect for it.
    """
    request = AgentRequest(name, {}, (), None, None, Path(), options=PlayerOptions(**options))
    return named_player(request)


def named_player(request: AgentRequest, journal: ReplyJournal | None = None) -> NamedPlayer:
    """Return the agent of a name, or one that needs no training.

    Args:
        request: Who, and how.
        journal: Keeps what a player from outside answers.

    Raises:
        UserError: There is none of that name, or it has no such behaviour.
    """
    name, options = request.name, request.options
    is_scripted = name in SCRIPTED
    if (is_scripted or is_served(name)) and request.behaviour is not None:
        raise UserError(f"`{name}` has one behaviour: leave `--behaviour` out")
    if is_served(name):
        served, details = served_player(name, options, journal)
        return NamedPlayer(served, ZERO_SHOT, details, str(details["policy"]))
    if is_scripted:
        options.refuse(ALL_OPTIONS, f"`{name}` has one way to play")
        return NamedPlayer(SCRIPTED[name](), name, {"method": name}, name)
    home = home_of(request.recipe)
    if agent_folder(name) is not None:
        options.refuse(ALL_OPTIONS, f"`{name}` plays as it was trained")
        trained = agent_by_name(name, behaviour=request.behaviour)
        return NamedPlayer(trained, TRAINED, agent_details(trained, home), name)
    options.refuse(OF_SERVERS, f"`{name}` runs in this process")
    if options.mode in ("choose", "write"):
        agent, details = asked_policy(load_policy(name), options.mode, options, journal)
        return NamedPlayer(agent, ZERO_SHOT, details, name)
    options.refuse(OF_REPLIES, "actions are drawn from their scores as they are")
    scored = zero_shot_agent(name, options.normalization or "word")
    details = agent_details(scored, home)
    if options.template == "chat":
        return NamedPlayer(ChatPrompted(scored), ZERO_SHOT, {**details, "template": "chat"}, name)
    return NamedPlayer(scored, ZERO_SHOT, details, name)


def zero_shot_agent(name: str, normalization: Normalization = "word") -> TWOSOME:
    """Return a policy without any training in worlds as an agent: TWOSOME's.

    Args:
        name: Zoo name, folder, Hub id or alias.
        normalization: Length that an action's log-prob is divided by.

    Raises:
        UserError: It is no policy.
    """
    policy = load_policy(name)
    log.info("`%s` was not trained in a world: it plays zero-shot", name)
    return TWOSOME(policy, normalization).to(policy.device).eval()


def home_of(recipe: Mapping[str, Any]) -> TrainingWorlds:
    """Return the worlds that a recipe trains in; none if it trains in none."""
    section = recipe.get("data") or {}
    for kind in (TextRollouts, SymbolicRollouts, CloningData):
        if str(section.get("class_path", "")).endswith(f".{kind.__name__}"):
            return TrainingWorlds.of(cast(WorldData, instantiate(kind, section)))
    return TrainingWorlds((), {}, None)
