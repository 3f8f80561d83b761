"""Test prompts or worlds in, numbers with intervals out; tables and pictures of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_agents.public_names import on_first_use

if TYPE_CHECKING:
    from llm_agents.evaluation.baselines import RandomAgent, ZeroShotAgent
    from llm_agents.evaluation.comparison import PairedDifference, combine_seeds, compare
    from llm_agents.evaluation.episode_tables import episodes_table
    from llm_agents.evaluation.episodes import (
        EpisodeResults,
        World,
        WorldResult,
        evaluate_agent,
        read_episode_results,
        write_episode_results,
    )
    from llm_agents.evaluation.intervals import BootstrapConfig, Interval, bootstrap_mean, share
    from llm_agents.evaluation.message_reward import (
        MessageRewardResults,
        RankedMessage,
        evaluate_message_reward,
        message_reward_table,
        read_message_reward_results,
        write_message_reward_results,
    )
    from llm_agents.evaluation.meteor import MeteorWeights, meteor_score
    from llm_agents.evaluation.nethack import (
        GamesResult,
        GamesResults,
        evaluate_games,
        read_games_results,
        write_games_results,
    )
    from llm_agents.evaluation.nethack_tables import compare_games, games_table
    from llm_agents.evaluation.pictures import (
        CreditPicture,
        Curve,
        DecisionPicture,
        plot_credit,
        plot_curves,
        plot_decisions,
        read_curve,
    )
    from llm_agents.evaluation.policy import evaluate_policy, mean_scores, rescore
    from llm_agents.evaluation.report import (
        AnyResults,
        comparison_table,
        plot_results,
        print_table,
        read_any_results,
        results_table,
        write_results,
    )
    from llm_agents.evaluation.results import (
        Answer,
        GoldResult,
        Results,
        RewardDescription,
        TestSetResult,
        read_results,
    )
    from llm_agents.evaluation.results import write_results as write_numbers
    from llm_agents.evaluation.reward_model import (
        RewardAgreement,
        RewardResults,
        evaluate_reward,
        read_reward_results,
    )
    from llm_agents.evaluation.text_metrics import coverage, density, distinct_n, num_words

__all__ = [
    "Answer",
    "AnyResults",
    "BootstrapConfig",
    "CreditPicture",
    "Curve",
    "DecisionPicture",
    "EpisodeResults",
    "GamesResult",
    "GamesResults",
    "GoldResult",
    "Interval",
    "MessageRewardResults",
    "MeteorWeights",
    "PairedDifference",
    "RandomAgent",
    "RankedMessage",
    "Results",
    "RewardAgreement",
    "RewardDescription",
    "RewardResults",
    "TestSetResult",
    "World",
    "WorldResult",
    "ZeroShotAgent",
    "bootstrap_mean",
    "combine_seeds",
    "compare",
    "compare_games",
    "comparison_table",
    "coverage",
    "density",
    "distinct_n",
    "episodes_table",
    "evaluate_agent",
    "evaluate_games",
    "evaluate_message_reward",
    "evaluate_policy",
    "evaluate_reward",
    "games_table",
    "mean_scores",
    "message_reward_table",
    "meteor_score",
    "num_words",
    "plot_credit",
    "plot_curves",
    "plot_decisions",
    "plot_results",
    "print_table",
    "read_any_results",
    "read_curve",
    "read_episode_results",
    "read_games_results",
    "read_message_reward_results",
    "read_results",
    "read_reward_results",
    "rescore",
    "results_table",
    "share",
    "write_episode_results",
    "write_games_results",
    "write_message_reward_results",
    "write_numbers",
    "write_results",
]

__getattr__, __dir__ = on_first_use(__name__, __file__)
