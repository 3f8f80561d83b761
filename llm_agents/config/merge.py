"""Laying values over a recipe: the keys of an overlay, and marks that say where they are wanted.

Where the recipe names a class (``class_path``), keys other than ``class_path`` and ``init_args``
are its arguments, so that ``init_args`` may be left out. Another ``class_path`` replaces the
arguments. A key that ends in ``?`` is laid only over a key that the recipe has, one that ends in
``*`` only where what is there takes such an argument: a class, a dataclass below it, or for a
section the kind of recipe.
"""

from __future__ import annotations

import copy

from llm_agents.config.reading import (
    Document,
    Key,
    Value,
    dotted,
)
from llm_agents.config.schema import is_dataclass, signature
from llm_agents.config.sections import SEED, section_of
from llm_agents.config.sources import Definition, NotFound, locate

CLASS_KEYS = {"class_path", "init_args", "dict_kwargs"}
_MARKS = ("?", "*")


def lay_over(base: Document, overlay: Document) -> Document:
    """Return `base` with `overlay` merged into it; neither is changed."""
    result = Document(
        copy.deepcopy(base.values), dict(base.places), [*base.faults, *overlay.faults]
    )
    merge(result, result.values, (), overlay, overlay.values, ())
    return result


def merge(
    result: Document,
    target: dict[str, Value],
    key: Key,
    overlay: Document,
    over: dict[str, Value],
    at: Key,
) -> None:
    """Merge the mapping `over` (at `at` of the overlay) into `target` (at `key` of the result)."""
    change_class(result, target, key, over)
    for written, value in over.items():
        name, source = _plain(written), (*at, written)
        if written.endswith("*") and not _takes(result.values, key, name):
            continue
        if is_class(target) and name not in CLASS_KEYS:
            if not isinstance(target.get("init_args"), dict):
                target["init_args"] = {}
            arguments = target["init_args"]
            assert isinstance(arguments, dict)
            holder, here = arguments, (*key, "init_args", name)
        else:
            holder, here = target, (*key, name)
        if written.endswith("?") and name not in holder:
            continue
        old = holder.get(name)
        if old is None and isinstance(value, dict) and any(n.endswith(_MARKS) for n in value):
            old = holder[name] = {}  # so that marks below it find their class
            result.places[here] = overlay.place(source)
        if isinstance(value, dict) and isinstance(old, dict):
            merge(result, old, here, overlay, value, source)
        else:
            _put(result, holder, here, overlay, value, source)


def change_class(
    result: Document, target: dict[str, Value], key: Key, over: dict[str, Value]
) -> None:
    """Drop the arguments of `target` if `over` names another class."""
    new = over.get("class_path")
    if is_class(target) and new is not None and new != target["class_path"]:
        for name in ("init_args", "dict_kwargs"):
            if target.pop(name, None) is not None:
                forget(result, (*key, name))


def _put(
    result: Document,
    holder: dict[str, Value],
    here: Key,
    overlay: Document,
    value: Value,
    source: Key,
) -> None:
    """Set one value and the places of everything in it."""
    forget(result, here)
    holder[str(here[-1])] = _unmarked(copy.deepcopy(value))
    result.places[here] = overlay.place(source)
    for place_key, place in overlay.places.items():
        if place_key[: len(source)] == source:
            rest = tuple(
                _plain(part) if isinstance(part, str) else part for part in place_key[len(source) :]
            )
            result.places[(*here, *rest)] = place


def _unmarked(value: Value) -> Value:
    """Drop keys with a mark: there was nothing to lay them over."""
    if isinstance(value, dict):
        return {n: _unmarked(item) for n, item in value.items() if not n.endswith(_MARKS)}
    return value


def _plain(name: str) -> str:
    """Return a key without its mark."""
    return name[:-1] if name.endswith(_MARKS) else name


def _takes(recipe: dict[str, Value], key: Key, name: str) -> bool:
    """Return whether what is at `key` has an argument `name`, or only importing it could tell."""
    if not key:
        return name == SEED or section_of(recipe, name) is not None
    try:
        definition = definition_at(recipe, key)
    except NotFound:
        return False
    known = None if definition is None else signature(definition)
    return known is None or known.takes_any or known.get(name) is not None


def definition_at(recipe: dict[str, Value], key: Key) -> Definition | None:
    """Return what the value at `key` is made by; None if only importing could tell.

    Raises:
        NotFound: It names a class that is not there, or is no object at all.
    """
    node: Value = recipe
    found: Definition | None = None
    section = section_of(recipe, str(key[0]))
    for part in key:
        node = member(node, part)
        if part == "init_args":
            continue
        if isinstance(node, dict) and isinstance(node.get("class_path"), str):
            found = locate(str(node["class_path"]))
        elif part == key[0] and section is not None and not section.is_subclass:
            found = locate(section.path)
        else:
            known = None if found is None else signature(found)
            parameter = None if known is None else known.get(str(part))
            options = [] if parameter is None else parameter.annotation.alternatives
            made = (option.definition for option in options)
            found = next((each for each in made if each is not None and is_dataclass(each)), None)
            if found is None:
                raise NotFound(f"`{dotted(key)}` is no object with arguments")
    return found


def forget(result: Document, key: Key) -> None:
    """Forget the places of a key and of everything below it."""
    for other in [other for other in result.places if other[: len(key)] == key]:
        del result.places[other]


def is_class(value: Value) -> bool:
    """Return whether a value names a class and its arguments."""
    return isinstance(value, dict) and "class_path" in value


def member(node: Value, name: str | int) -> Value:
    """Return a member of a list or mapping; None if a mapping has it not."""
    if isinstance(node, list) and isinstance(name, int):
        return node[name]
    return node.get(str(name)) if isinstance(node, dict) else None
