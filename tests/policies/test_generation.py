"""Generation: what is returned, and that batches and randomness can't be seen in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from llm_agents.errors import UserError
from llm_agents.policies.generation import check_generation, choose_tokens
from llm_agents.types import GenerationConfig, PromptBatch

FAMILIES = ("llama", "qwen2", "gpt2", "neox", "opt", "t5")
PROMPTS = [[5, 6, 7], [8], [40, 41, 42, 43, 44, 45, 46, 47, 48], [9, 10], [5, 6, 7]]
GREEDY = GenerationConfig(max_new_tokens=12, batch_size=2)


def never_ending(policy):
    """Take away the end tokens, so that responses have their full length."""
    policy.text.end_id = -1
    policy.causal_model.generation_config.eos_token_id = None
    return policy


def by_hand(policy, prompt, steps):
    """Greedy decoding without a cache, one row, the whole text again at each step."""
    model, ids = policy.causal_model, list(prompt)
    start = [model.config.decoder_start_token_id] if policy.is_encoder_decoder else []
    made = []
    for _ in range(steps):
        if policy.is_encoder_decoder:
            output = model(
                input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([start + made])
            )
        else:
            output = model(input_ids=torch.tensor([ids + made]))
        made.append(int(output.logits[0, -1].argmax()))
        if made[-1] == policy.text.end_id:
            break
    return made


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_the_plain_loop_for_every_prompt_of_a_batch(make_policy, family, attention):
    policy = make_policy(family, trainable=False)
    policy.causal_model.set_attn_implementation(attention)
    with torch.no_grad():
        expected = [by_hand(policy, prompt, 12) for prompt in PROMPTS]
    assert policy.generate(PROMPTS, GREEDY) == expected
    assert policy.generate(PROMPTS, replace(GREEDY, batch_size=5)) == expected


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_transformers_gives_the_same(make_policy, family):
    policy = never_ending(make_policy(family, trainable=False))
    ids = policy.causal_model.generate(
        input_ids=torch.tensor([PROMPTS[2]]), max_new_tokens=12, do_sample=False
    )
    start = 1 if policy.is_encoder_decoder else len(PROMPTS[2])
    assert policy.generate([PROMPTS[2]], GREEDY) == [ids[0, start:].tolist()]


def test_a_batch_of_prompts_is_taken_as_it_is(make_policy):
    policy = make_policy("gpt2", trainable=False)
    batch = PromptBatch(
        prompts=((), ()),
        prompt_ids=torch.tensor([[0, 0, 8], [5, 6, 7]]),
        prompt_mask=torch.tensor([[False, False, True], [True, True, True]]),
        rows=torch.arange(2),
    )
    assert policy.generate(batch, GREEDY) == policy.generate([[8], [5, 6, 7]], GREEDY)


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_a_sampled_response_does_not_depend_on_its_batch(make_policy, family):
    policy = make_policy(family, trainable=False)
    config = GenerationConfig(max_new_tokens=10, temperature=1.0, top_p=0.9, top_k=50, batch_size=5)
    whole = policy.generate(PROMPTS, config, torch.Generator().manual_seed(4))
    small = policy.generate(
        PROMPTS, replace(config, batch_size=1), torch.Generator().manual_seed(4)
    )
    assert whole == small
    other = policy.generate(PROMPTS, config, torch.Generator().manual_seed(5))
    assert whole != other
    assert whole[0] != whole[4]  # equal prompts, numbers of their own


def test_sampling_leaves_the_global_random_state_alone(make_policy):
    policy = make_policy("llama", trainable=False)
    before = torch.random.get_rng_state()
    config = GenerationConfig(max_new_tokens=4, temperature=1.0)
    policy.generate(PROMPTS, config, torch.Generator().manual_seed(4))
    policy.generate(PROMPTS, GREEDY)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_frequencies_are_the_distribution():
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(20_000, -1)
    uniforms = torch.rand(20_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tokens = choose_tokens(logits, GenerationConfig(temperature=1.0), None, uniforms)
    frequencies = tokens.bincount(minlength=4) / 20_000
    torch.testing.assert_close(frequencies, torch.tensor([0.1, 0.2, 0.3, 0.4]), atol=0.015, rtol=0)


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"top_k": 2}, {2, 3}),
        ({"top_p": 0.65}, {2, 3}),  # 0.4 alone is below 0.65, 0.4 + 0.3 reaches it
        ({"top_p": 0.39}, {3}),
        ({"top_k": 3, "top_p": 0.5}, {2, 3}),  # of 2/9, 3/9, 4/9
        ({}, {0, 1, 2, 3}),
    ],
)
def test_nucleus_and_top_k(options, allowed):
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(2000, -1)
    uniforms = torch.linspace(0, 1 - 1e-9, 2000, dtype=torch.float64)
    tokens = choose_tokens(logits, GenerationConfig(temperature=1.0, **options), None, uniforms)
    assert set(tokens.tolist()) == allowed


def test_low_temperature_is_nearly_greedy():
    logits = torch.tensor([[0.0, 1.0, 2.0]]).expand(100, -1)
    uniforms = torch.linspace(1e-9, 1 - 1e-9, 100, dtype=torch.float64)
    tokens = choose_tokens(logits, GenerationConfig(temperature=0.01), None, uniforms)
    assert set(tokens.tolist()) == {2}


def test_repetition_penalty_shrinks_what_was_seen():
    """Seen logits 2 and −1 become 1 and −2 under a penalty of 2, so token 1 wins with 1.5."""
    logits = torch.tensor([[2.0, 1.5, -1.0]])
    seen = torch.tensor([[True, False, True]])
    assert choose_tokens(logits, GREEDY, None, None).tolist() == [0]
    penalized = replace(GREEDY, repetition_penalty=2.0)
    assert choose_tokens(logits, penalized, seen, None).tolist() == [1]


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_repetition_penalty_does_not_see_padding(make_policy, family):
    policy = never_ending(make_policy(family, trainable=False))
    config = GenerationConfig(max_new_tokens=12, repetition_penalty=1.5, batch_size=5)
    together = policy.generate(PROMPTS, config)
    assert together == [policy.generate([prompt], config)[0] for prompt in PROMPTS]
    assert together != policy.generate(PROMPTS, GREEDY)


def test_the_response_ends_with_the_end_token_and_only_there(make_policy):
    policy = never_ending(make_policy("gpt2", trainable=False))
    full = policy.generate(PROMPTS, GREEDY)
    assert all(len(ids) == 12 for ids in full)
    policy.text.end_id = full[2][4]
    first = full[2].index(full[2][4])
    ended = policy.generate(PROMPTS, GREEDY)
    assert ended[2] == full[2][: first + 1]
    policy.text.end_id = -1
    policy.causal_model.generation_config.eos_token_id = [full[2][4], 319]
    assert policy.generate(PROMPTS, GREEDY) == ended  # the model may name end tokens too


def test_nothing_after_the_end_token_is_scored(make_policy, make_batch):
    """What greedy decoding would go on with, and padding, are no part of a response's log-prob."""
    policy = never_ending(make_policy("gpt2", trainable=False))
    full = policy.generate(PROMPTS, GREEDY)[2]
    assert full[1] != full[0]
    policy.text.end_id = full[1]
    ended = policy.generate(PROMPTS, GREEDY)
    assert ended[2] == full[:2]
    assert max(map(len, ended)) > 2
    with torch.no_grad():
        found = policy.sequence_log_probs(
            make_batch(policy, list(zip(PROMPTS, ended, strict=True)))
        )
        logits = policy.causal_model(input_ids=torch.tensor([PROMPTS[2] + full])).logits
    places = torch.arange(len(full)) + len(PROMPTS[2]) - 1
    each = logits[0].log_softmax(-1)[places, torch.tensor(full)]
    torch.testing.assert_close(found[2], each[:2].sum(), atol=1e-4, rtol=0)
    assert each[2:].sum() < -1  # what the sum would have in addition


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_nothing_of_a_stop_string_is_left(make_policy, family):
    policy = never_ending(make_policy(family, trainable=False))
    full = policy.generate(PROMPTS, GREEDY)
    text = policy.text.decode_exactly(full[2])
    stop = text[3:5]
    cut = policy.generate(PROMPTS, replace(GREEDY, stop_strings=("never seen", stop)))
    assert cut[2] == full[2][: len(cut[2])]
    assert stop not in policy.text.decode_exactly(cut[2])
    assert text.startswith(policy.text.decode_exactly(cut[2]))
    assert len(policy.text.decode_exactly(full[2][: len(cut[2]) + 1])) > text.index(stop)


