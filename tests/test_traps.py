"""What online learning with language models gets wrong elsewhere, and the test that holds us to it.

Each row names the tests of one trap, or says why there is nothing to test.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trap_lists import missing_tests

TRAPS: dict[str, tuple[str, ...]] = {
    "logits at a place predict the token after it": (
        "functional/test_log_probs.py::test_the_prompts_last_position_predicts_the_first_response_token",
        "functional/test_log_probs.py::test_positions_one_to_the_right_are_another_number",
        "policies/test_action_families.py::test_scores_are_those_of_single_sequences",
    ),
    "actions are tokenized behind a blank, not bare": (
        "policies/test_action_text.py::test_actions_of_a_real_tokenizer_are_neither_bare_nor_cut",
        "policies/test_action_text.py::test_the_ids_are_those_of_the_text_as_a_whole",
    ),
    "no token is taken off for a begin token that is not there": (
        "policies/test_action_text.py::test_actions_of_a_real_tokenizer_are_neither_bare_nor_cut",
        "policies/test_action_text.py::test_tokens_that_the_boundary_changes_are_the_actions",
    ),
    "words are what blanks part": (
        "policies/test_action_text.py::test_words_are_what_blanks_part",
    ),
    "the length divides the logarithm": (
        "functional/test_action_scores.py::test_the_length_divides_the_logarithm",
        "functional/test_action_scores.py::test_worked_log_probs",
    ),
    "the critic reads a prompt's own last token": (
        "methods/test_online_ppo.py::test_the_value_does_not_depend_on_the_adapter_or_the_batch",
        "policies/test_state_value.py::test_a_value_does_not_depend_on_its_batch",
    ),
    "either side of padding gives the same scores": (
        "policies/test_action_families.py::test_scores_are_those_of_a_padded_batch",
    ),
    "a published rate belongs to AdamW in float16": (
        "methods/test_twosome.py::test_a_published_rate_belongs_to_adam_in_half_precision",
        "methods/test_twosome.py::test_adapters_are_in_single_precision_whatever_the_base_is",
    ),
    "each optimizer's own gradient is clipped": (
        "methods/test_online_ppo.py::test_each_optimizer_clips_its_own_gradient",
    ),
    "the divergence is looked at before the step": (
        "methods/test_online_ppo.py::test_a_policy_that_moved_too_far_stops_or_skips",
        "methods/test_online_ppo.py::test_the_refused_step_leaves_no_trace",
    ),
    "advantages are normalized in a group of a known size": (
        "methods/test_minibatches.py::test_advantages_are_normalized_in_the_group_that_is_asked_for",
        "functional/test_normalization.py::test_a_group_of_one_is_refused",
    ),
    "macro actions are discounted by their duration": (
        "functional/test_gae.py::test_macro_actions_discount_by_their_durations",
        "methods/test_twosome.py::test_macros_are_discounted_by_their_duration",
    ),
    "a world's discount inside a macro is its own": (
        "envs/test_overcooked.py::test_the_reward_of_chopping_by_hand",
        "envs/test_overcooked.py::test_rewards_radius_and_discount_are_options",
    ),
    "no step is a reset": (
        "rollouts/test_collector.py::test_no_step_is_a_reset_and_each_choice_admits_its_action",
        "rollouts/test_worlds.py::test_an_ended_episode_leaves_its_last_observation_and_the_next_entry_is_the_new_ones",
    ),
    "a time limit is no end": (
        "rollouts/test_collector.py::test_a_time_limit_is_no_death",
        "functional/test_gae.py::test_a_time_limit_bootstraps_and_an_end_does_not",
    ),
    "a macro that runs at the horizon finishes": (
        "envs/test_overcooked.py::test_a_macro_that_runs_at_the_horizon_finishes",
    ),
    "zeros for what is unseen are no place": (
        "envs/test_overcooked.py::test_the_first_observations_are_the_released_ones",
        "envs/test_overcooked.py::test_food_in_a_plate_out_of_view_is_looked_for",
    ),
    "what is in the hand lags a walk behind": (
        "envs/test_virtualhome_food.py::test_what_is_in_the_hand_lags_a_walk_behind",
        "envs/test_virtualhome_entertainment.py::test_things_in_the_hand_lag_a_walk_behind",
    ),
    "full hands cannot turn on the television": (
        "envs/test_virtualhome_entertainment.py::test_full_hands_cannot_turn_on_the_tv",
    ),
    "released lists have dead ends, ours need not": (
        "envs/test_virtualhome_entertainment.py::test_strict_lists_have_dead_ends",
        "envs/test_virtualhome_entertainment.py::test_fixed_lists_have_no_dead_end",
        "envs/test_virtualhome_entertainment.py::test_swapped_walks_make_a_second_trip_impossible",
    ),
    "a failed action costs a step": (
        "envs/test_virtualhome_food.py::test_the_wrong_one_of_open_and_close_costs_a_step_and_nothing_else",
    ),
    "the trace inside an action": (
        "functional/test_gae.py::test_worked_example_of_tokens",
        "functional/test_gae.py::test_with_a_full_trace_the_first_token_has_the_actions_advantage",
    ),
    "which release's trace": ("functional/test_gae.py::test_worked_example_of_tokens",),
    "nothing of a longer action is left behind": (
        "functional/test_normalization.py::test_padding_does_not_enter_the_normalization",
        "rollouts/test_collector.py::test_units_are_padded_on_the_right_with_the_mask_false",
    ),
    "zero is an advantage like any other": (
        "functional/test_normalization.py::test_zero_is_an_advantage_like_any_other",
    ),
    "means over tokens and over actions differ": (
        "functional/test_policy_gradient.py::test_long_actions_weigh_more_over_units",
    ),
    "a vocabulary has more entropy than a list": (
        "functional/test_action_scores.py::test_a_vocabulary_has_more_entropy_than_a_list",
        "methods/test_poad.py::test_the_defaults_are_those_of_an_update_on_tokens",
    ),
    "log-probs are those of what was drawn from": (
        "functional/test_action_scores.py::test_sampling_temperature_changes_the_log_probs",
    ),
    "masks come from lengths, ids are those that were drawn": (
        "policies/test_action_scoring.py::test_a_pad_id_inside_an_action_is_a_token_like_any_other",
        "functional/test_log_probs.py::test_masking_is_by_position_where_pad_and_end_token_are_equal",
    ),
    "a stop word stays in the loss": (),
    "the released behaviour and its ratio are two distributions": (
        "functional/test_action_tokens.py::test_list_policy_is_not_the_policy_whose_ratio_is_taken",
        "methods/test_poad.py::test_the_released_behaviour_draws_from_the_list",
    ),
    "lists are lists, not texts with commas": (
        "envs/test_prompts.py::test_actions_with_a_comma_are_listed_apart",
        "config/test_check.py::test_each_kind_of_fault_says_what_was_expected",
    ),
    "POAD ignores durations unless asked": (
        "methods/test_poad.py::test_the_defaults_are_those_of_an_update_on_tokens",
    ),
    "false is false": (
        "config/test_check.py::test_each_kind_of_fault_says_what_was_expected",
        "envs/test_registry.py::test_refusals",
    ),
    "success is a share of the episodes that ended, and not the return's sign": (
        "evaluation/test_episodes.py::test_the_success_rate_is_over_the_episodes_that_ended",
    ),
    "a killed run continues alike": (
        "training/test_online.py::test_a_killed_run_continues_the_same_curve",
        "methods/test_online_ppo.py::test_a_resumed_run_continues_alike",
        "policies/test_action_history.py::test_another_process_comes_to_the_same_bits",
    ),
    "annealing begins after the warm-up, at the full rate": (
        "functional/test_normalization.py::test_annealing_over_390_updates",
        "methods/test_online_ppo.py::test_rates_fall_linearly_after_the_warm_up",
    ),
    "critic and policy share no parameter": (
        "methods/test_online_ppo.py::test_a_policy_step_changes_nothing_of_the_critic",
        "methods/test_online_ppo.py::test_the_critic_learns_alone_during_the_warm_up",
    ),
    "a discount between tokens punishes length": (
        "functional/test_credit.py::test_ntpo_prefers_short_actions",
        "functional/test_credit.py::test_a_discount_between_tokens_hides_a_share_of_long_actions",
    ),
    "order and length of a list": (
        "methods/test_twosome.py::test_the_order_of_the_list_changes_nothing",
        "methods/test_twosome.py::test_an_only_action_is_certain_and_teaches_nothing",
        "policies/test_action_text.py::test_bad_actions_are_named",
    ),
    "half precision is summed up in single": (
        "policies/test_action_head.py::test_half_precision_heads_are_summed_up_in_single",
        "functional/test_log_probs.py::test_half_precision_logits_are_scored_in_float32",
    ),
    "a value is read before its token": (
        "functional/test_gae.py::test_the_values_place_decides_the_inner_errors",
        "methods/test_poad.py::test_a_value_is_read_before_its_token",
    ),
    # What other libraries had to mend.
    "scores are log-probs, not logits": (
        "policies/test_action_scoring.py::test_what_is_added_to_all_logits_of_a_place_changes_no_score",
    ),
    "the boundary of prompt and action is found in the whole text": (
        "policies/test_action_text.py::test_the_ids_are_those_of_the_text_as_a_whole",
        "policies/test_action_text.py::test_tokens_that_the_boundary_changes_are_the_actions",
    ),
    "padding on the left moves no position": (
        "policies/test_action_families.py::test_scores_are_those_of_a_padded_batch",
    ),
    "seeds are used, and no two workers have one": (
        "envs/test_machine.py::test_seeds_choose_episodes_and_are_not_ignored",
        "rollouts/test_seeds.py::test_worlds_ranks_seeds_and_purposes_share_no_seed",
        "rollouts/test_worlds.py::test_torchrls_own_seeding_gives_every_world_another_seed",
    ),
    "text is never tokenized again for the update": (
        "policies/test_action_text.py::test_choices_are_remembered",
        "methods/test_online_ppo.py::test_the_first_ratio_is_one_though_dropout_is_configured",
    ),
    "no action is made up for what can't be read": (
        "envs/test_machine.py::test_an_action_outside_of_the_list_is_refused",
    ),
    "actions that share a beginning, and those that begin another": (
        "functional/test_action_tokens.py::test_a_shared_beginning_is_certain",
        "methods/test_poad.py::test_a_list_in_which_one_action_begins_another_has_no_walk",
        "policies/test_action_text.py::test_texts_with_the_same_tokens_are_refused",
    ),
}

NOT_TESTED = {
    "a stop word stays in the loss": "no world here takes programs, whose end a stop word tells",
}


@pytest.mark.parametrize("trap", TRAPS)
def test_every_trap_has_a_test_or_a_reason(trap: str) -> None:
    assert bool(TRAPS[trap]) != (trap in NOT_TESTED)
    assert missing_tests(Path(__file__).parent, TRAPS[trap]) == []


def test_none_was_lost() -> None:
    assert len(TRAPS) == 42 + 7
