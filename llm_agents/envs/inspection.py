"""What spoils training in a world, found by playing it: behind ``lightning env check``.

Every check plays the world from outside, by `TextEnv` alone, with actions drawn from a generator of
its own. A fault is something that makes training wrong (numbers that aren't what they seem, runs
that can't go on); a note is something that makes it slow or hard.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from llm_agents.envs.base import Observation, Step, TextEnv

Weight = Literal["fault", "note"]
MakeWorld = Callable[[], TextEnv]

_LONG_TEXT = 4000  # characters
_LARGE_REWARD = 10.0
_CLOSE = 1e-6


@dataclass(frozen=True)
class Remark:
    """Something that was found in a world.

    Args:
        weight: Whether it makes training wrong, or harder.
        subject: What it is about, in a word or two.
        text: What was seen.
        cure: What to do about it.
    """

    weight: Weight
    subject: str
    text: str
    cure: str

    def __str__(self) -> str:
        """Return two lines."""
        return f"{self.weight:<5} {self.subject}: {self.text}\n      cure: {self.cure}"


@dataclass
class _Play:
    """One episode as it was played.

    Args:
        shown: Observations, the first before any action.
        indices: Actions by their place in the list.
        steps: What each led to.
        copies: Text, actions and vector of each observation when it was shown.
    """

    shown: list[Observation] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)

    def see(self, observation: Observation) -> None:
        """Keep an observation, and what it said when it was shown."""
        self.shown.append(observation)
        self.copies.append(_content(observation))

    @property
    def ended(self) -> bool:
        """Whether the world ended, or a limit cut it."""
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)


def _content(observation: Observation) -> str:
    """Return all that an observation says."""
    parts = (observation.text, observation.goal, list(observation.actions))
    return json.dumps([*parts, list(observation.action_ids), list(observation.vector)])


def inspect_world(
    make: MakeWorld, *, episodes: int = 8, max_steps: int = 300, seed: int = 0
) -> list[Remark]:
    """Play a world and return what would spoil training in it.

    Args:
        make: Returns a new world each time.
        episodes: Episodes with random actions.
        max_steps: Steps after which an episode is left.
        seed: Of the actions, and given to the world.

    Returns:
        Faults first; none for a world that is sound.
    """
    world = make()
    world.reset(seed=seed)
    generator = random.Random(seed)
    plays = [
        _played(world, generator, max_steps, seed if n == 0 else None) for n in range(episodes)
    ]
    unseeded = list(_seeds(make, plays, seed))
    checks: list[Iterable[Remark]] = [
        _shape(world, plays),
        _lists(plays),
        _texts(plays),
        _rewards(plays),
        _ends(plays, max_steps),
        _summaries(world, plays),
        _buffers(plays),
        unseeded,
        _refusals(make, seed),
        _told_index([*plays, *_more_paid(world, plays, generator, max_steps)]),
    ]
    if not unseeded:  # otherwise nothing can be compared
        checks += [_neighbors(make, plays, seed), _restored(make, plays, seed)]
    found = {(r.subject, r.text): r for remarks in checks for r in remarks}
    return sorted(found.values(), key=lambda remark: remark.weight != "fault")


def _played(world: TextEnv, generator: random.Random, most: int, seed: int | None) -> _Play:
    """Play an episode with random actions."""
    play = _Play()
    play.see(world.reset(seed=seed) if seed is not None else world.reset())
    while not play.ended and len(play.steps) < most and play.shown[-1].actions:
        index = generator.randrange(len(play.shown[-1].actions))
        play.indices.append(index)
        play.steps.append(world.step(index))
        play.see(play.steps[-1].observation)
    return play


def _repeated(world: TextEnv, plays: Sequence[_Play], seed: int) -> Iterator[tuple[str, str]]:
    """Yield what plays showed and paid beside what the same actions show and pay now."""
    for number, play in enumerate(plays):
        shown = world.reset(seed=seed) if number == 0 else world.reset()
        yield play.copies[0], _content(shown)
        for index, step, copy in zip(play.indices, play.steps, play.copies[1:], strict=True):
            if index >= len(shown.actions):
                yield copy, ""
                return
            again = world.step(index)
            shown = again.observation
            same = math.isclose(again.reward, step.reward, abs_tol=_CLOSE)
            yield copy, _content(shown) if same else f"reward {again.reward}"
            if (again.terminated or again.truncated) != (step.terminated or step.truncated):
                yield copy, "another end"
                return


# --- one episode after another ----------------------------------------------------------------


def _shape(world: TextEnv, plays: Sequence[_Play]) -> Iterator[Remark]:
    """Look at vectors and numbers of actions against what the world declares."""
    for play in plays:
        for shown in play.shown:
            if len(shown.vector) != world.vector_size:
                text = f"a vector of {len(shown.vector)}, `vector_size` is {world.vector_size}"
                yield Remark("fault", "vector", text, "declare the length that is shown")
            if len(shown.action_ids) != len(shown.actions):
                text = f"{len(shown.actions)} actions with {len(shown.action_ids)} numbers"
                yield Remark("fault", "action numbers", text, "give each action one `action_id`")
            if any(not 0 <= number < world.num_actions for number in shown.action_ids):
                text = f"numbers {shown.action_ids}, `num_actions` is {world.num_actions}"
                yield Remark("fault", "action numbers", text, "`num_actions` is above all of them")
            if len(shown.actions) > world.num_actions:
                text = f"{len(shown.actions)} actions, `num_actions` is {world.num_actions}"
                yield Remark("fault", "action numbers", text, "declare the longest list")


def _lists(plays: Sequence[_Play]) -> Iterator[Remark]:
    """Look for lists that no policy can choose from."""
    for play in plays:
        goes_on = [True, *(not step.terminated for step in play.steps)]
        for shown, is_open in zip(play.shown, goes_on, strict=True):
            if is_open and not shown.actions:
                text = f"no action is offered in the middle of an episode: {shown.text[:80]!r}"
                cure = "offer at least one action, or end the episode"
                yield Remark("fault", "empty list", text, cure)
            if len(set(shown.actions)) < len(shown.actions):
                double = next(a for a in shown.actions if shown.actions.count(a) > 1)
                cure = "word actions apart, or offer one of them"
                yield Remark("fault", "double action", f"{double!r} is offered twice", cure)
            if len(set(shown.action_ids)) < len(shown.action_ids):
                cure = "give each action of a list a number of its own"
                yield Remark("fault", "action numbers", f"numbers {shown.action_ids}", cure)
            for action in shown.actions:
                if not action.strip() or action != action.strip():
                    cure = "start and end action texts with a word"
                    yield Remark("fault", "blank in action", f"{action!r}", cure)
    nested = {
        (short, long)
        for play in plays
        for shown in play.shown
        for short in shown.actions
        for long in shown.actions
        if short != long and long.startswith(short)
    }
    if nested:
        short, long = min(nested)
        text = f"{short!r} begins {long!r}"
        cure = "word them apart for POAD's default, or set its `behaviour: list`"
        yield Remark("note", "nested actions", text, cure)


def _texts(plays: Sequence[_Play]) -> Iterator[Remark]:
    """Look at what a prompt is made of."""
    for play in plays:
        for shown in play.shown:
            if not shown.text.strip():
                yield Remark("fault", "empty text", "an observation says nothing", "describe it")
            if len(shown.text) > _LONG_TEXT:
                cure = "say less: a prompt's length is the cost of every step"
                yield Remark("note", "long text", f"{len(shown.text)} characters or more", cure)
                return
            if shown.goal != shown.goal.rstrip(" .,;:!?\n"):
                cure = "end `goal` with a word: an action's text goes on with it"
                yield Remark("fault", "goal", f"{shown.goal!r} ends in a sign or a blank", cure)


def _rewards(plays: Sequence[_Play]) -> Iterator[Remark]:
    """Look at the scale of rewards."""
    rewards = [step.reward for play in plays for step in play.steps]
    if any(not math.isfinite(reward) for reward in rewards):
        yield Remark("fault", "reward", "a reward is no finite number", "pay numbers")
        return
    largest = max(map(abs, rewards), default=0.0)
    if largest > _LARGE_REWARD:
        cure = "scale rewards in the world, so that returns lie about between −1 and 1"
        yield Remark("note", "reward", f"a reward of {largest:g}: out of scale", cure)
    if rewards and largest == 0.0:
        text = f"none in {len(rewards)} random steps"
        cure = "rare rewards: `critic_init: zero` and `advantage_floor`, or a clone to start from"
        yield Remark("note", "reward", text, cure)


def _ends(plays: Sequence[_Play], most: int) -> Iterator[Remark]:
    """Look for worlds that never end, and for limits that are told as ends."""
    if any(step.terminated and step.truncated for play in plays for step in play.steps):
        text = "a step is both `terminated` and `truncated`"
        yield Remark("fault", "both ends", text, "an end is one or the other")
    ended = [play for play in plays if play.ended]
    if not ended:
        text = f"no episode of {len(plays)} ended within {most} steps"
        yield Remark("note", "no end", text, "give the world a limit (`max_steps`)")
        return
    lengths = {len(play.steps) for play in ended}
    ends = [play.steps[-1] for play in ended]
    unpaid = [step for step in ends if step.terminated and not _is_success(step)]
    same_length = len(lengths) == 1 and len(ended) > 2 and min(lengths) > 1
    varied = len({tuple(play.copies) for play in ended}) > 1
    if same_length and varied and len(unpaid) == len(ends):
        steps = min(lengths)
        text = f"all {len(ended)} episodes were `terminated` after exactly {steps} steps, unpaid"
        cure = "a limit is `truncated`: what follows it has a value, what follows an end has none"
        yield Remark("fault", "limit told as end", text, cure)


def _is_success(step: Step) -> bool:
    """Return whether a last step is of a success or was paid."""
    return step.reward > 0 or (step.episode is not None and step.episode.success)


def _summaries(world: TextEnv, plays: Sequence[_Play]) -> Iterator[Remark]:
    """Compare an episode's summary with its steps; the discounted return may have its own scale."""
    scales: set[float] = set()
    for play in plays:
        if any(step.episode is not None for step in play.steps[:-1]):
            cure = "`episode` belongs to the last step alone"
            yield Remark("fault", "summary", "an episode that goes on has a summary", cure)
        if not play.ended:
            continue
        episode = play.steps[-1].episode
        if episode is None:
            cure = "give the last step an `Episode`"
            yield Remark("fault", "summary", "an episode ended without a summary", cure)
            continue
        total, discounted, time = 0.0, 0.0, 0
        for step in play.steps:
            total += step.reward
            discounted += world.gamma**time * step.reward
            time += step.duration
        cure = "compute it from the episode's own steps"
        for name, told, right in (
            ("undiscounted_return", episode.undiscounted_return, total),
            ("num_decisions", episode.num_decisions, len(play.steps)),
        ):
            if not math.isclose(told, right, rel_tol=1e-4, abs_tol=1e-4):
                text = f"`{name}` is {told:g}, the steps make {right:g}"
                yield Remark("fault", "summary", text, cure)
        if abs(discounted) > 1e-4:
            scales.add(round(episode.discounted_return / discounted, 3))
    if len(scales) > 1:
        text = (
            f"`discounted_return` is {min(scales):g} to {max(scales):g} times what the steps make"
        )
        yield Remark("fault", "summary", text, "compute it from the episode's own steps")


