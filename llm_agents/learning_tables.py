"""Tables of how fast agents learn in text worlds, from ``benchmarks/results/``.

The files are read as plain JSON, so that writing a table needs no torch.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_RESULTS = Path("benchmarks") / "results"
SOURCE = _RESULTS / "online_learning.json"
RARE = _RESULTS / "rare_rewards.json"
GLAM = _RESULTS / "glam_learning.json"
GENERALISATION = _RESULTS / "glam_generalisation.json"
_AGENTS = {
    "random": "chance",
    "zero-shot": "the model as it is",
    "cloned": "cloned from the bot",
    "dart": "cloned from the bot led astray (DART)",
    "dagger": "this clone, corrected by the bot (DAgger)",
    "ppo": "GLAM: PPO from the model as it is",
    "cloned_ppo": "GLAM: cloned, then PPO",
    "dagger_ppo": "GLAM: cloned, corrected, then PPO",
    "drrn": "DRRN",
    "symbolic": "symbolic PPO",
}
_UNTRAINED = ("zero-shot", "random")
_PAPER = {  # POAD (arXiv 2405.15821), table of generalisation, Llama-2-7B; and its NTPO
    "virtualhome-cheese": (0.7553, 0.7428),
    "virtualhome-hamburger": (0.7602, 0.7476),
    "virtualhome-apple-pie": (0.7650, 0.7141),
    "virtualhome-pizza": (0.7625, 0.7355),
    "virtualhome-washing-plate": (0.7075, 0.7491),
    "virtualhome-laundry": (0.7014, 0.5687),
}


def learning_table(root: Path) -> str:
    """Return a row for each task and variant: what was reached, when, in how many minutes."""
    head = (
        *("task", "variant", "seeds", "return [95 %]", "of the optimum", "by seed"),
        *("steps to 90 %", "steps to 97 %", "steps", "minutes"),
    )
    return _table(head, _learning_rows(_tasks(root)))


def _learning_rows(tasks: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for task, variants in tasks.items():
        optimum = variants["optimum"]
        for variant, entry in variants.items():
            found = _home(entry) if isinstance(entry, Mapping) else None
            if found is None:
                continue
            minutes = entry.get("minutes")
            yield (
                task.replace("_", "-"),
                f"`{variant}`",
                str(len(entry["seeds"])),
                _interval(found["return"]),
                f"{found['return']['mean'] / optimum:.1%}",
                ", ".join(f"{value:.3f}" for value in found["by_seed"]),
                _steps(entry["frames_to_90%"]),
                _steps(entry["frames_to_97%"]),
                f"{max(entry['frames']):,}",
                "–" if minutes is None else f"{minutes:g}",
            )


def reskins_table(root: Path) -> str:
    """Return what agents trained on food preparation reach in worlds that they never saw."""
    food = _tasks(root).get("food", {})
    variants = {name: entry for name, entry in food.items() if isinstance(entry, Mapping)}
    head = ("world", "POAD, paper", "NTPO, paper", *(f"`{name}`" for name in variants))
    rows = [
        (
            world.removeprefix("virtualhome-").replace("-", " "),
            *(f"{value:.4f}" for value in published),
            *(_elsewhere(entry, world) for entry in variants.values()),
        )
        for world, published in _PAPER.items()
    ]
    return _table(head, rows)


def rare_table(root: Path) -> str:
    """Return which settings of PPO learn a rare reward, and when."""
    path = root / RARE
    settings = json.loads(path.read_text(encoding="utf8"))["settings"] if path.is_file() else []
    head = (
        *("values start at", "floor of the deviation", "entropy", "seeds that learned it"),
        *("steps to 90 %", "returns at the end"),
    )
    return _table(head, [_rare_row(found) for found in settings])


def glam_table(root: Path) -> str:
    """Return what GLAM and its comparison agents reach in BabyAI-Text, and from how many steps."""
    path = root / GLAM
    worlds = json.loads(path.read_text(encoding="utf8"))["worlds"] if path.is_file() else {}
    head = (
        *("world", "agent", "seeds", "success [95 %]", "by seed", "steps an episode"),
        *("steps of the bot read", "steps in the world", "minutes"),
    )
    rows = [
        (world.removeprefix("babyai-"), shown, *_glam_cells(agents[agent]))
        for world, agents in worlds.items()
        for agent, shown in _AGENTS.items()
        if agent in agents
    ]
    return _table(head, rows)


def generalisation_table(root: Path) -> str:
    """Return the success of trained agents in GLAM's tests, with the base and chance beside."""
    path = root / GENERALISATION
    agents = json.loads(path.read_text(encoding="utf8"))["agents"] if path.is_file() else {}
    head = ("agent", "test", "success [95 %]", "the model as it is", "chance", "episodes")
    rows = [
        (
            f"`{name}`",
            test,
            *(_success(found.get(who)) for who in (taken["trained"], *_UNTRAINED)),
            str(found[taken["trained"]]["n"]),
        )
        for name, taken in agents.items()
        for test, found in taken["tests"].items()
    ]
    return _table(head, rows)


def _success(found: Mapping[str, float] | None) -> str:
    """Return a success rate of episodes with Wilson's interval, in two digits."""
    return (
        "–" if found is None else f"{found['mean']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"
    )


def _glam_cells(entry: Mapping[str, Any]) -> tuple[str, ...]:
    steps = f"{entry['steps']:g}"
    if "n" in entry:
        return (f"{entry['n']} episodes", _interval(entry), "–", steps, "–", "–", "–")
    read, frames = entry.get("steps_of_the_bot"), entry.get("frames")
    return (
        str(len(entry["seeds"])),
        _interval(entry["success"]),
        ", ".join(f"{value:.2f}" for value in entry["success"]["by_seed"]),
        steps,
        f"{read:,}" if read else "–",
        f"{frames:,}" if frames else "–",
        "–" if entry["minutes"] is None else f"{entry['minutes']:g}",
    )


def _rare_row(found: Mapping[str, Any]) -> tuple[str, ...]:
    steps = [count for count in found["steps_to_90%"] if count is not None]
    return (
        found["critic_init"],
        f"{found['advantage_floor']:g}" if found["advantage_floor"] else "none",
        f"{found['entropy_coef']:g}",
        f"{len(steps)} of {len(found['returns'])}",
        f"{statistics.median(steps):,.0f}" if steps else "never",
        ", ".join(f"{value:.3f}" for value in sorted(found["returns"])),
    )


def _elsewhere(entry: Mapping[str, Any], world: str) -> str:
    found = entry.get(f"trained@{world}")
    return "–" if found is None else _interval(found["return"])


def _home(entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what the trained agents reached in the first world, that of their training."""
    return next((value for name, value in entry.items() if name.startswith("trained@")), None)


def _tasks(root: Path) -> Mapping[str, Any]:
    path = root / SOURCE
    found = json.loads(path.read_text(encoding="utf8"))["tasks"] if path.is_file() else {}
    return found if isinstance(found, Mapping) else {}


def _steps(counts: Sequence[int | None]) -> str:
    """Return the median of the seeds that got there, and how many did."""
    there = [count for count in counts if count is not None]
    if not there:
        return "never"
    share = "" if len(there) == len(counts) else f" ({len(there)} of {len(counts)})"
    return f"{statistics.median(there):,.0f}{share}"


def _interval(found: Mapping[str, float]) -> str:
    ends = f" [{found['low']:.3f}, {found['high']:.3f}]" if "low" in found else ""
    return f"{found['mean']:.3f}{ends}"


def _table(head: Sequence[str], rows: Iterator[Sequence[str]] | list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
