"""Generated tables: the recipes' page and the README's method table, from the recipes themselves.

``python -m llm_agents.tables`` rewrites them; ``--check`` only names what is out of date, exit 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from llm_agents.learning_tables import (
    generalisation_table,
    glam_table,
    learning_table,
    rare_table,
    reskins_table,
)
from llm_agents.measurements import CHECKPOINTS, Measurement, entry_measurements, measurements

ROOT = Path(__file__).resolve().parents[1]
NOT_RUN, NOT_GIVEN = "not yet run", "not established"
START, END = "<!-- generated:{name} -->", "<!-- /generated:{name} -->"


@dataclass(frozen=True)
class Method:
    """A row of the README's table.

    Args:
        name: The method's name.
        paper: Link text and address.
        module: Python path of its LightningModule.
        docs: Page in `docs/`.
        recipe: Default recipe.
        reproduce: Command that makes it from nothing.
    """

    name: str
    paper: str
    module: str
    docs: str
    recipe: str
    reproduce: str


METHODS = (
    Method(
        name="Motif",
        paper="[Klissarov et al. 2024](https://arxiv.org/abs/2310.00166)",
        module="llm_agents.methods.MotifAgent",
        docs="docs/motif.md",
        recipe="recipes/motif_nethack.yaml",
        reproduce="make reproduce-motif",
    ),
    Method(
        name="A-LoL",
        paper="[Baheti et al. 2024](https://arxiv.org/abs/2305.14718)",
        module="llm_agents.methods.ALoL",
        docs="docs/a_lol.md",
        recipe="recipes/a_lol_hha.yaml",
        reproduce="make hha",
    ),
    Method(
        name="DPO",
        paper="[Rafailov et al. 2023](https://arxiv.org/abs/2305.18290)",
        module="llm_agents.methods.DPO",
        docs="docs/a_lol.md#baselines",
        recipe="recipes/dpo_hha.yaml",
        reproduce="lightning run dpo_hha",
    ),
    Method(
        name="PRO",
        paper="[Song et al. 2024](https://arxiv.org/abs/2306.17492)",
        module="llm_agents.methods.PRO",
        docs="docs/a_lol.md#baselines",
        recipe="recipes/pro_hha.yaml",
        reproduce="lightning run pro_hha",
    ),
    Method(
        name="PPO on responses",
        paper="[Ziegler et al. 2019](https://arxiv.org/abs/1909.08593)",
        module="llm_agents.methods.PPO",
        docs="docs/a_lol.md#baselines",
        recipe="recipes/ppo_hha.yaml",
        reproduce="lightning run ppo_hha",
    ),
    Method(
        name="reward model",
        paper="[Ouyang et al. 2022](https://arxiv.org/abs/2203.02155)",
        module="llm_agents.methods.RewardTraining",
        docs="docs/a_lol.md#rewards",
        recipe="recipes/reward_hha.yaml",
        reproduce="lightning run reward_hha",
    ),
    Method(
        name="GLAM",
        paper="[Carta et al. 2023](https://arxiv.org/abs/2302.02662)",
        module="llm_agents.methods.GLAM",
        docs="docs/glam.md",
        recipe="recipes/glam_babyai_go_to_local.yaml",
        reproduce="make reproduce-glam",
    ),
    Method(
        name="cloning",
        paper="[Carta et al. 2023](https://arxiv.org/abs/2302.02662)",
        module="llm_agents.methods.Cloning",
        docs="docs/glam.md#the-other-agents",
        recipe="recipes/cloning_babyai_go_to_local.yaml",
        reproduce="make reproduce-glam",
    ),
    Method(
        name="DRRN",
        paper="[He et al. 2016](https://arxiv.org/abs/1511.04636)",
        module="llm_agents.methods.DRRN",
        docs="docs/glam.md#the-other-agents",
        recipe="recipes/drrn_babyai_go_to_local.yaml",
        reproduce="lightning run drrn_babyai_go_to_local",
    ),
    Method(
        name="symbolic PPO",
        paper="[Chevalier-Boisvert et al. 2019](https://arxiv.org/abs/1810.08272)",
        module="llm_agents.methods.SymbolicPPO",
        docs="docs/glam.md#the-other-agents",
        recipe="recipes/symbolic_ppo_babyai_go_to_red_ball.yaml",
        reproduce="lightning run symbolic_ppo_babyai_go_to_red_ball",
    ),
    Method(
        name="TWOSOME",
        paper="[Tan et al. 2024](https://arxiv.org/abs/2401.14151)",
        module="llm_agents.methods.TWOSOME",
        docs="docs/twosome.md",
        recipe="recipes/twosome_overcooked_tomato_salad.yaml",
        reproduce="lightning run twosome_overcooked_tomato_salad",
    ),
    Method(
        name="POAD, NTPO",
        paper="[Wen et al. 2024](https://arxiv.org/abs/2405.15821)",
        module="llm_agents.methods.POAD",
        docs="docs/poad.md",
        recipe="recipes/poad_virtualhome_food_preparation.yaml",
        reproduce="lightning run poad_virtualhome_food_preparation",
    ),
)


def recipe_files() -> list[Path]:
    """Return every runnable recipe, default ones first."""
    folder = ROOT / "recipes"
    return [*sorted(folder.glob("*.yaml")), *sorted((folder / "paper").glob("*.yaml"))]


def head_comment(path: Path) -> list[str]:
    """Return the comment lines at the top of a recipe, without their marks."""
    lines: list[str] = []
    for line in path.read_text(encoding="utf8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("#").strip())
    return lines


def load_recipe(path: Path) -> dict[str, Any]:
    """Return a recipe as plain data."""
    content = yaml.safe_load(path.read_text(encoding="utf8"))
    return content if isinstance(content, dict) else {}


def number(value: object) -> str:
    """Write a number, or say that there is none."""
    return NOT_GIVEN if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def recipes_table() -> str:
    """Return the table of `recipes/README.md`."""
    rows = ["| recipe | what it is | needs |", "|---|---|---|"]
    for path in recipe_files():
        head = head_comment(path)
        name = path.relative_to(ROOT / "recipes")
        needs = next(
            (line.removeprefix("Needs: ") for line in head if line.startswith("Needs: ")), ""
        )
        rows.append(f"| [`{name}`]({name}) | {head[0] if head else ''} | {needs} |")
    return "\n".join(rows)


def results_rows(paper: str) -> Iterator[tuple[str, str, str]]:
    """Yield row, the paper's value and ours for each entry of a `reproduces` that is of a paper."""
    known = measurements(ROOT)
    for path in recipe_files():
        for entry in load_recipe(path).get("reproduces") or []:
            if entry["paper"] != paper:
                continue
            published = number(entry.get("paper_value"))
            named = " | ".join(str(entry[key]) for key in ("paper", "table", "metric"))
            ours = ours_of(entry, match(path, entry, known))
            row = f"| `{path.relative_to(ROOT)}` | {named} | {published} | {ours} |"
            yield row, published, ours


