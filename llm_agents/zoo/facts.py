"""What is known of a folder, gathered from its files: all that a card is built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from llm_agents.entries import MESSAGE_REWARD_FILE, NETHACK_FILE
from llm_agents.errors import UserError
from llm_agents.evaluation import (
    AnyResults,
    EpisodeResults,
    GamesResults,
    MessageRewardResults,
    Results,
)
from llm_agents.evaluation.results import RESULTS_FILE
from llm_agents.zoo.layout import (
    ADAPTER_CONFIG,
    AGENT_FILE,
    RECIPE_FILE,
    REWARD_FILE,
    AdapterInfo,
    Kind,
    kind_of,
    read_json,
)
from llm_agents.zoo.privacy import without_here
from llm_agents.zoo.provenance import Provenance
from llm_agents.zoo.registry import measured

AGAINST = "against"
REPLAYS = ("replay.mp4", "replay.gif", "replay.html")


@dataclass(frozen=True)
class CardFacts:
    """What a card is built from.

    Args:
        repo_id: Repository on the Hub, or a name in the zoo.
        kind: Language policy, reward model or agent.
        base: Hub id of the base model; None if it has none.
        revision: Revision of the base.
        method: Method that trained it.
        task: What it was trained on.
        template: How its prompts are written; None where no dialogue is read.
        license: Licence identifier of the Hub.
        datasets: Hub ids of the training data.
        results: Measured numbers.
        recipe: The resolved recipe, as YAML; empty if there is none.
        has_adapter: Whether PEFT alone can load it.
        is_messages: Whether it judges game messages.
        described: What the agent's own file says.
        provenance: With what it was trained, if it is known.
        replays: Names of its recordings.
        against: Results of another policy on the same prompts by the same reward, as
            ``lightning evaluate DIR --against OTHER`` leaves them in the folder.
        beginning: Results of the agent whose adapter training began with, if it is in the zoo.
    """

    repo_id: str
    kind: Kind
    base: str | None
    revision: str | None
    method: str | None
    task: str | None
    template: str | None
    license: str
    datasets: tuple[str, ...]
    results: AnyResults
    recipe: str
    has_adapter: bool = True
    is_messages: bool = False
    described: Mapping[str, Any] = field(default_factory=dict)
    provenance: Provenance | None = None
    replays: tuple[str, ...] = ()
    against: Results | None = None
    beginning: EpisodeResults | None = None

    @property
    def name(self) -> str:
        """Return the repository's name without its owner."""
        return self.repo_id.rpartition("/")[2]

    @property
    def began_with(self) -> str | None:
        """Return the adapter that training began with, as the recipe names it."""
        return _began_with(self.recipe)

    @property
    def plays_nethack(self) -> bool:
        """Return whether it is an agent of NetHack."""
        return isinstance(self.results, GamesResults)


def gather_facts(
    source: Path,
    repo_id: str,
    base: str | None,
    revision: str | None,
    *,
    license: str | None = None,  # the Hub's word
    datasets: tuple[str, ...] | None = None,
) -> CardFacts:
    """Read what the card needs from a folder's files.

    Raises:
        UserError: There are no results, or they are of another kind than the folder.
    """
    info = AdapterInfo.read(source)
    path = source / RECIPE_FILE
    recipe = without_here(path.read_text(encoding="utf8")) if path.is_file() else ""
    loaded = yaml.safe_load(recipe) if recipe.strip() else None
    wanted = (loaded.get("publish") if isinstance(loaded, dict) else None) or {}
    results, kind = measured(source), kind_of(source)
    if results is None:
        raise UserError(
            f"there is no `{RESULTS_FILE}` in `{source}`: run `lightning evaluate {source}` first"
        )
    plays = isinstance(results, EpisodeResults | GamesResults)
    if plays != (kind == "agent"):
        raise UserError(
            f"expected results of {'games' if kind == 'agent' else 'test prompts'} in `{source}`, "
            f"which holds {_ARTICLES[kind]}: evaluate it again"
        )
    return CardFacts(
        repo_id=repo_id,
        kind=kind,
        base=base,
        revision=revision,
        method=_method(info, results),
        task=_task(info, results),
        template=_template(source, info, kind),
        license=license or wanted.get("license") or "apache-2.0",
        datasets=tuple(datasets if datasets is not None else wanted.get("datasets") or ()),
        results=results,
        recipe=recipe,
        has_adapter=(source / ADAPTER_CONFIG).is_file(),
        is_messages=isinstance(results, MessageRewardResults),
        described=_described(source),
        provenance=Provenance.read(source),
        replays=tuple(name for name in REPLAYS if (source / name).is_file()),
        against=_against(source, results),
        beginning=_beginning(source, recipe),
    )


_ARTICLES: Mapping[Kind, str] = {
    "policy": "a policy that writes",
    "reward": "a reward model",
    "agent": "an agent",
}


def _method(info: AdapterInfo | None, results: AnyResults) -> str | None:
    """Return the method that trained it."""
    if info is not None and info.method:
        return info.method
    found = results.details.get("method")
    return found if isinstance(found, str) else None


def _task(info: AdapterInfo | None, results: AnyResults) -> str | None:
    """Return what it was trained on: of several worlds the first."""
    if isinstance(results, EpisodeResults):
        return results.overall.world
    if isinstance(results, GamesResults):
        return results.overall.task
    if info is not None and info.task:
        return info.task
    found = results.details.get("task")
    return found if isinstance(found, str) else None


def _template(source: Path, info: AdapterInfo | None, kind: Kind) -> str | None:
    """Return how dialogues are written; None where none are read."""
    if kind == "agent" or (source / MESSAGE_REWARD_FILE).is_file():
        return None
    reward = read_json(source / REWARD_FILE) if (source / REWARD_FILE).is_file() else {}
    return str(reward.get("template") or (info.template if info else None) or "alol")


def _against(source: Path, results: AnyResults) -> Results | None:
    """Return what another policy reached, if it answered the same prompts for the same reward."""
    found = measured(source / AGAINST)
    if not isinstance(results, Results) or not isinstance(found, Results):
        return None
    rewards = {(each.reward.name, each.reward.version) for each in (results, found)}
    prompts = [{(answer.test, answer.row) for answer in each.answers} for each in (results, found)]
    return found if len(rewards) == 1 and prompts[0] == prompts[1] else None


def _began_with(recipe: str) -> str | None:
    """Return the adapter that a recipe's training begins with, as it is named there."""
    found: Any = yaml.safe_load(recipe) if recipe.strip() else None
    for key in ("model", "init_args", "policy", "init_args", "adapter"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else None


def _beginning(source: Path, recipe: str) -> EpisodeResults | None:
    """Return what the agent had reached whose adapter training began with.

    A recipe names it from the working folder; an entry's lies beside it in the zoo.
    """
    name = _began_with(recipe)
    if name is None:
        return None
    beside = source.parent / Path(name).name
    for folder in (Path(name), beside):
        if folder.is_dir() and folder.resolve() != source.resolve():
            found = measured(folder)
            return found if isinstance(found, EpisodeResults) else None
    return None


def _described(source: Path) -> dict[str, Any]:
    """Return what the file says that makes a folder an agent's, or a reward of messages."""
    for name in (AGENT_FILE, NETHACK_FILE, MESSAGE_REWARD_FILE):
        if (source / name).is_file():
            return read_json(source / name)
    return {}
