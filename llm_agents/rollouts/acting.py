"""An agent as the TensorDict module that TorchRL's collectors drive."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from llm_agents.rollouts.seeds import Purpose, derived_seed
from llm_agents.rollouts.worlds import choices_of
from llm_agents.types import Agent


class AgentModule(TensorDictModuleBase):  # type: ignore[misc]  # tensordict has no types
    """Decides for worlds that step together.

    Reads ``prompt``, ``actions`` and ``world``, writes ``action`` ``[E]`` int64 and, each
    ``[E, L]``, ``log_probs``, ``values`` and ``unit_mask``; L may differ from step to step. The
    agent's draws begin anew with every rollout, from a seed made of the rollout's number: a run
    that goes on after an interruption needs no state of theirs.

    Args:
        agent: Decides. No submodule: TorchRL would handle its weights, the frozen ones too.
        seed: Of the run.
        rank: Process of the training.
        num_steps: Decisions of a rollout.
        number: Of the rollout that comes first.
        has_foreign_weights: Whether another process trains the agent, in memory that both share:
            what the agent remembers is dropped when a rollout begins, since changes by another
            process leave no trace in this one.
    """

    in_keys = ("prompt", "actions", "world")
    out_keys = ("action", "log_probs", "values", "unit_mask")

    def __init__(
        self,
        agent: Agent,
        *,
        seed: int,
        rank: int,
        num_steps: int,
        number: int = 0,
        has_foreign_weights: bool = False,
    ) -> None:
        super().__init__()
        self._agent = (agent,)
        self.seed, self.rank = seed, rank
        self.num_steps = num_steps
        self.has_foreign_weights = has_foreign_weights
        self._number, self._step = number, 0
        self._generator: torch.Generator | None = None

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the decisions into `tensordict`, in main memory, where the worlds are."""
        if self._generator is None:
            self._generator = self._begin(int(tensordict.get("world").view(-1)[0]))
        decisions = self._agent[0].act(choices_of(tensordict), self._generator).to("cpu")
        tensordict.set("action", decisions.index)
        tensordict.set("log_probs", decisions.log_probs)
        tensordict.set("values", decisions.values)
        tensordict.set("unit_mask", decisions.mask)
        self._step += 1
        if self._step == self.num_steps:
            self._number, self._step, self._generator = self._number + 1, 0, None
        return tensordict

    def _begin(self, first_world: int) -> torch.Generator:
        """Return the source of a rollout's draws; `first_world` tells the processes apart."""
        if self.has_foreign_weights:
            agent = self._agent[0]
            changed = getattr(getattr(agent, "policy", agent), "parameters_changed", None)
            if changed is not None:
                changed()
        own = derived_seed(self.seed, Purpose.DRAWS, self.rank, first_world, self._number)
        return torch.Generator().manual_seed(own)