def _buffers(plays: Sequence[_Play]) -> Iterator[Remark]:
    """Look for observations that changed after they were shown."""
    for play in plays:
        for shown, copy in zip(play.shown, play.copies, strict=True):
            if _content(shown) != copy:
                text = "an observation says something else than when it was shown"
                cure = "make a new observation each step, with tuples in place of lists"
                yield Remark("fault", "reused buffer", text, cure)


def _more_paid(
    world: TextEnv, plays: Sequence[_Play], generator: random.Random, most: int
) -> Iterator[_Play]:
    """Yield further episodes, until some actions were paid or a thousand steps were taken."""
    paid = sum(step.reward > 0 for play in plays for step in play.steps)
    left = 1000
    while paid < 12 and left > 0:
        play = _played(world, generator, min(most, left), None)
        paid += sum(step.reward > 0 for step in play.steps)
        left -= max(1, len(play.steps))
        yield play


def _told_index(plays: Sequence[_Play]) -> Iterator[Remark]:
    """Look for a good action's place in the list, told by the text or always the same."""
    best = [
        (play.shown[place], index)
        for play in plays
        for place, (index, step) in enumerate(zip(play.indices, play.steps, strict=True))
        if step.reward > 0 and len(play.shown[place].actions) > 2
    ]
    kinds = {(shown.text, index) for shown, index in best}
    if len({text for text, _ in kinds}) < 4:
        return
    for offset in (0, 1):
        told = [str(index + offset) in _numbers_of(shown.text) for shown, index in best]
        others = [
            str((index + 1) % len(shown.actions) + offset) in _numbers_of(shown.text)
            for shown, index in best
        ]
        if all(told) and not any(others) and len({index for _, index in best}) > 1:
            text = "the observation holds the number of the action that is paid"
            cure = "leave it out, or shuffle the list: a model learns to read numbers, not words"
            yield Remark("fault", "told index", text, cure)
            return


