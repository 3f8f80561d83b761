"""YAML as this package reads it: values, each key's place, and all that is wrong with the text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import yaml

from llm_agents.errors import UserError

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"
Key: TypeAlias = "tuple[str | int, ...]"
"""Where a value sits in a recipe; list items by their position."""


@dataclass(frozen=True)
class Place:
    """Where something was written.

    Args:
        source: File, or option of the command line.
        line: Line in that file, from 1.
    """

    source: str
    line: int | None = None

    def __str__(self) -> str:
        """Return the form that editors make a link of."""
        return self.source if self.line is None else f"{self.source}: line {self.line}"


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a recipe.

    Args:
        place: Where it was written.
        key: The key, with dots; empty for the text as a whole.
        message: What was expected, what came, and the nearest right thing.
    """

    place: Place
    key: str
    message: str

    def __str__(self) -> str:
        """Return one line."""
        is_named = not self.key or str(self.place) == f"--{self.key}"
        return f"{self.place}: {'' if is_named else f'{self.key}: '}{self.message}"


class RecipeError(UserError):
    """A recipe can't be run: names all its faults.

    Args:
        faults: At least one.
    """

    def __init__(self, faults: list[Fault]) -> None:
        self.faults = faults
        lines = list(dict.fromkeys(str(fault) for fault in faults))
        count = f"{len(lines)} faults" if len(lines) > 1 else "one fault"
        super().__init__("\n".join([f"{count} in the recipe, nothing was started", *lines]))


@dataclass
class Document:
    """A recipe, or a part of one, with the place of each of its keys.

    Args:
        values: The content.
        places: Where each key was written; the empty key is the whole.
        faults: What is wrong with the text itself.
    """

    values: dict[str, Value]
    places: dict[Key, Place]
    faults: list[Fault] = field(default_factory=list)

    def place(self, key: Key) -> Place:
        """Return where `key` was written, or the nearest key above it."""
        while key not in self.places:
            key = key[:-1]
        return self.places[key]


class _RecipeLoader(yaml.SafeLoader):
    """YAML 1.2's plain scalars: ``1e-4`` is a number, ``on`` and ``00:12:00:00`` are texts."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own attribute)


_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)
for _tag, _pattern, _first in _SCALARS:
    _RecipeLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first
    )


_READERS: dict[str, Callable[[str], Value]] = {
    "null": lambda text: None,
    "bool": lambda text: text.lower() == "true",
    "int": lambda text: int(text.replace("_", ""), 16 if text.startswith("0x") else 10),
    "float": lambda text: float(
        text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan")
    ),
    "str": str,
}


def read_document(path: str | Path) -> Document:
    """Read a recipe or an overlay.

    Raises:
        UserError: There is no such file.
        RecipeError: The text is no YAML mapping.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf8")
    except OSError as error:
        raise UserError(f"can't read the recipe {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        message = f"expected a recipe, a text in UTF-8: byte {error.start} is none"
        raise RecipeError([Fault(Place(str(path)), "", message)]) from error
    return read_text(text, str(path))


def read_text(text: str, source: str) -> Document:
    """Read a YAML mapping whose places are lines of `source`.

    Raises:
        RecipeError: The text can't be read at all, or is something else.
    """
    builder = _Builder(source)
    values = builder.read(text)
    if not isinstance(values, dict):
        got = "nothing" if values is None else kind(values)
        message = f"expected sections such as `model:`, got {got}"
        raise RecipeError([Fault(Place(source, 1), "", message)])
    return Document(values, builder.places, builder.faults)


def read_value(text: str) -> Value:
    """Read the value of an option; what is no YAML is a text."""
    builder = _Builder("")
    try:
        value = builder.read(text)
    except RecipeError:
        return text
    return text if builder.faults else value


class _Builder:
    """Makes plain values of YAML nodes and notes each key's line."""

    def __init__(self, source: str) -> None:
        self.places: dict[Key, Place] = {(): Place(source, 1)}
        self.faults: list[Fault] = []
        self._source = source

    def read(self, text: str) -> Value:
        """Return the value of a text."""
        try:
            node = yaml.compose(text, Loader=_RecipeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = Place(self._source, mark.line + 1 if mark else None)
            message = " ".join(part for part in (error.context, error.problem) if part)
            raise RecipeError([Fault(place, "", f"expected YAML: {message}")]) from error
        except yaml.YAMLError as error:
            place = Place(self._source)
            raise RecipeError([Fault(place, "", f"expected YAML: {error}")]) from error
        return None if node is None else self.build(node, ())

    def build(self, node: yaml.Node, key: Key) -> Value:
        """Return the value of `node`."""
        if isinstance(node, yaml.SequenceNode):
            items: list[Value] = []
            for index, item in enumerate(node.value):
                self.places[(*key, index)] = self._place(item)
                items.append(self.build(item, (*key, index)))
            return items
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key)
        tag = node.tag.removeprefix("tag:yaml.org,2002:")
        if tag not in _READERS:
            self._fault(node, key, f"expected a plain value, got one with the tag {node.tag}")
            return None
        return _READERS[tag](node.value)

    def _mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Value]:
        """Return a mapping, with faults for keys that come twice or are no text."""
        values: dict[str, Value] = {}
        for name_node, value_node in node.value:
            name = name_node.value
            if not isinstance(name_node, yaml.ScalarNode) or name == "<<":
                self._fault(name_node, key, "expected a plain key: write keys out, without anchors")
                continue
            here = (*key, name)
            if name in values:
                first = self.places[here].line
                self._fault(
                    name_node, here, f"expected each key once, it is on line {first} already"
                )
                continue
            self.places[here] = self._place(name_node)
            values[name] = self.build(value_node, here)
        return values

    def _place(self, node: yaml.Node) -> Place:
        return Place(self._source, node.start_mark.line + 1)

    def _fault(self, node: yaml.Node, key: Key, message: str) -> None:
        self.faults.append(Fault(self._place(node), dotted(key), message))


def dotted(key: Key) -> str:
    """Return a key as it is typed: with dots, and without ``init_args``."""
    return ".".join(str(part) for part in key if part != "init_args")


def kind(value: Value) -> str:
    """Return a value's kind in words."""
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "a text"}
    return names.get(type(value), "a list" if isinstance(value, list) else "a mapping")


def shown(value: Value) -> str:
    """Return a value as it would be written, cut short."""
    if value is None:
        return "null"
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    text = text.removesuffix("...\n").strip() if isinstance(value, list | dict) else repr(value)
    if isinstance(value, bool):
        text = text.lower()
    return text if len(text) <= 80 else f"{text[:77]}..."


def dump(values: dict[str, Value]) -> str:
    """Return a recipe as YAML text."""
    return yaml.dump(values, Dumper=_RecipeDumper, sort_keys=False, allow_unicode=True, width=100)


class _RecipeDumper(yaml.SafeDumper):
    """Writes short lists on one line, and quotes texts that YAML 1.1 would read as others."""

    def ignore_aliases(self, data: object) -> bool:
        """Write everything out."""
        del data
        return True


def _represent_list(dumper: yaml.SafeDumper, values: list[Value]) -> yaml.Node:
    """Write a list of plain values on one line."""
    flow = all(not isinstance(value, list | dict) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=flow)


_RecipeDumper.add_representer(list, _represent_list)
for _tag, _pattern, _first in _SCALARS:  # texts that would be read as numbers are quoted
    _RecipeDumper.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first
    )
