"""NetHack games as one batched TorchRL environment, for TorchRL's own collectors and losses.

TorchRL costs milliseconds a step; one environment around many games shares them out. Motif's own
rollouts go without it (`llm_agents.rollouts.nethack`).
"""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from llm_agents.envs.nethack import NetHackEpisode
from llm_agents.envs.nethack_tasks import field_of
from llm_agents.envs.nethack_vector import COUNT_KEY, Arrays, NetHackVector


class NetHackWorlds(EnvBase):  # type: ignore[misc]  # torchrl has no types
    """E games that step together.

    What it writes, each with batch ``[E]``: every observation key of the vector with the engine's
    shape and dtype, ``message_count`` ``[E, 1]`` int32, ``reward`` ``[E, 1]`` float32 and
    ``terminated``, ``truncated``, ``done`` ``[E, 1]`` bool. The ``next`` entry of a step that ends
    an episode is that episode's last observation; the reset that TorchRL does then shows the first
    of the episode that the vector has begun meanwhile.

    Args:
        vector: The games; its seed is theirs, `set_seed` is refused.
    """

    def __init__(self, vector: NetHackVector) -> None:
        count = vector.num_games
        super().__init__(device=None, batch_size=torch.Size([count]))
        self.vector = vector
        self._episodes: list[NetHackEpisode] = []
        self._now: dict[str, Tensor] | None = None
        specs = {}
        for key in vector.keys:
            shape, dtype = field_of(key)
            kind = torch.from_numpy(np.empty(0, dtype)).dtype
            specs[key] = Unbounded((count, *shape), dtype=kind)
        specs[COUNT_KEY] = Unbounded((count, 1), dtype=torch.int32)
        self.observation_spec = Composite(specs, shape=(count,))
        self.action_spec = Categorical(vector.num_actions, shape=(count,), dtype=torch.int64)
        self.reward_spec = Unbounded((count, 1), dtype=torch.float32)
        flag = Binary(1, shape=(count, 1), dtype=torch.bool)
        self.full_done_spec = Composite(
            done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=(count,)
        )

    def take_episodes(self) -> list[NetHackEpisode]:
        """Return the episodes that have ended since the last call."""
        taken, self._episodes = self._episodes, []
        return taken

    def _reset(self, tensordict: TensorDictBase | None = None, **_: object) -> TensorDict:
        """Show the episodes that have begun; without ``_reset``, begin one in every game."""
        chosen = None if tensordict is None else tensordict.get("_reset", None)
        if chosen is None or self._now is None:
            self._now = _tensors(self.vector.reset())
        none = torch.zeros(self.vector.num_games, 1, dtype=torch.bool)
        flags = {"done": none, "terminated": none.clone(), "truncated": none.clone()}
        return TensorDict({**self._now, **flags}, batch_size=self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        """Take an action in every game."""
        found = self.vector.step(tensordict.get("action").numpy())
        self._now = _tensors(found.observations)
        shown = self._now
        if len(found.ended):
            ended = torch.from_numpy(found.ended)
            final = _tensors(found.final_observations)
            shown = {key: value.index_copy(0, ended, final[key]) for key, value in shown.items()}
            self._episodes += found.episodes
        terminated = torch.from_numpy(found.terminated).unsqueeze(1)
        truncated = torch.from_numpy(found.truncated).unsqueeze(1)
        return TensorDict(
            {
                **shown,
                "reward": torch.from_numpy(found.rewards).unsqueeze(1),
                "done": terminated | truncated,
                "terminated": terminated,
                "truncated": truncated,
            },
            batch_size=self.batch_size,
        )

    def _set_seed(self, seed: int | None) -> None:
        """Refuse a seed.

        Raises:
            ValueError: There is one.
        """
        if seed is not None:
            raise ValueError("expected the seed at `NetHackVector(seed=…)`, got one by `set_seed`")

    def close(self, **_: object) -> None:
        """End the games."""
        self.vector.close()
        super().close()


def _tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Return a vector's observations as tensors that share their memory."""
    tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
    return {**tensors, COUNT_KEY: tensors[COUNT_KEY].unsqueeze(1)}
