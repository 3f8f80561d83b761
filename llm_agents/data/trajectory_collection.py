"""How trajectories for behavioural cloning are collected, whoever plays: episodes, files, resuming.

Every episode has a seed of its own, which follows from the run's seed and the episode's number, and
episodes are written in the order of their numbers. So an interrupted collection goes on with the
next episode, and how many worlds play at a time changes nothing.
"""

from __future__ import annotations

import json
import logging
import os
import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llm_agents.data.trajectories import TrajectoryStep, read_trajectories, to_line
from llm_agents.envs.babyai_text import mission_of
from llm_agents.envs.base import Observation, TextEnv
from llm_agents.envs.prompts import Moment, PromptBuilder
from llm_agents.envs.registry import make_world
from llm_agents.errors import UserError
from llm_agents.types import Choice, Job
from llm_agents.whole_files import write_text

_logger = logging.getLogger(__name__)

WorldOptions = dict[str, Any]  # of any world; each checks its own


class Slot:
    """A world that plays one episode after another, and writes down what happens.

    Args:
        world: The world.
        prompt: How its observations become prompts.
        seed: Of the collection.

    Attributes:
        astray: What was done in the last step, where it was not what the player had said.
    """

    def __init__(self, world: TextEnv, prompt: PromptBuilder, seed: int) -> None:
        self.world, self.prompt, self.seed = world, prompt, seed
        self.number = -1
        self.astray: int | None = None
        self.steps: list[TrajectoryStep] = []
        self.draws = random.Random(0)

    def begin(self, number: int) -> None:
        """Begin an episode by its number."""
        self.number, self.steps, self.astray = number, [], None
        self.draws = random.Random(f"draws/{self.seed}/{number}")
        self._past: tuple[Moment, ...] = ()
        world_seed = random.Random(f"world/{self.seed}/{number}").getrandbits(31)
        self._observation: Observation = self.world.reset(world_seed)

    @property
    def choice(self) -> Choice:
        """Return what the player is asked."""
        return self.prompt.choice(self._observation, self._past)

    def step(self, choice: Choice, index: int, taken: int | None = None) -> bool:
        """Take an action; return whether the episode has ended.

        Args:
            choice: What the player was asked.
            index: Its answer, which is written down.
            taken: What is done in the world, if not that.
        """
        seen = self._observation
        taken = index if taken is None else taken
        self.astray = None if taken == index else taken
        step = self.world.step(taken)
        has_ended = step.terminated or step.truncated
        self.steps.append(
            TrajectoryStep(
                episode=self.number,
                step=len(self.steps),
                goal=mission_of(seen.goal)[0],
                prompt=choice.prompt,
                actions=choice.actions,
                action=choice.actions[index],
                reward=step.reward,
                done=has_ended,
            )
        )
        self._past = self.prompt.remember(self._past, seen, taken)
        self._observation = step.observation
        return has_ended


