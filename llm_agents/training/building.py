"""Objects from recipes by jsonargparse: class methods as constructors, faults in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import ismethod
from typing import TypeVar

from jsonargparse import ArgumentError, ArgumentParser, set_parsing_settings

from llm_agents.envs.prompts import PromptBuilder
from llm_agents.errors import UserError

ObjectT = TypeVar("ObjectT")

set_parsing_settings(subclasses_enabled=[PromptBuilder])  # such as BabyAIPrompt


def resolve_self(values: object) -> None:
    """Let jsonargparse see which class the class methods of a recipe return.

    It compares a method's annotated result with the wanted type, and does not know ``Self``.

    Args:
        values: A recipe's content, or a part of it.
    """
    for path in class_paths(values):
        owner_path, _, name = path.rpartition(".")
        module, _, owner_name = owner_path.rpartition(".")
        if not module or not owner_name[:1].isupper():
            continue  # a class in a module, rather than a method of a class
        owner = getattr(import_module(module), owner_name, None)
        method = getattr(owner, name, None)
        if ismethod(method) and method.__func__.__annotations__.get("return") in ("Self", owner):
            method.__func__.__annotations__["return"] = owner


def class_paths(values: object) -> Iterator[str]:
    """Yield every class that a recipe names."""
    if isinstance(values, dict):
        path = values.get("class_path")
        if isinstance(path, str):
            yield path
        for value in values.values():
            yield from class_paths(value)
    elif isinstance(values, list):
        for value in values:
            yield from class_paths(value)


@contextmanager
def plain_faults(source: str) -> Iterator[None]:
    """Raise what went wrong in a constructor, rather than what jsonargparse makes of it.

    It tries each member of a union and wraps whatever they raise.

    Args:
        source: What is being built, for messages.

    Raises:
        UserError: A value is of the wrong type or out of range, or a constructor refused it.
    """
    try:
        yield
    except (ArgumentError, TypeError, ValueError) as error:
        causes = list(causes_of(error))
        for cause in causes:
            if isinstance(cause, UserError):
                raise cause from error
        origin = causes[-1]
        if isinstance(origin, ArgumentError | TypeError | ValueError):
            raise UserError(f"{source}: {origin}") from error
        raise origin from error


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it was raised from or while handling, outermost first."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [e for e in (current.__cause__, current.__context__) if e is not None]


def instantiate(kind: type[ObjectT], section: object) -> ObjectT:
    """Return the object of type `kind` that a part of a recipe describes.

    Raises:
        UserError: The part describes none.
    """
    resolve_self(section)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--object", type=kind)
    with plain_faults(f"the recipe's {kind.__name__}"):
        built = parser.instantiate(parser.parse_object({"object": section}))
    found = built["object"]
    if not isinstance(found, kind):
        raise UserError(f"expected a {kind.__name__} in the recipe, got {section}")
    return found
