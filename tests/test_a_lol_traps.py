"""What A-LoL's release gets wrong, by the audit's numbers, and the test that holds us to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trap_lists import missing_tests

LOL, WEIGHTS = "functional/test_lol.py", "functional/test_weighted_nll.py"
DATA, REWARDS = "data", "rewards"

TRAPS: dict[str, tuple[str, ...]] = {
    "1 sign of the stored log-probs": (
        f"{LOL}::test_the_ratio_of_policy_to_reference_has_the_right_sign",
        f"{WEIGHTS}::test_the_ratio_is_policy_over_reference",
    ),
    "2 ratio not detached": (
        f"{LOL}::test_the_worked_examples_gradient",
        f"{WEIGHTS}::test_no_gradient_flows_through_a_ratio",
    ),
    "3 PPO's surrogate in place of weighted likelihood": (
        f"{LOL}::test_the_worked_example",
        f"{LOL}::test_outside_the_band_the_loss_still_learns",
    ),
    "4 overflow of the ratio": (
        f"{LOL}::test_a_huge_ratio_with_no_advantage_is_zero",
        f"{WEIGHTS}::test_the_clamp_comes_before_the_exponential",
        f"{WEIGHTS}::test_unclipped_ratios_are_capped_with_a_warning",
        f"{WEIGHTS}::test_a_band_that_reaches_zero_is_refused",
        f"{WEIGHTS}::test_a_clip_of_zero_is_exactly_one_and_not_the_same_as_none",
    ),
    "5 the KL term does not see the reference": (
        f"{LOL}::test_the_kl_term_does_not_see_the_reference",
    ),
    "6 weighting twice": (
        f"{LOL}::test_drawing_and_weighting_by_advantage_is_weighting_by_its_square",
    ),
    "7 advantages not clamped": (
        f"{LOL}::test_unclamped_advantages_make_bad_responses_unlikelier",
    ),
    "8 value head in train mode, blind to padding": (
        "methods/test_value_fit.py::test_dropout_is_off_in_the_fitted_head",
        "policies/test_heads.py::test_alone_equals_in_a_batch",
        "policies/test_heads.py::test_padding_with_twos_changes_nothing_unless_it_is_called_real",
    ),
    "9 rejected answers with the good one's reward": (
        "functional/test_advantage.py::test_all_priority_gives_each_response_its_own_advantage",
    ),
    "10 sampling": (
        f"{DATA}/test_sampling.py::test_weighted_draws_follow_the_weights_with_replacement",
        f"{DATA}/test_sampling.py::test_a_resumed_stream_goes_on_as_the_unbroken_one",
    ),
    "11 mean in place of sum": (f"{LOL}::test_tokens_are_summed_not_averaged",),
    "12 which reference under LoRA": (
        "methods/test_ppo.py::test_the_reference_is_where_the_policy_started",
        "methods/test_a_lol.py::test_ratio_is_1_at_the_first_step_from_an_sft_adapter",
        "methods/test_dpo.py::test_loss_is_log_2_at_the_start_from_an_sft_adapter",
    ),
    "13 PRO scores shifted tokens": (
        "methods/test_pro.py::test_loss_is_the_formula_on_the_responses_own_tokens",
        "functional/test_log_probs.py::test_positions_one_to_the_right_are_another_number",
    ),
    "14 left padding and absolute positions": (
        "policies/test_policy_passes.py::test_padding_side_and_filler_do_not_matter",
        "policies/test_generation.py::test_greedy_is_the_plain_loop_for_every_prompt_of_a_batch",
    ),
    "15 leading space": (
        "policies/test_text.py::test_alol_layout_is_the_release_s",
        f"{DATA}/test_comet.py::test_prompt_and_tail_are_tokenized_apart_and_as_they_stand",
    ),
    "16 pad equals eos": (
        "functional/test_log_probs.py::test_masking_is_by_position_where_pad_and_end_token_are_equal",
        f"{DATA}/test_encoding.py::test_a_response_that_ends_in_two_end_tokens_scores_both",
    ),
    "17 the clamp revives padding": (f"{LOL}::test_the_clamp_does_not_revive_padding",),
    "18 half precision": (
        "functional/test_log_probs.py::test_half_precision_logits_are_scored_in_float32",
    ),
    "19 masked infinity": ("functional/test_masked.py::test_the_masked_infinity_does_not_spread",),
    "20 hidden weight decay": ("methods/test_offline.py::test_weight_decay_is_the_one_asked_for",),
    "21 schedule counted in micro-batches": (
        "methods/test_offline.py::test_linear_schedule_counts_optimizer_steps",
    ),
    "22 no better model found": (
        "methods/test_offline.py::test_if_nothing_is_better_the_option_decides",
    ),
    "23 accumulation sums": (
        "methods/test_offline.py::test_accumulated_gradients_are_those_of_one_batch",
    ),
    "24 batch size ignored": (
        f"{DATA}/test_sampling.py::test_weighted_sampling_draws_the_batch_size_asked_for",
    ),
    "25 stale caches": (
        "methods/test_preparation.py::test_a_result_of_something_else_is_refused",
        f"{DATA}/test_encoding.py::test_the_fingerprint_sees_rewards_ids_and_grouping",
    ),
    "26 interrupted runs": (
        "methods/test_offline.py::test_a_resumed_run_is_the_unbroken_run",
        "methods/test_ppo.py::test_a_resumed_run_is_the_unbroken_run",
    ),
    "27 DialogRPT reads the wrong token": (
        f"{REWARDS}/test_attributes.py"
        "::test_pad_is_the_end_token_and_the_answers_last_token_is_index_5",
        f"{REWARDS}/test_attributes.py::test_dialog_rpts_public_anchors",
    ),
    "28 a batch of one is squeezed": (
        f"{REWARDS}/test_classifier.py::test_scores_do_not_depend_on_the_batch",
        f"{REWARDS}/test_comet.py::test_scores_do_not_depend_on_the_batch",
    ),
    "29 sigmoid forgotten": (
        f"{REWARDS}/test_hha.py::test_the_score_is_the_sigmoid_of_the_logit",
        f"{DATA}/test_module.py::test_unscaled_logits_are_refused",
        "methods/test_a_lol.py::test_raw_logits_are_refused",
    ),
    "30 two reward scales": (
        "evaluation/test_policy.py::test_rewards_of_two_models_are_not_compared",
    ),
    "31 the critic's random names": (
        f"{REWARDS}/test_comet.py::test_a_statement_always_gets_the_same_names",
        f"{REWARDS}/test_comet.py::test_several_draws_are_averaged",
    ),
    "32 square kernels not transposed": (
        f"{REWARDS}/test_keras_weights.py::test_a_square_kernel_is_transposed",
    ),
    "33 pooler or raw token": (
        f"{REWARDS}/test_keras_weights.py::test_the_pooler_is_read_not_the_first_token",
    ),
    "34 order of the faithfulness critic's labels": (
        f"{REWARDS}/test_attributes.py::test_faithfulness_needs_knowledge_and_the_right_labels",
        f"{REWARDS}/test_attributes.py::test_an_entailed_response_is_faithful",
    ),
    "35 tf-idf": (
        f"{REWARDS}/test_diversity.py::test_worked_scores",
        f"{REWARDS}/test_diversity.py::test_the_penalty_is_for_fewer_than_five_words",
        f"{REWARDS}/test_diversity.py::test_an_end_token_is_no_word",
    ),
    "36 METEOR of the last batch only": (
        "evaluation/test_policy.py::test_batching_does_not_matter",
        "evaluation/test_policy.py::test_the_datas_own_answers_are_measured_too",
    ),
    "37 fragments of one word": (
        "evaluation/test_text_metrics.py::test_fragments_of_the_worked_example",
    ),
    "38 distinct-n": (
        "evaluation/test_text_metrics.py::test_distinct_n_of_the_worked_example",
        "evaluation/test_text_metrics.py::test_texts_shorter_than_n_contribute_nothing",
        "evaluation/test_text_metrics.py::test_a_corpus_without_n_grams_has_no_share",
    ),
    "39 ids collide": (
        f"{DATA}/test_wow.py::test_rows_with_one_id_keep_their_own_rewards",
        "methods/test_preparation.py::test_scores_are_looked_up_by_position",
    ),
    "40 a task's name is missing": (
        f"{REWARDS}/test_tasks.py::test_every_task_has_parts_a_range_and_a_metric",
    ),
    "41 left truncation eats the knowledge": (
        f"{DATA}/test_wow.py::test_a_prompt_too_long_for_the_model_keeps_its_knowledge",
        f"{DATA}/test_encoding.py"
        "::test_truncation_by_turns_drops_the_oldest_and_keeps_the_system_line",
    ),
    "42 truncated answers": (
        f"{DATA}/test_encoding.py::test_a_long_response_loses_its_end_token_and_is_counted",
        f"{DATA}/test_encoding.py::test_an_empty_response_is_one_scored_token",
    ),
    "43 the stop id is one tokenizer's": (
        "policies/test_generation.py::test_nothing_of_a_stop_string_is_left",
    ),
    "44 clean-up deletes headings": (
        f"{DATA}/test_templates.py::test_only_the_tail_of_an_answer_is_stripped",
    ),
    "45 tails without end token": (
        f"{DATA}/test_comet.py::test_tails_end_without_an_end_token_unless_it_is_asked_for",
    ),
    "46 turns without a checked sentence vanish": (
        f"{DATA}/test_wow.py"
        "::test_a_wizards_turn_without_knowledge_is_no_example_but_stays_in_the_history",
    ),
    "47 the colon rule": (
        f"{DATA}/test_selection.py::test_the_colon_rule_looks_at_either_response",
    ),
    "48 quotes in tables": (
        f"{DATA}/test_comet.py::test_a_stray_quote_joins_no_lines",
        f"{DATA}/test_reddit.py::test_quotes_and_line_breaks_of_a_csv_are_part_of_a_comment",
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_every_trap_has_a_test(trap: str) -> None:
    assert TRAPS[trap]
    assert missing_tests(Path(__file__).parent, TRAPS[trap]) == []


def test_none_was_lost() -> None:
    assert [int(trap.split()[0]) for trap in TRAPS] == list(range(1, 49))
