"""Entries of the zoo as folders: which files tell that there is one, and where that of a name lies.

What was trained is called by a name wherever an adapter, a reward or an agent is asked for: in
recipes, on the command line, in Python. It lies in ``checkpoints/`` of the working folder or of the
checkout, or came with the package, so that a name means the same in every folder:

=====================  ===========================================================================
``NAME``               a folder of that name here, else the zoo's entry
``zoo:NAME``           the zoo's entry, whatever lies here
``checkpoints/NAME``   that folder; where there is none, as on another machine, the zoo's entry
=====================  ===========================================================================

Nothing heavy is imported: names are looked up before anything is loaded.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

ADAPTER_CONFIG = "adapter_config.json"
INFO_FILE = "llm_agents.json"
REWARD_FILE = "reward.json"
MESSAGE_REWARD_FILE = "message_reward.json"
AGENT_FILE = "agent.json"
NETHACK_FILE = "nethack_agent.json"
POINTER_FILE = "hub.json"
ZOO = "zoo:"
CHECKPOINTS = "checkpoints"

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE_FOLDER = Path(__file__).resolve().parent / "zoo" / CHECKPOINTS
"""Where the entries lie that came with the package."""

# Adapters that A-LoL's authors published (the spelling of `prioirty` is theirs).
PUBLISHED = {
    "a_lol_seq-hha-llama-7b": "abaheti95/a_lol_seq_good_prioirty_qlora_hh",
    "a_lol-hha-llama-7b": "abaheti95/a_lol_good_prioirty_qlora_hh",
    "a_lol_kl-hha-llama-7b": "abaheti95/a_lol_kl_good_prioirty_qlora_hh",
    "dpo-hha-llama-7b": "abaheti95/dpo_qlora_hh",
}

Kind = Literal["policy", "reward", "agent"]
"""What a folder is for: text that is written, a judge of texts, or one who plays."""


def is_entry(folder: Path) -> bool:
    """Return whether a folder holds an adapter, a reward, an agent, or a pointer to one."""
    adapters = (ADAPTER_CONFIG, REWARD_FILE, POINTER_FILE, AGENT_FILE)
    names = (*adapters, MESSAGE_REWARD_FILE, NETHACK_FILE)
    return any((folder / name).is_file() for name in names)


def entry_folder(folder: Path) -> Path:
    """Return the folder with the adapter: that of a run is inside the run's folder."""
    inside = folder / "adapter"
    return inside if not is_entry(folder) and is_entry(inside) else folder


def kind_of(folder: Path) -> Kind:
    """Return what a folder is for."""
    marks: dict[Kind, tuple[str, ...]] = {
        "reward": (REWARD_FILE, MESSAGE_REWARD_FILE),
        "agent": (AGENT_FILE, NETHACK_FILE),
    }
    for kind, names in marks.items():
        if any((folder / name).is_file() for name in names):
            return kind
    return "policy"


def is_whole_model(place: Path) -> bool:
    """Return whether a folder holds a whole model rather than an adapter, or a file is one."""
    if place.suffix == ".gguf" and place.is_file():
        return True
    return (place / "config.json").is_file() and not is_entry(place)


def is_hub_id(name: str) -> bool:
    """Return whether `name` has the form ``organization/repository``."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is not None


def is_of_here(name: str) -> bool:
    """Return whether a path can only mean a folder of this machine, though it looks like a Hub id.

    Example:
        >>> is_of_here("runs/poad"), is_of_here("owner/adapter")
        (True, False)
    """
    first, slash, _ = name.partition("/")
    known = ("runs", CHECKPOINTS, "evaluations", "recipes")
    return bool(slash) and (first in known or Path(first).is_dir())


def places(root: Path | None = None) -> list[Path]:
    """Return the folders whose children are entries, the first of a name counts.

    Args:
        root: Folder that holds ``checkpoints/``; the working folder if None.
    """
    here = Path.cwd() if root is None else root
    return list(dict.fromkeys((here / CHECKPOINTS, CHECKOUT / CHECKPOINTS, PACKAGE_FOLDER)))


def entry_called(name: str, root: Path | None = None) -> Path | None:
    """Return the folder of the zoo's entry that `name` may stand for; None if there is none here.

    Args:
        name: ``NAME``, ``zoo:NAME`` or ``…/checkpoints/NAME``.
        root: As of `places`.

    Example:
        >>> entry_called("no/such/entry") is None
        True
    """
    folder, _, last = name.removeprefix(ZOO).rstrip("/").rpartition("/")
    if not last or last in (".", "..") or (folder and Path(folder).name != CHECKPOINTS):
        return None
    return next((found for place in places(root) if is_entry(found := place / last)), None)


def zoo_name(place: str) -> str | None:
    """Return the entry's name in a text that can only mean an entry of the zoo; else None.

    Example:
        >>> zoo_name("zoo:nll-hha"), zoo_name("runs/nll-hha")
        ('nll-hha', None)
    """
    return place.removeprefix(ZOO) if place.startswith(ZOO) else None


def shipped_folders() -> list[Path]:
    """Return the folders of the entries that came with the checkout or the package."""
    shipped = (CHECKOUT / CHECKPOINTS, PACKAGE_FOLDER)
    return [path for place in shipped for path in sorted(place.glob("*")) if is_entry(path)]


def find_entry(name: str) -> Path | None:
    """Return the local folder of what was trained: a folder as it is, or the zoo's of that name.

    Args:
        name: A folder, of a run too, or a name as in the table above.
    """
    here = Path(name).expanduser()
    if not name.startswith(ZOO) and here.is_dir():
        return entry_folder(here)
    return entry_called(name)


def entry_names(root: Path | None = None) -> list[str]:
    """Return the names of the entries on this machine."""
    found = (path.name for place in places(root) for path in place.glob("*") if is_entry(path))
    return sorted(set(found))


def near_names(name: str, known: list[str]) -> list[str]:
    """Return names that are like `name`, or that hold it as a word: for a fault's cure.

    Example:
        >>> near_names("twosome", ["a_lol-hha", "twosome-kitchen", "poad-house"])
        ['twosome-kitchen']
        >>> near_names("twosme", ["a_lol-hha", "twosome-kitchen", "poad-house"])
        ['twosome-kitchen']
    """
    word = name.removeprefix(ZOO).rstrip("/").rpartition("/")[2].lower()
    holding = [each for each in known if word and word in each.lower()]
    alike = get_close_matches(word, known, n=3, cutoff=0.6)
    begins: dict[str, list[str]] = {}
    for each in known:  # a mistyped beginning of a long name
        begins.setdefault(each[: len(word)], []).append(each)
    near = get_close_matches(word, begins, n=3, cutoff=0.75) if len(word) > 3 else []
    return list(dict.fromkeys((*holding, *alike, *(e for part in near for e in begins[part]))))[:6]


def absent(name: str) -> str:
    """Return how a message about a name ends that stands for nothing: near names, where to look."""
    near = near_names(name, [*entry_names(), *PUBLISHED])
    hint = f"did you mean {', '.join(f'`{other}`' for other in near)}? " if near else ""
    return f"{hint}`lightning zoo list` shows what there is"
