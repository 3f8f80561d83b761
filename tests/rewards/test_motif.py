"""The intrinsic reward at play: memory of messages, counts of an episode, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from llm_agents.errors import UserError
from llm_agents.functional import (
    RewardStatistics,
    intrinsic_rewards,
    reward_statistics,
    step_rewards,
    weighted_statistics,
)
from llm_agents.policies import MessageEncoder, MessageScorer
from llm_agents.policies.message_files import MessageRewardInfo, save_message_reward
from llm_agents.rewards import MessageReward, ShapingConfig
from llm_agents.types import MessageObservations

STATISTICS = RewardStatistics(-0.655, 0.710581, tuple(0.1 * i for i in range(19)))


def rows(*texts: str | bytes) -> NDArray[np.uint8]:
    raw = [text.encode("latin-1") if isinstance(text, str) else text for text in texts]
    return np.stack([np.frombuffer(text.ljust(256, b"\0"), np.uint8) for text in raw])


class FirstByte(MessageScorer):
    """A message is worth its first byte less 65, over 4: A is 0; counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def hidden_states(self, observations: MessageObservations) -> torch.Tensor:
        return observations.message[:, :1].float()

    def forward(self, observations: MessageObservations) -> torch.Tensor:
        self.asked.append(len(observations))
        return (observations.message[:, 0].float() - 65) / 4

    def describe(self) -> dict[str, object]:
        return {"class": "FirstByte"}

    def save(self, folder: Path) -> None:
        raise NotImplementedError


def first_byte(**options: Any) -> tuple[MessageReward, FirstByte]:
    scorer = FirstByte()
    statistics = options.pop("statistics", STATISTICS)
    return MessageReward(scorer, statistics, **options), scorer


# --- memory ---------------------------------------------------------------------------------------


def test_a_message_is_computed_once_and_new_ones_together() -> None:
    reward, scorer = first_byte(batch_size=3)
    found = reward.raw(rows("A", "B", "A", "E", "", "B"))
    assert found.tolist() == [0, 0.25, 0, 1, -16.25, 0.25]
    assert found.dtype == np.float32
    assert scorer.asked == [3, 1]  # four distinct ones, three a pass
    assert reward.raw(rows("E", "A")).tolist() == [1, 0]
    assert reward.raw(rows("E", "F")).tolist() == [1, 1.25]
    assert scorer.asked == [3, 1, 1]
    assert reward.num_remembered == 5


def test_many_messages_are_remembered() -> None:
    reward, scorer = first_byte()
    every = np.zeros((4000, 256), np.uint8)
    every[:, 1:5] = np.random.default_rng(0).integers(0, 256, (4000, 4))
    every[:, 0] = np.arange(4000) % 200
    for start in range(0, 4000, 37):
        part = every[start : start + 37]
        np.testing.assert_array_equal(reward.raw(part), (part[:, 0].astype(np.float32) - 65) / 4)
    np.testing.assert_array_equal(reward.raw(every), (every[:, 0].astype(np.float32) - 65) / 4)
    assert sum(scorer.asked) == reward.num_remembered == len(np.unique(every, axis=0))


def test_bytes_after_a_zero_distinguish_messages() -> None:
    reward, scorer = first_byte()
    reward.raw(rows(b"ab", b"a\0b", b"a\0c"))
    assert scorer.asked == [3]


def test_a_reward_is_frozen_and_in_eval_mode() -> None:
    encoder = MessageEncoder("lt_cnn_small").train()
    reward = MessageReward(encoder, STATISTICS)
    assert not encoder.training
    assert not any(p.requires_grad for p in encoder.parameters())
    messages = rows("It hits!", "You feel better.")
    expected = encoder(MessageObservations(torch.from_numpy(messages)))
    np.testing.assert_allclose(reward.raw(messages), expected.numpy(), rtol=0, atol=1e-6)


