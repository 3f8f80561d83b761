"""The worlds by name: `make_world` builds one from the name and options of a recipe.

A world of your own needs no entry: name it ``package.module:Class``, and one with Gymnasium's
interface ``gym:ID`` or ``gym:package.module:Class``.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from operator import attrgetter
from textwrap import fill
from typing import Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from llm_agents.entries import near_names
from llm_agents.envs.adapted import PREFIX, AdaptedWorld
from llm_agents.envs.babyai import WORLDS as BABYAI
from llm_agents.envs.babyai import BabyAIText
from llm_agents.envs.base import TextEnv
from llm_agents.envs.case_study import CaseStudy
from llm_agents.envs.errands import Errands
from llm_agents.envs.nethack_text import NetHackText
from llm_agents.envs.overcooked import Overcooked
from llm_agents.envs.overcooked_kitchen import DISHES
from llm_agents.envs.toy import TOYS
from llm_agents.envs.virtualhome_entertainment import Entertainment
from llm_agents.envs.virtualhome_food import VARIANTS, FoodPreparation
from llm_agents.errors import UserError


class _World(NamedTuple):
    """What builds a world, the arguments that its name fixes, and whether an engine runs it."""

    factory: Callable[..., TextEnv]
    fixed: Mapping[str, str] = types.MappingProxyType({})
    has_engine: bool = False


_WORLDS: dict[str, _World] = {
    **{f"overcooked-{dish}": _World(Overcooked, {"dish": dish}) for dish in DISHES},
    "virtualhome-food-preparation": _World(FoodPreparation, {"variant": "pancake"}),
    "virtualhome-entertainment": _World(Entertainment),
    **{
        f"virtualhome-{variant}": _World(FoodPreparation, {"variant": variant})
        for variant in VARIANTS
        if variant != "pancake"
    },
    "case-study": _World(CaseStudy),
    "errands": _World(Errands),
    **{name: _World(BabyAIText, fixed, has_engine=True) for name, fixed in BABYAI.items()},
    "nethack-text": _World(NetHackText, has_engine=True),
    **{name: _World(toy) for name, toy in TOYS.items()},
}


def world_names() -> tuple[str, ...]:
    """Return the names that `make_world` knows, in order."""
    return tuple(_WORLDS)


def origin_of(name: str) -> str:
    """Return where a world comes from, as a card says it."""
    known = _WORLDS.get(name)
    if known is None:
        return "which is not one of this package's"
    if known.factory is BabyAIText:
        return "BabyAI-Text, written here over the engine of minigrid (Apache-2.0)"
    if known.factory is NetHackText:
        return "NetHack as text, over the NetHack Learning Environment"
    if name in TOYS:
        return "a toy of this package"
    return "a text world that is written in this package from its paper's rules"


def engine_extra(name: str) -> str | None:
    """Return the extra that brings a world's engine; None if it has none of its own."""
    known = _WORLDS.get(name)
    if known is None or not known.has_engine:
        return None
    return "nethack" if known.factory is NetHackText else "babyai"


def make_world(name: str, **options: object) -> TextEnv:
    """Return a new world.

    Args:
        name: One of `world_names`, ``package.module:Class`` for a world of your own, or ``gym:``
            and what `AdaptedWorld` takes for one with Gymnasium's interface.
        options: Keyword arguments of the world's class, other than those that the name fixes.

    Raises:
        UserError: Nobody knows the name, the world has no such option, or it refuses a value.

    Example:
        >>> make_world("overcooked-tomato-salad", radius=10).reset().actions[0]
        'pick up the tomato'
    """
    world = _WORLDS.get(name) or _own_world(name)
    _check_options(name, world, options)
    try:
        made = world.factory(**world.fixed, **options)
    except ValueError as error:
        raise UserError(f"the world `{name}` refuses its options: {error}") from error
    if ":" in name:
        _refuse_other(name, made, (*_METHODS, *_ATTRIBUTES))
    return made


def world_path(world: object) -> str:
    """Return the name by which `make_world` makes a world.

    Args:
        world: A name, or a class of worlds, which any process must be able to import.

    Raises:
        UserError: It is neither, or the class stands inside a function.

    Example:
        >>> from llm_agents.envs.toy import Lamp
        >>> world_path("toy-lamp"), world_path(Lamp)
        ('toy-lamp', 'llm_agents.envs.toy:Lamp')
    """
    if isinstance(world, str):
        return world
    if not isinstance(world, type):
        raise UserError(
            f"expected the name of a world or its class, got {world!r}: every run makes worlds of "
            "its own"
        )
    if "<locals>" in world.__qualname__:
        raise UserError(
            f"the world `{world.__name__}` is defined inside a function, where no process can "
            "import it: define it at the top of a module or script"
        )
    return f"{world.__module__}:{world.__qualname__}"


