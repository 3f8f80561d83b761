"""The states that reward heads read, against the plain hidden states of rows alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from llm_agents.policies import LanguagePolicy
from llm_agents.policies.response_states import response_states
from tests.closeness import assert_rounding

PAIRS = [("One two", "three"), ("A much longer prompt than that", "yes, and more"), ("x", "y")]


@pytest.mark.parametrize("base", ["tiny-random-llama", "tiny-random-gpt2", "tiny-random-t5"])
def test_states_in_a_batch_are_those_of_a_row_alone(base: str, make_batch: Any) -> None:
    policy = LanguagePolicy.from_pretrained(base, trainable=False)
    with torch.no_grad():
        batch = make_batch(policy, PAIRS)
        found = response_states(policy, batch)
        prompts, prompt_mask = policy.hidden_states(batch, part="prompt")
        responses, mask = policy.hidden_states(batch, part="response")
        for row, pair in enumerate(PAIRS):
            alone = response_states(policy, make_batch(policy, [pair]))
            length = int(batch.response_mask[row].sum())
            assert alone.hidden.shape[1] == length
            assert_rounding(found.hidden[row, :length], alone.hidden[0])
            assert_rounding(found.prompt_end[row], alone.prompt_end[0])
            last = int(prompt_mask[row].sum()) - 1
            assert_rounding(found.prompt_end[row], prompts[row, last])
    assert torch.equal(found.mask, mask)
    assert_rounding(found.hidden[mask], responses[mask])


def test_a_prompt_without_tokens_is_refused_by_the_policy(make_batch: Any) -> None:
    policy = LanguagePolicy.from_pretrained("tiny-random-llama", trainable=False)
    with pytest.raises(ValueError, match="at least one token in each prompt, row 1 has none"):
        response_states(policy, make_batch(policy, [([5], "a"), ([], "b")]))