# --- from raw to intrinsic ------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(60, 80), min_size=3, max_size=3), min_size=1, max_size=12),
    st.sampled_from([None, 0, 0.05, 0.5, 0.95]),
    st.booleans(),
    st.sampled_from([0.0, 1.0, 3.0]),
)
def test_it_is_the_formula(
    steps: list[list[int]], level: float | None, rounded: bool, exponent: float
) -> None:
    """Three games; each step, each game shows the message of one letter."""
    shaping = ShapingConfig(level, rounded, exponent)
    reward, _ = first_byte(shaping=shaping)
    episodes = reward.episodes(3)
    seen: list[list[int]] = [[], [], []]
    for letters in steps:
        found = episodes(rows(*(bytes([letter]) for letter in letters)))
        for game, letter in enumerate(letters):
            seen[game].append(letter)
        counts = torch.tensor([seen[game].count(letter) for game, letter in enumerate(letters)])
        expected = intrinsic_rewards(
            (torch.tensor(letters, dtype=torch.float64) - 65) / 4,
            counts=counts,
            mean=STATISTICS.mean,
            variance=STATISTICS.variance,
            threshold=STATISTICS.threshold(level, rounded=rounded),
            count_exponent=exponent,
        )
        assert found.counts.tolist() == counts.tolist()
        np.testing.assert_allclose(found.rewards, expected.rewards.numpy(), rtol=0, atol=1e-5)


def test_the_worked_order_of_normalizing_cutting_and_counting() -> None:
    """T2, T6: raw 2 the second time is 0.393702, raw 4 the third time 0.204526."""
    z = [-0.409272, 0.777024, 1.370173, 3.149617, 5.522210]
    quantiles = tuple(np.quantile(z, np.arange(1, 20) / 20).tolist())
    reward, _ = first_byte(statistics=RewardStatistics(-0.655, 0.710580808, quantiles))
    assert reward.threshold == pytest.approx(1.370173)
    episodes = reward.episodes(2)
    two, four = bytes([65 + 8]), bytes([65 + 16])
    np.testing.assert_allclose(reward.normalized(rows(two, four)), z[3:], rtol=0, atol=2e-6)
    found = [episodes(rows(two, four)) for _ in range(3)]
    assert found[1].rewards[0] == pytest.approx(0.393702, abs=1e-6)
    assert found[2].rewards[1] == pytest.approx(0.204526, abs=1e-6)
    assert found[2].shaped.tolist() == pytest.approx(z[3:], abs=2e-6)


@pytest.mark.parametrize(("rounded", "kept"), [(True, 1.370173), (False, 0.0)])
def test_rounding_keeps_the_median_message(rounded: bool, kept: float) -> None:
    """T3: the message at the quantile itself."""
    reward, scorer = first_byte()
    raw = reward.raw(rows("C"))
    z = float((np.float64(raw[0]) + 0.655) / 0.710580808**0.5)
    assert z == pytest.approx(1.370173, abs=1e-6)
    statistics = RewardStatistics(-0.655, 0.710580808, (z,) * 19)
    reward = MessageReward(scorer, statistics, shaping=ShapingConfig(round_threshold=rounded))
    assert reward.shaped(rows("C"))[0] == pytest.approx(kept, abs=1e-6)


def test_the_message_at_the_quantile_never_passes_by_its_rounding() -> None:
    """Every message is at some quantile; each comes alone and in batches of all sizes."""
    torch.manual_seed(0)
    encoder = MessageEncoder("lt_cnn_small").eval()
    messages = rows(*(f"You hear {n} noises." for n in range(21)))
    raw = encoder(MessageObservations(torch.from_numpy(messages))).detach()
    mean, variance = weighted_statistics(raw, counts=torch.ones(21, dtype=torch.int64))
    statistics = reward_statistics(raw, mean=mean, variance=variance)
    median = int(raw.argsort()[10])
    for size in (1, 2, 5, 21):
        reward = MessageReward(encoder, statistics, batch_size=size)
        assert reward.shaped(messages[[median]])[0] == 0
        assert int((reward.shaped(messages) != 0).sum()) == 10


