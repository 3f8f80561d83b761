"""Worlds of others as text worlds: anything with `reset` and `step` as in Gymnasium.

    AdaptedWorld("FrozenLake-v1", text="Field {obs} of the lake.", actions=["go left", …])

A recipe writes ``world: gym:FrozenLake-v1`` and the same settings under ``world_options``. Text,
goal, actions and success are given, or are found in what the world tells: observations that are
text, and in `info` the names that TextWorld, ALFWorld and others use. Where neither is there, an
error says which setting to give.

Few such worlds can save their state, so one is resumed by replay: the episode's seed, and the
actions taken in it, lead there again; a digest of what was shown on the way has to be the same.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import numbers
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal

from llm_agents.envs.base import Observation, Step
from llm_agents.errors import UserError
from llm_agents.types import Episode

Execute = Literal["auto", "index", "text"]
TextFunction = Callable[[Any, Mapping[str, Any]], str]
ActionsFunction = Callable[[Any, Mapping[str, Any]], Sequence[str]]
SuccessFunction = Callable[[float, bool, Mapping[str, Any]], bool]

PREFIX = "gym:"  # of the names under which recipes make these worlds
ACTION_KEYS = ("admissible_commands", "valid_actions", "available_actions", "valid_commands")
TEXT_KEYS = ("text", "observation", "obs", "description", "feedback", "mission")
SUCCESS_KEYS = ("won", "success", "is_success")
LIMIT_KEY = "TimeLimit.truncated"  # of worlds that return four values
_MOST_NUMBERS = 512  # longest observation that is a vector for symbolic agents


class AdaptedWorld:
    """A world with Gymnasium's interface, five or four values a step, as a text world.

    Args:
        make: Id of a registered Gymnasium world, ``module:Class`` or ``module:function`` of what
            makes one, or that itself.
        options: Keyword arguments of what makes it.
        text: What an observation says: ``{obs}`` and the keys of `info` are filled into a text;
            ``render`` takes what `render()` returns; or a function of observation and `info`, or
            its path ``module:function``. By default the observation, if it is text or holds some.
        goal: The unfinished clause that an action completes; `info`'s keys may be filled in.
        actions: Texts of the world's actions by their numbers, or a function of observation and
            `info` that returns those admissible now. By default `info` has them. With a list, an
            ``action_mask`` in `info` says which of them are admissible.
        execute: What `step` is given: the action's number (``index``) or its ``text``; ``auto``:
            the number where `actions` is a list, else the text.
        success: A function of reward, ``terminated`` and `info`, or its path, asked at an episode's
            end. By default `info` tells, or else whether the last reward was above 0.
        gamma: Discount of the return that is reported.
        max_steps: Steps after which an episode is cut here; None leaves that to the world.
        max_actions: Length of the longest list of actions, where the world gives lists.
        optimal_return: Best discounted return, if it is known.
        name: Short name; by default ``gym:`` and `make`.
        seed: Begins the world's random numbers: episode n of a seed is always the same, if the
            world takes seeds.

    Raises:
        UserError: The world can't be made, or says too little of itself.
    """

    def __init__(
        self,
        make: str | Callable[..., Any],
        *,
        options: Mapping[str, Any] = MappingProxyType({}),
        text: str | TextFunction | None = None,
        goal: str = "Your next step is to",
        actions: Sequence[str] | str | ActionsFunction | None = None,
        execute: Execute = "auto",
        success: str | SuccessFunction | None = None,
        gamma: float = 0.99,
        max_steps: int | None = None,
        max_actions: int = 200,
        optimal_return: float | None = None,
        name: str | None = None,
        seed: int = 0,
    ) -> None:
        if max_steps is not None and max_steps < 1:
            raise UserError(f"expected `max_steps` of at least 1, or null, got {max_steps}")
        if not 0 < gamma <= 1:
            raise UserError(f"expected `gamma` in (0, 1], got {gamma}")
        if not (text is None or isinstance(text, str) or callable(text)):
            raise UserError(f"expected `text` to be a text or a function, got {text!r}: quote it")
        made = make if isinstance(make, str) else getattr(make, "__name__", "world")
        self.name = name or f"{PREFIX}{made}"
        self.gamma, self.optimal_return = gamma, optimal_return
        self._env = make_foreign(make, options)
        fixed = (
            None if actions is None or callable(actions) or isinstance(actions, str) else actions
        )
        self._list = None if fixed is None else _checked_list(self.name, fixed, self._env)
        self._actions = _function(actions) if isinstance(actions, str) else actions
        self._text = _function(text) if isinstance(text, str) and _is_path(text) else text
        self._success = _function(success) if isinstance(success, str) else success
        self._goal, self._max_steps = goal, max_steps
        self._by_index = self._list is not None if execute == "auto" else execute == "index"
        self.num_actions = max_actions if self._list is None else len(self._list)
        self.vector_size = _vector_size(getattr(self._env, "observation_space", None))
        self._seed, self._episode = seed, -1
        self._taken: list[int] = []
        self._ended = self._terminated = True
        self._discounted = self._undiscounted = 0.0
        self._digest = hashlib.blake2b(digest_size=16)
        self._shown: Observation | None = None

    @property
    def env(self) -> Any:
        """The world that was adapted."""
        return self._env

    def close(self) -> None:
        """Close the world that was adapted, if it can be closed."""
        close = getattr(self._env, "close", None)
        if close is not None:
            close()

    # --- playing --------------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> Observation:
        """Begin an episode; a seed begins the world's own random numbers anew."""
        if seed is not None:
            self._seed, self._episode = seed, -1
        self._episode += 1
        return self._begin()

    def _begin(self) -> Observation:
        """Begin the present episode."""
        answer = reset_foreign(self._env, episode_seed(self._seed, self._episode))
        has_info = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping)
        obs, info = answer if has_info else (answer, {})
        self._taken = []
        self._ended = self._terminated = False
        self._discounted = self._undiscounted = 0.0
        self._digest = hashlib.blake2b(digest_size=16)
        return self._show(obs, info)

    def step(self, index: int) -> Step:
        """Take the action at `index` of the last observation's list.

        Raises:
            ValueError: There is no such action, or the episode has ended.
        """
        offered = () if self._ended or self._shown is None else self._shown.actions
        if not 0 <= index < len(offered):
            reason = f"{len(offered)} are offered" if offered else "no episode is under way"
            raise ValueError(f"the world `{self.name}` has no action at {index}: {reason}")
        assert self._shown is not None
        given = self._shown.action_ids[index] if self._by_index else offered[index]
        obs, reward, terminated, truncated, info = five_values(self.name, self._env.step(given))
        self._discounted += self.gamma ** len(self._taken) * reward
        self._undiscounted += reward
        self._taken.append(index)
        truncated = not terminated and (truncated or len(self._taken) == self._max_steps)
        self._terminated, self._ended = terminated, terminated or truncated
        observation = self._show(obs, info)
        episode = None
        if self._ended:
            episode = Episode(
                discounted_return=self._discounted,
                undiscounted_return=self._undiscounted,
                num_decisions=len(self._taken),
                num_primitive_steps=len(self._taken),
                success=self._is_success(reward, terminated, info),
            )
        return Step(observation, reward, terminated, truncated, 1, episode)

    def _is_success(self, reward: float, terminated: bool, info: Mapping[str, Any]) -> bool:
        """Return whether the episode's task was done."""
        if self._success is not None:
            return bool(self._success(reward, terminated, info))
        for key in SUCCESS_KEYS:
            if key in info:
                return bool(info[key])
        return terminated and reward > 0

    # --- what is shown --------------------------------------------------------------------------

    def _show(self, obs: Any, info: Mapping[str, Any]) -> Observation:
        """Put what the world tells into words."""
        texts, ids = ((), ()) if self._terminated else self._offered(obs, info)
        found = Observation(
            text=self._say(obs, info),
            goal=_filled(self.name, "goal", self._goal, obs, info),
            actions=texts,
            action_ids=ids,
            vector=_vector(obs, self.vector_size),
        )
        self._digest.update(json.dumps([found.text, found.goal, *found.actions]).encode())
        self._shown = found
        return found

    def _say(self, obs: Any, info: Mapping[str, Any]) -> str:
        """Return the observation's text."""
        if callable(self._text):
            return str(self._text(obs, info))
        if self._text == "render":
            return str(self._env.render()).strip()
        if self._text is not None:
            return _filled(self.name, "text", str(self._text), obs, info)
        said = _text_in(obs) or next((str(info[key]) for key in TEXT_KEYS if key in info), "")
        if not said:
            raise UserError(
                f"the world `{self.name}` shows no text but {type(obs).__name__}: say what it "
                "means by the setting `text`, such as 'You stand on field {obs}.', `render`, or "
                "a function `module:function` of the observation and `info`"
            )
        return said.strip()

    def _offered(
        self, obs: Any, info: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the texts of the admissible actions, and their numbers."""
        if self._list is not None:
            mask = info.get("action_mask")
            ids = [n for n in range(len(self._list)) if mask is None or mask[n]]
            return tuple(self._list[n] for n in ids), tuple(ids)
        if callable(self._actions):
            listed = self._actions(obs, info)
        else:
            listed = next((info[key] for key in ACTION_KEYS if info.get(key) is not None), None)
        if listed is None:
            raise UserError(
                f"the world `{self.name}` does not say which actions there are: its `info` has "
                f"none of {', '.join(ACTION_KEYS)}; give their texts by the setting `actions`"
            )
        texts = tuple(dict.fromkeys(str(text).strip() for text in listed))
        if len(texts) > self.num_actions:
            raise UserError(
                f"the world `{self.name}` offers {len(texts)} actions, `max_actions` is "
                f"{self.num_actions}: raise it"
            )
        return texts, tuple(range(len(texts)))

    def render(self) -> str:
        """Return the situation as a few lines of text for people."""
        drawn = None
        if getattr(self._env, "render_mode", None) == "ansi":
            drawn = self._env.render()
        text = drawn if isinstance(drawn, str) else (self._shown.text if self._shown else "")
        return f"{text.rstrip()}\nstep {len(self._taken)}, return {self._discounted:.4f}"

    # --- saving ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the way to the present state: plain numbers and strings."""
        return {
            "world": self.name,
            "seed": self._seed,
            "episode": self._episode,
            "taken": list(self._taken),
            "digest": self._digest.hexdigest(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> Observation:
        """Return to a state by taking the same actions; give the observation that was last shown.

        Raises:
            UserError: The state is another world's, or the world showed something else this time.
        """
        if state["world"] != self.name:
            raise UserError(f"expected a state of `{self.name}`, got one of `{state['world']}`")
        self._seed, self._episode = state["seed"], state["episode"]
        shown = self._begin()
        for index in state["taken"]:
            if index >= len(shown.actions):
                break
            shown = self.step(index).observation
        if self._digest.hexdigest() != state["digest"]:
            raise UserError(
                f"the world `{self.name}` can't be resumed: the same seed and actions showed "
                f"something else this time, within {len(state['taken'])} steps. Its randomness "
                "must come from the seed given to reset() alone; `lightning env check` tells more"
            )
        return shown


# --- the other side's conventions -----------------------------------------------------------------


def make_foreign(make: str | Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Return a world of Gymnasium's kind.

    Args:
        make: As of `AdaptedWorld`.
        options: Keyword arguments of what makes it.

    Raises:
        UserError: There is no such world, or it refuses the options.
    """
    if isinstance(make, str) and ":" not in make:
        try:
            import gymnasium
        except ImportError as error:
            raise UserError(
                f"the world `{make}` is Gymnasium's, which is not installed: pip install "
                "'llm-agents[gym]'"
            ) from error
        try:
            return gymnasium.make(make, **options)
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise UserError(f"Gymnasium makes no world `{make}`: {error}") from error
    factory = _function(make) if isinstance(make, str) else make
    try:
        env = factory(**options)
    except TypeError as error:
        raise UserError(f"the world {make!r} refuses its options: {error}") from error
    if getattr(env, "num_envs", 1) > 1:
        raise UserError(
            f"{make!r} is a vector of {env.num_envs} worlds: give what makes one of them, and set "
            "`data.num_worlds`"
        )
    missing = [each for each in ("reset", "step") if not callable(getattr(env, each, None))]
    if missing:
        raise UserError(f"{make!r} makes no world: it has no method `{missing[0]}`")
    return env


def reset_foreign(env: Any, seed: int) -> Any:
    """Begin an episode with a seed, in whichever way the world takes one.

    Args:
        env: The world.
        seed: Given to `reset`, or before it to `seed` as older worlds have it.
    """
    parameters = inspect.signature(env.reset).parameters
    takes = "seed" in parameters or any(
        each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()
    )
    if takes:
        return env.reset(seed=seed)
    if callable(getattr(env, "seed", None)):
        env.seed(seed)
    return env.reset()


def five_values(name: str, answer: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
    """Return observation, reward, terminated, truncated and `info` of a step.

    Args:
        name: The world's, for errors.
        answer: What its `step` returned: five values, or four, whose limit `info` tells.

    Raises:
        UserError: It is neither, or the reward is no finite number.
    """
    if not isinstance(answer, tuple) or len(answer) not in (4, 5):
        raise UserError(f"the world `{name}` returned {type(answer).__name__} from step(), no five")
    obs, reward, *ends, info = answer
    if not isinstance(info, Mapping):
        raise UserError(f"the world `{name}` returned no `info` as the last value of step()")
    if isinstance(reward, bool) or not isinstance(reward, numbers.Real):
        reward = reward.item() if hasattr(reward, "item") else reward
    if not isinstance(reward, numbers.Real) or not float("-inf") < float(reward) < float("inf"):
        raise UserError(f"the world `{name}` paid {reward!r}, which is no finite number")
    if len(ends) == 2:
        return obs, float(reward), bool(ends[0]), bool(ends[1]), info
    cut = bool(ends[0]) and bool(info.get(LIMIT_KEY, False))
    return obs, float(reward), bool(ends[0]) and not cut, cut, info


def episode_seed(seed: int, episode: int) -> int:
    """Return the seed of one episode: below 2³¹, and unlike that of its neighbors.

    Args:
        seed: The world's.
        episode: Its number since that seed, from 0.
    """
    digest = hashlib.blake2b(f"{seed}/{episode}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1


def _checked_list(name: str, actions: Sequence[str], env: Any) -> tuple[str, ...]:
    """Return a list of actions, one for each number that the world takes."""
    texts = tuple(str(text) for text in actions)
    if not texts or len(set(texts)) < len(texts) or not all(text.strip() for text in texts):
        raise UserError(f"expected distinct texts as `actions` of `{name}`, got {list(texts)}")
    wanted = getattr(getattr(env, "action_space", None), "n", None)
    if wanted is not None and wanted != len(texts):
        raise UserError(
            f"the world `{name}` has {wanted} actions, and `actions` names {len(texts)}: "
            f"{', '.join(texts)}"
        )
    return texts


def _is_path(text: str) -> bool:
    """Return whether a setting is ``module:function``, and no sentence."""
    return ":" in text and not any(sign in text for sign in " {\n")


def _function(path: str) -> Any:
    """Return what ``module:name`` stands for."""
    module, colon, name = path.partition(":")
    try:
        if not colon:
            raise ValueError("no colon")
        return attrgetter(name)(import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"expected `module:name`, got `{path}`: {error}") from error


def _filled(name: str, setting: str, text: str, obs: Any, info: Mapping[str, Any]) -> str:
    """Fill the observation and the keys of `info` into a text."""
    try:
        return text.format(**{**info, "obs": obs})
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        known = ", ".join(["obs", *map(str, info)])
        raise UserError(
            f"`{setting}` of the world `{name}` can't be filled in: {error}; known: {known}"
        ) from error


def _text_in(obs: Any) -> str:
    """Return the text that an observation is or holds; nothing if there is none."""
    if isinstance(obs, str):
        return obs
    if isinstance(obs, Mapping):
        texts = [obs[key] for key in TEXT_KEYS if isinstance(obs.get(key), str)]
        return "\n".join(dict.fromkeys(texts))
    return ""


def _vector_size(space: Any) -> int:
    """Return how many whole numbers an observation of a space is; 0 if it isn't whole numbers."""
    kind = type(space).__name__
    if kind == "Discrete":
        return 1
    if kind in ("MultiDiscrete", "MultiBinary", "Box") and space.dtype.kind in "iub":
        size = 1
        for length in space.shape:
            size *= int(length)
        return size if size <= _MOST_NUMBERS else 0
    return 0


def _vector(obs: Any, size: int) -> tuple[int, ...]:
    """Return an observation as whole numbers."""
    if size == 0:
        return ()
    if hasattr(obs, "ravel"):
        return tuple(int(number) for number in obs.ravel())
    return (int(obs),)
