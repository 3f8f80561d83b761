"""Entries of the zoo evaluated again, each number beside the one that the entry keeps.

A number is *the same* where it agrees to the digits that a card shows, *within* where it lies in
the card's interval (another processor rounds differently, and a draw or a greedy token may fall
otherwise), and *other* else. What needs a file that is not here is named and not counted.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from llm_agents.entries import shipped_folders
from llm_agents.errors import UserError
from llm_agents.evaluation import (
    AnyResults,
    EpisodeResults,
    GamesResults,
    Interval,
    Results,
    RewardResults,
)
from llm_agents.evaluation.policy import OVERALL
from llm_agents.evaluation.results import RESULTS_FILE
from llm_agents.training.agents import AgentRequest, evaluate_agent_named
from llm_agents.training.evaluation_files import bundled_tests
from llm_agents.training.named import Request, evaluate_named, files_of
from llm_agents.zoo.hub import find_folder
from llm_agents.zoo.registry import measured

log = logging.getLogger(__name__)

SHOWN_DIGITS = 4
Verdict = Literal["same", "within", "other"]
RecipeOf = Callable[[str], Mapping[str, Any]]
"""Returns the content of the recipe that something was trained with."""


@dataclass(frozen=True)
class Comparison:
    """A number of an entry and what came of measuring it again.

    Args:
        entry: Name of the entry.
        part: Test set; or world or task, with who played it.
        metric: What was measured.
        kept: As the entry keeps it.
        remade: As it was measured now.
        low: Lower end of the kept interval.
        high: Its upper end.
        verdict: See the module.
    """

    entry: str
    part: str
    metric: str
    kept: float
    remade: float
    low: float | None
    high: float | None
    verdict: Verdict


def check_entries(
    names: Sequence[str],
    recipe_of: RecipeOf,
    *,
    data: Sequence[str] = (),
    out: Path,
    table: Path | None = None,
) -> int:
    """Evaluate entries again and print each number beside the kept one.

    Args:
        names: Zoo names, folders or Hub ids; the entries that came along if empty.
        recipe_of: Finds their recipes.
        data: Test sets that are not bundled.
        out: Folder of the new results.
        table: Write the table as CSV too.

    Returns:
        1 if a number is another one, else 0.

    Raises:
        UserError: There is no such entry, or it has no numbers.
    """
    chosen = list(names) or list(dict.fromkeys(path.name for path in shipped_folders()))
    found: list[Comparison] = []
    for name in chosen:
        found += check_entry(name, recipe_of(name), data=tuple(data), out=out)
        if table is not None:
            _write_csv(table, found)
    console = Console()
    console.print(_table(found))
    counts = {word: sum(c.verdict == word for c in found) for word in ("same", "within", "other")}
    console.print(
        f"{len(found)} numbers of {len(chosen)} entries: {counts['same']} the same to the digits "
        f"shown, {counts['within']} within the entry's interval, {counts['other']} other",
        soft_wrap=True,
    )
    return int(counts["other"] > 0)


def check_entry(
    name: str, recipe: Mapping[str, Any], *, data: tuple[str, ...] = (), out: Path
) -> list[Comparison]:
    """Evaluate one entry again, as its recipe says, and compare.

    Raises:
        UserError: It has no numbers or no recipe to compare with.
    """
    folder = find_folder(name)
    kept = measured(folder)
    if kept is None or not recipe:
        raise UserError(f"`{name}` has no {'results' if recipe else 'recipe'} to check")
    log.info("%s: evaluated again", name)
    target = out / folder.name
    (target / RESULTS_FILE).unlink(missing_ok=True)  # an earlier check's numbers don't count
    names: dict[str, str] = {}
    remade: AnyResults
    if isinstance(kept, EpisodeResults | GamesResults):
        remade = evaluate_agent_named(AgentRequest(name, recipe, (), None, None, target))
    else:
        request = Request(name, recipe, data, None, None, None, (), target)
        if isinstance(kept, Results | RewardResults):
            names = files_of(request).names(data)
            request = replace(request, data=(*bundled_tests(recipe), *data) if data else ())
        else:
            request = replace(request, data=())
        remade = evaluate_named(request, None)
    return list(compare_numbers(folder.name, kept, remade, names))


def compare_numbers(
    entry: str, kept: AnyResults, remade: AnyResults, names: dict[str, str] | None = None
) -> Iterator[Comparison]:
    """Yield each number that both results have.

    Args:
        entry: Name of the entry.
        kept: Its own results.
        remade: What was measured now.
        names: What the entry calls the test sets of `remade`, where that differs.
    """
    known = {(part, metric): value for part, metric, value in numbers_of(kept)}
    for part, metric, value in numbers_of(remade):
        mine = known.get(((names or {}).get(part, part), metric))
        if mine is None or value is None:
            continue
        yield Comparison(
            entry, part, metric, mine.mean, value.mean, mine.low, mine.high, verdict(mine, value)
        )


def verdict(kept: Interval, remade: Interval) -> Verdict:
    """Return how a number that was measured again stands to the kept one."""
    if abs(kept.mean - remade.mean) <= 0.5 * 10**-SHOWN_DIGITS:
        return "same"
    low, high = kept.low, kept.high
    inside = low is not None and high is not None and low <= remade.mean <= high
    return "within" if inside else "other"


def numbers_of(results: AnyResults) -> Iterator[tuple[str, str, Interval | None]]:
    """Yield part, metric and value of the numbers of a card that have an interval."""
    if isinstance(results, Results):
        for test in results.tests:
            if test.name != OVERALL:
                yield test.name, "mean reward", test.reward
                yield test.name, "words an answer", test.words
    elif isinstance(results, RewardResults):
        for agreement in results.tests:
            if agreement.name != OVERALL:
                yield agreement.name, "pairs right", agreement.pair_accuracy
                yield agreement.name, "pairs as stored", agreement.pair_agreement
                yield agreement.name, "correlation", agreement.correlation
    elif isinstance(results, EpisodeResults):
        for entry in results.worlds:
            part = f"{entry.world} · {entry.agent}"
            yield part, "discounted return", entry.discounted_return
            yield part, "success", entry.success
            yield part, "decisions", entry.decisions
    elif isinstance(results, GamesResults):
        for games in results.results:
            for measure, value in games.means.items():
                yield f"{games.task} · {games.agent}", measure, value
    else:
        yield "held out", "pairs right", results.accuracy
        yield "held out", "of unseen messages", results.accuracy_unseen


def _table(found: Sequence[Comparison]) -> Table:
    """Return the comparisons as a table."""
    table = Table("entry", "part", "metric", "card", "remade", "verdict")
    last = ""
    for entry in found:
        numbers = (f"{value:.{SHOWN_DIGITS}f}" for value in (entry.kept, entry.remade))
        shown = "" if entry.entry == last else entry.entry
        table.add_row(shown, entry.part, entry.metric, *numbers, entry.verdict)
        last = entry.entry
    return table


def _write_csv(path: Path, found: Sequence[Comparison]) -> None:
    """Write the comparisons as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(Comparison)])
        writer.writerows(astuple(comparison) for comparison in found)
