"""Networks that play NetHack: encoders of the screen, a recurrent core, policy and value.

`ReleaseNetwork` is that of Motif's release, with its 2,795,640 parameters; `SmallNetwork` has a
seventh of them and a twentieth of its cost. On the CPU the release's computes what repeats in a
batch once: equal windows and equal messages, up to their part in the core's gates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from llm_agents.errors import UserError
from llm_agents.policies.nethack_convolutions import WindowEncoder
from llm_agents.policies.nethack_core import gru_sequence, lstm_sequence
from llm_agents.policies.nethack_sharing import distinct_rows
from llm_agents.policies.nethack_types import WINDOW, NetHackObservations, NetHackOutputs
from llm_agents.policies.nethack_window import NUM_KINDS

Core = Literal["gru", "lstm"]

NUM_STATS, MESSAGE_SIZE, NUM_ACTIONS = 27, 256, 23

_MANY = 256
"""Windows from which on a small encoder looks for equal ones."""

_TENTHS = (3, 4, 5, 6, 7, 8, 10, 11, 14, 15, 16, 18, 22)


def stat_scales() -> Tensor:
    """Return ``[27]``: what each number of the bottom line is multiplied by for a network.

    Zero hides a number: strength's other scale, score, depth, monster level, dungeon, level in it,
    condition and alignment.

    References:
        Motif (arXiv 2310.00166), as released.
    """
    scales = torch.zeros(NUM_STATS)
    scales[0], scales[1] = 1 / 79, 1 / 21
    scales[list(_TENTHS)] = 1 / 10
    scales[[13, 20]] = 1 / 1000
    scales[19], scales[21] = 1 / 100, 1.0
    return scales


class NetHackNetwork(nn.Module, ABC):
    """A recurrent actor-critic on windows, numbers and messages.

        x = [window's features, numbers' features, numbers, message's features]
        h' = core(x, h);   logits = W_π h' + b;   value = w_V h' + b

    Args:
        window_width: Features of the window.
        vector_width: Features of the numbers, and units of the layer below.
        message_width: Features of the message, and units of the layer below.
        hidden_size: H, units of the core.
        core: Gated recurrent unit or long short-term memory.
        num_actions: A.

    Attributes:
        is_heavy: Whether what is equal in a batch is looked for, up to its part in the gates.
    """

    is_heavy: bool

    def __init__(
        self,
        *,
        window_width: int,
        vector_width: int,
        message_width: int,
        hidden_size: int,
        core: Core,
        num_actions: int,
    ) -> None:
        super().__init__()
        if core not in get_args(Core):
            raise UserError(f"expected `core` gru or lstm, got {core!r}")
        if num_actions < 2 or hidden_size < 1:
            raise UserError(
                "expected `num_actions` of at least 2 and a `hidden_size` of at least 1, got "
                f"{num_actions} and {hidden_size}"
            )
        self.core_name, self.hidden_size, self.num_actions = core, hidden_size, num_actions
        self.widths = (window_width, vector_width, NUM_STATS, message_width)
        self.window = self.window_encoder(window_width)
        self.vector = _mlp(NUM_STATS, vector_width)
        self.message = _mlp(MESSAGE_SIZE, message_width)
        # Holds the parameters; `gru_sequence` and `lstm_sequence` compute.
        of_core: type[nn.GRU | nn.LSTM] = nn.GRU if core == "gru" else nn.LSTM
        self.core = of_core(sum(self.widths), hidden_size)
        self.policy_head = nn.Linear(hidden_size, num_actions)
        self.value_head = nn.Linear(hidden_size, 1)
        for layer in (*self.vector, *self.message, self.policy_head, self.value_head):
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight)
                nn.init.zeros_(layer.bias)

    @abstractmethod
    def window_encoder(self, width: int) -> nn.Module:
        """Return what turns windows ``[N, 144]`` into features ``[N, width]``."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""

    @property
    def state_size(self) -> int:
        """Return S, the numbers of the core's state."""
        return self.hidden_size * (2 if self.core_name == "lstm" else 1)

    @property
    def device(self) -> torch.device:
        """Return where the network computes."""
        return self.value_head.weight.device

    def forward(
        self, observations: NetHackObservations, state: Tensor, starts: Tensor
    ) -> NetHackOutputs:
        """Go over T steps of B games.

        Args:
            observations: Of shape ``[T, B]``.
            state: ``[B, S]``, before the first step.
            starts: ``[T, B]`` bool, True = first step of an episode: the state counts as zero.
        """
        flat = observations.map(lambda part: part.flatten(0, 1))
        gates = self.input_gates(flat).view(*starts.shape, -1)
        return self.outputs(gates, state, starts)

    def outputs(self, gates: Tensor, state: Tensor, starts: Tensor) -> NetHackOutputs:
        """Do what `forward` does from the inputs' part of the gates on, ``[T, B, G]``."""
        run = gru_sequence if self.core_name == "gru" else lstm_sequence
        hidden, state = run(
            gates, state, starts, self._core("weight_hh_l0"), self._core("bias_hh_l0")
        )
        values = self.value_head(hidden)[..., 0]
        return NetHackOutputs(self.policy_head(hidden).float(), values.float(), state)

    def input_gates(self, observations: NetHackObservations) -> Tensor:
        """Return ``[N, G]``, the inputs' part of the core's gates, from N observations."""
        if not self.is_heavy or self.device.type != "cpu":
            features = torch.cat(
                [
                    self.window(observations.window),
                    self.vector(observations.vector),
                    observations.vector,
                    self.message(observations.message.float() / 255),
                ],
                1,
            )
            return nn.functional.linear(
                features, self._core("weight_ih_l0"), self._core("bias_ih_l0")
            )
        gates = self.vector_gates(observations.vector)
        for part, table in (
            (self.window_gates, observations.window),
            (self.message_gates, observations.message),
        ):
            shared = distinct_rows(table)
            gates = gates + part(table[shared.first]).index_select(0, shared.kinds)
        return gates

    def window_gates(self, window: Tensor) -> Tensor:
        """Return ``[N, G]``, what windows ``[N, 144]`` contribute to the gates."""
        weight = self._input_weights()[0]
        return nn.functional.linear(self.window(window), weight)

    def vector_gates(self, vector: Tensor) -> Tensor:
        """Return ``[N, G]``, what numbers ``[N, 27]`` contribute, and the gates' bias."""
        _, of_features, of_numbers, _ = self._input_weights()
        inputs = torch.cat([self.vector(vector), vector], 1)
        weight = torch.cat([of_features, of_numbers], 1)
        return nn.functional.linear(inputs, weight, self._core("bias_ih_l0"))

    def message_gates(self, message: Tensor) -> Tensor:
        """Return ``[N, G]``, what messages ``[N, 256]`` contribute to the gates."""
        weight = self._input_weights()[3]
        return nn.functional.linear(self.message(message.float() / 255), weight)

    def _input_weights(self) -> tuple[Tensor, ...]:
        """Return the columns of the core's input weights for each part of the inputs."""
        return torch.split(self._core("weight_ih_l0"), list(self.widths), dim=1)

    def _core(self, name: str) -> Tensor:
        """Return a parameter of the core."""
        return self.core.get_parameter(name)


class ReleaseNetwork(NetHackNetwork):
    """The network of Motif's release: 2,795,640 parameters for 23 actions.

    Orthogonal start of the small branches and the heads; the convolutions and the core start as
    torch has it.

    Args:
        core: Gated recurrent unit, or long short-term memory as an option.
        num_actions: A.

    References:
        Motif (arXiv 2310.00166), as released. Differs: the characters' font, see `glyph_atlas`.
    """

    is_heavy = True

    def __init__(self, core: Core = "gru", num_actions: int = NUM_ACTIONS) -> None:
        super().__init__(
            window_width=512,
            vector_width=128,
            message_width=128,
            hidden_size=512,
            core=core,
            num_actions=num_actions,
        )

    def window_encoder(self, width: int) -> nn.Module:
        """Return the image branch."""
        return WindowEncoder(width)

    def describe(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {"core": self.core_name, "num_actions": self.num_actions}


class SmallNetwork(NetHackNetwork):
    """A network that learns on a laptop's time: no convolutions, a small core.

    Args:
        hidden_size: Units of the core, and twice the units of each branch.
        core: Gated recurrent unit or long short-term memory.
        num_actions: A.
    """

    is_heavy = False

    def __init__(
        self, hidden_size: int = 128, core: Core = "gru", num_actions: int = NUM_ACTIONS
    ) -> None:
        super().__init__(
            window_width=hidden_size,
            vector_width=max(hidden_size // 2, 1),
            message_width=max(hidden_size // 2, 1),
            hidden_size=hidden_size,
            core=core,
            num_actions=num_actions,
        )

    def window_encoder(self, width: int) -> nn.Module:
        """Return a layer on the characters' codes."""
        return CodeEncoder(width)

    def describe(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {
            "hidden_size": self.hidden_size,
            "core": self.core_name,
            "num_actions": self.num_actions,
        }


class CodeEncoder(nn.Module):
    """One layer on fixed random codes of a window's characters.

    A character has eight numbers and its color four, all normal; a blank has zeros. They don't
    train: the layer can tell kinds apart by them in each place.

    Args:
        width: Units of the layer.
    """

    codes: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        characters = torch.randn(256, 8, generator=generator)
        colors = torch.randn(16, 4, generator=generator)
        kinds = torch.arange(NUM_KINDS)
        codes = torch.cat([characters[kinds & 255], colors[kinds >> 8]], 1)
        codes[((kinds & 255) == 32) | ((kinds & 255) == 0)] = 0
        self.register_buffer("codes", codes)
        self.output = nn.Linear(WINDOW * WINDOW * codes.shape[1], width)

    def forward(self, window: Tensor) -> Tensor:
        """Return ``[N, width]`` from windows ``[N, 144]``; equal ones once, if there are many."""
        if len(window) >= _MANY and window.device.type == "cpu":
            shared = distinct_rows(window)
            return self.encode(window[shared.first]).index_select(0, shared.kinds)
        return self.encode(window)

    def encode(self, window: Tensor) -> Tensor:
        """Do the same without looking for equal windows."""
        codes = self.codes.index_select(0, window.flatten().int()).view(len(window), -1)
        return nn.functional.elu(self.output(codes))


def _mlp(inputs: int, width: int) -> nn.Sequential:
    """Return two layers with ELU after each."""
    return nn.Sequential(nn.Linear(inputs, width), nn.ELU(), nn.Linear(width, width), nn.ELU())
