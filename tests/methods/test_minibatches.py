"""The order in which an update goes through samples, and how their parts are weighted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from llm_agents.errors import UserError
from llm_agents.methods import PPOConfig, TokenPPOConfig
from llm_agents.methods.minibatches import passes, update_steps, weighted_passes
from tests.closeness import assert_rounding
from tests.methods.online import some_samples


@pytest.mark.parametrize(("samples", "minibatches", "chunks"), [(31, 4, 2), (20, 3, 3)])
def test_each_epoch_goes_through_all_samples_once(
    samples: int, minibatches: int, chunks: int
) -> None:
    sizes = {"num_minibatches": minibatches, "accumulate": chunks}
    config = PPOConfig(num_epochs=3, **sizes, order="phases")
    steps = list(update_steps(samples, config, torch.Generator().manual_seed(0)))
    assert [s.network for s in steps] == 3 * (minibatches * ["critic"] + minibatches * ["policy"])
    for first in range(0, len(steps), minibatches):
        part = steps[first : first + minibatches]
        assert all(len(s.chunks) == (chunks if s.network == "policy" else 1) for s in part)
        rows = torch.cat([rows for step in part for rows in step.chunks])
        assert sorted(rows.tolist()) == list(range(samples))
    found = [sum(map(len, step.chunks)) for step in steps]
    assert max(found) - min(found) == 1


def test_the_minibatches_of_the_released_twosome() -> None:
    config = PPOConfig(
        num_epochs=1, num_minibatches=4, accumulate=8, critic_minibatches=4, order="phases"
    )
    steps = list(update_steps(128, config, torch.Generator()))
    assert [[len(rows) for rows in step.chunks] for step in steps] == 4 * [[32]] + 4 * [8 * [4]]


def test_the_minibatches_of_the_released_poad() -> None:
    config = TokenPPOConfig(num_epochs=5, num_minibatches=2, accumulate=16)
    steps = list(update_steps(128, config, torch.Generator()))
    assert [s.network for s in steps] == 10 * ["critic", "policy"]
    assert [[len(rows) for rows in step.chunks] for step in steps[:2]] == [[64], 16 * [4]]
    assert torch.equal(steps[0].chunks[0], torch.cat(steps[1].chunks))
    first, third = steps[0].chunks[0], steps[4].chunks[0]
    assert not torch.equal(first, third), "a permutation an epoch"


def test_passes_hold_equal_choices_together() -> None:
    ids = torch.tensor([4, 1, 4, 2, 1, 9])
    found = passes(ids, 2)
    assert sorted(torch.cat(found).tolist()) == list(range(6))
    assert [set(ids[rows].tolist()) for rows in found] == [{4, 1}, {2, 9}]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"num_minibatches": 5, "accumulate": 2}, "9 steps can't be split into 10"),
        ({"num_minibatches": 5, "normalize_advantages": "chunk"}, "it needs 10"),
    ],
)
def test_a_rollout_that_is_too_short_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        list(update_steps(9, PPOConfig(**wrong), torch.Generator()))


@pytest.mark.parametrize(
    "wrong",
    [{"gamma": 1.2}, {"num_epochs": 0}, {"clip_epsilon": 0.0}, {"target_kl": 0.0}, {"lr": -1.0}],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"ppo.{next(iter(wrong))}"):
        PPOConfig(**wrong)
    with pytest.raises(UserError, match="critic_minibatches"):
        PPOConfig(order="interleaved", critic_minibatches=2)


def test_advantages_are_normalized_in_the_group_that_is_asked_for() -> None:
    samples = some_samples([0.1, 0.2, -0.1, 0.4, 5.0, 7.0])
    chunks = (torch.arange(4), torch.tensor([4, 5]))
    config = PPOConfig(normalize_advantages="chunk", choices_per_pass=1)
    found = list(weighted_passes(samples, chunks, config))
    first = torch.cat([part.advantages for part, _ in found[:4]]).flatten()
    expected = torch.tensor([-0.240192, 0.240192, -1.200961, 1.200961])
    assert_rounding(first, expected)
    assert [weight for _, weight in found] == pytest.approx(6 * [1 / 6])

    biased = replace(config, unbiased_deviation=False)
    part, _ = next(weighted_passes(samples, chunks[:1], replace(biased, choices_per_pass=None)))
    expected = torch.tensor([-0.277350, 0.277350, -1.386750, 1.386750])
    assert_rounding(part.advantages.flatten(), expected)

    config = PPOConfig(normalize_advantages="minibatch", choices_per_pass=None)
    parts = [part.advantages for part, _ in weighted_passes(samples, chunks, config)]
    whole = torch.cat(parts)
    assert float(whole.mean()) == pytest.approx(0, abs=1e-6)
    assert float(whole.std()) == pytest.approx(1, abs=1e-6)


def test_chunks_weigh_what_they_hold_or_all_alike() -> None:
    samples = some_samples([1.0, 2.0, 3.0, 4.0])
    chunks = (torch.tensor([0]), torch.tensor([1, 2, 3]))
    config = PPOConfig(normalize_advantages="none", choices_per_pass=None)
    assert [w for _, w in weighted_passes(samples, chunks, config)] == [0.25, 0.75]
    config = replace(config, chunk_weights="equal")
    assert [w for _, w in weighted_passes(samples, chunks, config)] == [0.5, 0.5]


def test_unequal_shares_of_a_minibatch_weigh_by_their_size() -> None:
    """64 in three: 22, 21 and 21. Means of the three, averaged as equals, are another number."""
    config = PPOConfig(num_epochs=1, num_minibatches=1, accumulate=3, normalize_advantages="none")
    _, step = update_steps(64, config, torch.Generator().manual_seed(0))
    assert [len(rows) for rows in step.chunks] == [22, 21, 21]
    samples = some_samples([float(number**2) for number in range(64)])

    def mean(config: PPOConfig) -> float:
        parts = weighted_passes(samples, step.chunks, replace(config, choices_per_pass=5))
        return sum(weight * float(part.advantages.mean()) for part, weight in parts)

    assert mean(config) == pytest.approx(sum(n**2 for n in range(64)) / 64)
    thirds = [float(samples.advantages[rows].mean()) / 3 for rows in step.chunks]
    assert mean(replace(config, chunk_weights="equal")) == pytest.approx(sum(thirds))
    assert abs(mean(config) - sum(thirds)) > 1
