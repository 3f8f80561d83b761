"""All that is wrong with a recipe, found before anything heavy is imported."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches

from llm_agents.config.chain import (
    REFERENCE,
    first_stage,
    policy_arguments,
    without_reference,
)
from llm_agents.config.reading import (
    Document,
    Fault,
    Key,
    RecipeError,
    Value,
    dotted,
    kind,
    shown,
)
from llm_agents.config.schema import (
    Annotation,
    Signature,
    is_dataclass,
    is_dict,
    is_ellipsis,
    is_list,
    is_path,
    is_subclass,
    produces,
    signature,
    with_article,
)
from llm_agents.config.sections import JOB, SEED, TRAINING, Section, sections_of
from llm_agents.config.sources import Definition, NotFound, locate
from llm_agents.config.worlds import world_faults

_EXTRAS = {
    "bitsandbytes": "quantized",
    "nle": "nethack",
    "minihack": "nethack",
    "minigrid": "babyai",
}


def check_recipe(document: Document) -> None:
    """Refuse a recipe that can't run.

    Raises:
        RecipeError: Names every fault, in the order of the text.
    """
    faults = [*document.faults, *_Checker(without_reference(document)).recipe()]
    faults += _reference_faults(document, faults)
    if faults:
        sources = list(dict.fromkeys(place.source for place in document.places.values()))
        sources += [fault.place.source for fault in faults]
        faults.sort(key=lambda fault: (sources.index(fault.place.source), fault.place.line or 0))
        raise RecipeError(faults)


def _reference_faults(document: Document, known: list[Fault]) -> list[Fault]:
    """Return what is wrong with the stage that trains the reference, beside what is `known`."""
    over = document.values.get(REFERENCE)
    if over is None:
        return []
    place = document.place((REFERENCE,))
    if document.values.get(JOB) is not None:
        message = f"expected no `{REFERENCE}` beside `{JOB}`, which trains nothing"
        return [Fault(place, REFERENCE, message)]
    stage = first_stage(document)
    if stage is None:
        message = f"expected keys to lay over the recipe, got {kind(over)}"
        return [Fault(place, REFERENCE, message)]
    if policy_arguments(stage.values) is None:
        message = "expected a method with a `model.policy` that can start from what is trained here"
        return [Fault(place, REFERENCE, message)]
    found = _Checker(stage).recipe()
    return [replace(f, key=f"{REFERENCE}.{f.key}") for f in found if f not in known]


def arguments_of(path: str) -> Signature | None:
    """Return the arguments of a class, method or function; None if only importing could tell.

    Raises:
        NotFound: There is nothing of that name.
    """
    definition = locate(path)
    return None if definition is None else signature(definition)


def _not_a_section(name: str, names: list[str]) -> str:
    """Say why a recipe has no section of this name."""
    if JOB in names and any(section.name == name for section in TRAINING):
        return f"expected no `{name}` beside `{JOB}`, which trains nothing; leave one of them out"
    known = names if JOB in names else [*names, JOB, REFERENCE]
    return f"expected a section of a recipe, got `{name}`; {_closest(name, known)}"


def _closest(name: str, names: list[str]) -> str:
    """Return the end of a message: the nearest of the known names, or all of them."""
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    return f"known: {', '.join(names)}" if names else "it has none"


class _Checker:
    """Walks a recipe along the signatures of what it names."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def recipe(self) -> Iterator[Fault]:
        """Yield the faults of all sections."""
        values = self.document.values
        sections = sections_of(values)
        names = [SEED, *(section.name for section in sections)]
        for name, value in values.items():
            if name not in names:
                yield self._fault((name,), _not_a_section(name, names))
            elif name == SEED and (
                isinstance(value, bool) or not isinstance(value, int) or value < 0
            ):
                yield self._fault((name,), f"expected a whole number from 0, got {shown(value)}")
        for section in sections:
            if section.name in values and values[section.name] is not None:
                yield from self._section(section, values[section.name])
            elif section.is_required:
                yield self._fault((), f"expected the section `{section.name}`; it is missing")
        yield from (self._fault(key, message) for key, message in world_faults(values))

    def _section(self, section: Section, value: Value) -> Iterator[Fault]:
        definition = locate(section.path)
        if definition is None:
            return
        key: Key = (section.name,)
        if section.is_subclass:
            yield from self._object(definition, value, key)
        elif section.is_list:
            if not isinstance(value, list):
                yield self._fault(key, f"expected a list, got {kind(value)}")
                return
            for index, item in enumerate(value):
                yield from self._keys(definition, item, (*key, index))
        else:
            yield from self._keys(definition, value, key)

    def _keys(self, definition: Definition, value: Value, key: Key) -> Iterator[Fault]:
        """Check a mapping whose keys are the arguments of a known class."""
        found = signature(definition)
        if not isinstance(value, dict):
            yield self._fault(
                key, f"expected a mapping of {definition.name}'s keys, got {kind(value)}"
            )
        elif found is not None:
            yield from self._arguments(found, value, key)

    def _object(self, expected: Definition, value: Value, key: Key) -> Iterator[Fault]:
        """Check a value that names a class and its arguments."""
        if isinstance(value, str):
            value = {"class_path": value}
        if not isinstance(value, dict):
            yield self._fault(
                key,
                f"expected `class_path` and `init_args` of {_article(expected)}, got {kind(value)}",
            )
            return
        path = value.get("class_path")
        if not isinstance(path, str):
            message = f"expected `class_path`, the full name of {_article(expected)}"
            yield self._fault(key, f"{message}, got {'nothing' if path is None else kind(path)}")
            return
        for name in value:
            if name not in ("class_path", "init_args", "dict_kwargs"):
                yield self._fault(
                    (*key, name), f"expected it below `init_args:`, not beside `class_path: {path}`"
                )
        try:
            definition = locate(path)
        except NotFound as error:
            yield self._fault((*key, "class_path"), self._unknown_class(path, error, expected))
            return
        if definition is None:
            return
        yield from self._right_class(path, definition, expected, key)
        arguments = value.get("init_args")
        found = signature(definition)
        if arguments is not None and not isinstance(arguments, dict):
            yield self._fault((*key, "init_args"), f"expected a mapping, got {kind(arguments)}")
        elif found is not None and "dict_kwargs" not in value:
            yield from self._arguments(found, arguments or {}, (*key, "init_args"))

    def _right_class(
        self, path: str, definition: Definition, expected: Definition, key: Key
    ) -> Iterator[Fault]:
        """Check that `path` makes what is expected."""
        made = produces(definition)
        if made is not None and is_subclass(made, expected) is False:
            message = f"expected {_article(expected)}, got `{path}`, which is {_article(made)}"
            yield self._fault((*key, "class_path"), message)

    def _unknown_class(self, path: str, error: NotFound, expected: Definition) -> str:
        """Say which part of a class's name is wrong and what is near."""
        candidates = [name for name in error.candidates if self._fits(name, expected)]
        last = {name.rpartition(".")[2]: name for name in candidates}
        near = get_close_matches(path.rpartition(".")[2], last, n=1, cutoff=0.6)
        hint = f"; did you mean {last[near[0]]}?" if near else ""
        top = path.partition(".")[0]
        if top in _EXTRAS:
            hint = f": pip install 'llm-agents[{_EXTRAS[top]}]'"
        elif not hint and candidates:
            hint = f"; known: {', '.join(candidates[:8])}"
        return f"expected {_article(expected)}, got `{path}`: {error.message}{hint}"

    def _fits(self, name: str, expected: Definition) -> bool:
        """Return whether a candidate makes what is expected."""
        try:
            definition = locate(name)
        except NotFound:
            return False
        made = produces(definition) if definition is not None else None
        return made is not None and is_subclass(made, expected) is not False

    def _arguments(self, found: Signature, values: dict[str, Value], key: Key) -> Iterator[Fault]:
        """Check the arguments of one call."""
        names = [parameter.name for parameter in found.parameters]
        short = found.label
        for name, value in values.items():
            parameter = found.get(name)
            if parameter is not None:
                yield from self._value(parameter.annotation, value, (*key, name))
            elif not found.takes_any:
                hint = self._nested(found, name) or _closest(name, names)
                yield self._fault((*key, name), f"expected a key of {short}, got `{name}`; {hint}")
        for parameter in found.parameters:
            if parameter.is_required and parameter.name not in values:
                message = (
                    f"expected {parameter.annotation}; it is missing and {short} has no default"
                )
                yield self._fault((*key, parameter.name), message)

    def _nested(self, found: Signature, name: str) -> str:
        """Say where a key belongs that is one level too high."""
        places = []
        for parameter in found.parameters:
            for option in parameter.annotation.alternatives:
                inner = option.definition
                fields = signature(inner) if inner is not None and is_dataclass(inner) else None
                if fields is not None and fields.get(name):
                    places.append(f"{parameter.name}.{name}")
        return f"did you mean {' or '.join(places)}?" if places else ""

    def _value(self, annotation: Annotation, value: Value, key: Key) -> Iterator[Fault]:
        """Check a value against a type, and report the faults of the nearest alternative."""
        if annotation.node is None:
            return
        outcomes: list[tuple[Annotation, list[Fault]]] = []
        for option in annotation.alternatives:
            faults = list(self._option(option, value, key))
            if not faults:
                return
            outcomes.append((option, faults))
        deeper = [f for option, f in outcomes if len(outcomes) == 1 or _is_shaped(option, value)]
        if len(deeper) == 1:
            yield from deeper[0]
        else:
            yield self._fault(key, _mismatch(annotation, value))

    def _option(self, option: Annotation, value: Value, key: Key) -> Iterator[Fault]:
        """Check a value against one type that is no union."""
        if option.node is None or option.name in ("Any", "object", "Callable", "type", "Type"):
            return
        wrong = self._fault(key, _mismatch(option, value))
        if option.name == "Literal":
            if not any(value == v and type(value) is type(v) for v in option.literals):
                yield wrong
        elif option.name in ("None", "bool", "int", "float", "str") or is_path(option):
            if not _is_plain(option, value):
                yield wrong
        elif is_list(option) or option.name in ("tuple", "Tuple"):
            yield from self._list(option, value, key) if isinstance(value, list) else [wrong]
        elif is_dict(option):
            yield from self._dict(option, value, key) if isinstance(value, dict) else [wrong]
        else:
            yield from self._named(option, value, key)

    def _list(self, option: Annotation, value: list[Value], key: Key) -> Iterator[Fault]:
        items = option.items
        is_free = is_list(option) or (len(items) == 2 and is_ellipsis(items[1]))
        if items and not is_free and len(items) != len(value):
            yield self._fault(key, f"expected {option}, got {len(value)} items: {shown(value)}")
            return
        for index, item in enumerate(value):
            if items:
                inner = items[0] if is_free else items[index]
                yield from self._value(inner, item, (*key, index))

    def _dict(self, option: Annotation, value: dict[str, Value], key: Key) -> Iterator[Fault]:
        if len(option.items) == 2:
            for name, item in value.items():
                yield from self._value(option.items[1], item, (*key, name))

    def _named(self, option: Annotation, value: Value, key: Key) -> Iterator[Fault]:
        """Check a value whose type is a class: its keys, or a class and its arguments."""
        definition = option.definition
        if definition is None or not isinstance(definition.node, ast.ClassDef):
            if not isinstance(value, dict | str) and value is not None and definition is not None:
                yield self._fault(key, _mismatch(option, value))
            return
        bases = {ast.unparse(base).rpartition(".")[2] for base in definition.node.bases}
        if bases & {"Enum", "StrEnum", "IntEnum"}:
            return
        if is_dataclass(definition) and not (isinstance(value, dict) and "class_path" in value):
            yield from self._keys(definition, value, key)
        else:
            yield from self._object(definition, value, key)

    def _fault(self, key: Key, message: str) -> Fault:
        return Fault(self.document.place(key), dotted(key), message)


