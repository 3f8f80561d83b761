"""Worlds as people read of them: which there are, and what one shows and offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import yaml

from llm_agents.envs.base import TextEnv
from llm_agents.envs.inspection import inspect_world
from llm_agents.envs.registry import make_world, world_names
from llm_agents.errors import UserError

_FAMILIES = {
    "overcooked": "Overcooked, macro actions (TWOSOME)",
    "virtualhome": "VirtualHome's household (TWOSOME, POAD)",
    "babyai": "BabyAI-Text (GLAM)",
    "nethack": "NetHack as text",
    "case": "POAD's case study of credit",
    "errands": "k³ actions whose texts branch",
    "toy": "toy worlds, solved in seconds",
}
_SHOWN_ACTIONS = 12


def answer(
    verb: str | None = None,
    name: str = "",
    option: Sequence[str] = (),
    seed: int = 0,
    episodes: int = 8,
    max_steps: int = 300,
) -> tuple[str, bool]:
    """Return what ``lightning env`` prints, and whether no fault was found.

    Args:
        verb: `list`, `show` or `check`; None lists.
        name: Of a world, as of `make_world`.
        option: Its options, each KEY=VALUE.
        seed: Of the world.
        episodes: As of `inspect_world`.
        max_steps: As of `inspect_world`.

    Raises:
        UserError: As of `make_world`, or the world says too little of itself.
    """
    if verb in (None, "list"):
        return list_worlds(), True
    options = world_options(option)
    if verb == "show":
        return show_world(name, options, seed), True
    return check_world(name, options, episodes, max_steps, seed)


def list_worlds() -> str:
    """Return all worlds by family, as lines."""
    lines: list[str] = []
    for prefix, title in _FAMILIES.items():
        names = [name for name in world_names() if name.split("-")[0] == prefix]
        lines += [title, *(f"  {name}" for name in names)]
    return "\n".join(
        [
            *lines,
            "a world of your own: package.module:Class, or with Gymnasium's interface gym:ID or",
            "gym:package.module:Class; `lightning env show NAME` tells more of one",
        ]
    )


def show_world(name: str, options: Mapping[str, object], seed: int = 0) -> str:
    """Return what a world shows first, what it offers, and what is known of it.

    Args:
        name: As of `make_world`.
        options: As of `make_world`.
        seed: Of the episode that is shown.

    Raises:
        UserError: As of `make_world`.
    """
    world = make_world(name, **options)
    shown = world.reset(seed=seed)
    offered = [f"  {text}" for text in shown.actions[:_SHOWN_ACTIONS]]
    if len(shown.actions) > _SHOWN_ACTIONS:
        offered.append(f"  and {len(shown.actions) - _SHOWN_ACTIONS} more")
    return "\n".join(
        [
            f"{name}: {_first_line(world)}",
            f"discount {world.gamma:g}, best return {_best(world)}, at most {world.num_actions} "
            f"actions, vector of {world.vector_size}",
            "",
            world.render(),
            "",
            shown.text,
            f"{shown.goal} …",
            *offered,
        ]
    )


def check_world(
    name: str, options: Mapping[str, object], episodes: int, max_steps: int, seed: int
) -> tuple[str, bool]:
    """Return what would spoil training in a world, as lines, and whether it has no fault.

    Args:
        name: As of `make_world`.
        options: As of `make_world`.
        episodes: As of `inspect_world`.
        max_steps: As of `inspect_world`.
        seed: As of `inspect_world`.

    Raises:
        UserError: As of `make_world`, or the world says too little of itself.
    """
    make = partial(make_world, name, **options)
    remarks = inspect_world(make, episodes=episodes, max_steps=max_steps, seed=seed)
    faults = sum(remark.weight == "fault" for remark in remarks)
    summary = f"{name}: {_count(faults, 'fault')}, {_count(len(remarks) - faults, 'note')}"
    return "\n".join([*map(str, remarks), summary]), faults == 0


def world_options(words: Sequence[str]) -> dict[str, object]:
    """Return options written KEY=VALUE, the values as in YAML.

    Raises:
        UserError: One is not so written.

    Example:
        >>> world_options(["radius=3", "actions=[go on, go back]"])
        {'radius': 3, 'actions': ['go on', 'go back']}
    """
    options: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UserError(f"expected --option KEY=VALUE, got `{word}`")
        try:
            options[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UserError(f"expected --option KEY=VALUE in YAML, got `{word}`") from error
    return options


def _count(number: int, what: str) -> str:
    """Return a number of things in words."""
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _first_line(world: TextEnv) -> str:
    """Return what a world's class says of itself first."""
    text = (type(world).__doc__ or type(world).__name__).strip()
    return text.splitlines()[0]


def _best(world: TextEnv) -> str:
    """Return the optimal return, if it is known."""
    return "unknown" if world.optimal_return is None else f"{world.optimal_return:.6g}"
