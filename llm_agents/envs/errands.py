"""Errands: a world in which the texts of actions branch, with an exact optimum.

Every action is "put the X in the Y with the Z", so that of k words in each place there are k³
actions, and an action can be right in one part and wrong in another. It is made for comparing how
methods credit the tokens inside an action (POAD, Wen et al. 2024, section 4; arXiv:2405.15821):
|V|^|a| actions share their beginnings, and each part is paid on its own or only together.
"""

from __future__ import annotations

import random
from itertools import product
from math import gcd
from typing import NamedTuple

from llm_agents.envs.base import Observation
from llm_agents.envs.machine import MachineWorld, Outcome

THINGS = ("cup", "knife", "towel", "candle", "plate", "spoon")
PLACES = ("drawer", "basket", "cupboard", "box", "sink", "cellar")
TOOLS = ("tongs", "glove", "hook", "cloth", "tray", "rope")


class ErrandsState(NamedTuple):
    """How many errands are done, how many were right, and the number of the present one."""

    done: int
    right: int
    errand: int


class Errands(MachineWorld[ErrandsState]):
    """A row of errands, each said in a sentence; doing one in the right way earns its pay.

    The errand with number e asks for thing e // k², place e // k mod k and tool e mod k. After it,
    right or wrong, comes another, and after the last the episode ends.

    Args:
        words: k, words in each part of an action, 2 to 6; there are k³ actions.
        errands: Errands in an episode, 1 to 9.
        pay: `parts`: a third for each right part; `whole`: 1 for an action that is right in all
            three, otherwise nothing.
        told: `all`: the sentence names thing, place and tool; `thing`: the thing alone, whose
            place and tool are always the same and are found by trying.
        seed: Begins the world's random numbers.

    Raises:
        ValueError: `words` or `errands` out of range, `pay` or `told` unknown.
    """

    state_type = ErrandsState

    def __init__(
        self,
        words: int = 4,
        errands: int = 3,
        *,
        pay: str = "parts",
        told: str = "all",
        seed: int = 0,
    ) -> None:
        if not 2 <= words <= len(THINGS):
            raise ValueError(f"expected `words` of 2 to {len(THINGS)}, got {words}")
        if not 1 <= errands <= 9:
            raise ValueError(f"expected `errands` of 1 to 9, got {errands}")
        if pay not in ("parts", "whole"):
            raise ValueError(f"expected `pay` to be `parts` or `whole`, got `{pay}`")
        if told not in ("all", "thing"):
            raise ValueError(f"expected `told` to be `all` or `thing`, got `{told}`")
        super().__init__(max_steps=None, seed=seed)
        self.name = "errands"
        self.words, self.errands, self.pay, self.told = words, errands, pay, told
        self.num_actions = words**3
        self.vector_size = 3 * words + 1
        self.gamma = 0.95
        self.optimal_return = sum(self.gamma**step for step in range(errands))
        self._texts = tuple(
            f"put the {thing} in the {place} with the {tool}"
            for thing, place, tool in product(THINGS[:words], PLACES[:words], TOOLS[:words])
        )
        self._stride = next(n for n in range(words**3 * 5 // 8, words**3) if gcd(n, words) == 1)

    def start(self, generator: random.Random) -> ErrandsState:
        """Choose the first errand."""
        return ErrandsState(0, 0, self._asked(generator.randrange(self.num_actions)))

    def _asked(self, number: int) -> int:
        """Return an errand that can be asked: with `told: thing` the thing decides the rest."""
        k = self.words
        if self.told == "all":
            return number
        thing = number // k**2
        return thing * k**2 + (thing * 2 + 1) % k * k + (k - 1 - thing)

    def parts(self, number: int) -> tuple[int, int, int]:
        """Return thing, place and tool of an errand or an action."""
        k = self.words
        return number // k**2, number // k % k, number % k

    def outcome(self, state: ErrandsState, action: int) -> Outcome[ErrandsState]:
        """Pay for the right parts, and go on to the next errand."""
        pairs = zip(self.parts(state.errand), self.parts(action), strict=True)
        right = sum(asked == done for asked, done in pairs)
        is_right = right == 3
        reward = right / 3 if self.pay == "parts" else float(is_right)
        following = self._asked((state.errand + self._stride) % self.num_actions)
        after = ErrandsState(state.done + 1, state.right + is_right, following)
        ends = after.done == self.errands
        return Outcome(after, reward, terminated=ends, success=ends and after.right == after.done)

    def observe(self, state: ErrandsState) -> Observation:
        """Say the errand."""
        thing, place, tool = self.parts(state.errand)
        text = f"Someone asks for help with the {THINGS[thing]}."
        if self.told == "all":
            text += f" It belongs in the {PLACES[place]} and may be touched with the"
            text += f" {TOOLS[tool]} only."
        ones = [0] * (3 * self.words)
        for part, word in enumerate((thing, place, tool)):
            ones[part * self.words + word] = int(part == 0 or self.told == "all")
        return Observation(
            text=text,
            goal="To help, your next step is to",
            actions=self._texts,
            action_ids=tuple(range(self.num_actions)),
            vector=(*ones, state.done),
        )

    def draw(self, state: ErrandsState) -> str:
        """Write the errand in a line."""
        thing, place, tool = self.parts(state.errand)
        asked = f"{THINGS[thing]} → {PLACES[place]}, {TOOLS[tool]}"
        return f"errand {state.done + 1} of {self.errands}: {asked}   right so far: {state.right}"
