"""A network that plays many games at once, with weights that training doesn't move meanwhile."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llm_agents.policies.nethack import NetHackNetwork, stat_scales
from llm_agents.policies.nethack_types import NetHackDecisions, NetHackObservations

_SCALES = stat_scales()

_REMEMBERED = 8192
"""Rows that a memory holds before it begins anew: 50 MB for the release's core."""

OBSERVATION_KEYS = ("window_chars", "window_colors", "blstats", "message")
"""Arrays of the engine that `observe` reads."""


def observe(raw: Mapping[str, NDArray[Any]]) -> NetHackObservations:
    """Return what an agent sees of the engine's arrays.

    Args:
        raw: ``[E, …]`` under `OBSERVATION_KEYS`: 12 × 12 codes and colors around the hero, the
            bottom line, the message.

    Returns:
        Of shape ``[E]``, on the CPU, sharing no memory with `raw`.
    """
    chars, colors = raw["window_chars"], raw["window_colors"]
    window = chars.astype(np.int16) | (colors.astype(np.int16) & 15) << 8
    stats = torch.from_numpy(raw["blstats"].astype(np.float32))
    return NetHackObservations(
        window=torch.from_numpy(window.reshape(len(window), -1)),
        vector=(stats * _SCALES).clamp_(-5, 5),
        message=torch.from_numpy(raw["message"].copy()),
    )


class NetworkPlayer:
    """Draws actions from a network's policy; never the most likely one.

    On the CPU, what windows and messages contribute to the gates of a heavy network's core is
    remembered until the weights change.

    Args:
        source: Network in training, or a finished one. Its weights are copied by `refresh` and by
            nothing else.

    Attributes:
        network: The copy, in eval mode.
    """

    def __init__(self, source: NetHackNetwork) -> None:
        self._source = source
        self.network = copy.deepcopy(source).eval().requires_grad_(False)
        self._windows = _Memory(self.network.window_gates)
        self._messages = _Memory(self.network.message_gates)

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the source's weights, and its device."""
        self.network.to(self._source.device)
        old, new = self.network.state_dict(), self._source.state_dict()
        for name, value in old.items():
            value.copy_(new[name])
        self._windows.forget()
        self._messages.forget()

    def observe(self, raw: Mapping[str, Any]) -> NetHackObservations:
        """Return what the network sees of the engine's arrays."""
        return observe(raw)

    def initial_state(self, num_games: int) -> Tensor:
        """Return ``[E, S]`` zeros, on the network's device."""
        return torch.zeros(num_games, self.network.state_size, device=self.network.device)

    @torch.no_grad()
    def act(
        self,
        observations: NetHackObservations,
        state: Tensor,
        starts: Tensor,
        generator: torch.Generator,
    ) -> NetHackDecisions:
        """Draw an action for each game; see `NetHackPlayer.act`."""
        begins = starts.to(self.network.device).unsqueeze(0)
        found = self.network.outputs(self._gates(observations), state, begins)
        log_probs = found.logits[0].log_softmax(-1)
        places = torch.rand(len(log_probs), 1, generator=generator).to(log_probs.device)
        shares = log_probs.exp().cumsum(-1)
        actions = (places * shares[:, -1:] >= shares).sum(-1).clamp(max=shares.shape[1] - 1)
        taken = log_probs.gather(1, actions.unsqueeze(1))[:, 0]
        return NetHackDecisions(actions, taken, found.values[0], found.state)

    @torch.no_grad()
    def values(self, observations: NetHackObservations, state: Tensor) -> Tensor:
        """Return ``[E]`` values; see `NetHackPlayer.values`."""
        starts = torch.zeros(1, len(state), dtype=torch.bool, device=state.device)
        return self.network.outputs(self._gates(observations), state, starts).values[0]

    def _gates(self, observations: NetHackObservations) -> Tensor:
        """Return ``[1, E, G]``, the inputs' part of the gates."""
        if not self.network.is_heavy or self.network.device.type != "cpu":
            return self.network.input_gates(observations.to(self.network.device)).unsqueeze(0)
        gates = self.network.vector_gates(observations.vector)
        gates += self._windows(observations.window)
        gates += self._messages(observations.message)
        return gates.unsqueeze(0)


class _Memory:
    """A function of rows, computed once for each.

    Args:
        compute: ``[N, C]`` to ``[N, G]``.
    """

    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        self._compute = compute
        self._places: dict[bytes, int] = {}
        self._results = torch.zeros(0)

    def forget(self) -> None:
        """Compute everything anew from now on."""
        self._places.clear()

    def __call__(self, rows: Tensor) -> Tensor:
        """Return ``[E, G]`` for integer rows ``[E, C]`` on the CPU."""
        if len(self._places) > _REMEMBERED:
            self.forget()
        packed = rows.contiguous().numpy()
        content, size = packed.tobytes(), packed[0].nbytes
        places, index, new = self._places, [], []
        for number in range(len(packed)):
            key = content[number * size : (number + 1) * size]
            place = places.get(key)
            if place is None:
                place = places[key] = len(places)
                new.append(number)
            index.append(place)
        if new:
            self._add(self._compute(rows[new]))
        return self._results.index_select(0, torch.tensor(index))

    def _add(self, results: Tensor) -> None:
        """Keep what was computed last."""
        end = len(self._places)
        before = end - len(results)
        if end > len(self._results):
            grown = results.new_empty(max(2 * end, 256), results.shape[1])
            if before:
                grown[:before] = self._results[:before]
            self._results = grown
        self._results[before:end] = results
