"""Every objective on models that train as a whole and on encoder-decoders; beams and a penalty."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from llm_agents.functional.lol import ALGORITHMS
from llm_agents.methods import ALoL, ValueFitConfig
from llm_agents.policies import LoraConfig
from llm_agents.types import GenerationConfig

BEAMS = GenerationConfig(max_new_tokens=6, num_beams=2, repetition_penalty=2.5, batch_size=8)


def options_of(algorithm: str) -> dict[str, Any]:
    return {"kl_coef": 0.2} if algorithm == "a_lol_kl" else {}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_option_trains_a_whole_model(toy: Any, algorithm: str) -> None:
    policy = toy.policy(lora=None)
    module = ALoL(
        policy,
        toy.Reward(),
        algorithm=algorithm,
        optimizer=toy.fast(lr=1e-3),
        value=ValueFitConfig(epochs=1),
        generation=BEAMS,
        **options_of(algorithm),
    )
    before = {name: p.detach().clone() for name, p in module.trainable()}
    log = toy.fit(module, max_steps=2, val_check_interval=2)
    assert all(torch.tensor(log.losses).isfinite())
    moved = [name for name, p in module.trainable() if not torch.equal(p, before[name])]
    assert len(moved) == len(before), "the whole model trains"
    assert log.validations[0][0] == 2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_option_trains_an_encoder_decoder(toy: Any, algorithm: str) -> None:
    policy = toy.policy("tiny-random-t5", lora=LoraConfig(r=4, alpha=8))
    module = ALoL(
        policy,
        toy.Reward(),
        algorithm=algorithm,
        optimizer=toy.fast(),
        value=ValueFitConfig(epochs=1),
        generation=BEAMS,
        **options_of(algorithm),
    )
    log = toy.fit(module, max_steps=2, val_check_interval=2)
    assert all(torch.tensor(log.losses).isfinite())
    assert len(log.losses) == 2


def test_an_encoder_decoders_value_reads_the_encoder(toy: Any) -> None:
    """The value of a prompt is of the encoder's states: no response is needed."""
    policy = toy.policy("tiny-random-t5")
    module = ALoL(
        policy, toy.Reward(), algorithm="a_lol", optimizer=toy.fast(), generation=BEAMS,
        value=ValueFitConfig(epochs=1),
    )  # fmt: skip
    data = toy.data()
    toy.fit(module, data, max_steps=1)
    assert module.value_fit is not None
    assert module.values is not None
    (batch,) = data.table_batches(100_000)
    encoder = policy.causal_model.get_encoder()
    row = 3
    ids = batch.prompt_ids[row][batch.prompt_mask[row]][None]
    with torch.no_grad(), policy.reference():
        states = encoder(input_ids=ids).last_hidden_state
        value = module.value_fit.head(states, torch.ones_like(ids, dtype=torch.bool))
    assert float(module.values[int(batch.rows[row])]) == pytest.approx(float(value), abs=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_beams_with_a_penalty_do_not_see_their_batch(make_policy: Any, family: str) -> None:
    """Token 0 fills shorter prompts: it must not count as one that was said already."""
    policy = make_policy(family)
    prompts = [[5, 6, 7], [9], [4, 4, 8, 11, 12, 13, 14]]
    config = replace(BEAMS, repetition_penalty=5.0, max_new_tokens=12)
    said = [token for row in policy.generate(prompts, config) for token in row]
    words = policy.causal_model.get_output_embeddings().weight
    with torch.no_grad():  # now token 0 is what the model would like to say
        words[0] = 1.1 * words[max(set(said), key=said.count)]
    policy.parameters_changed()
    together = policy.generate(prompts, config)
    if family != "t5":  # whose decoder starts with it, so that it counts as said
        assert any(0 in row for row in together)
    assert together == [policy.generate([prompt], config)[0] for prompt in prompts]
    assert together != policy.generate(prompts, replace(config, repetition_penalty=1.0))
