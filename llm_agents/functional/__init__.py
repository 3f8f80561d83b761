"""The mathematics: pure functions of tensors, with no default for any coefficient."""

from __future__ import annotations

from llm_agents.functional.advantage import (
    SAMPLING_STRATEGIES,
    AdvantageStatistics,
    SamplingCriterion,
    SamplingStrategy,
    advantage_statistics,
    advantages,
    leftover_advantages,
    positive_share,
    sampling_weights,
)
from llm_agents.functional.log_probs import (
    gather_log_probs,
    response_log_probs,
    sequence_log_probs,
)
from llm_agents.functional.lol import (
    ALGORITHMS,
    Algorithm,
    a_lol_kl_loss,
    a_lol_loss,
    a_lol_ref_free_loss,
    a_lol_seq_loss,
    lol_loss,
    needs_reference,
    needs_value,
    nll_loss,
    r_gold_loss,
    r_lol_loss,
    wbc_loss,
)
from llm_agents.functional.masked import masked_mean, masked_sum, masked_var, masked_whiten
from llm_agents.functional.preference import (
    DpoLoss,
    PreferenceLoss,
    ProLoss,
    RegressionLoss,
    bradley_terry_loss,
    dpo_loss,
    pro_loss,
    regression_loss,
)
from llm_agents.functional.weighted_nll import LolLoss, clipped_ratio

__all__ = [
    "ALGORITHMS",
    "SAMPLING_STRATEGIES",
    "AdvantageStatistics",
    "Algorithm",
    "DpoLoss",
    "LolLoss",
    "PreferenceLoss",
    "ProLoss",
    "RegressionLoss",
    "SamplingCriterion",
    "SamplingStrategy",
    "a_lol_kl_loss",
    "a_lol_loss",
    "a_lol_ref_free_loss",
    "a_lol_seq_loss",
    "advantage_statistics",
    "advantages",
    "bradley_terry_loss",
    "clipped_ratio",
    "dpo_loss",
    "gather_log_probs",
    "leftover_advantages",
    "lol_loss",
    "masked_mean",
    "masked_sum",
    "masked_var",
    "masked_whiten",
    "needs_reference",
    "needs_value",
    "nll_loss",
    "positive_share",
    "pro_loss",
    "r_gold_loss",
    "r_lol_loss",
    "regression_loss",
    "response_log_probs",
    "sampling_weights",
    "sequence_log_probs",
    "wbc_loss",
]
