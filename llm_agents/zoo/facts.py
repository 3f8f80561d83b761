"""What is known of a folder, gathered from its files: all that a card is built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from llm_agents.entries import MESSAGE_REWARD_FILE, NETHACK_FILE, shipped_folders, zoo_name
from llm_agents.errors import UserError
from llm_agents.evaluation import (
    AnyResults,
    EpisodeResults,
    GamesResults,
    MessageRewardResults,
    Results,
)
from llm_agents.evaluation.results import RESULTS_FILE
from llm_agents.policies.bundled import ALIASES
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
from llm_agents.zoo.outside_files import OutsideFile, read_files
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
        template: How its prompts are written; None where no dialogue is read, or it is not known.
        license: Licence identifier of the Hub.
        datasets: Hub ids of the training data.
        results: Measured numbers.
        recipe: The resolved recipe, as YAML; empty if there is none.
        has_adapter: Whether PEFT alone can load it.
        is_messages: Whether it judges game messages.
        described: What the agent's own file says.
        provenance: With what it was trained, if it is known.
        replays: Names of its recordings.
        against: Results of other policies on the same prompts by the same reward, as
            ``lightning evaluate DIR --against OTHER`` leaves them in the folder.
        beginning: Results of the agent whose adapter training began with, if it is in the zoo.
        alias: What the base is called on the machine of the training, if not by its Hub id.
        is_seq2seq: Whether the base is an encoder-decoder model.
        files: Files of data outside the folder that the recipe names.
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
    against: tuple[Results, ...] = ()
    beginning: EpisodeResults | None = None
    alias: str | None = None
    is_seq2seq: bool = False
    files: tuple[OutsideFile, ...] = ()

    @property
    def name(self) -> str:
        """Return the repository's name without its owner."""
        return self.repo_id.rpartition("/")[2]

    @property
    def began_with(self) -> str | None:
        """Return the adapter that training began with, as the recipe names it."""
        return _began_with(self.recipe)

    @property
    def training_seed(self) -> int | None:
        """Return the seed of the training: as results keep it, else the recipe's."""
        found = self.results.details.get("training_seed")
        if found is None and self.recipe.strip():
            found = (yaml.safe_load(self.recipe) or {}).get("seed_everything")
        return found if isinstance(found, int) else None

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
    staged: Path | None = None,
) -> CardFacts:
    """Read what the card needs from a folder's files.

    Args: As of `CardFacts`; `staged` is what of the folder others get, if that is not all.

    Raises:
        UserError: There are no results, or they are of another kind than the folder.
    """
    info = AdapterInfo.read(source)
    path = (staged or source) / RECIPE_FILE
    recipe = without_here(path.read_text(encoding="utf8")) if path.is_file() else ""
    loaded = yaml.safe_load(recipe) if recipe.strip() else None
    wanted = (loaded.get("publish") if isinstance(loaded, dict) else None) or {}
    results, kind = measured(staged or source), kind_of(source)
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
        alias=_alias(source, info),
        is_seq2seq=_is_seq2seq(source),
        files=tuple(read_files(staged or source)),
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
    found = reward.get("template") or (info.template if info else None)
    return str(found) if found else None


def _against(source: Path, results: AnyResults) -> tuple[Results, ...]:
    """Return what other policies reached that answered the same prompts for the same reward."""
    if not isinstance(results, Results):
        return ()
    others = [measured(folder) for folder in against_folders(source)]
    return tuple(
        found
        for found in others
        if isinstance(found, Results)
        and (found.reward.name, found.reward.version)
        == (results.reward.name, results.reward.version)
        and {(answer.test, answer.row) for answer in found.answers}
        == {(answer.test, answer.row) for answer in results.answers}
    )


def against_folders(source: Path) -> list[Path]:
    """Return the folders in which the numbers of other policies lie, as they were asked for."""
    return sorted((p for p in source.glob(f"{AGAINST}*") if p.is_dir()), key=lambda p: p.name)


def _alias(source: Path, info: AdapterInfo | None) -> str | None:
    """Return the alias by which a folder's files name the base; None if they name it otherwise."""
    if info is not None:
        return info.base if info.base in ALIASES else None
    for name in (REWARD_FILE, AGENT_FILE, MESSAGE_REWARD_FILE):
        if (source / name).is_file():
            base = read_json(source / name).get("base")
            return base if base in ALIASES else None
    return None


def _is_seq2seq(source: Path) -> bool:
    """Return whether an adapter says that its base is an encoder-decoder model."""
    path = source / ADAPTER_CONFIG
    return path.is_file() and read_json(path).get("task_type") == "SEQ_2_SEQ_LM"


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
    entry = zoo_name(name) or Path(name).name
    places = [source.parent / entry] if zoo_name(name) else [Path(name), source.parent / entry]
    places += [folder for folder in shipped_folders() if folder.name == zoo_name(name)]
    for folder in places:
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