@pytest.mark.parametrize("family", FAMILIES)
def test_beam_search_does_not_see_its_batch(make_policy, family):
    policy = make_policy(family, trainable=False)
    config = replace(GREEDY, num_beams=4)
    beams = policy.generate(PROMPTS, config)
    assert beams == [policy.generate([prompt], config)[0] for prompt in PROMPTS]
    assert beams != policy.generate(PROMPTS, GREEDY)


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_beams_for_all_tokens_find_the_best_pair(make_policy, family):
    policy = never_ending(make_policy(family, trainable=False))
    prompt = [5, 6]
    first = torch.arange(policy.vocab_size)[:, None]
    prompts = torch.tensor([prompt]).expand(policy.vocab_size, -1)
    with torch.no_grad():
        if family == "t5":
            start = torch.zeros_like(first)
            logits = policy.causal_model(
                input_ids=prompts, decoder_input_ids=torch.cat((start, first), 1)
            ).logits
        else:
            logits = policy.causal_model(input_ids=torch.cat((prompts, first), 1)).logits[:, 1:]
    log_probs = logits.log_softmax(-1)
    scores = log_probs[0, 0][:, None] + log_probs[:, 1]
    best = divmod(int(scores.argmax()), policy.vocab_size)
    config = GenerationConfig(max_new_tokens=2, num_beams=policy.vocab_size)
    assert policy.generate([prompt], config) == [list(best)]


