"""Text worlds as one batched TorchRL environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Categorical, Composite, NonTensor, Unbounded
from torchrl.envs import EnvBase

from llm_agents.rollouts.prompted import PromptedWorld
from llm_agents.rollouts.seeds import world_seeds
from llm_agents.types import Choice, Episode


class TextWorlds(EnvBase):  # type: ignore[misc]  # torchrl has no types
    """E text worlds that step together.

    What it writes, each with batch ``[E]``:

    - ``prompt``: text, and ``actions``: tuple of the admissible texts, of any number;
    - ``action_mask`` ``[E, A]`` bool, True = admissible, for TorchRL's own policies;
    - ``world`` ``[E, 1]`` int64, index of the world;
    - ``reward`` ``[E, 1]`` float32, ``terminated``, ``truncated``, ``done`` ``[E, 1]`` bool;
    - ``duration`` ``[E, 1]`` int64, primitive steps of the action, and ``episode``: `Episode` of a
      world that has just ended, else None.

    TorchRL resets a world in the step that ends its episode: its ``next`` entry is the terminal
    observation, the entry of the step after it the new episode's, and no step is a reset.

    Args:
        worlds: At least one.

    Raises:
        ValueError: There is no world.
    """

    def __init__(self, worlds: Sequence[PromptedWorld]) -> None:
        if not worlds:
            raise ValueError("expected at least one world, got none")
        # Without a device: text has none, and TorchRL refuses to mix it with tensors that do.
        super().__init__(device=None, batch_size=torch.Size([len(worlds)]))
        self.worlds = tuple(worlds)
        self.choices: list[Choice] = []
        self._is_restored = False
        count, most = len(worlds), max(prompted.world.num_actions for prompted in worlds)
        self.num_actions = most
        self.observation_spec = Composite(
            prompt=NonTensor((count,), example_data=""),
            actions=NonTensor((count,), example_data=("",)),
            action_mask=Binary(most, shape=(count, most), dtype=torch.bool),
            world=Unbounded((count, 1), dtype=torch.int64),
            duration=Unbounded((count, 1), dtype=torch.int64),
            episode=NonTensor((count,), example_data=None),
            shape=(count,),
        )
        self.action_spec = Categorical(most, shape=(count,), dtype=torch.int64)
        self.reward_spec = Unbounded((count, 1), dtype=torch.float32)
        flag = Binary(1, shape=(count, 1), dtype=torch.bool)
        self.full_done_spec = Composite(
            done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=(count,)
        )

    # --- state

    def worlds_state(self) -> list[dict[str, Any]]:
        """Return the state of every world between two steps: plain numbers and strings."""
        return [world.state_dict() for world in self.worlds]

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Return to a state; the next reset of all worlds shows it instead of new episodes.

        A world whose episode had ended begins the next one.

        Raises:
            ValueError: The state is of another number of worlds.
        """
        if len(states) != len(self.worlds):
            raise ValueError(
                f"expected the states of {len(self.worlds)} worlds, got {len(states)}: build as "
                "many worlds as were saved"
            )
        pairs = zip(self.worlds, states, strict=True)
        shown = [(world, world.load_state_dict(state)) for world, state in pairs]
        self.choices = [world.reset() if world.has_ended else choice for world, choice in shown]
        self._is_restored = True

    # --- what TorchRL asks for

    def _reset(self, tensordict: TensorDictBase | None = None, **_: object) -> TensorDict:
        """Begin new episodes in the worlds that ``_reset`` names, in all without it."""
        chosen = None if tensordict is None else tensordict.get("_reset", None)
        if chosen is None and self._is_restored:
            self._is_restored = False
        elif chosen is None:
            self.choices = [world.reset() for world in self.worlds]
        else:
            for number in chosen.view(-1).nonzero().view(-1).tolist():
                self.choices[number] = self.worlds[number].reset()
        count = len(self.worlds)
        none = torch.zeros(count, 1, dtype=torch.bool)
        return self._shown(
            durations=torch.zeros(count, 1, dtype=torch.int64),
            episodes=[None] * count,
            done=none,
            terminated=none.clone(),
            truncated=none.clone(),
        )

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        """Take an action in every world."""
        chosen = tensordict.get("action").tolist()
        pairs = [world.step(index) for world, index in zip(self.worlds, chosen, strict=True)]
        self.choices = [choice for choice, _ in pairs]
        steps = [step for _, step in pairs]
        terminated = torch.tensor([[step.terminated] for step in steps])
        truncated = torch.tensor([[step.truncated] for step in steps])
        return self._shown(
            durations=torch.tensor([[step.duration] for step in steps]),
            episodes=[step.episode for step in steps],
            reward=torch.tensor([[step.reward] for step in steps], dtype=torch.float32),
            done=terminated | truncated,
            terminated=terminated,
            truncated=truncated,
        )

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Draw an admissible action for every world, each as likely as the others."""
        if tensordict is None:
            tensordict = TensorDict(batch_size=self.batch_size)
        sizes = torch.tensor([max(1, len(choice.actions)) for choice in self.choices])
        drawn = torch.rand(len(sizes), dtype=torch.float64) * sizes
        return tensordict.set("action", drawn.long())

    def _shown(
        self, durations: Tensor, episodes: Sequence[Episode | None], **others: Tensor
    ) -> TensorDict:
        """Return the present choices with what else there is to tell."""
        sizes = torch.tensor([len(choice.actions) for choice in self.choices])
        return TensorDict(
            {
                "prompt": NonTensorStack(*[choice.prompt for choice in self.choices]),
                "actions": NonTensorStack(*[choice.actions for choice in self.choices]),
                "action_mask": torch.arange(self.num_actions) < sizes.unsqueeze(1),
                "world": torch.tensor([[world.number] for world in self.worlds]),
                "duration": durations,
                "episode": NonTensorStack(*episodes),
                **others,
            },
            batch_size=self.batch_size,
        )

    def _set_seed(self, seed: int | None) -> None:
        """Give every world a seed of its own, from its next episode on."""
        if seed is None:
            return
        for world, own in zip(self.worlds, world_seeds(seed, len(self.worlds)), strict=True):
            world.seed_next(own)


def choices_of(tensordict: TensorDictBase) -> list[Choice]:
    """Return the choices of one step's entries (``[E]``)."""
    prompts = tensordict.get("prompt").tolist()
    actions = tensordict.get("actions").tolist()
    return [Choice(*pair) for pair in zip(prompts, actions, strict=True)]
