"""Fit of the reference's value: from a prompt to the reward of what the reference answers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from llm_agents.errors import UserError
from llm_agents.job_progress import job_progress
from llm_agents.methods.pieces import Pieces
from llm_agents.policies.heads import ValueHead


@dataclass(frozen=True)
class ValueFitConfig:
    """How the value head is fitted (AdamW without decay, clipping or schedule).

    Args:
        epochs: Passes over the validation prompts; the one with the lowest training error is kept.
        lr: Learning rate. The authors' 1e-5 serves small models too; 1e-3 drives the sigmoid of a
            head 576 wide into saturation, where it stays.
        batch_size: Prompts an update.
        betas: Decay of AdamW's moments.
        eps: AdamW's epsilon.
        num_heads: Attention heads of the value head.
        dropout: Of the value head, while it is fitted only.
        seed: Of initial weights, order and dropout.
    """

    epochs: int = 10
    lr: float = 1e-5
    batch_size: int = 16
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    num_heads: int = 8
    dropout: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "lr"):
            if not getattr(self, name) > 0:
                raise UserError(f"expected `value.{name}` above 0, got {getattr(self, name)}")


@dataclass(frozen=True)
class ValueFit:
    """A fitted value head.

    Args:
        head: The kept epoch's head, in eval mode on the CPU.
        epoch_mse: Training error of each epoch, dropout on, as a running mean.
        target_variance: Error of the best constant; a fit that stays above it has learned nothing.
    """

    head: ValueHead
    epoch_mse: tuple[float, ...]
    target_variance: float

    @property
    def kept_epoch(self) -> int:
        """Return the number of the kept epoch, from 0."""
        return self.epoch_mse.index(min(self.epoch_mse))


def fit_value_head(
    states: Sequence[Tensor],
    targets: Tensor,
    *,
    max_value: float,
    config: ValueFitConfig,
    device: torch.device | str = "cpu",
    pieces: Pieces | None = None,
) -> ValueFit:
    """Fit a fresh value head to one reward a prompt by mean squared error.

    The random state outside is left alone.

    Args:
        states: ``[Q, H]`` frozen hidden states of each prompt, real tokens only.
        targets: ``[N]`` reward of the reference's answer to each, in the same order.
        max_value: Upper bound of the rewards.
        config: Epochs, learning rate, seed.
        device: Where the fit runs.
        pieces: Holds the last epoch of a fit that was cut short, and gets each new one.

    Returns:
        The head of the epoch with the lowest training error.
    """
    if len(states) != len(targets):
        raise ValueError(
            f"expected one target for each of {len(states)} prompts, got {len(targets)}"
        )
    device = torch.device(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        head = ValueHead(states[0].shape[-1], config.num_heads, max_value, config.dropout)
        head.to(device).train()
        optimizer = torch.optim.AdamW(
            head.parameters(), lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=0.0
        )
        errors: list[float] = []
        best = copy.deepcopy(head)
        if pieces is not None and (known := pieces.find("epoch")) is not None:
            errors = _restore(known, head, best, optimizer)
        total = config.epochs * len(states)
        with job_progress("value fit · prompts", total) as advance:
            advance(len(errors) * len(states))
            for _ in range(len(errors), config.epochs):
                errors.append(
                    _epoch(head, optimizer, states, targets, config.batch_size, device, advance)
                )
                if errors[-1] == min(errors):
                    best = copy.deepcopy(head)
                if pieces is not None:
                    pieces.keep("epoch", _state(head, best, optimizer, errors))
    variance = float(targets.var(correction=0)) if len(targets) else 0.0
    return ValueFit(best.cpu().eval(), tuple(errors), variance)


def _epoch(
    head: ValueHead,
    optimizer: torch.optim.Optimizer,
    states: Sequence[Tensor],
    targets: Tensor,
    batch_size: int,
    device: torch.device,
    advance: Callable[[int], None],
) -> float:
    """Train for one shuffled pass and return its mean squared error."""
    total = 0.0
    for chosen in torch.split(torch.randperm(len(states)), batch_size):
        hidden, mask = pad_states([states[int(row)] for row in chosen])
        loss = mse_loss(head(hidden.to(device), mask.to(device)), targets[chosen].to(device))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        total += float(loss.detach()) * len(chosen)
        advance(len(chosen))
    return total / len(states)


def _state(
    head: ValueHead, best: ValueHead, optimizer: torch.optim.Optimizer, errors: Sequence[float]
) -> dict[str, Tensor]:
    """Return a fit after an epoch as tensors: both heads, moments, random numbers, errors."""
    found = {f"head.{name}": value for name, value in head.state_dict().items()}
    found |= {f"best.{name}": value for name, value in best.state_dict().items()}
    for number, moments in optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{number}.{name}": value for name, value in moments.items()}
    device = next(head.parameters()).device
    found["rng"] = torch.get_rng_state()
    if device.type == "cuda":
        found["rng_cuda"] = torch.cuda.get_rng_state(device)
    # Parts are taken as they are now: training goes on in place.
    found = {name: value.detach().clone() for name, value in found.items()}
    return {**found, "errors": torch.tensor(errors, dtype=torch.float64)}


def _restore(
    known: Mapping[str, Tensor], head: ValueHead, best: ValueHead, optimizer: torch.optim.Optimizer
) -> list[float]:
    """Bring a fit to where `_state` left it, and return its errors so far."""

    def part(kind: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(f"{kind}."): value
            for name, value in known.items()
            if name.startswith(f"{kind}.")
        }

    head.load_state_dict(part("head"))
    best.load_state_dict(part("best"))
    state = optimizer.state_dict()
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in part("optimizer").items():
        number, _, key = name.partition(".")
        moments.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({**state, "state": moments})
    torch.set_rng_state(known["rng"])
    if "rng_cuda" in known:
        torch.cuda.set_rng_state(known["rng_cuda"], next(head.parameters()).device)
    return [float(error) for error in known["errors"]]


def pad_states(states: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return ``[B, Q, H]`` float32 states padded on the right, and their ``[B, Q]`` bool mask."""
    hidden = torch.nn.utils.rnn.pad_sequence([rows.float() for rows in states], batch_first=True)
    lengths = torch.tensor([len(rows) for rows in states])
    return hidden, torch.arange(hidden.shape[1]) < lengths[:, None]
