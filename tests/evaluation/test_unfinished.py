"""An evaluation that is killed goes on where it was, and only if it is the same one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from llm_agents.evaluation import RandomAgent, World, evaluate_agent
from llm_agents.evaluation.unfinished import FILE, UnfinishedEpisodes
from llm_agents.types import Agent, Episode


class Places:
    """Two worlds that count how often they are played; the second may fail."""

    def __init__(self, *, fails: bool = False) -> None:
        self.played: list[str] = []
        self.fails = fails

    def worlds(self) -> list[World]:
        return [self.world("first"), self.world("second")]

    def world(self, name: str) -> World:
        def play(agent: Agent, count: int, generator: torch.Generator) -> list[Episode]:
            del agent
            if self.fails and name == "second":
                raise KeyboardInterrupt
            self.played.append(name)
            draws = torch.rand(count, generator=generator, dtype=torch.float64).tolist()
            return [Episode(value, value, 3, 3, value > 0.5, world=1) for value in draws]

        return World(name, play)


AGENTS: dict[str, Agent] = {"trained": RandomAgent(), "random": RandomAgent()}


def test_what_was_played_is_not_played_again(tmp_path: Path) -> None:
    whole = evaluate_agent(AGENTS, Places().worlds(), 5)
    broken = Places(fails=True)
    with pytest.raises(KeyboardInterrupt):
        evaluate_agent(
            AGENTS, broken.worlds(), 5, unfinished=UnfinishedEpisodes(tmp_path, {"a": 1})
        )
    assert broken.played == ["first", "first"]
    second = Places()
    unfinished = UnfinishedEpisodes(tmp_path, {"a": 1})
    found = evaluate_agent(AGENTS, second.worlds(), 5, unfinished=unfinished)
    assert second.played == ["second", "second"]
    assert found.episodes == whole.episodes
    assert [{**asdict(e), "seconds": 0} for e in found.worlds] == [
        {**asdict(e), "seconds": 0} for e in whole.worlds
    ]
    unfinished.discard()
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("content", [None, "", "[]", '{"identity": 1}'])
def test_what_is_of_another_evaluation_or_no_file_of_ours_is_dropped(
    tmp_path: Path, content: str | None
) -> None:
    UnfinishedEpisodes(tmp_path, {"a": 1}).keep("w", "trained", [Episode(1, 1, 1, 1, True)], 2.0)
    known = UnfinishedEpisodes(tmp_path, {"a": 1}).find("w", "trained")
    assert known == ([Episode(1, 1, 1, 1, True)], 2.0)
    assert UnfinishedEpisodes(tmp_path, {"a": 1}).find("w", "random") is None
    if content is not None:
        (tmp_path / FILE).write_text(content)
        assert UnfinishedEpisodes(tmp_path, {"a": 1}).find("w", "trained") is None
    other = UnfinishedEpisodes(tmp_path, {"a": 2})
    assert other.find("w", "trained") is None
    other.keep("v", "trained", [], 1.0)
    assert list(json.loads((tmp_path / FILE).read_text())["played"]) == ["trained@v"]