def test_without_normalization_the_same_messages_pass() -> None:
    letters = rows(*(bytes([letter]) for letter in range(60, 80)))
    normal, _ = first_byte()
    plain, _ = first_byte(shaping=ShapingConfig(normalize=False))
    assert ((normal.shaped(letters) != 0) == (plain.shaped(letters) != 0))[5:].all()
    passed = normal.shaped(letters) != 0
    np.testing.assert_array_equal(plain.shaped(letters)[passed], plain.raw(letters)[passed])


@pytest.mark.parametrize("level", [-0.5, 0.52, 1.0])
def test_other_quantiles_are_refused(level: float) -> None:
    """T4."""
    with pytest.raises(UserError, match=r"expected `threshold_quantile` of 0\.05, 0\.1, … 0\.95"):
        ShapingConfig(threshold_quantile=level)


def test_a_negative_exponent_is_refused() -> None:
    with pytest.raises(UserError, match="`count_exponent` from 0"):
        ShapingConfig(count_exponent=-1.0)


# --- counts ---------------------------------------------------------------------------------------


def decays(reward: MessageReward, counts: NDArray[np.int64]) -> list[float]:
    return reward.decay(counts).tolist()


def test_counts_of_an_episode() -> None:
    """T5: A, "", A, A, "", B; the empty message is a message, and a reset begins anew."""
    reward, _ = first_byte()
    episodes = reward.episodes(1)
    found = [int(episodes(rows(text)).counts[0]) for text in ("A", "", "A", "A", "", "B")]
    assert found == [1, 1, 2, 3, 2, 1]
    expected = [1, 1, 0.125, 0.037037, 0.125, 1]
    assert decays(reward, np.array(found)) == pytest.approx(expected, abs=6e-7)
    start = np.array([True])
    assert episodes(rows("A"), starts=start).counts.tolist() == [1]
    assert decays(reward, np.array([10, 1000])) == pytest.approx([0.001, 1e-9])


def test_games_count_for_themselves() -> None:
    episodes = first_byte()[0].episodes(2)
    assert episodes(rows("A", "A")).counts.tolist() == [1, 1]
    assert episodes(rows("A", "B")).counts.tolist() == [2, 1]
    assert episodes(rows("A", "A"), starts=np.array([True, False])).counts.tolist() == [1, 2]
    assert episodes(rows("B"), games=np.array([1])).counts.tolist() == [2]
    assert episodes.message_counts(0) == {rows("A")[0].tobytes(): 1}
    with pytest.raises(ValueError, match="expected observations of 2 games"):
        episodes(rows("A"))
    with pytest.raises(ValueError, match=r"messages of shape \(E, 256\)"):
        episodes(rows("A", "B").astype(np.int64))


def test_the_observation_at_a_reset_counts_first() -> None:
    """T7: what is paid under each rule, over an episode that begins and ends with the same words.

    Messages W A B W(end), then the next game's W. Worth: W .25 z units … as the letters say.
    """
    statistics = RewardStatistics(0.0, 1.0, (0.0,) * 19)
    reward, _ = first_byte(statistics=statistics, shaping=ShapingConfig(None, False, 1.0))
    episodes = reward.episodes(1)
    first = np.array([True])
    observed = [episodes(rows("I"), starts=first)]  # raw 2
    observed += [episodes(rows(text)) for text in ("E", "I", "I")]  # raw 1, 2, 2
    values = torch.tensor([float(step.rewards[0]) for step in observed])
    assert values.tolist() == pytest.approx([2, 1, 2 / 2, 2 / 3])
    acting, reached = values[:-1], values[1:]
    paid = step_rewards(acting=acting, reached=reached, observed="acting")
    assert paid.tolist() == pytest.approx([2, 1, 1])  # the reset pays, the end never does
    paid = step_rewards(acting=acting, reached=reached, observed="reached")
    assert paid.tolist() == pytest.approx([1, 1, 2 / 3])
    assert episodes(rows("I"), starts=first).rewards.tolist() == [2]


