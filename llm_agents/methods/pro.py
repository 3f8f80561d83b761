"""PRO: preference ranking optimization (Song et al., 2023), a baseline of A-LoL.

Each response should be likelier, per token, than all that rank below it, the more so the further
its reward lies above theirs; the first is learned by likelihood besides.

Equation → function (``llm_agents.functional.preference``):

- equations 6 to 8: ranking terms with temperatures from raw rewards, and λ · NLL → `pro_loss`

Responses rank in the order of the data; where that contradicts the rewards a temperature is
negative, as in the authors' code (`rules.rank_by: reward` orders them).

Differs from the A-LoL authors' copy of it: the scored tokens are the response's own; theirs are
shifted by one.

    lightning run recipes/pro_hha.yaml
"""

from __future__ import annotations

from llm_agents.errors import UserError
from llm_agents.functional.preference import ProLoss, pro_loss
from llm_agents.methods.offline import OfflineModule
from llm_agents.methods.preparation import Reference, training_rewards
from llm_agents.methods.settings import OfflineOptions, OptimizerConfig
from llm_agents.policies import LanguagePolicy
from llm_agents.types import GenerationConfig, RankedBatch, Reward


class PRO(OfflineModule):
    """Learns to rank the responses of a prompt in the order of the data.

    Args:
        policy: What is trained; its start is the reference of the validation.
        reward: Judges answers to the validation prompts; None validates by negative log-likelihood.
        sft_weight: Weight of the likelihood of the first response; it is multiplied by (K − 1)².
        optimizer: How parameters are updated.
        generation: How validation answers are generated.
        options: Settings that all offline methods share.
    """

    batch_layout = "ranked"

    def __init__(
        self,
        policy: LanguagePolicy,
        reward: Reward | None = None,
        sft_weight: float = 0.05,
        optimizer: OptimizerConfig | None = None,
        generation: GenerationConfig | None = None,
        options: OfflineOptions | None = None,
    ) -> None:
        super().__init__(policy, reward, optimizer, generation, options)
        if not sft_weight >= 0:
            raise UserError(f"expected `sft_weight` from 0, got {sft_weight}")
        self.sft_weight = sft_weight
        self.save_settings(sft_weight=sft_weight)

    def prepare(self, reference: Reference) -> float:
        """Check that every response has a reward."""
        training_rewards(reference.source, None, reference.cache, scored_by_model=False)
        return 1.0

    def losses(self, batch: RankedBatch) -> ProLoss:
        """Return the loss on a batch of prompts with K responses each."""
        tokens, num_responses = batch.tokens, batch.num_responses
        if num_responses < 2:
            raise UserError("PRO needs at least two responses a prompt, the data have one")
        return pro_loss(
            sequence_log_probs=self.policy.sequence_log_probs(tokens).view(-1, num_responses),
            lengths=tokens.response_mask.sum(1).view(-1, num_responses),
            rewards=batch.rewards,
            sft_index=0,
            sft_weight=self.sft_weight,
        )
