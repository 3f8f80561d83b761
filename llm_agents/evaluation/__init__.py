"""Test prompts in, numbers with intervals out: reward, length, diversity, comparison."""

from __future__ import annotations

from pathlib import Path

from llm_agents.evaluation.comparison import PairedDifference, combine_seeds, compare
from llm_agents.evaluation.intervals import BootstrapConfig, Interval, bootstrap_mean
from llm_agents.evaluation.policy import evaluate_policy
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
    "Interval",
    "PairedDifference",
    "Results",
    "RewardAgreement",
    "RewardDescription",
    "RewardResults",
    "TestSetResult",
    "bootstrap_mean",
    "combine_seeds",
    "compare",
    "comparison_table",
    "distinct_n",
    "evaluate_policy",
    "evaluate_reward",
    "num_words",
    "plot_results",
    "print_table",
    "read_results",
    "read_reward_results",
    "results_table",
    "write_numbers",
    "write_results",
]


def write_results(folder: str | Path, results: Results | RewardResults) -> Path:
    """Write `results` to a folder: numbers; of a policy also the texts and a picture.

    Returns:
        The path of ``results.json``, which is written last.
    """
    if isinstance(results, RewardResults):
        return write_reward_results(folder, results)
    plot_results(results, Path(folder) / "results.png")
    return write_numbers(folder, results)
