"""GLAM's tests after training, on trained agents, beside each the baselines of its recipe.

Each agent takes the whole suite by ``llm-agents evaluate AGENT --suite generalisation``. Killed at
any moment, the same command goes on; what is finished is not played again. The picture is the one
that the suite draws. Options that are not of this script are those of ``evaluate``: ``--recipe
FILE`` with other ``evaluation.baselines`` decides who plays beside the agent; an entry that was
trained with ``baselines: []`` plays alone.

    python benchmarks/glam_generalisation.py glam-babyai-go-to-red-ball-smollm2-135m-instruct
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from keeping import RESULTS, keep
from seeds import log_of

from llm_agents.evaluation import EpisodeResults, read_episode_results
from llm_agents.evaluation.suites import suite_agents, suite_scores

SUITE = "generalisation"
NAME = f"glam_{SUITE}"


def take_tests(agent: str, out: Path, episodes: int, arguments: list[str]) -> Path:
    """Let an agent take the suite, unless it has; return the folder of its results."""
    found = out / SUITE
    if not (found / "results.json").exists():
        command = [sys.executable, "-m", "llm_agents", "evaluate", agent, "--suite", SUITE]
        command += ["--episodes", str(episodes), "--out", str(out), *arguments]
        out.mkdir(parents=True, exist_ok=True)
        with log_of(out).open("a", encoding="utf8") as log:
            subprocess.run(command, stdout=log, stderr=log, check=True)
    return found


def numbers(results: EpisodeResults) -> dict[str, Any]:
    """Return the success of every player in every test."""
    tests: dict[str, dict[str, dict[str, float | None]]] = {}
    for player in suite_agents(results):
        for score in suite_scores([results], player):
            success = score.success
            tests.setdefault(score.test, {})[player] = {
                "mean": round(success.mean, 4),
                "low": None if success.low is None else round(success.low, 4),
                "high": None if success.high is None else round(success.high, 4),
                "n": success.n,
            }
    return {"home": results.details["home"], "trained": results.overall.agent, "tests": tests}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agents", nargs="+", help="names of the zoo, or folders")
    parser.add_argument("--work", type=Path, default=Path("runs/glam_generalisation"))
    parser.add_argument("--episodes", type=int, default=10, help="of each test")
    options, arguments = parser.parse_known_args()  # the others are of `evaluate`
    path = RESULTS / f"{NAME}.json"
    known = json.loads(path.read_text(encoding="utf8")) if path.exists() else {}
    agents: dict[str, Any] = known.get("agents", {})
    for agent in options.agents:
        name = Path(agent).name
        found = take_tests(agent, options.work / name, options.episodes, arguments)
        agents[name] = numbers(read_episode_results(found))
        shutil.copy(found / "success.png", RESULTS / f"{NAME}_{name}.png")
    keep(NAME, ("torch", "transformers"), agents=agents)
    print(json.dumps(agents))


if __name__ == "__main__":
    main()