def _article(definition: Definition) -> str:
    """Return a class's short name after ``a`` or ``an``."""
    return with_article(definition.name.rpartition(".")[2])


def _is_shaped(option: Annotation, value: Value) -> bool:
    """Return whether a value has the outer shape of a type, so that its inner faults say more."""
    if isinstance(value, dict):
        named = option.definition is not None and isinstance(option.definition.node, ast.ClassDef)
        return named or is_dict(option)
    return isinstance(value, list) and (is_list(option) or option.name in ("tuple", "Tuple"))


def _is_plain(option: Annotation, value: Value) -> bool:
    """Return whether a plain value has a plain type."""
    if option.name == "None":
        return value is None
    if option.name == "bool":
        return isinstance(value, bool)
    if option.name == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if option.name == "float":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, str)


def _mismatch(annotation: Annotation, value: Value) -> str:
    """Say what was expected and what came, with the likely cure."""
    message = f"expected {annotation}, got {shown(value)}"
    options = annotation.alternatives
    names = {option.name for option in options}
    if isinstance(value, str):
        literals = [
            str(v) for option in options if option.name == "Literal" for v in option.literals
        ]
        near = get_close_matches(value, literals, n=1, cutoff=0.5)
        if near:
            return f"{message}; did you mean {near[0]}?"
        if names & {"int", "float"} and _is_number(value):
            return f"{message}, a text; write {value} without quotes"
        if "bool" in names and value.lower() in ("on", "yes", "off", "no"):
            return f"{message}; write {'true' if value.lower() in ('on', 'yes') else 'false'}"
    if isinstance(value, float) and "int" in names and value.is_integer() and math.isfinite(value):
        return f"{message}; write {int(value)}"
    if isinstance(value, int | float) and not isinstance(value, bool) and "str" in names:
        return f"{message}; write it in quotes"
    return message


def _is_number(text: str) -> bool:
    """Return whether a text reads as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
