"""Class methods as constructors in recipes, such as ``LanguagePolicy.from_pretrained``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from inspect import ismethod


def resolve_self(values: object) -> None:
    """Let jsonargparse see which class the class methods of a recipe return.

    It compares a method's annotated result with the type that is wanted, and does not know ``Self``.

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
