"""The memory of transitions."""

from __future__ import annotations

import pytest
import torch

from llm_agents.methods.replay import Situation, Transition, TransitionReplay


def transition(number: int, after: int | None) -> Transition:
    def situation(which: int) -> Situation:
        return Situation(bytes([which, 1]), (b"\1\0", bytes([which, 0, 7, 0])))

    following = None if after is None else situation(after)
    return Transition(situation(number), number % 2, number / 7, following, 0.25)


def test_the_newest_are_kept() -> None:
    replay = TransitionReplay(3, seed=0)
    replay.add(transition(n, n + 1) for n in range(7))
    assert len(replay) == 3
    assert {one.situation.state[0] for one in replay.sample(3)} == {4, 5, 6}
    replay.add([transition(9, None)])
    assert {one.situation.state[0] for one in replay.sample(3)} == {5, 6, 9}


def test_each_is_drawn_equally_often_and_never_twice_at_a_time() -> None:
    replay = TransitionReplay(10, seed=0)
    replay.add(transition(n, None) for n in range(10))
    counts = torch.zeros(10)
    for _ in range(2000):
        drawn = [one.situation.state[0] for one in replay.sample(3)]
        assert len(set(drawn)) == 3
        counts[drawn] += 1
    assert float((counts / 600 - 1).abs().max()) < 0.2
    with pytest.raises(ValueError, match=r"[Ss]ample"):
        replay.sample(11)


def test_a_saved_memory_draws_the_same(tmp_path: object) -> None:
    replay = TransitionReplay(5, seed=3)
    replay.add(transition(n, None if n % 3 == 0 else n + 1) for n in range(7))
    replay.sample(2)
    saved = replay.state_dict()
    path = f"{tmp_path}/replay.pt"
    torch.save(saved, path)
    again = TransitionReplay(5, seed=99)
    again.load_state_dict(torch.load(path, weights_only=True))
    for _ in range(3):
        assert replay.sample(3) == again.sample(3)
    for one in (replay, again):
        one.add([transition(8, None)])
    assert replay.sample(5) == again.sample(5), "the next place is the same"


def test_situations_are_saved_once() -> None:
    replay = TransitionReplay(100, seed=0)
    replay.add(transition(n, n + 1) for n in range(50))
    assert len(replay.state_dict()["situations"]["list_lengths"]) == 51


def test_a_memory_that_is_too_small_is_refused() -> None:
    replay = TransitionReplay(5, seed=0)
    replay.add(transition(n, None) for n in range(5))
    with pytest.raises(ValueError, match="at most 4"):
        TransitionReplay(4, seed=0).load_state_dict(replay.state_dict())
    with pytest.raises(ValueError, match="capacity"):
        TransitionReplay(0, seed=0)
