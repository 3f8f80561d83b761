"""Players of trajectories for cloning: BabyAI's bot, chance, a language model, or that and the bot.

How their steps are collected is in `data.trajectory_collection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from llm_agents.data.trajectory_collection import Slot, TrajectoryJob, TrajectoryPlan
from llm_agents.envs.babyai import BabyAIText
from llm_agents.envs.babyai_bot import Bot
from llm_agents.envs.base import TextEnv
from llm_agents.errors import UserError
from llm_agents.functional.action_scores import Normalization
from llm_agents.policies import LanguagePolicy
from llm_agents.types import Choice

_NUM_MOVES = 3  # turn left, turn right, go forward: the bot makes good any of them


class BotTrajectories(TrajectoryJob):
    """Lets BabyAI's bot play, or chance.

    A bot that never errs never shows the way back, and a clone of it that errs once may stand
    before an obstacle for ever. With `noise` some of its steps are replaced by random ones, and
    what is written down is still what the bot would have done (DART: Laskey et al. 2017, arXiv
    1703.09327, whose noise is fitted to the clone's errors; here it is given).

    Args:
        plan: What to collect, in a world of BabyAI.
        player: Who plays.
        noise: Probability that a random turn or step forward is taken in place of the bot's action.

    Raises:
        UserError: The bot is to play another world than BabyAI's, or the noise is none of a bot.
    """

    def __init__(
        self, plan: TrajectoryPlan, player: Literal["bot", "chance"] = "bot", noise: float = 0.0
    ) -> None:
        super().__init__(plan)
        if not 0 <= noise < 1 or (noise and player != "bot"):
            raise UserError(
                f"expected `noise` from 0 to below 1, and 0 unless the bot plays, got {noise} for "
                f"the player `{player}`"
            )
        self._name, self._bot, self.noise = player, Bot(), noise

    def act(self, slots: Sequence[Slot], choices: Sequence[Choice]) -> list[int]:
        """Return what the player does."""
        if self._name == "chance":
            return [
                slot.draws.randrange(len(choice.actions))
                for slot, choice in zip(slots, choices, strict=True)
            ]
        return [self._bot(_babyai(slot.world), slot.astray) for slot in slots]

    def taken(self, slots: Sequence[Slot], indices: Sequence[int]) -> list[int]:
        """Return the bot's actions, some of them replaced; each episode draws for itself."""
        if not self.noise:
            return list(indices)
        return [
            slot.draws.randrange(min(_NUM_MOVES, slot.world.num_actions))
            if slot.draws.random() < self.noise
            else index
            for slot, index in zip(slots, indices, strict=True)
        ]

    def player(self) -> dict[str, Any]:
        """Return who plays."""
        return {"player": self._name, **({"noise": self.noise} if self.noise else {})}


class AgentTrajectories(TrajectoryJob):
    """Lets a language model play, by drawing from the softmax of its scores of the actions.

    Args:
        plan: What to collect.
        policy: The model, with its adapter.
        normalization: What an action's log-prob is divided by, as in the agent's training.
        temperature: Of the softmax; 0 takes the best action.

    Raises:
        UserError: The temperature is below 0.
    """

    def __init__(
        self,
        plan: TrajectoryPlan,
        policy: LanguagePolicy,
        *,
        normalization: Normalization = "sum",
        temperature: float = 1.0,
    ) -> None:
        super().__init__(plan)
        if temperature < 0:
            raise UserError(f"expected `temperature` of 0 or more, got {temperature}")
        self.policy, self.normalization, self.temperature = policy, normalization, temperature

    def act(self, slots: Sequence[Slot], choices: Sequence[Choice]) -> list[int]:
        """Return what the model draws; the draw is the episode's own."""
        self.policy.eval()
        with torch.no_grad():
            scores = self.policy.score_actions(choices, self.normalization).scores
        if self.temperature == 0:
            return [int(index) for index in scores.argmax(1)]
        weights = (scores.double() / self.temperature).softmax(1).tolist()
        return [
            slot.draws.choices(range(len(row)), row)[0]
            for slot, row in zip(slots, weights, strict=True)
        ]

    def player(self) -> dict[str, Any]:
        """Return who plays."""
        parameters = [weight.detach() for _, weight in self.policy.trainable_parameters()]
        total = sum(float(weight.double().sum()) for weight in parameters)
        return {
            "base": self.policy.config.base,
            "weights": f"{total:.12g} in {len(parameters)}",
            "normalization": self.normalization,
            "temperature": self.temperature,
        }


class DAggerTrajectories(AgentTrajectories):
    """Lets a language model play, and BabyAI's bot say at every step what it would have done.

    What a clone does wrong leads it to where no demonstration has been. Here its own steps lead
    there, and what is written down is the bot's advice: to learn from it is a round of DAgger (Ross
    et al. 2011, arXiv 1011.0686). Where the model wants to pick up, drop or toggle and the bot does
    not, the bot's action is done: it can't make good an opened box.

    Args:
        plan: What to collect, in a world of BabyAI.
        policy: The model, with its adapter.
        beta: Probability that a step is the bot's, β in the paper; else it is the model's.
        normalization: What an action's log-prob is divided by, as in the agent's training.
        temperature: Of the softmax; 0 takes the best action.

    Raises:
        UserError: `beta` is no probability, the temperature is below 0, or the world is none of
            BabyAI's.
    """

    def __init__(
        self,
        plan: TrajectoryPlan,
        policy: LanguagePolicy,
        *,
        beta: float = 0.5,
        normalization: Normalization = "sum",
        temperature: float = 1.0,
    ) -> None:
        super().__init__(plan, policy, normalization=normalization, temperature=temperature)
        if not 0 <= beta <= 1:
            raise UserError(f"expected `beta` from 0 to 1, got {beta}")
        self.beta, self._bot = beta, Bot()

    def act(self, slots: Sequence[Slot], choices: Sequence[Choice]) -> list[int]:
        """Return what the bot would do."""
        del choices
        return [self._bot(_babyai(slot.world), slot.astray) for slot in slots]

    def taken(self, slots: Sequence[Slot], indices: Sequence[int]) -> list[int]:
        """Return what is done: the bot's action or the model's; each episode draws for itself."""
        done = list(indices)
        free = [place for place, slot in enumerate(slots) if slot.draws.random() >= self.beta]
        if not free:
            return done
        own = [slots[place] for place in free]
        for place, drawn in zip(free, super().act(own, [slot.choice for slot in own]), strict=True):
            if drawn < _NUM_MOVES:
                done[place] = drawn
        return done

    def player(self) -> dict[str, Any]:
        """Return who plays, and who is asked."""
        return {**super().player(), "expert": "bot", "beta": self.beta}


def _babyai(world: TextEnv) -> BabyAIText:
    """Return a world of BabyAI."""
    if not isinstance(world, BabyAIText):
        raise UserError(f"expected a world of BabyAI for its bot, got `{world.name}`")
    return world
