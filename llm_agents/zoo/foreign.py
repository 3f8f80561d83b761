"""Recipes that came from the Hub: read only if they name nothing but classes of this package.

A recipe says which classes are made, with which arguments, so that one from a stranger could run
anything that is installed. Those in folders of the user's own are trusted as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from llm_agents.entries import is_whole_model
from llm_agents.errors import UserError
from llm_agents.policies.bundled import ALIASES, cache_folder
from llm_agents.zoo.hub import find_folder
from llm_agents.zoo.layout import PULLED_FILE, RECIPE_FILE

_KNOWN = re.compile(r"(llm_agents|lightning\.pytorch|torch\.optim)\.[\w.]+")
_CALLED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def recipe_of(name: str) -> Path | None:
    """Return the recipe that something was trained with, by its name.

    Args:
        name: Zoo name, folder of an entry or of a run, Hub id, or the alias of a base model.

    Returns:
        The recipe's path; None if there is none.

    Raises:
        UserError: There is nothing of that name, or the recipe is a stranger's and names code that
            is not this package's.
    """
    folder = Path(name).expanduser()
    if not (folder / RECIPE_FILE).is_file():
        if name in ALIASES or is_whole_model(folder):
            return None
        folder = find_folder(name)
    path = folder / RECIPE_FILE
    if not path.is_file():
        return None
    if is_foreign(folder):
        refuse_foreign_code(path, name)
    return path


def is_foreign(folder: Path) -> bool:
    """Return whether a folder came from the Hub: it lies in a cache, or `pull` wrote it."""
    place = folder.resolve()
    return (
        (folder / PULLED_FILE).is_file()
        or place.parent.name == "snapshots"
        or place.is_relative_to(cache_folder().resolve())
    )


def refuse_foreign_code(path: Path, name: str) -> None:
    """Raise if a recipe names a class or function that is not this package's or Lightning's.

    Raises:
        UserError: Names them.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf8"))
    except yaml.YAMLError as error:
        raise UserError(f"the recipe of `{name}` is not YAML: {error}") from error
    found = sorted(set(_foreign(values)))
    if found:
        raise UserError(
            f"the recipe that came with `{name}` names code that is not part of llm_agents: "
            f"{', '.join(found)}. It is not run: look at {path}, then give a recipe of your own "
            "with `--recipe`, or copy the folder without its "
            f"`{PULLED_FILE}` if you trust it"
        )


def _foreign(value: object, key: str = "") -> Iterator[str]:
    """Yield the classes and functions in a recipe that are not ours."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _foreign(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _foreign(inner, key)
    elif isinstance(value, str):
        is_class = key == "class_path" and _KNOWN.fullmatch(value) is None
        is_called = _CALLED.fullmatch(value) is not None and not value.startswith("llm_agents.")
        if is_class or (is_called and "://" not in value):
            yield value
