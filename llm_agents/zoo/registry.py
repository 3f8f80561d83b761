"""What there is: adapters, reward models, agents in this checkout, in past runs, on the Hub."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from rich.console import Console

from llm_agents.errors import UserError
from llm_agents.evaluation import (
    AnyResults,
    EpisodeResults,
    GamesResults,
    MessageRewardResults,
    Results,
    read_any_results,
)
from llm_agents.evaluation.report import format_interval
from llm_agents.evaluation.results import RESULTS_FILE
from llm_agents.zoo.layout import (
    ADAPTER_CONFIG,
    POINTER_FILE,
    REWARD_FILE,
    AdapterInfo,
    Kind,
    entry_folder,
    is_entry,
    kind_of,
    read_json,
)

log = logging.getLogger(__name__)
PACKAGE_FOLDER = Path(__file__).resolve().parent / "checkpoints"
Source = Literal["checkpoints", "package", "runs", "hub"]

# Adapters that A-LoL's authors published (the spelling of `prioirty` is theirs).
PUBLISHED = {
    "a_lol_seq-hha-llama-7b": "abaheti95/a_lol_seq_good_prioirty_qlora_hh",
    "a_lol-hha-llama-7b": "abaheti95/a_lol_good_prioirty_qlora_hh",
    "a_lol_kl-hha-llama-7b": "abaheti95/a_lol_kl_good_prioirty_qlora_hh",
    "dpo-hha-llama-7b": "abaheti95/dpo_qlora_hh",
}


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
        results: Measured numbers, if there are any.
    """

    name: str
    source: Source
    kind: Kind
    folder: Path | None
    repo_id: str | None
    base: str | None
    method: str | None
    results: AnyResults | None


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
        known = Entry(name, "hub", "policy", None, repo_id, None, name.split("-")[0], None)
        entries.setdefault(name, known)
    return list(entries.values())


def _folders(root: Path) -> Iterator[tuple[Source, Path, str]]:
    """Yield each local folder with its source and name."""
    checkout = Path(__file__).resolve().parents[2]
    for place in dict.fromkeys((root, checkout)):
        yield from (("checkpoints", path, path.name) for path in _children(place / "checkpoints"))
    yield from (("package", path, path.name) for path in _children(PACKAGE_FOLDER))
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
    results = measured(folder) or (measured(folder.parent) if source == "runs" else None)
    trained = results.details.get("method") if results is not None else None
    return Entry(
        name=name,
        source=source,
        kind=kind_of(folder),
        folder=folder,
        repo_id=repo_id,
        base=base,
        method=info.method if info else _text(trained),
        results=results,
    )


def measured(folder: Path) -> AnyResults | None:
    """Return the results in a folder, if there are any."""
    return read_any_results(folder) if (folder / RESULTS_FILE).is_file() else None


def headline(results: AnyResults | None) -> str:
    """Return the one number that matters most, with its interval."""
    if results is None:
        return "not measured here"
    if isinstance(results, Results):
        return f"reward {format_interval(results.overall.reward, 4)} ({results.reward.name})"
    if isinstance(results, EpisodeResults):
        world = results.overall
        return f"return {format_interval(world.discounted_return, 4)} ({world.world})"
    if isinstance(results, GamesResults):
        games = results.overall
        return f"score {format_interval(games.means['score'], 1)} ({games.task})"
    accuracy = (
        results.accuracy
        if isinstance(results, MessageRewardResults)
        else results.overall.pair_accuracy
    )
    return f"pairs right {format_interval(accuracy, 3)}" if accuracy else "no pairs to judge"


def _text(value: object) -> str | None:
    """Return a text that is not empty, or None."""
    return value if isinstance(value, str) and value else None


def show(name: str, root: str | Path | None = None) -> Entry:
    """Return the entry called `name`, or the folder of that name.

    Raises:
        UserError: There is none; the nearest names are in the message.
    """
    folder = entry_folder(Path(name).expanduser())
    if is_entry(folder):
        return read_entry(folder, name, "runs" if folder.name == "adapter" else "checkpoints")
    entries = {entry.name: entry for entry in list_entries(root)}
    if name not in entries:
        near = get_close_matches(name, entries, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(f'`{other}`' for other in near)}? " if near else ""
        raise UserError(
            f"nothing in the zoo is called `{name}`: {hint}"
            "`lightning zoo list` shows what there is; a folder or a Hub id will do too"
        )
    return entries[name]


def print_entries(entries: list[Entry], console: Console | None = None) -> None:
    """Print each entry's name, whole so that it can be copied, and below it what it is."""
    shown = console or Console()
    for entry in entries:
        where = entry.repo_id if entry.source == "hub" else entry.source
        shown.print(entry.name, style="bold", soft_wrap=True, highlight=False, markup=False)
        text = f"    {entry.kind} · {headline(entry.results)} · {where}"
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
        "measured": headline(entry.results),
        "use": f"llm_agents.{call}({entry.name!r})",
    }
    if entry.kind == "agent":
        lines["watch"] = f"lightning watch {entry.name}"
    return "\n".join(f"{name:<9} {value}" for name, value in lines.items() if value is not None)


def size_of(folder: Path) -> int:
    """Return the bytes of an entry's weights."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
