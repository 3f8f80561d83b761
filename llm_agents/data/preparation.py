"""What the preparation jobs of A-LoL's tasks share: raw data in, scored JSON lines out."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from llm_agents.data.prepared import PreparedFile, Scorer, write_prepared
from llm_agents.data.raw_rows import Sources, as_list, source_digest
from llm_agents.data.reading import sample_file
from llm_agents.errors import UserError
from llm_agents.rewards.combined import SumReward
from llm_agents.rewards.diversity import DiversityReward
from llm_agents.types import Job, Reward

_logger = logging.getLogger(__name__)

DIVERSITY_FILE = "tfidf.json"


class Preparation(Job):
    """Reads a task's raw data, scores them and writes prepared files.

    Args:
        reward: The judge of the rows; None keeps the scores that the raw data have, if any.
        diversity: Also score how rare a response's words are (`DiversityReward`), fitted to the
            training responses; what was fitted is kept as ``tfidf.json``.
        batch_size: Rows that are scored together.
        output_folder: Where the files go; None is the run's folder.
        trusts_stored: Rows that have a stored score are not scored.
    """

    def __init__(
        self,
        *,
        reward: Reward | None,
        diversity: bool,
        batch_size: int,
        output_folder: str | None,
        trusts_stored: bool,
    ) -> None:
        self.reward = reward
        self.diversity = diversity
        self.output_folder = output_folder
        self.batch_size = batch_size
        self.trusts_stored = trusts_stored
        Scorer(reward, trusts_stored=trusts_stored, batch_size=batch_size)  # checks the size

    @abstractmethod
    def files(self) -> Sequence[PreparedFile]:
        """Return the files to make, those to train on first."""

    @abstractmethod
    def settings(self) -> Mapping[str, object]:
        """Return everything that the rows depend on, the sources' content included."""

    @abstractmethod
    def fitting_responses(self) -> Iterator[str]:
        """Yield the training responses that the diversity is fitted to."""

    def notes(self) -> Mapping[str, object]:
        """Return more numbers about the raw data, for the results."""
        return {}

    def run(self, folder: Path) -> Mapping[str, object]:
        """Make the files that are missing.

        Args:
            folder: The run's folder.

        Returns:
            For each file what was kept and dropped, and the rewards' means.

        Raises:
            UserError: A source can't be read, or other settings have made a file.
        """
        begin = time.perf_counter()
        output = Path(self.output_folder).expanduser() if self.output_folder else folder
        output.mkdir(parents=True, exist_ok=True)
        settings = dict(self.settings())
        scorer = Scorer(
            self._judge(output), trusts_stored=self.trusts_stored, batch_size=self.batch_size
        )
        made: dict[str, object] = {}
        for file in self.files():
            made[file.name] = write_prepared(file, output, scorer, settings)
            _logger.info("%s: %s", file.name, made[file.name])
        return {
            "output_folder": str(output),
            "seconds": round(time.perf_counter() - begin, 3),
            **made,
            **self.notes(),
        }

    def _judge(self, output: Path) -> Reward | None:
        """Return the reward, with the diversity if that is asked for."""
        if not self.diversity:
            return self.reward
        diversity = DiversityReward.fit(self.fitting_responses())
        diversity.save(output / DIVERSITY_FILE)
        return with_diversity(self.reward, diversity)


def with_diversity(reward: Reward | None, diversity: DiversityReward) -> Reward:
    """Return the sum of a reward, or of its parts, and the diversity.

    Raises:
        UserError: The reward has a part of that name already.
    """
    if reward is None:
        return diversity
    parts: dict[str, Reward] = {reward.name: reward}
    weights: Mapping[str, float] = {}
    if isinstance(reward, SumReward):
        parts, weights = dict(reward.members), reward.weights
    if diversity.name in parts:
        raise UserError(
            f"the reward has a part called `{diversity.name}` already: leave it out, or set "
            "`diversity` to false"
        )
    return SumReward({**parts, diversity.name: diversity}, weights=weights)


def resolved(sources: Sources | None, word: str, samples: Sequence[str]) -> list[str]:
    """Return sources as a list, a word such as ``sample`` replaced by bundled files.

    Args:
        sources: As the recipe has them.
        word: What stands for the bundled files.
        samples: Their names.
    """
    found: list[str] = []
    for source in as_list(sources):
        found += [str(sample_file(name)) for name in samples] if source == word else [source]
    return found


def digests(sources: Iterable[str]) -> list[str]:
    """Return a digest of each source's content."""
    return [source_digest(source) for source in sources]
