from __future__ import annotations

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agents.functional import gather_log_probs, response_log_probs, sequence_log_probs
from tests.functional.exact_text import exactly
from tests.reference import example_f1 as f1
from tests.reference import masked as reference

LOGITS = torch.tensor([[[0, 0, 0], [1, 0, -1], [0, 2, 0], [9, 9, 9]]], dtype=torch.float64)
LABELS = torch.tensor([[0, 1]])


def exact(numbers: object) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_the_prompts_last_position_predicts_the_first_response_token() -> None:
    """1 − ln(e + 1 + 1/e) and 2 − ln(2 + e²); the last row, all nines, predicts nothing."""
    e = torch.e
    expected = [[1 - np.log(e + 1 + 1 / e), 2 - np.log(2 + e**2)]]
    found = response_log_probs(LOGITS, LABELS, prompt_length=2)
    torch.testing.assert_close(found, exact(expected), rtol=0, atol=1e-12)
    torch.testing.assert_close(found, exact([[-0.407606, -0.239545]]), rtol=0, atol=6e-7)
    assert found.sum().item() == pytest.approx(-0.647151, abs=6e-7)


def test_positions_one_to_the_right_are_another_number() -> None:
    shifted = gather_log_probs(LOGITS[:, 2:], LABELS)
    torch.testing.assert_close(shifted, exact([[-2.239545, -1.098612]]), rtol=0, atol=6e-7)


@pytest.mark.parametrize(
    ("input_ids", "prompt_length", "scored"),
    [
        ([1, 11, 12, 21, 22, 2, 2], 3, [21, 22, 2]),
        ([1, 11, 12, 31, 32, 33, 2], 3, [31, 32, 33, 2]),
    ],
)
def test_exactly_the_responses_own_tokens_are_scored(
    input_ids: list[int], prompt_length: int, scored: list[int]
) -> None:
    """Each position's logits favour the true next token by 50: a shifted score would be −50.

    The release's copy of PRO scores [22, 2, pad] and [32, 33, 2].
    """
    ids = torch.tensor([input_ids])
    logits = torch.zeros(1, ids.shape[1], 40, dtype=torch.float64)
    logits[0, torch.arange(ids.shape[1] - 1), ids[0, 1:]] = 50.0
    responses = ids[:, prompt_length:]
    mask = torch.arange(responses.shape[1])[None] < len(scored)
    found = response_log_probs(logits, responses, prompt_length=prompt_length)
    assert responses[mask].tolist() == scored
    assert sequence_log_probs(found, mask).abs().item() < 1e-12


def test_changing_a_prompt_token_after_the_logits_changes_nothing() -> None:
    """No prompt token is scored: the prompt's own logits, but for the last, are not read."""
    changed = LOGITS.clone()
    changed[:, 0] = float("nan")
    changed[:, 3] = float("nan")
    found = response_log_probs(changed, LABELS, prompt_length=2)
    assert torch.equal(found, response_log_probs(LOGITS, LABELS, prompt_length=2))


@settings(deadline=None)
@given(
    logits=hnp.arrays(np.float64, (2, 3, 5), elements=st.floats(-20, 20)),
    ids=hnp.arrays(np.int64, (2, 3), elements=st.integers(0, 4)),
)
def test_equals_the_loop(logits: np.ndarray, ids: np.ndarray) -> None:
    found = gather_log_probs(torch.from_numpy(logits), torch.from_numpy(ids))
    np.testing.assert_allclose(found.numpy(), reference.log_probs(logits, ids), atol=1e-12)
    assert (found <= 0).all()


