"""What GLAM's release and Lamorel get wrong, by the audit's numbers, and what holds us to it.

Those with a letter are faults of other libraries that BabyAI and its agents can have too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trap_lists import missing_tests

WORLD, TEXT, PROMPTS = (
    "envs/test_babyai.py",
    "envs/test_babyai_text.py",
    "envs/test_babyai_prompts.py",
)
BOT, LEVELS = "envs/test_babyai_bot.py", "envs/test_babyai_levels.py"
SCORES, GLAM, PARTS = (
    "functional/test_glam_scores.py",
    "methods/test_glam.py",
    "policies/test_glam_parts.py",
)
FAMILIES, SCORING = "policies/test_action_families.py", "policies/test_action_scoring.py"
DRRN, CLONING, SYMBOLIC = (
    "methods/test_drrn.py",
    "methods/test_cloning.py",
    "methods/test_symbolic_ppo.py",
)
ONLINE, MINIBATCHES = "methods/test_online_ppo.py", "methods/test_minibatches.py"
COLLECTOR, WORLDS = "rollouts/test_collector.py", "rollouts/test_worlds.py"
SERVER, SUITES = "rollouts/test_policy_server.py", "training/test_suites.py"

TRAPS: dict[str, tuple[str, ...]] = {
    # --- worlds and their text
    "1 one step and two steps, sideways before ahead": (f"{TEXT}::test_places",),
    "2 descriptions come by column, not by distance": (
        f"{TEXT}::test_the_order",
        f"{WORLD}::test_the_worked_example",
    ),
    "3 a thing hides the wall behind it, and a toggled box is gone": (
        f"{TEXT}::test_a_wall_behind_something_is_silent_and_so_is_one_off_the_axes",
        f"{WORLD}::test_toggling_destroys_a_box_and_shows_the_wall_behind_it",
    ),
    "4 the article of a door is always a": (f"{TEXT}::test_doors_tell_their_state",),
    "5 what is carried is not seen as well": (f"{TEXT}::test_what_is_carried_is_told_once",),
    "6 held-out pairs are no goals, and lie about": (
        f"{WORLD}::test_training_never_asks_for_held_out_pairs_but_shows_them",
        f"{WORLD}::test_tests_ask_for_held_out_pairs_only",
    ),
    "7 the horizon follows from the kind, and its last step may succeed": (
        f"{WORLD}::test_the_horizon_depends_on_the_kind",
        f"{WORLD}::test_success_on_the_last_step_is_a_success",
        f"{SUITES}::test_another_world_keeps_what_an_agent_can_do_and_its_own_horizon",
        "functional/test_gae.py::test_a_time_limit_bootstraps_and_an_end_does_not",
    ),
    "8 the pickup alone may finish pick up and go to": (
        f"{WORLD}::test_a_sequence_may_succeed_on_the_pickup_itself",
    ),
    "9 the first to finish are the short ones": (
        f"{BOT}::test_the_first_to_finish_favour_short_episodes",
        f"{BOT}::test_chance_on_the_mixed_task",
        "rollouts/test_playing.py::test_each_world_plays_its_share_however_long_its_episodes_are",
        f"{SUITES}::test_kinds_have_equal_weight",
        f"{SUITES}::test_a_trained_agent_takes_the_suite",
    ),
    "10 a reset that takes a step": (
        f"{COLLECTOR}::test_no_step_is_a_reset_and_each_choice_admits_its_action",
        f"{WORLDS}"
        "::test_an_ended_episode_leaves_its_last_observation_and_the_next_entry_is_the_new_ones",
        f"{PROMPTS}::test_an_episode_begins_with_its_own_observation_alone",
    ),
    "11 the kind is drawn without the seed": (f"{WORLD}::test_kinds_follow_from_the_seed",),
    "12 minigrid prints, and names two levels otherwise": (
        f"{LEVELS}::test_generation_prints_nothing",
        f"{LEVELS}::test_what_there_is",
        f"{LEVELS}::test_the_newest_version_of_a_level_is_taken",
    ),
    # --- prompts
    "13 the oldest observation in the window is number 0": (
        f"{PROMPTS}::test_numbers_begin_anew_with_the_oldest_observation",
    ),
    "14 an episode begins with one observation, its own": (
        f"{PROMPTS}::test_an_episode_begins_with_its_own_observation_alone",
        "data/test_babyai_trajectories.py::test_the_bots_trajectories",
        "rollouts/test_playing.py::test_the_prompt_builder_tells_the_history",
    ),
    "15 the comma before the line's end and the last blank belong to the format": (
        f"{PROMPTS}::test_the_prompts_of_the_release",
    ),
    "16 letters replaced inside of other words": (
        f"{PROMPTS}::test_letters_are_replaced_as_in_the_release",
        f"{PROMPTS}::test_english_tables_are_safe_as_letters_too",
    ),
    "17 the article of a French goal": (
        f"{TEXT}::test_goals_in_french",
        f"{TEXT}::test_goals_in_the_releases_french",
    ),
    "18 other names of actions, the same places": (
        f"{PROMPTS}::test_synonyms_stand_in_prompt_memory_and_candidates",
        f"{SUITES}::test_prompts_and_candidates_change_together",
        f"{WORLD}::test_synonyms_move_alike",
        f"{GLAM}::test_synonyms_are_scored_as_they_are_listed",
    ),
    "19 nine actions, of which three do nothing": (
        f"{WORLD}::test_more_than_six_actions_do_nothing",
        f"{BOT}::test_more_actions_make_it_harder_for_chance",
        f"{SUITES}::test_a_test_in_words_is_played_in_the_agents_own_world",
    ),
    # --- scores
    "20 padding counts 1 a position": (
        f"{SCORES}::test_padding_that_counts_favours_the_shorter_action",
    ),
    "21 a score depends on what is scored beside it": (
        f"{FAMILIES}::test_a_choice_scores_alike_alone_and_among_others",
        f"{GLAM}::test_what_is_scored_beside_an_action_changes_nothing",
        f"{SCORES}::test_padding_depends_on_what_is_scored_together",
    ),
    "22 raw logits are no log-probs": (
        f"{SCORES}::test_a_constant_at_a_position_shifts_logits_and_not_log_probs",
        f"{SCORING}::test_what_is_added_to_all_logits_of_a_place_changes_no_score",
        f"{PARTS}::test_logits_less_their_log_sums_are_log_probs",
    ),
    "23 a softmax over probabilities is never sure": (
        f"{SCORES}::test_no_action_of_six_is_ever_decisive",
        f"{GLAM}::test_the_first_rule_can_not_become_sure",
    ),
    "24 a mask from token ids": (
        f"{SCORING}::test_a_pad_id_inside_an_action_is_a_token_like_any_other",
        "functional/test_log_probs.py"
        "::test_masking_is_by_position_where_pad_and_end_token_are_equal",
        "policies/test_word_vocabulary.py::test_values_are_those_of_each_pair_read_alone",
    ),
    "25 padding on the left moves positions": (
        f"{FAMILIES}::test_scores_are_those_of_a_padded_batch",
        "policies/test_policy_passes.py::test_padding_side_and_filler_do_not_matter",
        "policies/test_generation.py::test_greedy_is_the_plain_loop_for_every_prompt_of_a_batch",
    ),
    "26 caches are no tuples any more": (
        "policies/test_generation.py::test_greedy_is_the_plain_loop_for_every_prompt_of_a_batch",
        "policies/test_action_encoder_decoder.py::test_scores_are_those_of_single_sequences",
        f"{FAMILIES}::test_any_prompts_and_actions_are_scored_right",
    ),
    "27 the value is read before the action": (
        f"{PARTS}::test_the_state_is_that_before_an_actions_first_token",
        f"{GLAM}::test_the_value_is_of_the_prompt_whatever_is_offered",
    ),
    "28 what follows the end token is summed up": (
        "policies/test_generation.py::test_nothing_after_the_end_token_is_scored",
        f"{SERVER}::test_log_probs_of_greedy_text_are_those_of_scoring",
    ),
    "29 an end token in cloning and none in scoring": (
        f"{CLONING}::test_the_losses_are_those_of_single_actions",
        f"{CLONING}::test_a_cloned_adapter_is_where_ppo_begins",
        "policies/test_action_text.py::test_encoder_decoders_read_prompt_and_action_apart",
    ),
    # --- PPO
    "30 each value against all returns": (
        f"{SCORES}::test_values_are_paired_with_their_own_returns",
    ),
    "31 advantages, and what a time limit is": (
        f"{SCORES}::test_the_advantages_of_the_worked_example",
        f"{COLLECTOR}::test_a_time_limit_is_no_death",
        f"{WORLD}::test_a_limit_may_be_an_end_as_in_the_release",
    ),
    "32 advantages are not normalized": (
        f"{GLAM}::test_advantages_stay_as_they_are_unless_asked",
        f"{GLAM}::test_the_defaults_are_those_of_the_release",
    ),
    "33 the first ratio is 1": (
        f"{GLAM}::test_ratios_begin_at_one",
        f"{ONLINE}::test_the_first_ratio_is_one_though_dropout_is_configured",
        f"{SYMBOLIC}::test_ratios_begin_at_one_unless_statistics_are_the_batch_s",
    ),
    "34 gradient checkpointing without effect in eval mode": (
        "policies/test_recomputing.py::test_less_is_kept_and_gradients_are_the_same",
        "policies/test_recomputing.py"
        "::test_a_policys_update_keeps_less_in_eval_mode_above_kept_states",
    ),
    "35 clipping what an exhausted generator yields": (
        f"{GLAM}::test_one_norm_bounds_all_gradients_of_a_joint_step",
        f"{ONLINE}::test_each_optimizer_clips_its_own_gradient",
        f"{DRRN}::test_the_gradient_is_bounded",
        f"{SYMBOLIC}::test_the_gradient_is_bounded",
    ),
    "36 chunks that overlap, and a short one that weighs as much": (
        f"{MINIBATCHES}::test_each_epoch_goes_through_all_samples_once",
        f"{MINIBATCHES}::test_chunks_weigh_what_they_hold_or_all_alike",
        f"{ONLINE}::test_splitting_a_step_changes_no_gradient",
    ),
    "37 saved in the middle of an update, and not at the end": (
        "training/test_online.py::test_a_run_trains_plays_and_leaves_results_and_pictures",
        "training/test_online.py::test_a_killed_run_continues_the_same_curve",
        "training/test_session.py::test_two_processes_share_a_run",
        f"{GLAM}::test_a_checkpoint_of_the_whole_model_restores_it",
    ),
    "38 statistics that begin with zeros": (
        "rollouts/test_statistics.py::test_episodes_that_were_not_played_do_not_count",
    ),
    "39 a value moves by 0.2 on a scale of 20": (
        f"{SCORES}::test_clipped_values_move_by_at_most_epsilon",
        f"{GLAM}::test_the_defaults_are_those_of_the_release",
        "functional/test_policy_gradient.py::test_value_loss_without_a_clip",
    ),
    "40 unequal shares that weigh alike": (
        f"{MINIBATCHES}::test_unequal_shares_of_a_minibatch_weigh_by_their_size",
        f"{GLAM}::test_several_processes_that_train_are_refused",
        "rollouts/test_processes.py::test_worlds_are_shared_out_evenly",
    ),
    "41 probabilities that are scores": (
        "training/test_probes.py::test_a_row_an_update_of_probabilities",
    ),
    "42 the interval of one seed": (
        "evaluation/test_suites.py::test_the_releases_interval",
        "evaluation/test_suites.py::test_one_run_has_a_column_an_agent",
        "evaluation/test_intervals.py::test_a_single_value_has_a_mean_only",
    ),
    # --- agents to compare with, and Lamorel
    "43 DRRN: no target network, 0.9, a softmax; the last none of a list": (
        f"{DRRN}::test_the_defaults_are_those_of_the_release",
        f"{DRRN}::test_targets_are_rewards_and_what_follows",
        f"{DRRN}::test_actions_are_drawn_from_the_softmax_over_values",
        "rollouts/test_statistics.py::test_episodes_that_were_not_played_do_not_count",
        "methods/test_replay.py::test_the_newest_are_kept",
    ),
    "44 cloning learns padding": (f"{CLONING}::test_the_losses_are_those_of_single_actions",),
    "45 words that are learnt on the way": (
        f"{SYMBOLIC}::test_a_saved_agent_acts_alike_and_learns_no_words",
        f"{DRRN}::test_a_saved_agent_acts_alike_and_learns_no_words",
        "policies/test_word_vocabulary.py::test_the_words_go_where_the_weights_go",
    ),
    "46 scores depend on how many ask": (
        f"{SERVER}::test_what_waits_together_is_scored_in_one_pass",
        "rollouts/test_processes.py"
        "::test_two_processes_collect_what_their_shares_would_before_and_after_an_interruption",
    ),
    "47 callers share a default": (f"{SERVER}::test_servers_share_no_functions",),
    "48 one seed for all that sample": (
        "rollouts/test_seeds.py::test_worlds_ranks_seeds_and_purposes_share_no_seed",
        "rollouts/test_two_ranks.py::test_ranks_collect_apart_and_resume_each_where_it_stood",
        f"{SERVER}::test_generated_text_scores_as_it_was_drawn",
    ),
}

ELSEWHERE: dict[str, tuple[str, ...]] = {
    "O1 candidates are ranked by raw logits": (
        f"{FAMILIES}::test_scores_are_those_of_single_sequences",
        f"{SCORING}::test_what_is_added_to_all_logits_of_a_place_changes_no_score",
        f"{GLAM}::test_the_default_is_a_softmax_over_sums_of_log_probs",
        "policies/test_action_encoder_decoder.py::test_the_number_of_passes_does_not_matter",
        "methods/test_twosome.py::test_the_order_of_the_list_changes_nothing",
    ),
    "O6 a seed that is taken and not used": (
        f"{WORLD}::test_the_digests_of_the_release",
        f"{WORLD}::test_kinds_follow_from_the_seed",
        f"{WORLD}::test_a_seeds_world_is_the_same_whatever_was_played_before",
        "rollouts/test_seeds.py::test_worlds_ranks_seeds_and_purposes_share_no_seed",
        "rollouts/test_datamodule.py::test_seeds_are_recorded_and_all_different",
    ),
    "R13 an action that can't be read": (
        f"{WORLD}::test_refusals",
        "policies/test_action_text.py::test_bad_actions_are_named",
        "data/test_cloning.py::test_malformed_lines_are_named",
    ),
    "R14 an end may be a failure": (
        f"{WORLD}::test_an_end_before_the_limit_may_be_a_failure_too",
        f"{WORLD}::test_a_limit_may_be_an_end_as_in_the_release",
        "evaluation/test_episodes.py::test_the_success_rate_is_over_the_episodes_that_ended",
    ),
}


@pytest.mark.parametrize("trap", [*TRAPS, *ELSEWHERE])
def test_every_trap_has_a_test(trap: str) -> None:
    tests = {**TRAPS, **ELSEWHERE}[trap]
    assert tests
    assert missing_tests(Path(__file__).parent, tests) == []


def test_none_was_lost() -> None:
    assert [int(trap.split()[0]) for trap in TRAPS] == list(range(1, 49))
    assert [trap.split()[0] for trap in ELSEWHERE] == ["O1", "O6", "R13", "R14"]