def test_the_window_ends_a_response(make_policy):
    policy = never_ending(make_policy("gpt2", trainable=False))
    prompts = [[5] * 1020, [6]]
    config = GenerationConfig(max_new_tokens=10)
    assert [len(ids) for ids in policy.generate(prompts, config)] == [4, 10]
    with pytest.raises(UserError, match="1024 tokens and the model's window 1024"):
        policy.generate([[5] * 1024], config)


def test_mode_and_gradients_are_left_alone(make_policy):
    policy = make_policy("gpt2")
    assert policy.training
    policy.generate(PROMPTS, GREEDY)
    assert policy.training
    assert all(module.training for module in policy.modules())
    assert policy.generate([], GREEDY) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_new_tokens": 0},
        {"temperature": -0.1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"num_beams": 0},
        {"repetition_penalty": 0.0},
        {"batch_size": 0},
        {"stop_strings": ("",)},
    ],
)
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(UserError, match=f"expected `{next(iter(wrong))}`"):
        check_generation(GenerationConfig(**wrong))


def test_beams_and_sampling_exclude_each_other():
    with pytest.raises(UserError, match="beam search does not sample"):
        check_generation(GenerationConfig(num_beams=2, temperature=0.5))


def test_an_empty_prompt_is_refused(make_policy):
    with pytest.raises(ValueError, match="prompt 1 has none"):
        make_policy("gpt2", trainable=False).generate([[5], []], GREEDY)


OF_THE_FILE = {
    "suppress_tokens": [5, 6, 7, 271, 136, 91, 16],
    "begin_suppress_tokens": list(range(200)),
    "forced_bos_token_id": 7,
    "forced_eos_token_id": 7,
    "no_repeat_ngram_size": 1,
    "encoder_no_repeat_ngram_size": 1,
    "min_length": 30,
    "min_new_tokens": 6,
    "repetition_penalty": 9.0,
    "encoder_repetition_penalty": 0.1,
    "length_penalty": -9.0,
    "early_stopping": True,
    "bad_words_ids": [[token] for token in range(10, 150)],
    "sequence_bias": [[[token], 50.0] for token in (9, 11)],
    "exponential_decay_length_penalty": [0, 3.0],
    "num_beams": 2,
    "num_return_sequences": 2,
    "do_sample": True,
    "temperature": 5.0,
    "top_k": 1,
    "top_p": 0.1,
    "min_p": 0.9,
    "typical_p": 0.1,
    "epsilon_cutoff": 0.5,
    "max_length": 3,
    "max_time": 1e-9,
    "guidance_scale": 3.0,
    "renormalize_logits": True,
    "remove_invalid_values": True,
    "return_dict_in_generate": True,
    "output_scores": True,
    "use_cache": False,
    "pad_token_id": 9,
    "stop_strings": ["e", "a"],
}


@pytest.mark.parametrize("family", ["llama", "t5"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_beams_obey_the_recipe_whatever_the_bases_file_holds(make_policy, family):
    """Each setting alone, and all together: what the file has no say in with greedy either."""
    from transformers import GenerationConfig as OwnConfig

    policy = make_policy(family, trainable=False)
    config, prompts = replace(GREEDY, num_beams=2, max_new_tokens=4), PROMPTS[:2]
    expected = policy.generate(prompts, config)
    own = policy.causal_model.generation_config
    for settings in [{name: value} for name, value in OF_THE_FILE.items()] + [OF_THE_FILE]:
        written = OwnConfig(eos_token_id=own.eos_token_id, bos_token_id=own.bos_token_id)
        for name, value in settings.items():
            setattr(written, name, value)
        policy.causal_model.generation_config = written
        assert policy.generate(prompts, config) == expected, settings
        assert policy.causal_model.generation_config is written
    policy.causal_model.generation_config = own
