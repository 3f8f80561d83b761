"""Options of the command line, laid over a recipe one by one.

A value is YAML where its key takes something else than text: a number, a list, keys of an object.
Where the key takes a text or a path, what was typed is that text, to the letter: blanks, ``#``,
``:``, quotes and brackets mean nothing there. ``null`` alone stands for no value where the key may
have none.
"""

from __future__ import annotations

import copy

from llm_agents.config.merge import (
    CLASS_KEYS,
    change_class,
    definition_at,
    forget,
    is_class,
    member,
    merge,
)
from llm_agents.config.reading import Document, Fault, Key, Place, Value, dotted, kind, read_value
from llm_agents.config.schema import Annotation, is_dict, is_list, is_path, signature
from llm_agents.config.sources import NotFound


def override(document: Document, option: str, text: str) -> Document:
    """Return `document` with one option of the command line applied.

    Args:
        document: A recipe, which is not changed.
        option: Key with dots, such as ``model.algorithm``; a number is a position in a list.
        text: The value as it was typed.
    """
    result = Document(copy.deepcopy(document.values), dict(document.places), list(document.faults))
    place = Place(f"--{option}")
    parts = option.split(".")
    node: Value = result.values
    key: Key = ()
    for index, part in enumerate(parts):
        node, key, name = _step(node, key, part)
        last = index == len(parts) - 1
        fault = _reach(node, key, name)
        if fault:
            result.faults.append(Fault(place, dotted((*key, part)), fault))
            return result
        here = (*key, name)
        if last:
            _set(result, node, here, value_of(text, annotation_at(result.values, here)), place)
            break
        child = member(node, name)
        if not isinstance(child, list | dict):
            child = {}
            _put_at(node, name, child)
            forget(result, here)
            result.places[here] = place
        node, key = child, here
    return result


def _step(node: Value, key: Key, part: str) -> tuple[Value, Key, str | int]:
    """Return the holder of `part`, its key, and the name of `part` in it."""
    if isinstance(node, dict) and is_class(node) and part not in CLASS_KEYS:
        if not isinstance(node.get("init_args"), dict):
            node["init_args"] = {}
        node, key = node["init_args"], (*key, "init_args")
    if isinstance(node, list) and part.isdigit():
        return node, key, int(part)
    return node, key, part


def _reach(node: Value, key: Key, name: str | int) -> str | None:
    """Return why `name` can't be set in `node`."""
    if isinstance(node, dict):
        return None
    if isinstance(node, list):
        if isinstance(name, int) and name < len(node):
            return None
        return f"expected a position below {len(node)} in the list `{dotted(key)}`, got {name}"
    return f"expected a key below a mapping, but `{dotted(key)}` is {kind(node)}"


def _put_at(node: Value, name: str | int, value: Value) -> None:
    """Set a member of a list or mapping."""
    if isinstance(node, list) and isinstance(name, int):
        node[name] = value
    elif isinstance(node, dict):
        node[str(name)] = value


def _set(result: Document, node: Value, here: Key, value: Value, place: Place) -> None:
    """Set the value of an option."""
    name = here[-1]
    old = member(node, name)
    if isinstance(value, dict) and isinstance(old, dict):
        merge(result, old, here, Document(value, {(): place}), value, ())
        return
    if is_class(old) and isinstance(value, str) and "." in value:  # the name of another class
        assert isinstance(old, dict)
        change_class(result, old, here, {"class_path": value})
        node, here, name = old, (*here, "class_path"), "class_path"
    elif (
        isinstance(name, str) and name == "class_path" and isinstance(node, dict) and is_class(node)
    ):
        change_class(result, node, here[:-1], {"class_path": value})
    forget(result, here)
    _put_at(node, name, value)
    result.places[here] = place


def annotation_at(recipe: dict[str, Value], key: Key) -> Annotation | None:
    """Return the type of what a recipe has at `key`; None if only importing could tell."""
    *above, last = key
    if isinstance(last, int):
        whole = annotation_at(recipe, tuple(above))
        lists = [] if whole is None else [each for each in whole.alternatives if is_list(each)]
        return lists[0].items[0] if lists and lists[0].items else None
    while above and above[-1] == "init_args":
        above.pop()
    if not above:
        return None
    try:
        holder = definition_at(recipe, tuple(above))
    except NotFound:
        return None
    known = None if holder is None else signature(holder)
    parameter = None if known is None else known.get(last)
    return None if parameter is None else parameter.annotation


def value_of(text: str, annotation: Annotation | None) -> Value:
    """Return what a text stands for where a value of this type is wanted.

    Args:
        text: As it was typed.
        annotation: The type; None where it is not known.
    """
    value = read_value(text)
    if isinstance(value, str) and not text.startswith(("'", '"')):
        return text  # YAML has taken nothing but blanks and comments from it
    options = [] if annotation is None or annotation.node is None else annotation.alternatives
    if not any(option.name == "str" or is_path(option) for option in options):
        return value
    if isinstance(value, str) or not any(_fits(option, value) for option in options):
        return text
    marks = {type(None): ("null", "Null", "NULL"), list: ("[",), dict: ("{",)}
    begins = text.strip().startswith(marks.get(type(value), ("",)))
    return value if begins else text  # `~` is a folder, `- x` a name, no text a text


def _fits(option: Annotation, value: Value) -> bool:
    """Return whether a value that is no text has the outer shape of a type."""
    if option.node is None or option.name in ("Any", "object"):
        return True
    if option.name == "Literal":
        return value in option.literals
    if isinstance(value, list):
        return is_list(option) or option.name in ("tuple", "Tuple")
    if isinstance(value, dict):
        return is_dict(option) or option.definition is not None
    names = {type(None): ("None",), bool: ("bool",), int: ("int", "float"), float: ("float",)}
    return option.name in names[type(value)]
