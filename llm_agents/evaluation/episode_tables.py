"""Results of played episodes as tables in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from llm_agents.evaluation.episodes import EpisodeResults, WorldResult
from llm_agents.evaluation.intervals import Interval, format_interval

_COLUMNS = {"agent": 9, "n": 3, "return": 23, "success": 14, "length": 6, "steps": 6}


def episodes_table(results: EpisodeResults) -> Group:
    """Return a table a world: one row for each agent that played it, then the optimum."""
    tables = []
    for world in dict.fromkeys(entry.world for entry in results.worlds):
        entries = [entry for entry in results.worlds if entry.world == world]
        tables.append(_world_table(entries, best=results.overall.agent))
    confidence = f"{100 * results.bootstrap.confidence:g}%"
    tables[-1].caption = f"{results.name}: mean [{confidence} interval over n episodes]"
    tables[-1].caption_justify = "left"
    player = results.details.get("player")
    told = [] if player is None else [Text(player_line(results.details), style="dim")]
    return Group(*tables, *told)


def player_line(details: Mapping[str, Any]) -> str:
    """Return in a line how a player from outside was asked, and what became of it."""
    player = details["player"]
    parts = [f"{details['policy']} plays by `--mode {details['mode']}`"]
    if "temperature" in details:
        temperature = str(details["temperature"]).removesuffix(".0")
        parts.append(f"{details['order']} lists, temperature {temperature}")
    parts.append(f"{player['requests']:,} requests for {player['decisions']:,} decisions")
    if "invalid_share" in player:
        share = 100 * player["invalid_share"]
        parts.append(f"{share:.1f}% drawn at random for want of a readable reply")
    for key, what in (("disagreed", "lists disagreed"), ("cut_replies", "replies cut")):
        if player.get(key):
            parts.append(f"{player[key]:,} {what}")
    tokens = (player.get("prompt_tokens", 0), player.get("new_tokens", 0))
    parts.append(f"{tokens[0]:,} tokens read, {tokens[1]:,} written")
    return " · ".join(parts)


def _world_table(entries: list[WorldResult], *, best: str) -> Table:
    """Return the table of one world; its columns line up with those of the others."""
    first = entries[0]
    note = "" if first.is_trained_on else " (never trained in)"
    table = Table(title=f"{first.world}{note}", title_justify="left", box=SIMPLE_HEAD)
    table.collapse_padding, table.pad_edge = True, False  # in 80 columns no number is cut
    for name, width in _COLUMNS.items():
        justify = "left" if name == "agent" else "right"
        table.add_column(name, min_width=width, justify=justify, no_wrap=True)  # type: ignore[arg-type]  # one of its literals
    for entry in entries:
        table.add_row(
            entry.agent,
            f"{entry.num_episodes:,}",
            format_interval(entry.discounted_return, 4),
            _percent(entry.success),
            f"{entry.decisions.mean:.1f}",
            f"{entry.primitive_steps.mean:.1f}",
            style="bold" if entry.agent == best else None,
        )
    if first.optimal_return is not None:
        table.add_row("optimum", "", f"{first.optimal_return:.4f}", style="dim")
    return table


def _percent(share: Interval) -> str:
    """Write a share with its interval."""
    low, high = (100 * (share.mean if end is None else end) for end in (share.low, share.high))
    return f"{100 * share.mean:.0f}% [{low:.0f}, {high:.0f}]"