def _numbers_of(text: str) -> set[str]:
    """Return the whole numbers in a text."""
    return set("".join(sign if sign.isdigit() else " " for sign in text).split())


# --- a second world ---------------------------------------------------------------------------


def _seeds(make: MakeWorld, plays: Sequence[_Play], seed: int) -> Iterator[Remark]:
    """Play the same actions in another world of the same seed."""
    random.seed("what the process's own generator says must not matter")
    for before, now in _repeated(make(), plays, seed):
        if before != now:
            text = "two worlds of one seed differ under the same actions"
            cure = "draw all randomness from a generator that reset(seed) begins anew"
            yield Remark("fault", "unseeded", text, cure)
            return


def _neighbors(make: MakeWorld, plays: Sequence[_Play], seed: int) -> Iterator[Remark]:
    """Play the same actions while another world plays beside."""
    world, other = make(), make()
    generator = random.Random(1)
    shown = other.reset(seed=seed + 1)
    for before, now in _repeated(world, plays[:3], seed):
        if before != now:
            text = "a world plays otherwise while a second one plays beside it"
            cure = "keep everything in the instance: no state in the class or the module"
            yield Remark("fault", "shared state", text, cure)
            return
        if not shown.actions:
            shown = other.reset()
            continue
        step = other.step(generator.randrange(len(shown.actions)))
        shown = other.reset() if step.terminated or step.truncated else step.observation


