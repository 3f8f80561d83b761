from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from rich.console import Console

from llm_agents.errors import UserError
from llm_agents.evaluation import (
    EpisodeResults,
    RandomAgent,
    World,
    ZeroShotAgent,
    evaluate_agent,
    print_table,
    read_episode_results,
    read_results,
    share,
    write_results,
)
from llm_agents.evaluation.episodes import summarize_episodes
from llm_agents.evaluation.intervals import BootstrapConfig
from llm_agents.policies import LoraConfig
from llm_agents.types import Agent, Choice, Decisions, Episode


def episode(value: float, *, success: bool = False, steps: int = 3) -> Episode:
    return Episode(value, 2 * value, steps, 4 * steps, success)


def world(name: str, returns: Sequence[float], **options: bool | float) -> World:
    """Return a world of which each agent plays the same episodes, and a random one none as good."""

    def play(agent: Agent, count: int, generator: torch.Generator) -> list[Episode]:
        found = [episode(value, success=value > 0) for value in returns[:count]]
        return [episode(0.0)] * count if isinstance(agent, RandomAgent) else found

    return World(name, play, **options)


class First:
    """Takes the first action."""

    def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
        count = len(choices)
        mask = torch.ones(count, 1, dtype=torch.bool)
        return Decisions(torch.zeros(count, dtype=torch.long), mask.float() * 0, mask.float(), mask)

    def state_values(self, choices: Sequence[Choice]) -> torch.Tensor:
        return torch.full((len(choices),), 7.0)


def results() -> EpisodeResults:
    return evaluate_agent(
        {"trained": First(), "random": RandomAgent()},
        [
            world("home", [0.5, 0.0, 1.0, 0.0], optimal_return=1.0),
            world("other", [0.25] * 4, is_trained_on=False),
        ],
        4,
        name="toy",
        details={"method": "first", "score": math.nan},
    )


def test_every_agent_plays_every_world() -> None:
    found = results()
    assert [(entry.world, entry.agent) for entry in found.worlds] == [
        ("home", "trained"),
        ("home", "random"),
        ("other", "trained"),
        ("other", "random"),
    ]
    home = found.overall
    assert home.num_episodes == 4
    assert home.discounted_return.mean == pytest.approx(0.375)
    assert home.undiscounted_return.mean == pytest.approx(0.75)
    assert home.success.mean == 0.5
    assert (home.decisions.mean, home.primitive_steps.mean) == (3, 12)
    assert home.optimal_return == 1.0
    other = found.of("other")
    assert other is not None
    assert not other.is_trained_on
    assert found.of("home", "random").discounted_return.mean == 0  # type: ignore[union-attr]
    assert found.of("elsewhere") is None
    assert len(found.episodes) == 16


def test_the_success_rate_is_over_the_episodes_that_ended() -> None:
    played = [episode(1.0, success=True)] * 3 + [episode(0.2)]
    found = summarize_episodes(world("w", []), "trained", played, BootstrapConfig())
    assert found.success.mean == 0.75  # not by the sign of the return, nor by what was asked for
    with pytest.raises(ValueError, match="expected episodes of `w`, got none"):
        summarize_episodes(world("w", []), "trained", [], BootstrapConfig())


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    found = results()
    path = write_results(tmp_path, found)
    values = json.loads(path.read_text(encoding="utf8"))
    assert (values["format"], values["kind"]) == (1, "episodes")
    assert values["details"] == {"method": "first", "score": None}
    back = read_episode_results(tmp_path)
    assert back.worlds == found.worlds
    assert back.episodes == found.episodes
    assert back.bootstrap == found.bootstrap
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UserError, match="expected the results of a policy"):
        read_results(tmp_path)


def test_the_table_names_agents_optimum_and_worlds_never_trained_in() -> None:
    screen = io.StringIO()
    print_table(results(), Console(width=80, file=screen))
    text = screen.getvalue()
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert lines[0] == ["home"]
    assert ["trained", "4", "0.3750"] in [row[:3] for row in lines]
    assert ["optimum", "1.0000"] in lines
    assert "other (never trained in)" in text
    assert "50% [15, 85]" in text  # 2 of 4 by Wilson's formula


def test_worlds_need_different_names() -> None:
    with pytest.raises(UserError, match="expected worlds of different names"):
        evaluate_agent({"a": First()}, [world("w", [1.0]), world("w", [1.0])], 1)
    with pytest.raises(UserError, match="expected worlds"):
        evaluate_agent({"a": First()}, [], 1)


def test_every_agent_gets_the_same_draws() -> None:
    seen: list[float] = []

    def play(agent: Agent, count: int, generator: torch.Generator) -> list[Episode]:
        seen.append(float(torch.rand(1, generator=generator)))
        return [episode(1.0)]

    evaluate_agent({"a": First(), "b": First()}, [World("v", play), World("w", play)], 1, seed=3)
    assert len(set(seen)) == 1


def test_a_random_agent_draws_uniformly_from_lists_of_any_length() -> None:
    choices = [Choice("p", ("a",)), Choice("p", ("a", "b", "c", "d"))] * 2000
    decisions = RandomAgent().act(choices, torch.Generator().manual_seed(0))
    assert set(decisions.index[::2].tolist()) == {0}
    counts = Counter(decisions.index[1::2].tolist())
    assert all(abs(counts[action] - 500) < 100 for action in range(4))  # 5 standard errors
    assert decisions.log_probs[:2, 0].tolist() == pytest.approx([0.0, -math.log(4)])
    assert decisions.mask.all()
    assert RandomAgent().state_values(choices[:3]).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="at least one action"):
        RandomAgent().act([Choice("p", ())], torch.Generator())


def test_a_zero_shot_agent_acts_without_its_adapters(make_policy) -> None:
    policy = make_policy("llama", lora=LoraConfig(r=4, alpha=8), weights=0.5)
    choice = Choice("The lamp is red. You should", ("press red", "press blue", "wait"))

    class Greedy(First):
        def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
            scores = policy.score_actions(choices, "sum").scores
            seen.append(scores)
            return super().act(choices, generator)

    seen: list[torch.Tensor] = []
    agent = Greedy()
    with torch.no_grad():
        agent.act([choice], torch.Generator())
        base = ZeroShotAgent(agent, policy)
        base.act([choice], torch.Generator())
        agent.act([choice], torch.Generator())
        with policy.without_adapters():
            expected = policy.score_actions([choice], "sum").scores
    assert not torch.allclose(seen[0], seen[1], atol=1e-4)
    assert torch.allclose(seen[1], expected)
    assert torch.equal(seen[0], seen[2])
    assert base.state_values([choice]).tolist() == [7.0]


def test_wilsons_interval() -> None:
    # (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n), z = 1.959964
    found = share([True] * 8 + [False] * 2, 0.95)
    assert found.mean == 0.8
    assert found.low == pytest.approx(0.490162, abs=1e-6)
    assert found.high == pytest.approx(0.943318, abs=1e-6)
    everything = share([True] * 100, 0.95)
    assert everything.low == pytest.approx(100 / (100 + 1.959964**2), abs=1e-6)
    assert everything.high == 1.0
    assert share([False], 0.95).std is None
    with pytest.raises(ValueError, match="expected trials"):
        share([], 0.95)
