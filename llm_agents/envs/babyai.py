"""BabyAI-Text: BabyAI's levels described in words (GLAM, arXiv 2302.02662).

Descriptions, goals, levels, rewards and horizons are the release's, digest for digest. The engine
is minigrid's; the view and the words are computed here, and cost less than the engine's own step.

Differs from the release: an episode's world follows from the seed and the number of the episode,
its kind too; a time limit is a truncation unless `limit` says that it is an end; French names what
is carried and declines its goals, unless `french` is "release".
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

from llm_agents.envs.babyai_engine import Engine, Level, make_engine
from llm_agents.envs.babyai_french import translate_mission
from llm_agents.envs.babyai_levels import KINDS, MIXED, OWN, Kind, find_level
from llm_agents.envs.babyai_text import ACTIONS, Language, describe, to_clause, to_text
from llm_agents.envs.babyai_view import SIZE, Code, Viewer
from llm_agents.envs.base import Observation, Step
from llm_agents.types import Episode

DONE = 6  # the engine's action that does nothing
REWARD_SCALE = 20.0  # the release's, of rewards that train

KindMode = Literal["per_episode", "per_env", "in_turn"]


def world_name(level: str, kind: str | None = None, language: str = "english") -> str:
    """Return the name of a level's world.

    Example:
        >>> world_name("GoToLocalS8N4"), world_name("MixedTrainLocal", "open")
        ('babyai-go-to-local-s8n4', 'babyai-mixed-train-local-open')
    """
    words = re.findall(r"S\d+N\d+|[A-Z][a-z]+|[A-Z]?\d+|[A-Z]+", level)
    suffixes = ([kind] if kind else []) + ([language] if language != "english" else [])
    return "-".join(["babyai", *words, *suffixes]).lower()


def _named(levels: Sequence[str]) -> dict[str, Mapping[str, str]]:
    """Return worlds by name with the options that the name fixes, mixed ones with their kinds."""
    fixed: list[dict[str, str]] = []
    for level in levels:
        fixed.append({"level": level})
        if level in MIXED:
            fixed += [{"level": level, "kind": kind} for kind in KINDS]
    return {world_name(**each): each for each in fixed}


WORLDS: Mapping[str, Mapping[str, str]] = {
    **_named(
        (
            "GoToObj",
            "GoToRedBallNoDists",
            "GoToRedBall",
            "GoToLocal",
            "GoToLocalS8N4",
            *OWN,
            *MIXED,
        )
    ),
    "babyai-go-to-local-french": {"level": "GoToLocal", "language": "french"},
}
"""Worlds with a name of their own; every other level is an option of `BabyAIText`."""


class BabyAIText:
    """A level of BabyAI as a text world.

    Args:
        level: A level of GLAM's or of minigrid's: what stands between ``BabyAI-`` and the version.
        kind: Of a mixed level, the only kind of task it sets; None sets all five.
        kind_mode: When a mixed level draws its kind: for each episode; once for all episodes of a
            seed, as the release did without a seed; or all kinds in turn, so that each has the same
            share of the episodes.
        language: Of descriptions, goals and actions.
        french: Whether French is right, or the release's: English words for what is carried, and
            "une" in the goal wherever it has an "a".
        actions: Texts of the actions, in the order of the engine's; None is the language's own six.
            Fewer leave the last ones out; those from the seventh on do nothing.
        reward_scale: Multiplies the reward 1 − 0.9 · n / max_steps of an episode that succeeds at
            step n. The reported return is the unscaled one.
        max_steps: Horizon; None is BabyAI's: 64 for each room and each part of the goal.
        limit: What the horizon is: a truncation, or an end as in the release.
        seed: Begins the world's random numbers.

    Attributes:
        mission: The goal in English.
        num_episodes: Episodes begun since the seed.

    Raises:
        UserError: There is no such level, or minigrid is missing.
        ValueError: Another option is not one of those above.
    """

    gamma = 1.0
    optimal_return: float | None = None
    vector_size = SIZE * SIZE * 3

    def __init__(
        self,
        level: str = "GoToLocal",
        *,
        kind: Kind | None = None,
        kind_mode: KindMode = "per_episode",
        language: Language = "english",
        french: Literal["right", "release"] = "right",
        actions: list[str] | None = None,
        reward_scale: float = REWARD_SCALE,
        max_steps: int | None = None,
        limit: Literal["truncated", "terminal"] = "truncated",
        seed: int = 0,
    ) -> None:
        if language not in ACTIONS:
            raise ValueError(f"expected a language of {', '.join(ACTIONS)}, got {language!r}")
        texts = ACTIONS[language] if actions is None else tuple(actions)
        if not texts or len(set(texts)) < len(texts):
            raise ValueError(f"expected distinct texts of one action or more, got {list(texts)}")
        if kind is not None and level not in MIXED:
            raise ValueError(f"expected `kind` with {' or '.join(MIXED)} only, got level {level}")
        if reward_scale <= 0 or (max_steps is not None and max_steps < 1):
            raise ValueError(
                f"expected `reward_scale` above 0 and `max_steps` of 1 or more, got {reward_scale} "
                f"and {max_steps}"
            )
        self._options = {
            "level": level,
            "kind": kind,
            "kind_mode": kind_mode,
            "language": language,
            "french": french,
            "actions": actions,
            "reward_scale": reward_scale,
            "max_steps": max_steps,
            "limit": limit,
        }
        self.name = world_name(level, kind, language)
        self.num_actions = len(texts)
        self.actions = texts
        self.language, self.french = language, french
        self.reward_scale, self.limit, self.max_steps = float(reward_scale), limit, max_steps
        self.kind_mode = kind_mode
        self._levels = _kinds_of(level, kind)
        self._viewer = Viewer()
        self._engines: dict[str, Engine] = {}
        self._ids = tuple(range(self.num_actions))
        self.mission = ""
        self._seed_all(seed)
        self._engine_of(next(iter(self._levels)))

    # --- episodes

    def reset(self, seed: int | None = None) -> Observation:
        """Begin an episode; a seed begins the world's own random numbers anew."""
        if seed is not None:
            self._seed_all(seed)
        self._before = json.dumps(self._generator.bit_generator.state)
        self.num_episodes += 1
        self._begin()
        return self._show()

    def _seed_all(self, seed: int) -> None:
        """Begin the random numbers anew."""
        from gymnasium.utils.seeding import np_random

        self._seed = int(seed)
        self._generator = np_random(self._seed)[0]
        self._before = ""
        self.num_episodes = 0
        self._taken: list[int] = []
        self._ended, self._terminated = True, False
        self._engine: Engine | None = None

    def _begin(self) -> None:
        """Generate the episode's world."""
        self._engine = self._engine_of(self._draw_kind())
        self._engine.np_random = self._generator
        self._engine.reset()
        self.mission = str(self._engine.mission)
        mission = self.mission
        if self.language == "french":
            mission = translate_mission(mission, as_released=self.french == "release")
        self._clause = to_clause(mission, self.language)
        self._taken = []
        self._ended, self._terminated = False, False

    def _draw_kind(self) -> str:
        """Return the kind of the episode that begins."""
        kinds = tuple(self._levels)
        if self.kind_mode == "per_env":
            return random.Random(f"{self._seed}").choice(kinds)
        if self.kind_mode == "per_episode":
            return random.Random(f"{self._seed}/{self.num_episodes}").choice(kinds)
        return kinds[(self.num_episodes - 1) % len(kinds)]

    def _engine_of(self, kind: str) -> Engine:
        """Return the engine of a kind."""
        if kind not in self._engines:
            self._engines[kind] = make_engine(self._levels[kind], self.max_steps)
        return self._engines[kind]

    @property
    def engine(self) -> Engine:
        """Return minigrid's environment of the present episode.

        Raises:
            ValueError: No episode has begun.
        """
        if self._engine is None:
            raise ValueError(f"the world `{self.name}` has no episode yet: call .reset() first")
        return self._engine

    @property
    def kind(self) -> str:
        """Return the kind of the present episode; the level's name where it has no kinds."""
        return next(kind for kind, engine in self._engines.items() if engine is self.engine)

    # --- steps

    def step(self, index: int) -> Step:
        """Take the action at `index` of the last observation's list.

        Raises:
            ValueError: There is no such action, or the episode has ended.
        """
        if self._ended or not 0 <= index < self.num_actions:
            reason = "no episode is under way" if self._ended else f"{self.num_actions} are offered"
            raise ValueError(f"the world `{self.name}` has no action at {index}: {reason}")
        reward, has_ended = self._take(index)
        return Step(
            observation=self._show(),
            reward=self.reward_scale * reward,
            terminated=self._terminated,
            truncated=has_ended and not self._terminated,
            duration=1,
            episode=self._episode(reward) if has_ended else None,
        )

    def _take(self, index: int) -> tuple[float, bool]:
        """Take an action; return the raw reward, and whether the episode has ended."""
        _, reward, terminated, truncated, _ = self.engine.step(min(index, DONE))
        self._taken.append(index)
        self._ended = terminated or truncated
        self._terminated = terminated or (truncated and self.limit == "terminal")
        return float(reward), self._ended

    def _episode(self, reward: float) -> Episode:
        """Return the summary of the episode that has just ended; only its end is rewarded."""
        return Episode(
            discounted_return=reward,
            undiscounted_return=self.reward_scale * reward,
            num_decisions=len(self._taken),
            num_primitive_steps=len(self._taken),
            success=reward > 0,
        )

    def view(self) -> list[Code]:
        """Return the 49 cells that the agent sees."""
        engine = self.engine
        return self._viewer.look(
            engine.grid.grid, engine.width, engine.agent_pos, engine.agent_dir, engine.carrying
        )

    def descriptions(self) -> list[str]:
        """Return what the agent sees in GLAM's words."""
        return describe(self.view(), self.language, as_released=self.french == "release")

    def _show(self) -> Observation:
        """Return the present observation, without actions where the world has ended."""
        codes = self.view()
        said = describe(codes, self.language, as_released=self.french == "release")
        return Observation(
            text=to_text(said),
            goal=self._clause,
            actions=() if self._terminated else self.actions,
            action_ids=() if self._terminated else self._ids,
            vector=tuple(chain.from_iterable(codes)),
        )

    # --- states

    def state_dict(self) -> dict[str, Any]:
        """Return all that `load_state_dict` needs: the random numbers' state and the actions since.

        Raises:
            ValueError: No episode has begun.
        """
        if not self._before:
            raise ValueError(f"the world `{self.name}` has no episode yet: call .reset() first")
        return {
            "world": self.name,
            "seed": self._seed,
            "num_episodes": self.num_episodes,
            "generator": self._before,
            "actions": list(self._taken),
        }

    def load_state_dict(self, state: dict[str, Any]) -> Observation:
        """Return to a state: generate the episode's world again and take its actions.

        Raises:
            ValueError: The state is another world's.
        """
        if state["world"] != self.name:
            raise ValueError(f"expected a state of `{self.name}`, got one of `{state['world']}`")
        self._seed_all(state["seed"])
        self._before, self.num_episodes = state["generator"], state["num_episodes"]
        self._generator.bit_generator.state = json.loads(self._before)
        self._begin()
        for index in state["actions"]:
            self._take(index)
        return self._show()

    def __reduce__(self) -> tuple[Callable[..., BabyAIText], tuple[object, ...]]:
        """Return how a copy is made: minigrid's engines are made anew."""
        state = self.state_dict() if self._before else None
        return _rebuilt, (type(self), self._options, self._seed, state)

    def render(self) -> str:
        """Return the situation as a few lines of text for people: the room, and the goal."""
        engine = self.engine
        held = engine.carrying
        hand = "nothing" if held is None else f"{held.color} {held.type}"
        step = f"step {engine.step_count} of {engine.max_steps}"
        return f"{engine.pprint_grid()}\n{_LEGEND}\n{self.mission}\nhand: {hand}, {step}"


_LEGEND = (
    "> V < ^ agent; A ball, B box, K key, W wall, D door, L locked, __ open door;\n"
    "second letter: R red, G green, B blue, P purple, Y yellow, G grey (walls: grey)"
)


def _rebuilt(
    world: type[BabyAIText], options: dict[str, Any], seed: int, state: dict[str, Any] | None
) -> BabyAIText:
    """Return a copy of a world."""
    made = world(**options, seed=seed)
    if state is not None:
        made.load_state_dict(state)
    return made


def _kinds_of(level: str, kind: Kind | None) -> dict[str, Level]:
    """Return the levels that a world plays, by kind."""
    if level not in MIXED:
        return {level: find_level(level)}
    kinds: Sequence[Kind] = KINDS if kind is None else (kind,)
    return {each: MIXED[level][each] for each in kinds}