def ours_of(entry: dict[str, Any], found: Measurement | None) -> str:
    """Return our number for an entry: the recipe's own, else what was measured, if anything was."""
    if entry.get("our_value") is not None:
        return number(entry["our_value"])
    if found is None:
        return NOT_RUN
    return f"{found.value:.4g}" + (f" {found.interval}" if found.low is not None else "")


def results_table(paper: str) -> str:
    """Return the table of a paper's published values against ours: what was measured first.

    What neither the paper gives nor anybody has run is counted in a line below.
    """
    head = ["| recipe | paper | table | metric | paper value | ours |", "|---|---|---|---|---|---|"]
    found = list(results_rows(paper))
    measured = [row for row, _, ours in found if ours != NOT_RUN]
    published = [row for row, value, ours in found if ours == NOT_RUN and value != NOT_GIVEN]
    left = len(found) - len(measured) - len(published)
    rows = [*measured, *published]
    where = "see `reproduces` in the [recipes](../recipes/README.md)."
    note = (
        f"{left} more numbers that recipes are after are neither established from the paper nor "
        f"run yet: {where}"
        if rows
        else f"None of the {left} numbers that recipes are after is established from the paper, "
        f"and none has been run at its scale: {where}"
    )
    if not rows:
        return note
    return "\n".join([*head, *rows, *(["", note] if left else [])])


def all_results() -> str:
    """Return the rows of `docs/results.md`: papers' numbers with ours, then ours without a paper's.

    Ours is the recipe's `our_value`; where that is null, what a benchmark or an entry of the zoo
    measured of the same metric. Other measurements get rows of their own.
    """
    head = (
        "method, task",
        "metric",
        "paper",
        "ours",
        "95 % interval",
        "seeds",
        "minutes",
        "commit",
        "where",
    )
    known = measurements(ROOT)
    rows = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    used: set[int] = set()
    not_run: list[Path] = []
    for path in recipe_files():
        for entry in load_recipe(path).get("reproduces") or []:
            found = match(path, entry, known)
            if found is not None:
                used.add(known.index(found))
            elif entry.get("our_value") is None:
                not_run.append(path)
                continue
            rows.append(paper_row(path, entry, found))
    for place, each in enumerate(known):
        if place not in used:
            cells = (f"{each.method}, {each.task}", each.metric, "–", *measured_cells(each))
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*rows, "", not_run_line(not_run)])


def not_run_line(recipes: Sequence[Path]) -> str:
    """Return a line about the entries of `reproduces` that nothing was measured of.

    Args:
        recipes: The recipe of each.
    """
    large = sum(path.parent.name == "paper" for path in recipes)
    return (
        f"Not yet run: {len(recipes)} more numbers of papers that recipes are after, {large} of "
        "them of recipes below `paper/`, which need a GPU or a large model; each recipe's "
        "`reproduces` names them, and [recipes/README.md](../recipes/README.md) lists the recipes."
    )


def match(path: Path, entry: dict[str, Any], known: Sequence[Measurement]) -> Measurement | None:
    """Return what was measured of a recipe's entry: same method, task and metric; no paper's."""
    if path.parent.name == "paper":
        return None
    for each in known:
        if path.stem == f"{each.method}_{each.task}" and entry["metric"] == each.metric:
            return each
    return None