def check_world(
    name: str,
    options: Mapping[str, object] = types.MappingProxyType({}),
    *,
    imports: bool = False,
) -> None:
    """Refuse what `make_world` would, in an instant.

    A world that an engine runs is not built, and one that no table names is not imported: what
    they refuse themselves shows later.

    Args:
        name: As of `make_world`.
        options: As of `make_world`.
        imports: Import a class of the user's own too, to see that it is a world.

    Raises:
        UserError: As of `make_world`.
    """
    if ":" in name and not name.startswith(PREFIX):
        if imports:
            _own_world(name)
        return
    world = _WORLDS.get(name) or _own_world(name)
    _check_options(name, world, options)
    if not world.has_engine:
        make_world(name, **options)


def _check_options(name: str, world: _World, options: Mapping[str, object]) -> None:
    """Refuse options that a world does not have, and values of another type."""
    parameters = inspect.signature(world.factory).parameters
    known = [key for key in parameters if key not in world.fixed]
    unknown = [key for key in options if key not in known]
    if unknown and not _takes_anything(world.factory):
        near = get_close_matches(unknown[0], known, n=1, cutoff=0.5)
        hint = f"; do you mean `{near[0]}`?" if near else ""
        raise UserError(
            f"expected options of the world `{name}` out of {', '.join(known) or 'none'}, got "
            f"{', '.join(f'`{key}`' for key in unknown)}{hint}"
        )
    hints = get_type_hints(inspect.unwrap(getattr(world.factory, "__init__", world.factory)))
    for key, value in options.items():
        if key in hints and not _fits(value, hints[key]):
            raise UserError(
                f"expected the option `{key}` of the world `{name}` to be {_spell(hints[key])}, "
                f"got {value!r}"
            )


def _own_world(name: str) -> _World:
    """Return a world that no table names, by its import path."""
    if name.startswith(PREFIX):
        return _World(AdaptedWorld, {"make": name.removeprefix(PREFIX)}, has_engine=True)
    module, colon, attribute = name.partition(":")
    if not colon:
        raise UserError(f"expected a world, got `{name}`: {_near_worlds(name)}")
    try:
        factory = attrgetter(attribute)(import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"expected a world as `package.module:Class`, got `{name}`: {error}"
        ) from error
    if not callable(factory):
        raise UserError(f"expected `{name}` to be a class of worlds, got {factory!r}")
    if isinstance(factory, type) and not hasattr(factory, "__getattr__"):
        _refuse_other(name, factory)
    return _World(factory)


_METHODS = ("reset", "step", "state_dict", "load_state_dict", "render")
_ATTRIBUTES = ("name", "num_actions", "vector_size", "gamma", "optimal_return")


def _refuse_other(name: str, found: object, wanted: Sequence[str] = _METHODS) -> None:
    """Raise unless a class, or a world that was built, has what a world of text has.

    Raises:
        UserError: Names what is missing, and where worlds are described.
    """
    lacking = [each for each in wanted if not hasattr(found, each)]
    if lacking:
        line = getattr(found, "__mro__", type(found).__mro__)
        gym = any(each.__module__.partition(".")[0] in ("gymnasium", "gym") for each in line)
        kind = "a Gymnasium world, which shows no text and lists no actions" if gym else "none"
        raise UserError(
            f"expected `{name}` to be a world of text (`llm_agents.envs.TextEnv`), but it is "
            f"{kind}: it has no {', '.join(f'`{each}`' for each in lacking)}; "
            "docs/bring_your_own_environment.md shows one"
        )


def _near_worlds(name: str) -> str:
    """Return the end of a message about an unknown world: the near ones, or all by family."""
    near = get_close_matches(name.lower(), _WORLDS, n=1, cutoff=0.8)
    near = near or near_names(name, list(_WORLDS))
    if near:
        return f"do you mean {' or '.join(f'`{each}`' for each in near)}?"
    families: dict[str, list[str]] = {}
    for each in _WORLDS:
        first, _, rest = each.partition("-")
        families.setdefault(first, []).append(rest)
    lines = [
        fill(
            f"{first}-…  {', '.join(rest)}" if len(rest) > 1 else f"{first}-{rest[0]}",
            width=96,
            initial_indent="  ",
            subsequent_indent="      ",
            break_on_hyphens=False,
        )
        for first, rest in families.items()
    ]
    return "\n".join(["a class of your own is named `module:Class`; by name there are", *lines])


def _takes_anything(factory: Callable[..., TextEnv]) -> bool:
    """Return whether a factory accepts every keyword."""
    kinds = (parameter.kind for parameter in inspect.signature(factory).parameters.values())
    return inspect.Parameter.VAR_KEYWORD in kinds


def _fits(value: object, hint: object) -> bool:
    """Return whether a value is of a plain type; hints that are not plain accept everything."""
    origin = get_origin(hint)
    if origin is Literal:
        return value in get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if hint in (int, float) and isinstance(value, bool):
        return False
    if hint is float:
        return isinstance(value, int | float)
    return not isinstance(hint, type) or origin is not None or isinstance(value, hint)


def _spell(hint: object) -> str:
    """Return a type as a recipe's reader knows it."""
    if get_origin(hint) is Literal:
        return " or ".join(repr(each) for each in get_args(hint))
    return hint.__name__ if isinstance(hint, type) else str(hint)
