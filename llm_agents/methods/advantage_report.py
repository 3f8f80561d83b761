"""What the advantages of a training set look like: numbers and a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from llm_agents.functional.advantage import AdvantageStatistics, advantage_statistics
from llm_agents.whole_files import write_json


@dataclass(frozen=True)
class AdvantageStats:
    """Statistics of the advantages of the training responses.

    Args:
        preferred: Of the responses that the data call good.
        everything: Of all responses.
        mean_reward: Mean reward of the good ones.
        mean_value: Mean value of their prompts.
    """

    preferred: AdvantageStatistics
    everything: AdvantageStatistics
    mean_reward: float
    mean_value: float

    def __str__(self) -> str:
        """Return what a user wants to see before training begins."""
        good, whole = self.preferred, self.everything
        return (
            f"{good.num_advantages:,} preferred responses, {good.share_kept:.0%} of them above 0, "
            f"mean {good.mean:.3f} ({good.low:.3f} to {good.high:.3f}): mean reward "
            f"{self.mean_reward:.3f} against a mean value of {self.mean_value:.3f}; all "
            f"{whole.num_advantages:,} responses: {whole.share_kept:.0%} above 0, mean "
            f"{whole.mean:.3f}"
        )


def advantage_stats(
    *, advantages: Tensor, rewards: Tensor, values: Tensor, preferred: Tensor
) -> AdvantageStats:
    """Return the statistics of ``[N]`` advantages; `preferred` is ``[N]`` bool, not all False."""
    return AdvantageStats(
        preferred=advantage_statistics(advantages[preferred]),
        everything=advantage_statistics(advantages),
        mean_reward=float(rewards[preferred].double().mean()),
        mean_value=float(values[preferred].double().mean()),
    )


def write_report(
    folder: Path, stats: AdvantageStats, *, advantages: Tensor, preferred: Tensor
) -> None:
    """Write ``advantage_stats.json`` and the histogram ``advantages.png`` to `folder`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    folder.mkdir(parents=True, exist_ok=True)
    found = {
        "preferred": stats.preferred._asdict(),
        "all": stats.everything._asdict(),
        "mean_reward": stats.mean_reward,
        "mean_value": stats.mean_value,
    }
    write_json(folder / "advantage_stats.json", found)
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    low, high = float(advantages.min()), float(advantages.max())
    bins = torch.linspace(low, max(high, low + 1e-3), 41).tolist()
    axes.hist(advantages[preferred].tolist(), bins=bins, alpha=0.75, label="preferred")
    if not bool(preferred.all()):
        axes.hist(advantages[~preferred].tolist(), bins=bins, alpha=0.5, label="others")
    axes.axvline(0.0, color="black", linewidth=1)
    axes.set_xlabel("advantage: reward − value of the reference policy")
    axes.set_ylabel("training responses")
    axes.set_title(f"{stats.preferred.share_kept:.0%} of the preferred responses are left")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best")
    figure.savefig(folder / "advantages.png", dpi=120)
