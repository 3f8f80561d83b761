"""From a file and the command line to a recipe that is known to be sound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llm_agents.config.check import check_recipe
from llm_agents.config.inputs import place_inputs
from llm_agents.config.merge import lay_over
from llm_agents.config.options import override
from llm_agents.config.reading import Document, read_document
from llm_agents.config.recipe_files import overlay_path, recipe_path


def load_recipe(
    path: str | Path,
    overlays: Sequence[str | Path] = (),
    options: Sequence[tuple[str, str]] = (),
) -> Document:
    """Read a recipe, lay overlays and options over it, and check the result.

    Args:
        path: The recipe: a file, or a name (see `llm_agents.config.recipe_files`).
        overlays: Files or names of what is laid over it, in order.
        options: Keys with dots and their values as text, in order.

    Raises:
        RecipeError: Names every fault of all of them.
    """
    document = merged(path, overlays, options)
    check_recipe(document)
    place_inputs(document)
    return document


def merged(
    path: str | Path, overlays: Sequence[str | Path], options: Sequence[tuple[str, str]]
) -> Document:
    """Return a recipe with everything laid over it, not checked."""
    document = read_document(recipe_path(path))
    for overlay in overlays:
        document = lay_over(document, read_document(overlay_path(overlay)))
    for option, text in options:
        document = override(document, option, text)
    return document
