"""Recurrent cores on sequences in which episodes begin.

The inputs' part of the gates is computed for all steps at once, outside; what is left for each step
is one product with the state. `gru_sequence` has its own backward pass: the gradient of the state's
weights is one product over all steps instead of one a step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from llm_agents.functional.shapes import check_shape


def gru_sequence(
    gates: Tensor, state: Tensor, starts: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Run a gated recurrent unit over sequences; the state is zero where an episode starts.

        r = σ(a_r + W_r h + b_r),  z = σ(a_z + W_z h + b_z),  n = tanh(a_n + r · (W_n h + b_n))
        h' = (1 − z) · n + z · h

    Args:
        gates: ``[T, B, 3H]``, the inputs' part a with its bias, in the order r, z, n.
        state: ``[B, H]``, before the first step.
        starts: ``[T, B]`` bool, True = first step of an episode.
        weight: ``[3H, H]``, of the state, as `torch.nn.GRU` has it.
        bias: ``[3H]``.

    Returns:
        ``[T, B, H]`` states after each step, and the last of them, ``[B, H]``.

    Raises:
        ValueError: The shapes don't fit together.
    """
    _check(gates, state, starts, 3)
    with torch.autocast(gates.device.type, enabled=False):  # a state sums up small steps
        gates, state = gates.to(weight.dtype), state.to(weight.dtype)
        keep = (~starts).to(gates.dtype).unsqueeze(-1)
        if torch.is_grad_enabled():
            outputs: Tensor = _GRU.apply(  # type: ignore[no-untyped-call]  # torch's own
                gates, state, keep, weight, bias
            )
        else:
            outputs = _gru_states(gates, state, keep, weight, bias)
    return outputs, outputs[-1]


def _gru_states(gates: Tensor, state: Tensor, keep: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the states after each step, and keep nothing else."""
    size = state.shape[-1]
    transposed = weight.t()
    outputs = []
    for step in range(len(gates)):
        state = state * keep[step]
        own = torch.addmm(bias, state, transposed)
        reset, update = (gates[step, :, : 2 * size] + own[:, : 2 * size]).sigmoid().chunk(2, -1)
        new = torch.addcmul(gates[step, :, 2 * size :], reset, own[:, 2 * size :]).tanh_()
        state = torch.lerp(new, state, update)
        outputs.append(state)
    return torch.stack(outputs)


class _GRU(torch.autograd.Function):
    """`gru_sequence` with its gradient."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  (torch's own)
        gates: Tensor,
        state: Tensor,
        keep: Tensor,
        weight: Tensor,
        bias: Tensor,
    ) -> Tensor:
        size = state.shape[-1]
        before, reset, update, new, own_new, outputs = (
            gates.new_empty(*gates.shape[:2], size) for _ in range(6)
        )
        transposed = weight.t()
        for step in range(len(gates)):
            torch.mul(state, keep[step], out=before[step])
            own = torch.addmm(bias, before[step], transposed)
            torch.add(gates[step, :, :size], own[:, :size], out=reset[step]).sigmoid_()
            torch.add(
                gates[step, :, size : 2 * size], own[:, size : 2 * size], out=update[step]
            ).sigmoid_()
            own_new[step] = own[:, 2 * size :]
            torch.addcmul(gates[step, :, 2 * size :], reset[step], own_new[step], out=new[step])
            new[step].tanh_()
            state = torch.lerp(new[step], before[step], update[step], out=outputs[step])
        ctx.save_for_backward(before, reset, update, new, own_new, keep, weight)
        return outputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        before, reset, update, new, own_new, keep, weight = ctx.saved_tensors
        size = before.shape[-1]
        # What the gradient of a state is multiplied by on its way to each gate.
        to_new = (1 - update) * (1 - new * new)
        to_update = (before - new) * update * (1 - update)
        to_reset = own_new * reset * (1 - reset)
        of_own = grad.new_empty(*grad.shape[:2], 3 * size)
        of_gates_new = torch.empty_like(grad)
        carried = torch.zeros_like(grad[0])
        for step in reversed(range(len(grad))):
            total = carried + grad[step]
            through = torch.mul(total, to_new[step], out=of_gates_new[step])
            torch.mul(through, to_reset[step], out=of_own[step, :, :size])
            torch.mul(total, to_update[step], out=of_own[step, :, size : 2 * size])
            torch.mul(through, reset[step], out=of_own[step, :, 2 * size :])
            carried = torch.addmm(total * update[step], of_own[step], weight).mul_(keep[step])
        of_gates = torch.cat([of_own[..., : 2 * size], of_gates_new], -1)
        flat = of_own.flatten(0, 1)
        of_weight = flat.t() @ before.flatten(0, 1)
        return of_gates, carried, None, of_weight, flat.sum(0)


def lstm_sequence(
    gates: Tensor, state: Tensor, starts: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Run a long short-term memory over sequences; the state is zero where an episode starts.

        i, f, g, o = a + W h + b;   c' = σ(f) · c + σ(i) · tanh(g);   h' = σ(o) · tanh(c')

    Args:
        gates: ``[T, B, 4H]``, the inputs' part a with its bias, in the order i, f, g, o.
        state: ``[B, 2H]``, h and c before the first step.
        starts: ``[T, B]`` bool, True = first step of an episode.
        weight: ``[4H, H]``, of h, as `torch.nn.LSTM` has it.
        bias: ``[4H]``.

    Returns:
        ``[T, B, H]``, h after each step, and the last state, ``[B, 2H]``.

    Raises:
        ValueError: The shapes don't fit together.
    """
    size = weight.shape[-1]
    _check(gates, state[:, :size], starts, 4)
    keep = (~starts).to(gates.dtype).unsqueeze(-1)
    hidden, cell = state[:, :size], state[:, size:]
    transposed = weight.t()
    outputs = []
    for step in range(len(gates)):
        hidden, cell = hidden * keep[step], cell * keep[step]
        entry, forget, new, exit_ = (gates[step] + torch.addmm(bias, hidden, transposed)).chunk(
            4, -1
        )
        cell = forget.sigmoid() * cell + entry.sigmoid() * new.tanh()
        hidden = exit_.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs), torch.cat([hidden, cell], -1)


def _check(gates: Tensor, state: Tensor, starts: Tensor, num_gates: int) -> None:
    """Raise unless steps, rows and widths agree."""
    cure = "give one row of the state for each sequence"
    rows = torch.Size([gates.shape[1], gates.shape[2] // num_gates])
    check_shape("state", state, rows, "the rows of `gates`", cure)
    check_shape("starts", starts, gates.shape[:2], "`gates`", "give one start for each step")
