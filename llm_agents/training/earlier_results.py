"""Results beside those that a folder holds already: measuring again loses nothing.

Test sets, worlds and tasks that were measured again get their new numbers, all others keep theirs,
and so does what is known of the training. Where the two may not stand in one table (other weights,
another reward, another way of answering, another seed, fewer prompts or episodes) the earlier file
stays beside the new one as ``results-DATE.json``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from llm_agents.evaluation import (
    AnyResults,
    EpisodeResults,
    GamesResults,
    MessageRewardResults,
    Results,
    RewardResults,
    read_any_results,
    write_results,
)
from llm_agents.evaluation.policy import OVERALL
from llm_agents.evaluation.results import (
    RESULTS_FILE,
    read_results,
    results_path,
    texts_file,
)
from llm_agents.whole_files import write_text

log = logging.getLogger(__name__)

ResultsT = TypeVar(
    "ResultsT", Results, RewardResults, EpisodeResults, MessageRewardResults, GamesResults
)


def keep_beside(results: ResultsT, folder: Path) -> ResultsT:
    """Write results to a folder, together with what it holds already.

    Args:
        results: What was measured now.
        folder: Made if it isn't there.

    Returns:
        What the folder holds now.
    """
    if not (folder / RESULTS_FILE).is_file():
        write_results(folder, results)
        return results
    earlier = _read(folder)
    if _may_join(earlier, results):
        if _is_larger(earlier, results):
            _set_aside(folder, earlier)
        joined = cast(ResultsT, _joined(earlier, results))
    else:
        _set_aside(folder, earlier)
        known = {} if _was_trained_again(earlier, results) else earlier.details
        joined = replace(results, details=joined_details(known, results.details))
    without_texts = _without_texts(folder, joined)
    write_results(folder, joined)
    for path in without_texts:
        path.unlink(missing_ok=True)  # numbers whose answers are not here
    return joined


def _without_texts(folder: Path, results: AnyResults) -> list[Path]:
    """Return the files of texts that would hold nothing: of earlier answers that are not here."""
    if not isinstance(results, Results):
        return []
    unread = {answer.test for answer in results.answers if not answer.prompt}
    return [texts_file(folder, test) for test in sorted(unread)]


def joined_details(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known beside the numbers: what is new, and what only the earlier ones knew."""
    return {**earlier, **{key: value for key, value in later.items() if value is not None}}


def _read(folder: Path) -> AnyResults:
    """Return a folder's results; those of answers with their texts, which are written again."""
    found = read_any_results(folder)
    return read_results(folder) if isinstance(found, Results) else found


def _may_join(earlier: AnyResults, later: AnyResults) -> bool:
    """Return whether the parts of two results may stand in one table."""
    if _was_trained_again(earlier, later):
        return False
    if isinstance(earlier, Results) and isinstance(later, Results):
        return (
            earlier.reward == later.reward
            and earlier.generation == later.generation
            and earlier.seed == later.seed
        )
    if isinstance(earlier, RewardResults) and isinstance(later, RewardResults):
        return earlier.reward == later.reward
    if isinstance(earlier, EpisodeResults) and isinstance(later, EpisodeResults):
        return earlier.seed == later.seed
    if isinstance(earlier, GamesResults) and isinstance(later, GamesResults):
        return earlier.seed == later.seed
    return type(earlier) is type(later)


def _was_trained_again(earlier: AnyResults, later: AnyResults) -> bool:
    """Return whether two results are known to be of different weights."""
    return len({each.details.get("weights") for each in (earlier, later)} - {None}) > 1


def sizes(results: AnyResults) -> dict[tuple[str, ...], int]:
    """Return the prompts, pairs, episodes or games of each part of results."""
    if isinstance(results, Results | RewardResults):
        return {(test.name,): test.num_prompts for test in results.tests if test.name != OVERALL}
    if isinstance(results, EpisodeResults):
        return {(entry.world, entry.agent): entry.num_episodes for entry in results.worlds}
    if isinstance(results, GamesResults):
        return {(entry.task, entry.agent): entry.num_games for entry in results.results}
    return {("held out",): results.num_pairs}


def _is_larger(earlier: AnyResults, later: AnyResults) -> bool:
    """Return whether the earlier results rest on more, anywhere that both have measured."""
    before = sizes(earlier)
    return any(before.get(part, 0) > size for part, size in sizes(later).items())


def _joined(earlier: AnyResults, later: AnyResults) -> AnyResults:
    """Return the later results with the parts that only the earlier ones have."""
    details = joined_details(earlier.details, later.details)
    new, old = set(sizes(later)), set(sizes(earlier))
    if not old - new:
        return replace(later, details=details)
    details["measured"] = _dates(earlier, old - new) | {_label(part): later.date for part in new}
    if isinstance(earlier, Results) and isinstance(later, Results):
        return replace(
            later,
            tests=tuple(
                [test for test in earlier.tests if (test.name,) in old - new]
                + [test for test in later.tests if test.name != OVERALL]
            ),
            answers=tuple(a for a in earlier.answers if (a.test,) in old - new) + later.answers,
            details=details,
        )
    if isinstance(earlier, RewardResults) and isinstance(later, RewardResults):
        kept = [test for test in earlier.tests if (test.name,) in old - new]
        own = [test for test in later.tests if test.name != OVERALL]
        return replace(later, tests=(*kept, *own), details=details)
    if isinstance(earlier, EpisodeResults) and isinstance(later, EpisodeResults):
        return _joined_episodes(earlier, later, details)
    if isinstance(earlier, GamesResults) and isinstance(later, GamesResults):
        return _joined_games(earlier, later, details)
    return replace(later, details=details)


def _joined_episodes(
    earlier: EpisodeResults, later: EpisodeResults, details: dict[str, Any]
) -> EpisodeResults:
    """Return both, in the earlier order: what the results are about stays first."""
    entries = {(e.world, e.agent): e for e in (*earlier.worlds, *later.worlds)}
    new = set(sizes(later))
    played = [e for e in earlier.episodes if (e.world, e.agent) not in new]
    return replace(
        later,
        worlds=tuple(entries.values()),
        episodes=(*played, *later.episodes),
        details=details,
    )


def _joined_games(
    earlier: GamesResults, later: GamesResults, details: dict[str, Any]
) -> GamesResults:
    """Return both, in the earlier order: what the results are about stays first."""
    entries = {(e.task, e.agent): e for e in (*earlier.results, *later.results)}
    new = set(sizes(later))
    played = [entry for entry in earlier.games if (entry.task, entry.agent) not in new]
    return replace(
        later,
        results=tuple(entries.values()),
        games=(*played, *later.games),
        details=details,
    )


def _dates(results: AnyResults, parts: set[tuple[str, ...]]) -> dict[str, str]:
    """Return when each of some parts was measured."""
    known = results.details.get("measured")
    dates = known if isinstance(known, Mapping) else {}
    return {_label(part): dates.get(_label(part), results.date) for part in parts}


def _label(part: tuple[str, ...]) -> str:
    """Return what a part is called where dates are kept."""
    return " · ".join(part)


def _set_aside(folder: Path, earlier: AnyResults) -> None:
    """Keep the earlier numbers under another name."""
    date = re.sub(r"[^0-9T]", "", earlier.date.partition("+")[0])
    path = folder / f"results-{date}.json"
    write_text(path, results_path(folder).read_text(encoding="utf8"))
    log.info("the earlier results, which these may not join, are kept as %s", path)
