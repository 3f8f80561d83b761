"""The data module of NetHack agents: rollouts of many games, each when it is due."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any, Protocol, cast, runtime_checkable

import torch
from lightning import LightningDataModule, Trainer

from llm_agents.envs.nethack_tasks import TASKS, NetHackRules
from llm_agents.envs.nethack_vector import NetHackVector
from llm_agents.errors import UserError
from llm_agents.functional.shaping import Observed
from llm_agents.policies.nethack_player import OBSERVATION_KEYS
from llm_agents.policies.nethack_types import NetHackPlayer, NetHackRollout
from llm_agents.rewards.motif import MessageReward
from llm_agents.rollouts.nethack_collector import NetHackCollector, NetHackPlan
from llm_agents.rollouts.nethack_statistics import GameStatistics
from llm_agents.rollouts.seeds import Purpose, derived_seed
from llm_agents.rollouts.stream import Stream, expect_frames, expect_same

_logger = logging.getLogger(__name__)


@runtime_checkable
class NetHackLearner(Protocol):
    """A method that plays NetHack."""

    @property
    def recurrence(self) -> int | None:
        """Return the steps of the sequences that it trains on; None is a whole rollout."""

    def player(self) -> NetHackPlayer:
        """Return a player of its network."""


class NetHackRollouts(LightningDataModule):
    """Experience of an agent in many games of NetHack.

    The agent is the module in training, or the one given to `connect`. One pass over the training
    data is the whole run; the trainer stops after it.

    Args:
        task: One of Motif's nine tasks.
        reward: Of messages, for the intrinsic reward; None gives zeros.
        rules: The games' quirks and limits.
        num_games: E, games that step together.
        num_workers: Processes that play them beside the one that trains; 0 plays in that one.
        num_steps: T, steps of each game in a rollout.
        total_frames: Steps of all games in the run; what is left of a rollout at the end is not
            collected.
        observed: Whether a step's intrinsic reward is of the observation ``reached`` by it, or of
            the one that the agent was ``acting`` on, as in Motif's release.
        overlap: Collect the next rollout while the agent learns from the last one: each is by the
            policy of one update before, for which V-trace corrects.
        num_threads: Threads of PyTorch in this process during training; None leaves them alone.
        window: Finished games that the statistics are over.
        seed: Decides the games and what is drawn from the policy; None takes the run's
            `seed_everything`, else 0.

    Attributes:
        statistics: Of the games that have finished.
    """

    def __init__(
        self,
        task: str = "NetHackScore-v1",
        reward: MessageReward | None = None,
        rules: NetHackRules | None = None,
        *,
        num_games: int = 64,
        num_workers: int = 1,
        num_steps: int = 32,
        total_frames: int = 1_000_000,
        observed: Observed = "reached",
        overlap: bool = True,
        num_threads: int | None = 1,
        window: int = 100,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.task, self.reward, self.rules = task, reward, rules or NetHackRules()
        self.num_games, self.num_workers, self.num_steps = num_games, num_workers, num_steps
        self.total_frames, self.observed, self.overlap = total_frames, observed, overlap
        self.num_threads = num_threads
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed
        self.statistics = GameStatistics(window)
        self._learner: NetHackLearner | None = None
        self._stream: NetHackStream | None = None
        self._saved: dict[str, Any] | None = None
        self._threads_before: int | None = None
        self._check()

    def _check(self) -> None:
        """Refuse sizes of which no rollout can be made."""
        if self.task not in TASKS:
            raise UserError(f"expected a task out of {', '.join(TASKS)}, got {self.task!r}")
        if self.num_games < 1 or self.num_steps < 1:
            raise UserError(
                f"expected `num_games` and `num_steps` of at least 1, got {self.num_games} and "
                f"{self.num_steps}"
            )
        if not 0 <= self.num_workers <= self.num_games:
            raise UserError(
                f"expected `num_workers` from 0 to num_games = {self.num_games}, got "
                f"{self.num_workers}"
            )
        if self.num_threads is not None and self.num_threads < 1:
            raise UserError(f"expected `num_threads` of at least 1, got {self.num_threads}")
        if self.observed not in ("reached", "acting"):
            raise UserError(f"expected `observed` reached or acting, got {self.observed!r}")
        expect_frames(self.total_frames, self.frames_per_rollout, places="num_games")

    # --- sizes

    @property
    def frames_per_rollout(self) -> int:
        """Return T · E."""
        return self.num_games * self.num_steps

    @property
    def num_rollouts(self) -> int:
        """Return the rollouts of the whole run."""
        return self.total_frames // self.frames_per_rollout

    @property
    def frames(self) -> int:
        """Return the steps given out so far, those before a resumption too."""
        return 0 if self._stream is None else self._stream.number * self.frames_per_rollout

    @property
    def observation_keys(self) -> tuple[str, ...]:
        """Return what the engine is asked for: what the agent sees, and the reward."""
        seen = self.reward.scorer.keys if self.reward is not None else ()
        return tuple(dict.fromkeys((*OBSERVATION_KEYS, *seen)))

    # --- preparation

    def connect(self, learner: NetHackLearner) -> None:
        """Collect with the network of `learner`; only needed without a trainer."""
        if learner is not self._learner:
            self.close()
        self._learner = learner

    def setup(self, stage: str | None = None) -> None:
        """Take the module in training as the agent.

        Raises:
            UserError: It doesn't play NetHack, or several processes train.
        """
        if stage not in (None, "fit") or self.trainer is None:
            return
        module = self.trainer.lightning_module
        if not isinstance(module, NetHackLearner):
            raise UserError(
                f"expected a method that plays NetHack, such as MotifAgent, with NetHackRollouts, "
                f"got {type(module).__name__}: give it a data module of its own kind"
            )
        if self.num_threads is not None:
            self._threads_before = torch.get_num_threads()
            torch.set_num_threads(self.num_threads)
        self.connect(cast(NetHackLearner, module))

    def teardown(self, stage: str | None = None) -> None:
        """End the games; the reward keeps what it said, if it has a cache."""
        if stage not in (None, "fit"):
            return
        self.close()
        if self.reward is not None:
            self.reward.save_cache()
        if self._threads_before is not None:
            torch.set_num_threads(self._threads_before)
            self._threads_before = None

    def close(self) -> None:
        """Keep where the games stand, unless collecting failed; end them. May be called twice."""
        stream = self._stream
        if stream is None:
            return
        try:
            if not stream.has_failed:
                self._saved = self.state_dict()
        finally:
            self._stream = None
            stream.close()

    # --- rollouts

    def train_dataloader(self) -> NetHackStream:
        """Return the rollouts that are left."""
        if self._stream is None:
            self._stream = self._new_stream()
        return self._stream

    def _new_stream(self) -> NetHackStream:
        """Begin the games, or go on where a saved state stood."""
        if self._learner is None:
            raise ValueError("expected an agent: call connect(agent) before train_dataloader()")
        vector = self.make_vector(derived_seed(self.seed, Purpose.TRAINING), self.num_games)
        plan = NetHackPlan(
            num_steps=self.num_steps,
            num_rollouts=self.num_rollouts,
            seed=self.seed,
            recurrence=self._learner.recurrence or self.num_steps,
            observed=self.observed,
        )
        collector = NetHackCollector(self._learner.player(), vector, plan, self.reward)
        stream = NetHackStream(
            collector,
            self.statistics,
            self.trainer,
            overlap=self.overlap,
            num_threads=self.num_threads,
        )
        if self._saved is not None:
            self.statistics.load_state_dict(self._saved["statistics"])
            stream.restore(self._saved["stream"])
            self._saved = None
        return stream

    def make_vector(
        self, seed: int, num_games: int, num_workers: int | None = None
    ) -> NetHackVector:
        """Return new games of the task, as in training.

        Args:
            seed: Begins their sequences of episodes.
            num_games: E.
            num_workers: Processes; None is as many as in training, if there are enough games.
        """
        workers = min(self.num_workers if num_workers is None else num_workers, num_games)
        return NetHackVector(num_games, workers, self.task, seed, self.observation_keys, self.rules)

    # --- checkpoints

    def _identity(self) -> dict[str, Any]:
        """Return what a resumed run must have in common with the interrupted one."""
        return {
            "task": self.task,
            "reward": None if self.reward is None else self.reward.version,
            "rules": asdict(self.rules),
            "num_games": self.num_games,
            "num_steps": self.num_steps,
            "observed": self.observed,
            "overlap": self.overlap,
            "seed": self.seed,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what the next rollout depends on, and that rollout if it is collected already."""
        if self._stream is None:
            return {} if self._saved is None else self._saved
        return {
            "identity": self._identity(),
            "statistics": self.statistics.state_dict(),
            "stream": self._stream.saved(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the interrupted run stood, from the next call of `train_dataloader` on.

        Raises:
            UserError: The state is of other games.
        """
        if not state_dict:
            return
        expect_same(state_dict["identity"], self._identity(), what="games")
        self.close()
        self._saved = state_dict


class NetHackStream(Stream):
    """The run's rollouts from where the collector stands.

    Args:
        collector: Collects them.
        statistics: Counts their games.
        trainer: Told to stop after the last one, however many epochs it was to train for.
        overlap: Collect the next one while the last one is being learnt from.
        num_threads: Threads of PyTorch for collecting; None leaves them alone.
    """

    def __init__(
        self,
        collector: NetHackCollector,
        statistics: GameStatistics,
        trainer: Trainer | None = None,
        *,
        overlap: bool = False,
        num_threads: int | None = None,
    ) -> None:
        super().__init__(collector.plan.num_rollouts, trainer, data="NetHackRollouts")
        self._number = 0
        self._collector, self._statistics = collector, statistics
        self._executor = (
            ThreadPoolExecutor(1, "nethack", _set_threads, (num_threads,)) if overlap else None
        )
        self._pending: Future[NetHackRollout] | None = None
        self._failed = False

    @property
    def number(self) -> int:
        """Return the rollouts given out, those before an interruption included."""
        return self._number

    def __iter__(self) -> Iterator[NetHackRollout]:
        """Yield the rollouts that are left."""
        asked = time.perf_counter()
        while self.number < len(self):
            rollout = self._next()
            self._number += 1
            self._statistics.add(rollout.episodes)
            now = time.perf_counter()
            metrics = {
                **rollout.metrics,
                **self._statistics.summary(),
                "time/frames_per_second": rollout.num_steps / (now - asked),
            }
            asked = now
            self._begin_next()
            self.stop_after_last()
            yield replace(rollout, metrics=metrics)
        self.stop_after_last()

    @property
    def has_failed(self) -> bool:
        """Return whether collecting ended in an error: the games stand between two steps then."""
        pending = self._pending
        return self._failed or (pending is not None and pending.exception() is not None)

    def _next(self) -> NetHackRollout:
        """Return the next rollout, collected meanwhile or now."""
        self._failed = True
        if self._pending is not None:
            rollout, self._pending = self._pending.result(), None
        else:
            self._collector.player.refresh()
            rollout = self._collector.collect()
        self._failed = False
        return rollout

    def _begin_next(self) -> None:
        """Let the next rollout be collected with the weights as they are now."""
        if self._executor is None or self._collector.number >= len(self):
            return
        self._collector.player.refresh()
        self._pending = self._executor.submit(self._collector.collect)

    # --- saving

    def saved(self) -> dict[str, Any]:
        """Return where the run stands, with the rollout that is being collected."""
        pending = None if self._pending is None else self._pending.result().state_dict()
        return {
            "number": self.number,
            "pending": pending,
            "collector": self._collector.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `saved` was called."""
        self._number = int(state["number"])
        self._collector.load_state_dict(state["collector"])
        if state["pending"] is not None:
            self._pending = Future()
            self._pending.set_result(NetHackRollout.of_state(state["pending"]))

    def close(self) -> None:
        """End the games, once a rollout that is being collected is there."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
        self._collector.close()


def _set_threads(num_threads: int | None) -> None:
    """Set PyTorch's threads for this thread."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