@settings(deadline=None)
@given(logits=hnp.arrays(np.float32, (1, 4), elements=st.floats(-(2.0**100), 2.0**100, width=32)))
def test_extreme_logits_stay_finite(logits: np.ndarray) -> None:
    tensor = torch.from_numpy(logits).requires_grad_()
    found = gather_log_probs(tensor, torch.tensor([2]))
    found.sum().backward()
    assert found.isfinite().all()
    assert tensor.grad is not None
    assert tensor.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_scored_in_float32(dtype: torch.dtype) -> None:
    """Against float64 on the same rounded logits; taken in the logits' own precision it is off."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(60, 32_000, generator=generator) * 2).to(dtype)
    ids = torch.randint(32_000, (60,), generator=generator)
    truth = logits.double().log_softmax(-1).gather(1, ids[:, None]).squeeze(1)
    found = gather_log_probs(logits, ids)
    assert found.dtype == torch.float32
    assert (found - truth).abs().max() < 1e-5
    coarse = logits.log_softmax(-1).gather(1, ids[:, None]).squeeze(1)
    assert (coarse.double() - truth).abs().max() > 1e-3


def test_dtypes() -> None:
    ids = torch.tensor([1])
    assert gather_log_probs(torch.zeros(1, 3), ids).dtype == torch.float32
    assert gather_log_probs(torch.zeros(1, 3).double(), ids).dtype == torch.float64


def test_gradcheck() -> None:
    logits = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(4, (2, 3))
    assert torch.autograd.gradcheck(
        lambda x: response_log_probs(x, ids, prompt_length=2), (logits,)
    )


def test_sequence_log_probs_of_the_worked_example() -> None:
    """ln .1, ln .36, ln .0005, ln .6."""
    mask = torch.tensor(f1.MASK).bool()
    found = sequence_log_probs(exact(f1.PROBS).log(), mask)
    torch.testing.assert_close(found, exact([0.1, 0.36, 0.0005, 0.6]).log(), rtol=0, atol=1e-12)
    torch.testing.assert_close(found, exact(f1.SEQUENCE_LOG_PROBS), rtol=0, atol=6e-7)
    found = sequence_log_probs(exact(f1.REF_PROBS).log(), mask)
    torch.testing.assert_close(found, exact(f1.REF_SEQUENCE_LOG_PROBS), rtol=0, atol=6e-7)


def test_masking_is_by_position_where_pad_and_end_token_are_equal() -> None:
    """ids [21, 22, 2, 2], three scored: the end token counts, the pad of the same id does not."""
    log_probs = torch.tensor([[-1.0, -2.0, -4.0, -8.0]])
    mask = torch.tensor([[True, True, True, False]])
    assert sequence_log_probs(log_probs, mask).tolist() == [-7]


def test_logits_and_ids_must_fit() -> None:
    text = exactly(
        "expected `input_ids` of shape (1, 4) like `logits` without its last axis, got (1, 2): "
        "give one token id for each row of logits, shifted beforehand"
    )
    with pytest.raises(ValueError, match=text):
        gather_log_probs(LOGITS, LABELS)
    text = exactly("expected `logits` of shape […, V], got (): give the axis of the words")
    with pytest.raises(ValueError, match=text):
        gather_log_probs(torch.tensor(1.0), LABELS)


def test_prompt_and_response_must_add_up() -> None:
    text = exactly(
        "expected `logits` of shape (1, 5, V) = (B, prompt_length + T, V), got (1, 4, 3): pass "
        "those of prompt and response"
    )
    with pytest.raises(ValueError, match=text):
        response_log_probs(LOGITS, LABELS, prompt_length=3)
    text = exactly(
        "expected `prompt_length` of at least 1, got 0: the first response token needs a position "
        "that predicts it, e.g. a begin token"
    )
    with pytest.raises(ValueError, match=text):
        response_log_probs(LOGITS, LABELS, prompt_length=0)
    text = exactly("expected `response_ids` of shape [B, T], got (2,): give it 2 axes")
    with pytest.raises(ValueError, match=text):
        response_log_probs(LOGITS, LABELS[0], prompt_length=2)


def test_sequences_and_mask_must_fit() -> None:
    text = exactly("expected `log_probs` of shape [B, T], got (3,): give it 2 axes")
    with pytest.raises(ValueError, match=text):
        sequence_log_probs(torch.zeros(3), torch.ones(3).bool())
    text = exactly("expected `response_mask` of dtype torch.bool, got torch.float32: call .bool()")
    with pytest.raises(TypeError, match=text):
        sequence_log_probs(torch.zeros(1, 3), torch.ones(1, 3))
    text = exactly(
        "expected `response_mask` of shape (2, 3) like `log_probs`, got (1, 3): give one mask "
        "entry for each value"
    )
    with pytest.raises(ValueError, match=text):
        sequence_log_probs(torch.zeros(2, 3), torch.ones(1, 3).bool())
