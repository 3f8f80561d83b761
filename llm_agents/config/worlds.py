"""What is wrong with the worlds of a recipe, found without importing a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from llm_agents.config.reading import Key, Value
from llm_agents.config.schema import is_subclass, produces
from llm_agents.config.sources import NotFound, locate
from llm_agents.errors import UserError

ROLLOUTS = "llm_agents.rollouts.TextRollouts"


def world_faults(values: Mapping[str, Value]) -> Iterator[tuple[Key, str]]:
    """Yield what `make_world` would refuse, where a recipe's data are rollouts of text worlds.

    Args:
        values: The recipe's content; what is not of the right type there is passed over.

    Yields:
        A key, and what is wrong with the world that it names or with its options.
    """
    data, evaluation = values.get("data"), values.get("evaluation")
    if not isinstance(data, dict) or not _are_rollouts(data.get("class_path")):
        return
    arguments = data.get("init_args")
    if isinstance(arguments, dict):
        names = _named(arguments.get("world"), ("data", "init_args", "world"))
        options = arguments.get("world_options")
        yield from _faults(
            names,
            options if isinstance(options, dict) else {},
            ("data", "init_args", "world_options"),
        )
    if isinstance(evaluation, dict):
        key: Key = ("evaluation", "worlds")
        yield from _faults(_named(evaluation.get("worlds"), key), {}, key)


def check_own_worlds(values: Mapping[str, Value]) -> None:
    """Import the classes of one's own that a recipe names as worlds, and refuse what is none.

    Not done where a recipe is only looked at: it runs the user's module.

    Raises:
        UserError: There is no such class, or it is no world of text.
    """
    from llm_agents.envs.registry import check_world

    data, evaluation = values.get("data"), values.get("evaluation")
    arguments = data.get("init_args") if isinstance(data, dict) else None
    named = arguments.get("world") if isinstance(arguments, dict) else None
    further = evaluation.get("worlds") if isinstance(evaluation, dict) else None
    for _, name in (*_named(named, ()), *_named(further, ())):
        if ":" in name:
            check_world(name, imports=True)


def _named(worlds: Value, key: Key) -> list[tuple[Key, str]]:
    """Return the names of worlds with the key of each."""
    if isinstance(worlds, str):
        return [(key, worlds)]
    items = enumerate(worlds) if isinstance(worlds, list) else ()
    return [((*key, index), name) for index, name in items if isinstance(name, str)]


def _faults(
    names: list[tuple[Key, str]], options: dict[str, Value], options_key: Key
) -> Iterator[tuple[Key, str]]:
    """Yield the faults of worlds' names, and of options that all of them are to have."""
    from llm_agents.envs.registry import check_world

    for key, name in names:
        try:
            check_world(name)
        except UserError as error:
            yield key, str(error)
            continue
        try:
            check_world(name, options)
        except UserError as error:
            yield options_key, str(error)


def _are_rollouts(path: Value) -> bool:
    """Return whether a class is `TextRollouts` or made from it, as far as its source tells."""
    expected = locate(ROLLOUTS)
    if not isinstance(path, str) or expected is None:
        return False
    try:
        definition = locate(path)
    except NotFound:
        return False
    made = None if definition is None else produces(definition)
    return made is not None and is_subclass(made, expected) is True
