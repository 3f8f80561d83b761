"""TWOSOME: PPO whose actions are the texts that the world offers (Tan et al., ICLR 2024).

A language model scores every offered action, the scores are divided by the action's length, and a
softmax over the list is the policy; one action is one step of PPO. Long actions are not punished
for their length, and whatever the model would rather say than an action doesn't count. A critic
reads the state of the prompt's last token, of the model without adapters.

Equation → function (``llm_agents.functional``):

- z_k = Σ_j log P(w_kj | prompt, w_k<j) / L_k, with L_k = 1, tokens or words → `normalize_scores`
- π(a_k | prompt) = softmax_k(z_k) → `list_log_probs`
- δ_t = r_t + γ^k V(o_{t+1}) − V(o_t), k primitive steps of a macro action → `gae`

Differs from the authors' code: the critic reads the last token of each prompt, where theirs reads
the last column of a padded batch; prompt and action are encoded together, where theirs counts the
tokens of the action alone; adapters are float32, so that the published learning rates, which belong
to AdamW in float16, don't apply.

    lightning run recipes/twosome_overcooked_tomato_salad.yaml
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from llm_agents.functional.action_scores import Normalization, list_log_probs
from llm_agents.functional.gae import Advantages
from llm_agents.methods.online_ppo import OnlinePPO, expect_frozen_base
from llm_agents.methods.ppo_losses import Units
from llm_agents.methods.ppo_settings import PPOConfig
from llm_agents.methods.whole_actions import action_advantages, action_units
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.action_types import ActionScores
from llm_agents.types import Choice, Rollout


class TWOSOME(OnlinePPO):
    """PPO on whole actions, scored by a language model and normalized by their length.

    Args:
        policy: What acts; its adapter trains, and the critic reads the frozen base.
        normalization: Length that an action's log-prob is divided by: ``sum`` 1, ``token`` its
            tokens, ``word`` its words.
        ppo: The numbers of the update.
        critic_widths: Hidden widths of the critic.
    """

    def __init__(
        self,
        policy: LanguagePolicy,
        normalization: Normalization = "word",
        ppo: PPOConfig | None = None,
        critic_widths: tuple[int, ...] = (1024, 512),
    ) -> None:
        expect_frozen_base(policy)
        super().__init__(policy, normalization, ppo, critic_widths)
        self.save_settings(normalization=normalization, critic_widths=tuple(critic_widths))

    def units(self, choices: Sequence[Choice], scores: ActionScores) -> Units:
        """Return the softmax over each list: an action is one unit."""
        del choices
        return action_units(list_log_probs(scores.scores, scores.mask), scores.mask)

    def unit_states(self, choices: Sequence[Choice], index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the state of each prompt's last token."""
        states = self.policy.base_features(choices).prompt_states[:, None]
        return states, index.new_ones((len(index), 1)).bool()

    def assign(self, rollout: Rollout) -> Advantages:
        """Return the advantages of whole actions."""
        return action_advantages(rollout, self.ppo)
