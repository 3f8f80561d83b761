"""What there is: adapters, reward models, agents in this checkout, in past runs, on the Hub."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llm_agents.entries import PACKAGE_FOLDER, PUBLISHED, find_entry, near_names, places
from llm_agents.errors import UserError
from llm_agents.evaluation.intervals import Interval, format_interval
from llm_agents.evaluation.results import RESULTS_FILE, kind_of_results, read_object
from llm_agents.zoo.layout import (
    ADAPTER_CONFIG,
    POINTER_FILE,
    REWARD_FILE,
    AdapterInfo,
    Kind,
    is_entry,
    kind_of,
    read_json,
)

if TYPE_CHECKING:
    from rich.console import Console

    from llm_agents.evaluation import AnyResults

log = logging.getLogger(__name__)
Source = Literal["checkpoints", "package", "runs", "hub"]
UNMEASURED = "not measured here"


@dataclass(frozen=True)
class Entry:
    """An adapter, a reward model or an agent.

    Args:
        name: What `load_pretrained` takes.
        source: Where it was found.
        kind: Language policy, reward model or agent.
        folder: Its folder; None if it is on the Hub only.
        repo_id: Its repository; None if it is local only.
        base: Base model, if it is known.
        method: Method that trained it, if it is known.
        measured_in: Folder with its measured numbers, if there are any.
        headline: The one number of them that matters most, with its interval.
    """

    name: str
    source: Source
    kind: Kind
    folder: Path | None
    repo_id: str | None
    base: str | None
    method: str | None
    measured_in: Path | None
    headline: str

    @cached_property
    def results(self) -> AnyResults | None:
        """Return its measured numbers, if there are any."""
        return None if self.measured_in is None else measured(self.measured_in)


def list_entries(root: str | Path | None = None) -> list[Entry]:
    """Return everything that `load_pretrained` knows by name.

    In this order: ``checkpoints/`` of the working folder or the checkout, adapters that came with
    the package, adapters of finished runs in ``runs/``, adapters known on the Hub. Of two with one
    name the first counts.

    Args:
        root: Folder that holds ``checkpoints/`` and ``runs/``; the working folder by default.
    """
    entries: dict[str, Entry] = {}
    for source, folder, name in _folders(Path(root) if root else Path.cwd()):
        if name not in entries:
            try:
                entries[name] = read_entry(folder, name, source)
            except UserError as error:  # one damaged folder does not hide the others
                log.warning("left out of the list: %s", error)
    for name, repo_id in PUBLISHED.items():
        method = name.split("-")[0]
        known = Entry(name, "hub", "policy", None, repo_id, None, method, None, UNMEASURED)
        entries.setdefault(name, known)
    return list(entries.values())


def _folders(root: Path) -> Iterator[tuple[Source, Path, str]]:
    """Yield each local folder with its source and name."""
    for place in places(root):
        source: Source = "package" if place == PACKAGE_FOLDER else "checkpoints"
        yield from ((source, path, path.name) for path in _children(place))
    runs = root / "runs"
    for path in sorted(runs.glob("**/adapter"), reverse=True):  # newest run of a recipe first
        if is_entry(path):
            yield "runs", path, path.parent.relative_to(runs.parent).as_posix()


def _children(folder: Path) -> list[Path]:
    """Return the entries directly inside a folder."""
    return sorted(path for path in folder.glob("*") if path.is_dir() and is_entry(path))


def read_entry(folder: Path, name: str, source: Source) -> Entry:
    """Describe a folder from its files."""
    info = AdapterInfo.read(folder)
    base = info.base if info else None
    repo_id = None
    if base is None and (folder / REWARD_FILE).is_file():
        base = _text(read_json(folder / REWARD_FILE).get("base"))
    if base is None and (folder / ADAPTER_CONFIG).is_file():
        base = _text(read_json(folder / ADAPTER_CONFIG).get("base_model_name_or_path"))
    if (folder / POINTER_FILE).is_file():
        repo_id = _text(read_json(folder / POINTER_FILE).get("repo_id"))
    where = next((f for f in (folder, *_run_of(folder, source)) if has_results(f)), None)
    numbers = None if where is None else read_object(where, kind=kind_of_results(where))
    trained = None if numbers is None else (numbers.get("details") or {}).get("method")
    return Entry(
        name=name,
        source=source,
        kind=kind_of(folder),
        folder=folder,
        repo_id=repo_id,
        base=base,
        method=info.method if info else _text(trained),
        measured_in=where,
        headline=UNMEASURED if where is None else _headline(kind_of_results(where), numbers or {}),
    )


def _run_of(folder: Path, source: Source) -> tuple[Path, ...]:
    """Return the folder of the run that has left `folder` behind, if a run has."""
    return (folder.parent,) if source == "runs" else ()


def has_results(folder: Path) -> bool:
    """Return whether a folder holds measured numbers."""
    return (folder / RESULTS_FILE).is_file()


def measured(folder: Path) -> AnyResults | None:
    """Return the results in a folder, if there are any."""
    from llm_agents.evaluation import read_any_results

    return read_any_results(folder) if has_results(folder) else None


def _headline(kind: str, values: dict[str, Any]) -> str:
    """Return the one number that matters most, with its interval, from the file's content.

    Only the file is read: a list of what there is need not load what measured it.
    """
    try:
        if kind == "policy":
            reward = Interval(**values["tests"][-1]["reward"])
            return f"reward {format_interval(reward, 4)} ({values['reward']['name']})"
        if kind == "episodes":
            world = values["worlds"][0]
            returned = Interval(**world["discounted_return"])
            return f"return {format_interval(returned, 4)} ({world['world']})"
        if kind == "games":
            games = values["results"][0]
            return (
                f"score {format_interval(Interval(**games['means']['score']), 1)} ({games['task']})"
            )
        accuracy = (
            values["accuracy"] if kind == "message_reward" else values["tests"][-1]["pair_accuracy"]
        )
    except (KeyError, IndexError, TypeError) as error:
        raise UserError(f"its {RESULTS_FILE} is incomplete: {error!r} is missing") from error
    if accuracy is None:
        return "no pairs to judge"
    return f"pairs right {format_interval(Interval(**accuracy), 3)}"


def _text(value: object) -> str | None:
    """Return a text that is not empty, or None."""
    return value if isinstance(value, str) and value else None


def show(name: str, root: str | Path | None = None) -> Entry:
    """Return the entry called `name`, or the folder of that name.

    Raises:
        UserError: There is none; the nearest names are in the message.
    """
    folder = find_entry(name)
    if folder is not None and is_entry(folder):
        is_run = folder.name == "adapter"
        known = name if is_run or Path(name).is_dir() else folder.name
        return read_entry(folder, known, "runs" if is_run else _place(folder))
    entries = {entry.name: entry for entry in list_entries(root)}
    if name not in entries:
        near = near_names(name, list(entries))
        hint = f"did you mean {', '.join(f'`{other}`' for other in near)}? " if near else ""
        raise UserError(
            f"nothing in the zoo is called `{name}`: {hint}"
            "`lightning zoo list` shows what there is; a folder or a Hub id will do too"
        )
    return entries[name]


def _place(folder: Path) -> Source:
    """Return where an entry's folder lies."""
    return "package" if folder.parent == PACKAGE_FOLDER else "checkpoints"


