"""Recipes by name: those that come with the package, and those of the folder that one works in.

=========================  =======================================================================
``exp/mine.yaml``          a file is what it says; it wins over any name
``a_lol_hha``              ``a_lol_hha.yaml`` here, ``recipes/a_lol_hha.yaml`` here, the package's
``paper/a_lol_hha``        the same in the folder ``paper``
``recipes/a_lol_hha.yaml``  where there is no such file: the package's, as the documents call it
``tiny`` (an overlay)      the same below ``overlays``
``zoo:NAME``               what an entry of the zoo was trained with
=========================  =======================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from llm_agents.entries import CHECKOUT, absent, entry_called, near_names, zoo_name
from llm_agents.errors import UserError

FOLDER, OVERLAYS, PAPER = "recipes", "overlays", "paper"
ENDINGS = (".yaml", ".yml")
ENTRY_RECIPE = "recipe.yaml"  # in the folder of an entry
IN_PACKAGE = Path(__file__).resolve().parents[1] / FOLDER

_GROUPS = (
    ("answers to prompts: A-LoL, its baselines and rewards", ("a_lol", "nll", "dpo", "pro", "ppo")),
    ("rewards of answers", ("reward",)),
    ("GLAM in BabyAI-Text, and the agents beside it", ("glam", "cloning", "drrn", "symbolic")),
    ("agents in kitchens and households: TWOSOME, POAD", ("twosome", "poad")),
    ("Motif on NetHack", ("motif",)),
)
_PREPARATION = "data for A-LoL's tasks"


class Summary(NamedTuple):
    """What a recipe says of itself in its first lines.

    Args:
        name: What `lightning run` takes.
        what: One sentence.
        needs: Machine and minutes; empty if it doesn't say.
    """

    name: str
    what: str
    needs: str


def bundled_folder() -> Path:
    """Return the folder of the recipes that come with the package, of checkout or wheel."""
    checkout = CHECKOUT / FOLDER
    return checkout if (checkout / OVERLAYS).is_dir() else IN_PACKAGE


def recipe_path(name: str | Path) -> Path:
    """Return the file of a recipe.

    Args:
        name: A file, or a name as in the table above.

    Raises:
        UserError: There is none; the message says what is near.
    """
    return _find(str(name), "", "recipe")


def overlay_path(name: str | Path) -> Path:
    """Return the file of an overlay; as `recipe_path`."""
    return _find(str(name), OVERLAYS, "overlay")


def _find(name: str, below: str, what: str) -> Path:
    """Return the file of a recipe or an overlay."""
    path = Path(name).expanduser()
    if zoo_name(name) is not None and not below:
        return _of_entry(name)
    if path.is_file():
        return path
    plain = name.removeprefix("./").removeprefix(f"{FOLDER}/")
    if below:
        plain = plain.removeprefix(f"{below}/")
    wanted = [plain] if plain.endswith(ENDINGS) else [f"{plain}{ending}" for ending in ENDINGS]
    folders = [Path(), Path(FOLDER) / below, bundled_folder() / below]
    if path.is_absolute() or ".." in path.parts:
        folders, wanted = [Path()], [f"{name}{ending}" for ending in ENDINGS]
    for folder in folders:
        for each in wanted:
            if (folder / each).is_file():
                return folder / each
    if path.is_dir():
        raise UserError(_refuse_folder(path, what))
    known = [each.name for each in summaries(bundled_folder() / below)]
    beside = [str(found) for found in sorted(path.parent.glob("*.y*ml"))]
    near = near_names(plain.removesuffix(".yaml").removesuffix(".yml"), [*known, *beside])
    hint = f"did you mean {' or '.join(near[:3])}? " if near else ""
    listed = "`lightning run` lists those that come with the package"
    if below:
        listed = f"that come with the package: {', '.join(known)}"
    kind = "an overlay" if below else "a recipe"
    raise UserError(
        f"expected {kind}, a file in YAML or a name, but there is none at {name}: {hint}{listed}"
    )


def _of_entry(name: str) -> Path:
    """Return the recipe that an entry of the zoo was trained with."""
    entry = entry_called(name)
    if entry is None:
        raise UserError(f"expected an entry of the zoo, but there is no `{name}`: {absent(name)}")
    if not (entry / ENTRY_RECIPE).is_file():
        raise UserError(f"the entry `{name}` holds no `{ENTRY_RECIPE}`: {entry}")
    return entry / ENTRY_RECIPE


def _refuse_folder(folder: Path, what: str) -> str:
    """Say that a folder is no recipe, and which of its files may have been meant."""
    inside = [path for path in sorted(folder.glob("*.y*ml")) if path.is_file()]
    hint = f"did you mean {' or '.join(map(str, inside[:3]))}? " if inside else ""
    return (
        f"expected a {what}, a file in YAML or a name, but {folder} is a folder: {hint}"
        "`lightning run` lists those that come with the package"
    )


def head_comment(path: Path) -> list[str]:
    """Return the comment lines at the top of a recipe, without their marks."""
    lines: list[str] = []
    with path.open(encoding="utf8", errors="replace") as file:
        for line in file:
            if not line.startswith("#"):
                break
            lines.append(line.lstrip("#").strip())
    return lines


def summary(path: Path, name: str) -> Summary:
    """Return what a recipe says of itself: its first sentence, and what it needs."""
    lines = head_comment(path)
    needs = next((line for line in lines if line.startswith("Needs: ")), "")
    what = ""
    for line in lines:
        what = f"{what} {line}".strip()
        if what.endswith(".") or ". " in what or line.startswith(("lightning ", "Needs: ")):
            break
    return Summary(name, what.partition(". ")[0].rstrip("."), needs.removeprefix("Needs: "))


def summaries(folder: Path) -> list[Summary]:
    """Return what the recipes directly inside a folder say of themselves, by name."""
    found = [path for ending in ENDINGS for path in folder.glob(f"*{ending}")]
    below = folder.name in (PAPER, OVERLAYS)
    prefix = f"{PAPER}/" if below and folder.name == PAPER else ""
    return sorted(summary(path, f"{prefix}{path.stem}") for path in found)


def grouped() -> Iterator[tuple[str, list[Summary]]]:
    """Yield the title of each group of recipes, and those in it; all of them, each once."""
    here = Path(FOLDER)
    if here.is_dir() and here.resolve() != bundled_folder().resolve():
        yield "in recipes/ of this folder", summaries(here)
    rest = summaries(bundled_folder())
    preparing = [each for each in rest if each.name.endswith("_prepare")]
    rest = [each for each in rest if each not in preparing]
    for title, words in _GROUPS:
        inside = [each for each in rest if each.name.startswith(words)]
        rest = [each for each in rest if each not in inside]
        yield title, inside
    yield _PREPARATION, preparing
    yield "others", rest
    yield "as published: larger models, a GPU", summaries(bundled_folder() / PAPER)
    overlays = summaries(bundled_folder() / OVERLAYS)
    yield "laid over any of them with --overlay NAME", overlays


def listing(width: int) -> str:
    """Return all recipes as text, one line each.

    Args:
        width: Columns of the terminal.
    """
    groups = [(title, inside) for title, inside in grouped() if inside]
    column = min(48, max(len(each.name) for _, inside in groups for each in inside))
    lines = ["recipes: `lightning run NAME` runs one, `lightning run NAME --help` shows its keys"]
    for title, inside in groups:
        lines += ["", title]
        for each in inside:
            line = f"  {each.name:<{column}}  {each.what}"
            lines.append(line if len(line) <= width else f"{line[: width - 1]}…")
    return "\n".join(lines)


def recipe_name(path: Path) -> str:
    """Return the name of a recipe's runs: its place below ``recipes/``, or its file's name.

    Example:
        >>> recipe_name(Path("recipes/paper/a_lol_hha.yaml"))
        'paper/a_lol_hha'
    """
    parts = path.with_suffix("").parts
    if FOLDER in parts[:-1]:
        last = len(parts) - 1 - parts[::-1].index(FOLDER)
        return "/".join(parts[last + 1 :])
    return parts[-1]
