"""DPO: direct preference optimization (Rafailov et al., 2023), a baseline of A-LoL.

The first response of each prompt is preferred to each of the others. Chosen and rejected go through
the policy in one pass; the reference's log-probs are computed once, before training.

Equation → function (``llm_agents.functional.preference``):

- equation 7: −log σ(β [(log π(c) − log π_ref(c)) − (log π(r) − log π_ref(r))]) → `dpo_loss`

Differs from the A-LoL authors' code: the reference is computed once; losses are averaged over
accumulated batches.

    lightning run recipes/dpo_hha.yaml
"""

from __future__ import annotations

from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.functional.preference import DpoLoss, dpo_loss
from llm_agents.methods.offline import OfflineModule
from llm_agents.methods.preparation import PerToken, Reference
from llm_agents.methods.settings import OfflineOptions, OptimizerConfig
from llm_agents.policies import LanguagePolicy
from llm_agents.types import GenerationConfig, RankedBatch, Reward


class DPO(OfflineModule):
    """Learns to prefer the first response of a prompt to the others.

    Args:
        policy: What is trained; its start is the reference.
        reward: Judges answers to the validation prompts; None validates by negative log-likelihood.
        beta: Temperature: how dear it is to leave the reference.
        reference_free: Take a uniform reference.
        optimizer: How parameters are updated.
        generation: How validation answers are generated.
        options: Settings that all offline methods share.
    """

    batch_layout = "ranked"

    def __init__(
        self,
        policy: LanguagePolicy,
        reward: Reward | None = None,
        beta: float = 0.1,
        reference_free: bool = False,
        optimizer: OptimizerConfig | None = None,
        generation: GenerationConfig | None = None,
        options: OfflineOptions | None = None,
    ) -> None:
        super().__init__(policy, reward, optimizer, generation, options)
        if not beta > 0:
            raise UserError(f"expected `beta` above 0, got {beta}")
        self.beta, self.reference_free = beta, reference_free
        self.ref_log_probs: PerToken | None = None
        self.save_settings(beta=beta, reference_free=reference_free)

    def prepare(self, reference: Reference) -> float:
        """Compute the reference's log-probs of all responses."""
        if not self.reference_free:
            self.ref_log_probs = reference.log_probs()
        return 1.0

    def losses(self, batch: RankedBatch) -> DpoLoss:
        """Return the loss on a batch of prompts with K responses each."""
        tokens, num_responses = batch.tokens, batch.num_responses
        if num_responses < 2:
            raise UserError("DPO needs at least two responses a prompt, the data have one")
        chosen, rejected = pairs(self.policy.sequence_log_probs(tokens), num_responses)
        if self.ref_log_probs is None:
            ref_chosen, ref_rejected = None, None
        else:
            ref = self.ref_log_probs.gather(tokens.rows, tokens.response_mask).sum(1)
            ref_chosen, ref_rejected = pairs(ref, num_responses)
        return dpo_loss(
            chosen=chosen,
            rejected=rejected,
            ref_chosen=ref_chosen,
            ref_rejected=ref_rejected,
            beta=self.beta,
            reference_free=self.reference_free,
        )


def pairs(numbers: Tensor, num_responses: int) -> tuple[Tensor, Tensor]:
    """Return the first response's number beside each other's, ``[B · (K − 1)]`` twice.

    Args:
        numbers: ``[B · K]``, response after response, prompt after prompt.
        num_responses: K.
    """
    table = numbers.view(-1, num_responses)
    return table[:, :1].expand(-1, num_responses - 1).flatten(), table[:, 1:].flatten()
