"""Publishing at the end of a run, and the replay that goes with an agent."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from llm_agents.entries import is_hub_id
from llm_agents.errors import UserError
from llm_agents.evaluation.replay_pictures import find_encoder
from llm_agents.training.watching import WatchRequest, watch_named
from llm_agents.zoo import PublishReport, publish
from llm_agents.zoo.facts import REPLAYS
from llm_agents.zoo.layout import RECIPE_FILE, kind_of
from llm_agents.zoo.outside_files import local_paths, short_names, with_short_names
from llm_agents.zoo.privacy import private_places

log = logging.getLogger(__name__)

MOST_STEPS = 100  # of the episode that is recorded: pictures take a third of a second each


def attach_replay(folder: Path, *, seed: int = 0, again: bool = False) -> list[Path]:
    """Record one episode of an agent into its folder: as a page, and as a video or picture.

    The seed is fixed beforehand, so that nobody has chosen a lucky episode.

    Args:
        folder: Of an agent; anything else gets no replay.
        seed: Of the world and of the draws.
        again: Record anew where there is a replay already.

    Returns:
        The files that were written.
    """
    if kind_of(folder) != "agent":
        return []
    if not again and any((folder / name).is_file() for name in REPLAYS):
        return []
    path = folder / RECIPE_FILE
    recipe = yaml.safe_load(path.read_text(encoding="utf8")) if path.is_file() else {}
    page = folder / "replay.html"
    moving = folder / ("replay.mp4" if has_encoder() else "replay.gif")
    request = WatchRequest(
        name=str(folder),
        recipe=recipe,
        max_steps=MOST_STEPS,
        seed=seed,
        html=page,
        mp4=moving if moving.suffix == ".mp4" else None,
        gif=moving if moving.suffix == ".gif" else None,
        screen=False,
        title=_title(recipe) or (folder.parent if folder.name == "adapter" else folder).name,
    )
    watch_named(request)
    return [page, moving]


def _title(recipe: Mapping[str, Any]) -> str:
    """Return the method and the world of a recipe, "POAD in overcooked-tomato-salad"; else ""."""
    method = str((recipe.get("model") or {}).get("class_path", "")).rpartition(".")[2]
    data = (recipe.get("data") or {}).get("init_args") or {}
    world = str(data.get("world") or data.get("task") or "")
    return f"{method} in {world}" if method and world else ""


def has_encoder() -> bool:
    """Return whether a video can be written."""
    try:
        find_encoder()
    except UserError:
        return False
    return True


def check_publishing(values: Mapping[str, Any], recipe: str) -> None:
    """Refuse, before a run begins, what publishing would refuse hours later.

    Args:
        values: The recipe's content.
        recipe: The same as text, which is published with the weights.

    Raises:
        UserError: The repository's name is none, or the recipe tells who and where the user is in
            other words than paths, which get other names when they are published.
    """
    repo_id = _repo_id(values)
    if repo_id is None:
        return
    if not is_hub_id(repo_id):
        raise UserError(f"expected `publish.repo_id` of the form owner/name, got `{repo_id}`")
    told = with_short_names(recipe, short_names(local_paths(values)))
    faults = [f"line {number}: {what}" for number, what in private_places(told, strict=True)]
    if faults:
        raise UserError(
            f"`publish.repo_id` is set, and the recipe is published with the weights, but it would "
            f"tell who and where you are: {'; '.join(faults[:5])}. Leave these out"
        )


def publish_trained(values: Mapping[str, Any], folder: Path) -> PublishReport | None:
    """Publish what a run trained, if its recipe says where.

    Args:
        values: The recipe's content.
        folder: Of what was trained, with its results.

    Returns:
        What was sent; None if the recipe names no repository.

    Raises:
        UserError: It could not be sent; the message has the command that tries again.
    """
    repo_id = _repo_id(values)
    if repo_id is None:
        return None
    section = values.get("publish") or {}
    try:
        attach_replay(folder)
        report = publish(folder, repo_id, private=bool(section.get("private")))
    except UserError as error:
        raise UserError(
            f"the run is finished, but not published: {error}\n"
            f"once that is mended: lightning publish {folder} --repo {repo_id}"
        ) from error
    log.info("published: %s", report.commit)
    return report


def _repo_id(values: Mapping[str, Any]) -> str | None:
    """Return where a recipe wants to publish."""
    section = values.get("publish")
    found = section.get("repo_id") if isinstance(section, Mapping) else None
    return found if isinstance(found, str) and found else None