def paper_row(path: Path, entry: dict[str, Any], found: Measurement | None) -> str:
    """Return a row for an entry of a recipe's `reproduces` that has a number of ours.

    Args:
        path: The recipe.
        entry: Of its `reproduces`.
        found: What was measured; None where the entry gives `our_value` itself.
    """
    name = path.relative_to(ROOT).with_suffix("").as_posix().removeprefix("recipes/")
    paper = number(entry.get("paper_value"))
    if entry.get("our_value") is not None or found is None:
        minutes = measured_minutes(path)
        link = f"[recipe](../{path.relative_to(ROOT)})"
        ours: tuple[str, ...] = (number(entry["our_value"]), "–", "–", minutes, "–", link)
    else:
        ours = measured_cells(found)
    metric = f"{entry['metric']} ({entry['paper']}, {entry['table']})"
    return f"| {' | '.join((name, metric, paper, *ours))} |"


def measured_cells(each: Measurement) -> tuple[str, ...]:
    """Return the cells of a measurement: value, interval, seeds, minutes, commit, where."""
    minutes = "–" if each.minutes is None else f"{each.minutes:g}"
    commit = "–" if each.commit is None else f"`{each.commit[:7]}`"
    where = f"[{Path(each.source).parent.name}](../{each.source})"
    return f"{each.value:.4g}", each.interval, str(each.seeds), minutes, commit, where


def measured_minutes(path: Path) -> str:
    """Return the minutes that a recipe's head says were measured."""
    for line in head_comment(path):
        found = re.search(r"([\d.]+) minutes", line)
        if line.startswith("Needs: ") and found and "measured" in line:
            return found[1]
    return "–"


def entries_table() -> str:
    """Return the table of the zoo's entries: size, digests, what was measured."""
    head = ("name", "MB", "SHA-256 of the weights, first digits", "measured", "minutes", "commit")
    rows = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for path in sorted((ROOT / CHECKPOINTS).glob("*/hashes.json")):
        digests = json.loads(path.read_text(encoding="utf8"))
        size = sum((path.parent / name).stat().st_size for name in digests)
        found = entry_measurements(ROOT, path.parent.name)
        shown = ", ".join(f"`{digest[:8]}`" for digest in digests.values())
        each = found[0] if found else None
        value = f"{each.metric}: {each.value:.4g} {each.interval}" if each else "–"
        minutes, commit = measured_cells(each)[3:5] if each else ("–", "–")
        name = f"[`{path.parent.name}`](../checkpoints/{path.parent.name}/README.md)"
        rows.append(f"| {name} | {size / 1e6:.2f} | {shown} | {value} | {minutes} | {commit} |")
    return "\n".join(rows)


def methods_table() -> str:
    """Return the README's table of methods."""
    rows = ["| method | paper | module | docs | recipe | reproduce |", "|---|---|---|---|---|---|"]
    for method in METHODS:
        rows.append(
            f"| {method.name} | {method.paper} | `{method.module}` | [page]({method.docs}) "
            f"| [`{Path(method.recipe).name}`]({method.recipe}) | `{method.reproduce}` |"
        )
    return "\n".join(rows)


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"methods": methods_table},
    "recipes/README.md": {"recipes": recipes_table},
    "docs/a_lol.md": {"results": partial(results_table, "arXiv:2305.14718")},
    "docs/twosome.md": {"results": partial(results_table, "arXiv:2401.14151")},
    "docs/results.md": {"all_results": all_results},
    "docs/zoo.md": {"entries": entries_table},
    "docs/online_learning.md": {
        "learning": partial(learning_table, ROOT),
        "rare": partial(rare_table, ROOT),
        "reskins": partial(reskins_table, ROOT),
    },
    "docs/glam.md": {
        "learning": partial(glam_table, ROOT),
        "generalisation": partial(generalisation_table, ROOT),
        "results": partial(results_table, "arXiv:2302.02662"),
    },
    "docs/motif.md": {"results": partial(results_table, "arXiv:2310.00166")},
    "docs/poad.md": {"results": partial(results_table, "arXiv:2405.15821")},
}


def fill(text: str, name: str, table: str) -> str:
    """Return `text` with what stands between the marks `name` replaced by `table`.

    Raises:
        ValueError: The marks are missing.
    """
    start, end = START.format(name=name), END.format(name=name)
    before, found, rest = text.partition(start)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"expected the marks {start} and {end}")
    return f"{before}{start}\n{table}\n{end}{after}"


def main(arguments: list[str] | None = None) -> int:
    """Rewrite the tables, or with ``--check`` name those that are out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 on a difference"
    )
    options = parser.parse_args(arguments)
    stale = []
    for file, tables in TABLES.items():
        path = ROOT / file
        text = path.read_text(encoding="utf8")
        new = text
        for name, build in tables.items():
            new = fill(new, name, build())
        if new == text:
            continue
        stale.append(file)
        if not options.check:
            path.write_text(new, encoding="utf8")
    word = "out of date" if options.check else "rewritten"
    sys.stdout.write(
        "".join(f"{word}: {file}\n" for file in stale) or "all tables are up to date\n"
    )
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