def _restored(make: MakeWorld, plays: Sequence[_Play], seed: int) -> Iterator[Remark]:
    """Save a world in the middle of an episode, and go on in another."""
    cure = "`state_dict` holds all that the future depends on: counters and generators too"
    play = max(plays, key=lambda each: len(each.steps))
    number = plays.index(play)
    for middle in sorted({len(play.steps) // 2, max(0, len(play.steps) - 2)}):
        world = make()
        for _ in _repeated(world, plays[:number], seed):
            pass
        world.reset(seed=seed) if number == 0 else world.reset()
        for index in play.indices[:middle]:
            world.step(index)
        try:
            state = json.loads(json.dumps(world.state_dict()))
        except (TypeError, ValueError) as error:
            text = f"`state_dict` is no plain data: {error}"
            yield Remark("fault", "state", text, "save numbers, texts, lists and mappings of them")
            return
        second = make()
        shown = second.load_state_dict(state)
        if (
            _content(shown) != _content(play.shown[middle])
            and _content(shown) != play.copies[middle]
        ):
            text = "load_state_dict() shows something else than was shown last"
            yield Remark("fault", "state", text, cure)
            return
        for index, step, copy in zip(
            play.indices[middle:], play.steps[middle:], play.copies[middle + 1 :], strict=True
        ):
            if index >= len(shown.actions):
                break
            again = second.step(index)
            shown = again.observation
            ends = (again.terminated, again.truncated) == (step.terminated, step.truncated)
            paid = math.isclose(again.reward, step.reward, abs_tol=_CLOSE)
            told = _summary(again) == _summary(step)
            if not (ends and paid and told and _content(shown) == copy):
                text = f"a restored world goes on otherwise, {len(play.steps)} steps long"
                yield Remark("fault", "state", text, cure)
                return


def _summary(step: Step) -> tuple[float, ...]:
    """Return the numbers of a step's episode."""
    episode = step.episode
    if episode is None:
        return ()
    returns = (episode.discounted_return, episode.undiscounted_return)
    return (*(round(each, 5) for each in returns), episode.num_decisions, float(episode.success))


def _refusals(make: MakeWorld, seed: int) -> Iterator[Remark]:
    """Ask for an action that is not there."""
    world = make()
    count = len(world.reset(seed=seed).actions)
    for index in (-1, count):
        try:
            world.step(index)
        except (ValueError, IndexError):
            continue
        text = f"step({index}) is taken though {count} actions are offered"
        yield Remark("fault", "no refusal", text, "raise ValueError: it hides faults of callers")
        return