def print_entries(entries: list[Entry], console: Console | None = None) -> None:
    """Print each entry's name, whole so that it can be copied, and below it what it is."""
    from rich.console import Console

    shown = console or Console()
    for entry in entries:
        where = entry.repo_id if entry.source == "hub" else entry.source
        shown.print(entry.name, style="bold", soft_wrap=True, highlight=False, markup=False)
        text = f"    {entry.kind} · {entry.headline} · {where}"
        shown.print(text, soft_wrap=True, highlight=False, markup=False)


def describe_entry(entry: Entry) -> str:
    """Return what is known of an entry as text."""
    kinds = {"policy": "policy", "reward": "reward model", "agent": "agent"}
    call = "play_pretrained" if entry.kind == "agent" else "load_pretrained"
    lines = {
        "name": entry.name,
        "kind": kinds[entry.kind],
        "folder": entry.folder,
        "size": None if entry.folder is None else f"{size_of(entry.folder) / 1e6:.2f} MB",
        "Hub": entry.repo_id,
        "base": entry.base,
        "method": entry.method,
        "measured": entry.headline,
        "use": f"llm_agents.{call}({entry.name!r})",
    }
    if entry.kind == "agent":
        lines["watch"] = f"lightning watch {entry.name}"
    return "\n".join(f"{name:<9} {value}" for name, value in lines.items() if value is not None)


def size_of(folder: Path) -> int:
    """Return the bytes of an entry's weights."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