@dataclass(frozen=True)
class TrajectoryPlan:
    """What is collected, and into which file.

    Args:
        world: Name of the world.
        world_options: Constructor arguments of the world.
        num_steps: Steps to collect; the episode in which they are reached is finished.
        num_worlds: Worlds that play at a time.
        prompt: How observations become prompts; None is the builder's own default.
        output: File of JSON lines; None is ``trajectories.jsonl`` in the run's folder.
        seed: Decides the episodes; None takes the run's `seed_everything`, else 0.

    Raises:
        UserError: A number is below 1.
    """

    world: str
    world_options: WorldOptions | None = None
    num_steps: int = 10_000
    num_worlds: int = 1
    prompt: PromptBuilder | None = None
    output: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check the sizes."""
        if self.num_steps < 1 or self.num_worlds < 1:
            raise UserError(
                "expected `num_steps` and `num_worlds` of at least 1, got "
                f"{self.num_steps} and {self.num_worlds}"
            )

    def file(self, folder: Path) -> Path:
        """Return where the trajectories go."""
        return Path(self.output).expanduser() if self.output else folder / "trajectories.jsonl"

    def slots(self) -> list[Slot]:
        """Return the worlds."""
        prompt, seed = self.prompt or PromptBuilder(), self.start
        options = self.world_options or {}
        return [
            Slot(make_world(self.world, **options), prompt, seed) for _ in range(self.num_worlds)
        ]

    @property
    def start(self) -> int:
        """Return the seed."""
        return int(os.environ.get("PL_GLOBAL_SEED", "0")) if self.seed is None else self.seed

    def identity(self) -> dict[str, Any]:
        """Return what the steps depend on, how many there are left out."""
        prompt = self.prompt or PromptBuilder()
        return {
            "world": self.world,
            "world_options": self.world_options or {},
            "prompt": {"class": type(prompt).__name__, **asdict(prompt)},
            "seed": self.start,
        }


class TrajectoryJob(Job):
    """Plays episodes and keeps their steps.

    Args:
        plan: What to collect.
    """

    def __init__(self, plan: TrajectoryPlan) -> None:
        self.plan = plan

    @abstractmethod
    def act(self, slots: Sequence[Slot], choices: Sequence[Choice]) -> list[int]:
        """Return the index of an action for each choice."""

    def taken(self, slots: Sequence[Slot], indices: Sequence[int]) -> list[int]:
        """Return what is done in each world, where the player has said what it would do."""
        del slots
        return list(indices)

    @abstractmethod
    def player(self) -> dict[str, Any]:
        """Return who plays, as plain values: part of what the steps depend on."""

    def run(self, folder: Path) -> Mapping[str, object]:
        """Collect what is missing from the file.

        Args:
            folder: The run's folder.

        Returns:
            Steps, episodes, and the share of those that were rewarded.

        Raises:
            UserError: The file holds what other settings have collected.
        """
        file = self.plan.file(folder)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f"{file.name}.part")
        self._check_settings(file)
        if not file.exists():
            kept = _whole_episodes(part)
            self._collect(part, kept)
            part.replace(file)
        return {"file": str(file), **_count(file)}

    def _check_settings(self, file: Path) -> None:
        """Write the settings beside a new file; compare them with those of an old one."""
        settings = {**self.plan.identity(), **self.player()}
        settings["num_steps"] = self.plan.num_steps
        beside = file.with_name(f"{file.name}.settings.json")
        if not beside.exists():
            if file.exists():
                raise UserError(
                    f"expected a new file in `output`, got {file}, which this job has not written: "
                    "choose another name, or delete it"
                )
            write_text(beside, json.dumps(settings, indent=1))
            return
        found = json.loads(beside.read_text(encoding="utf8"))
        wanted = json.loads(json.dumps(settings))
        differs = sorted(k for k in found.keys() | wanted if found.get(k) != wanted.get(k))
        if differs:
            raise UserError(
                f"expected the settings that {file} was begun with, got another "
                f"{', '.join(f'`{name}`' for name in differs)}: choose another `output`, or delete "
                f"{beside.name} and the file"
            )

    def _collect(self, part: Path, kept: list[int]) -> None:
        """Play until the file has its steps; episodes are written in order."""
        target = self.plan.num_steps
        slots = self.plan.slots()
        written, total, begun = len(kept), sum(kept), len(kept)
        finished: dict[int, list[TrajectoryStep]] = {}
        with part.open("a", encoding="utf8") as lines:
            for slot in slots:
                slot.begin(begun)
                begun += 1
            while total < target:
                choices = [slot.choice for slot in slots]
                indices = self.act(slots, choices)
                taken = self.taken(slots, indices)
                for slot, choice, index, done in zip(slots, choices, indices, taken, strict=True):
                    if slot.step(choice, index, done):
                        finished[slot.number] = slot.steps
                        slot.begin(begun)
                        begun += 1
                while total < target and written in finished:
                    steps = finished.pop(written)
                    lines.writelines(to_line(step) for step in steps)
                    lines.flush()
                    written, total = written + 1, total + len(steps)
                    if written % 1000 == 0:
                        _logger.info("%d episodes, %d of %d steps", written, total, target)


def _whole_episodes(part: Path) -> list[int]:
    """Return the steps of each whole episode of an unfinished file, and cut off what follows."""
    if not part.exists():
        return []
    kept, place, lengths = 0, 0, 0
    counts: list[int] = []
    with part.open("rb") as lines:
        for line in lines:
            place += len(line)
            lengths += 1
            if line.endswith(b"\n") and json.loads(line)["done"]:
                counts.append(lengths)
                kept, lengths = place, 0
    os.truncate(part, kept)
    return counts


def _count(file: Path) -> dict[str, float | int]:
    """Return what a file holds."""
    steps = episodes = successes = 0
    rewarded = False
    for step in read_trajectories(file):
        steps += 1
        rewarded = rewarded or step.reward > 0
        if step.done:
            episodes += 1
            successes += rewarded
            rewarded = False
    return {"steps": steps, "episodes": episodes, "success_rate": successes / max(episodes, 1)}
