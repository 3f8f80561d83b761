"""Runs of NetHack agents compared by `lightning plot`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from llm_agents.cli import main
from llm_agents.evaluation import evaluate_games, write_results
from llm_agents.policies.nethack_types import PlayedGame
from llm_agents.rewards.motif_results import PublishedCurve, write_motif_results

TASK = "NetHackScore-v1"
GAME = PlayedGame(
    score=0,
    episode_return=0.0,
    intrinsic_return=1.0,
    num_steps=50,
    turns=40,
    depth=1,
    max_depth=1,
    experience_level=1,
    gold=0,
    num_messages=9,
    explored=100,
    end="death",
    success=False,
    seed=0,
    number=0,
)
METRICS = """\
step,rollout/episodes,rollout/score_mean,rollout/intrinsic_return_mean,rollout/max_depth_mean
1000,0,,,
2000,3,5.0,2.0,1.0
3000,6,{last},4.0,1.5
"""


def run_in(folder: Path, scores: tuple[int, ...], *, task: str = TASK, last: float = 9.0) -> Path:
    """Write a run's folder as a run leaves it."""
    players = {
        "trained": lambda n: [replace(GAME, score=score) for score in scores[:n]],
        "random": lambda n: [replace(GAME, score=score) for score in range(n)],
    }
    results = evaluate_games({task: players}, len(scores), has_intrinsic=True, name="motif", seed=0)
    folder.mkdir(parents=True)
    write_results(folder, results)
    (folder / "metrics.csv").write_text(METRICS.format(last=last))
    return folder


def test_runs_are_compared_by_their_games_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [
        run_in(tmp_path / name, scores)
        for name, scores in {"a": (10, 12, 14), "b": (20, 22, 24), "c": (1, 2, 3)}.items()
    ]
    published = tmp_path / "published.json"
    write_motif_results(published, [PublishedCurve(TASK, "motif", 0, (1e3, 1e6), (0.0, 100.0))])
    out = tmp_path / "out" / "motif.png"
    out.parent.mkdir()
    words = [f"both={folders[0]}", f"both={folders[1]}", f"score only={folders[2]}"]
    words += ["--out", str(out), "--published", str(published)]
    assert main(["plot", *words]) == 0
    said = capsys.readouterr().out
    assert "minus random" in said
    assert said.splitlines()[-3:] == [
        str(out),
        str(out.with_name("motif_games.png")),
        str(out.with_suffix(".json")),
    ]
    assert out.stat().st_size > 10_000
    values = json.loads(out.with_suffix(".json").read_text())
    assert values["differences"] == {}  # two runs and one can't be paired
    groups = values["groups"]
    assert [(g["label"], g["num_runs"], g["num_games"]) for g in groups] == [
        ("both", 2, 6),
        ("score only", 1, 3),
        ("random", 1, 3),
    ]
    assert groups[0]["means"]["score"]["mean"] == 17
    assert groups[0]["differences"]["score"]["mean"] == 16  # the random player reached 0, 1, 2
    assert groups[1]["differences"]["score"]["mean"] == 1


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("other task", "expected runs of one task, got NetHackScore-v1, NetHackOracle-v1"),
        ("no run", "expected the folder of a run, or the name of its recipe, but there is none"),
        ("unfinished", "expected finished runs of NetHack agents to draw over published curves"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    second: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, other = run_in(tmp_path / "a", (1, 2)), tmp_path / "b"
    words: list[str] = []
    if second == "other task":
        run_in(other, (1, 2), task="NetHackOracle-v1")
    elif second == "unfinished":
        run_in(other, (1, 2))
        (other / "results.json").unlink()
        (tmp_path / "x.pkl").touch()
        words = ["--published", str(tmp_path / "x.pkl")]
    out = ["--out", str(tmp_path / "x.png")]
    assert main(["plot", f"a={first}", f"b={other}", *out, *words]) == 2
    assert message in capsys.readouterr().err
