"""``lightning run RECIPE --help``: every key of a recipe, with meaning, type and default."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from llm_agents.config.chain import REFERENCE, REFERENCE_MEANING
from llm_agents.config.check import arguments_of
from llm_agents.config.reading import Document, Value, shown
from llm_agents.config.schema import Annotation, Parameter, Signature, is_dataclass, signature
from llm_agents.config.sections import JOB, SEED, SEED_MEANING, Section, sections_of
from llm_agents.config.sources import NotFound, locate
from llm_agents.errors import UserError

_MAX_DEPTH = 6


class Line(NamedTuple):
    """One key.

    Args:
        key: With dots, as an option takes it.
        type: In words.
        value: What the recipe says; None if it leaves the default.
        default: In words.
        meaning: What the docstring says.
    """

    key: str
    type: str
    value: str | None
    default: str
    meaning: str


def describe(document: Document, width: int, section: str | None = None) -> str:
    """Return the keys of a recipe as text: an overview, then section by section.

    Args:
        document: A checked recipe.
        width: Columns of the terminal.
        section: A key whose own keys alone are wanted, such as ``data`` or ``model.ppo``.

    Raises:
        UserError: The recipe has no such section; the message says what is near.
    """
    sections = list(recipe_lines(document))
    if section:
        sections = _only(sections, section.removeprefix("--"))
    parts = [
        "\n".join([title, *(_text(line, width) for line in lines)]) for title, lines in sections
    ]
    return "\n\n".join(parts if section else [_overview(sections, width), *parts])


def _overview(sections: list[tuple[str, list[Line]]], width: int) -> str:
    """Return what there is, a line a section, and how its keys are given."""
    lines = ["sections (`--help SECTION` shows one, `--help SECTION.KEY` what is below a key):"]
    for title, inside in sections:
        name, _, about = title.partition("\n")[0].partition(":")
        count = f"{len(inside)} key{'s' if len(inside) != 1 else ''}" if inside else ""
        line = f"  {name:<16} {count:>8}  {about.strip()}"
        lines.append(line if len(line) <= width else f"{line[: width - 1]}…")
    lines += [
        "",
        "a key is set by --KEY VALUE; lists and objects are written as YAML: --KEY '[a, b]'",
    ]
    return "\n".join(lines)


def _only(sections: list[tuple[str, list[Line]]], wanted: str) -> list[tuple[str, list[Line]]]:
    """Return the part of a recipe's keys that begins with a key.

    Raises:
        UserError: There is none.
    """
    whole = [each for each in sections if each[0].partition(":")[0] == wanted]
    if whole:
        return whole
    for title, lines in sections:
        inside = [line for line in lines if f"{line.key}.".startswith(f"{wanted}.")]
        if inside:
            return [(title.partition("\n")[0], inside)]
    names = [title.partition(":")[0] for title, _ in sections]
    keys = [line.key for _, lines in sections for line in lines]
    holders = [key.rpartition(".")[0] for key in keys]
    near = get_close_matches(wanted, [*names, *keys, *holders], n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"sections: {', '.join(names)}"
    raise UserError(f"expected a section of the recipe after --help, got `{wanted}`: {hint}")


def recipe_lines(document: Document) -> Iterator[tuple[str, list[Line]]]:
    """Yield each section's title and its keys."""
    seed = document.values.get(SEED)
    line = Line(SEED, "a whole number", None if seed is None else shown(seed), "0", SEED_MEANING)
    yield SEED, [line]
    for section in sections_of(document.values):
        value = document.values.get(section.name)
        yield from _section(section, value)
    if JOB not in document.values:
        yield f"{REFERENCE}: {REFERENCE_MEANING}", []


def _section(section: Section, value: Value) -> Iterator[tuple[str, list[Line]]]:
    """Yield a section's title and keys."""
    path = section.path
    given: Value = value
    if section.is_subclass:
        if not isinstance(value, dict):
            yield f"{section.name}: {section.meaning} Not given in this recipe.", []
            return
        path, given = str(value.get("class_path")), value.get("init_args")
    found = _arguments(path)
    if found is None:
        yield f"{section.name}: {path}, whose keys only importing it would tell", []
        return
    key = f"{section.name}.N" if section.is_list else section.name
    if section.is_list:
        given = None
    title = f"{section.name}: {section.meaning or found.meaning}"
    if section.is_subclass:
        title = f"{section.name}: {path}\n  {found.meaning}"
    yield title, list(_keys(found, given, key, {}, _MAX_DEPTH))


def _arguments(path: str) -> Signature | None:
    """Return the arguments of a class by its name."""
    try:
        return arguments_of(path)
    except NotFound:
        return None


def _keys(
    found: Signature, values: Value, prefix: str, defaults: Mapping[str, ast.expr], depth: int
) -> Iterator[Line]:
    """Yield the keys of one call, and below each object those of its own."""
    given = values if isinstance(values, dict) else {}
    for parameter in found.parameters:
        key = f"{prefix}.{parameter.name}"
        value = given.get(parameter.name)
        is_given = parameter.name in given
        default = defaults.get(parameter.name, parameter.default)
        inner = _inner(parameter.annotation, value, is_given=is_given)
        text = Parameter(parameter.name, parameter.annotation, default, "").default_text
        if inner is None or depth == 0:
            said = shown(value) if is_given else None
            yield Line(key, str(parameter.annotation), said, text, parameter.meaning)
            continue
        name, below, arguments = inner
        said = name if is_given and value is not None else "null" if is_given else None
        yield Line(key, str(parameter.annotation), said, text, parameter.meaning)
        named = (
            {k.arg: k.value for k in default.keywords if k.arg}
            if isinstance(default, ast.Call)
            else {}
        )
        yield from _keys(below, arguments, key, named, depth - 1)


def _inner(
    annotation: Annotation, value: Value, *, is_given: bool
) -> tuple[str, Signature, Value] | None:
    """Return name, arguments and given values of the object that a key holds, if it holds one."""
    if isinstance(value, dict) and isinstance(value.get("class_path"), str):
        found = _arguments(str(value["class_path"]))
        return None if found is None else (str(value["class_path"]), found, value.get("init_args"))
    if is_given and value is not None and not isinstance(value, dict):
        return None
    for option in annotation.alternatives:
        definition = option.definition
        if definition is not None and is_dataclass(definition):
            found = signature(definition)
            if found is not None:
                return "as below", found, value
    return None


def _text(line: Line, width: int) -> str:
    """Return one key as text: key and value, then meaning, indented."""
    head = f"  --{line.key}"
    if line.value is not None:
        head += f" {line.value}"
    notes = [line.type]
    if line.default:
        notes.append("required" if line.default == "required" else f"default {line.default}")
    meaning = f"{line.meaning} ({'; '.join(notes)})" if line.meaning else f"({'; '.join(notes)})"
    body = textwrap.fill(meaning, width, initial_indent="      ", subsequent_indent="      ")
    return f"{head}\n{body}"


def class_summary(path: str) -> str:
    """Return the first line of a class's docstring."""
    definition = locate(path)
    found = None if definition is None else signature(definition)
    return "" if found is None else found.meaning
