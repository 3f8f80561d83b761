"""Test prompts or worlds in, numbers with intervals out; tables and pictures of them."""

from __future__ import annotations

from pathlib import Path

from llm_agents.evaluation.baselines import RandomAgent, ZeroShotAgent
from llm_agents.evaluation.comparison import PairedDifference, combine_seeds, compare
from llm_agents.evaluation.episode_tables import episodes_table
from llm_agents.evaluation.episodes import (
    EpisodeResults,
    World,
    WorldResult,
    evaluate_agent,
    read_episode_results,
    write_episode_results,
)
from llm_agents.evaluation.intervals import BootstrapConfig, Interval, bootstrap_mean, share
from llm_agents.evaluation.pictures import (
    CreditPicture,
    Curve,
    DecisionPicture,
    plot_credit,
    plot_curves,
    plot_decisions,
    read_curve,
)
from llm_agents.evaluation.policy import evaluate_policy, rescore
from llm_agents.evaluation.report import (
    comparison_table,
    plot_results,
    print_table,
    results_table,
)
from llm_agents.evaluation.results import (
    Answer,
    Results,
    RewardDescription,
    TestSetResult,
    read_results,
)
from llm_agents.evaluation.results import write_results as write_numbers
from llm_agents.evaluation.reward_model import (
    RewardAgreement,
    RewardResults,
    evaluate_reward,
    read_reward_results,
    write_reward_results,
)
from llm_agents.evaluation.text_metrics import distinct_n, num_words

__all__ = [
    "Answer",
    "BootstrapConfig",
    "CreditPicture",
    "Curve",
    "DecisionPicture",
    "EpisodeResults",
    "Interval",
    "PairedDifference",
    "RandomAgent",
    "Results",
    "RewardAgreement",
    "RewardDescription",
    "RewardResults",
    "TestSetResult",
    "World",
    "WorldResult",
    "ZeroShotAgent",
    "bootstrap_mean",
    "combine_seeds",
    "compare",
    "comparison_table",
    "distinct_n",
    "episodes_table",
    "evaluate_agent",
    "evaluate_policy",
    "evaluate_reward",
    "num_words",
    "plot_credit",
    "plot_curves",
    "plot_decisions",
    "plot_results",
    "print_table",
    "read_curve",
    "read_episode_results",
    "read_results",
    "read_reward_results",
    "rescore",
    "results_table",
    "share",
    "write_episode_results",
    "write_numbers",
    "write_results",
]


def write_results(folder: str | Path, results: Results | RewardResults | EpisodeResults) -> Path:
    """Write `results` to a folder: numbers; of a policy that writes, texts and a picture too.

    Returns:
        The path of ``results.json``, which is written last.
    """
    if isinstance(results, EpisodeResults):
        return write_episode_results(folder, results)
    if isinstance(results, RewardResults):
        return write_reward_results(folder, results)
    plot_results(results, Path(folder) / "results.png")
    return write_numbers(folder, results)