def test_counts_are_in_the_checkpoint(tmp_path: Path) -> None:
    reward, _ = first_byte()
    whole, again = reward.episodes(3), reward.episodes(3)
    for texts in (("A", "B", ""), ("A", "A", "B"), ("", "A", "B")):
        whole(rows(*texts))
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for game in range(3):
        assert again.message_counts(game) == whole.message_counts(game)
    after = rows("A", "A", "C")
    np.testing.assert_array_equal(again(after).counts, whole(after).counts)
    with pytest.raises(UserError, match="counts the messages of 3 games, this run plays 2"):
        reward.episodes(2).load_state_dict(whole.state_dict())
    again.reset()
    assert again(after).counts.tolist() == [1, 1, 1]
    empty = reward.episodes(3)
    empty.load_state_dict(reward.episodes(3).state_dict())
    assert empty(after).counts.tolist() == [1, 1, 1]


# --- other observations ---------------------------------------------------------------------------


def test_a_reward_of_the_bottom_line_is_not_remembered() -> None:
    encoder = MessageEncoder("lt_cnn_small", use_blstats=True, embedding_dim=4)
    reward = MessageReward(encoder, RewardStatistics(0.0, 1.0, (0.0,) * 19))
    assert not reward.is_remembered
    messages, stats = rows("A", "A"), np.arange(54).reshape(2, 27)
    seen = {"message": messages, "blstats": stats}
    raw = reward.raw(seen)
    assert raw[0] != raw[1]
    assert reward.num_remembered == 0
    found = reward.episodes(2)(seen)
    np.testing.assert_allclose(found.rewards, np.where(raw > 0, raw, 0), rtol=0, atol=1e-6)
    with pytest.raises(UserError, match=r"looks at message, blstats, .* hold message: collect bl"):
        reward.raw(messages)


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    statistics = RewardStatistics(0.1, 0.04, tuple(0.1 * i - 1 for i in range(19)))
    info = MessageRewardInfo("toy", {}, statistics, 4, "score", "abc", 9, 4, {})
    save_message_reward(MessageEncoder("lt_cnn_small"), info, tmp_path / "reward")
    return tmp_path / "reward"


def test_a_folder_is_loaded(folder: Path) -> None:
    reward = MessageReward.from_pretrained(
        str(folder), threshold_quantile=0.75, count_exponent=2.0, device="cpu"
    )
    assert reward.name == "toy"
    assert reward.threshold == pytest.approx(0.4)
    assert reward.info is not None
    assert reward.info.annotator == "score"
    raw = reward.raw(rows("A", "B"))
    np.testing.assert_allclose(
        reward.normalized(rows("A", "B")), (raw - 0.1) / 0.2, rtol=0, atol=1e-5
    )
    assert decays(reward, np.array([2])) == [0.25]
    with pytest.raises(UserError, match=r"message_reward\.json"):
        MessageReward.from_pretrained(str(folder.parent))


def test_remembered_rewards_survive_and_belong_to_their_weights(
    folder: Path, tmp_path: Path
) -> None:
    def load() -> MessageReward:
        return MessageReward.from_pretrained(
            str(folder), cache=str(tmp_path / "cache"), device="cpu"
        )

    first, second = load(), load()
    assert first.save_cache() is None  # nothing to keep yet
    a, b = first.raw(rows("A", "B")), second.raw(rows("B", "C"))
    path = first.save_cache()
    assert path is not None
    assert second.save_cache() == path  # joined, not replaced
    assert {p.name for p in path.parent.iterdir()} == {path.name, f"{path.name}.lock"}
    third = load()
    assert third.num_remembered == 3
    np.testing.assert_array_equal(third.raw(rows("A", "B", "C")), [*a, b[1]])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"can't be read .* its rewards are computed again"):
        load()
    path.unlink()
    torch.manual_seed(4)
    info = MessageRewardInfo.read(folder)
    save_message_reward(MessageEncoder("lt_cnn_small"), info, folder)
    other = load()
    assert other.num_remembered == 0
    assert other.version != first.version
    other.raw(rows("A"))
    assert other.save_cache() != path
