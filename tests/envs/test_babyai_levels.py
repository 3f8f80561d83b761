"""BabyAI's levels: all that there are can be made, told in both languages, and solved."""

from __future__ import annotations

import pytest

from llm_agents.envs import BabyAIText
from llm_agents.envs.babyai import WORLDS, world_name
from llm_agents.envs.babyai_bot import Bot, play_shares
from llm_agents.envs.babyai_engine import make_engine, minigrid_levels
from llm_agents.envs.babyai_french import translate_mission
from llm_agents.envs.babyai_levels import MIXED, OWN, find_level
from llm_agents.envs.babyai_mazes import MAZES

BOT_CANNOT = {
    "PutNextS5N2Carrying",  # minigrid's own list: full hands at first
    "PutNextS6N3Carrying",
    "PutNextS7N4Carrying",
    "KeyInBox",
    "UnlockToUnlock",  # in minigrid as well: searches for ever in some worlds
    "OpenDoorsOrderN2Debug",  # in minigrid as well: opens the wrong door, which ends the episode
    "OpenDoorsOrderN4Debug",
}


def test_what_there_is() -> None:
    known = minigrid_levels()
    assert len(known) == 96
    assert not {*MIXED, *OWN, *MAZES} & set(known)
    assert "GoToObjS6" in known  # T12: it has version 1 only
    assert "OneRoomS8" in known
    assert len(MAZES) == 28
    assert len(WORLDS) == 23


def test_the_newest_version_of_a_level_is_taken() -> None:
    assert find_level("GoToObjS6").options == {"room_size": 6}


@pytest.mark.parametrize("level", [*OWN, *MAZES])
def test_the_bot_solves_our_levels(level: str) -> None:
    world = BabyAIText(level, seed=2)
    assert all(episode.success for episode in play_shares([world], Bot(), 2))
    assert translate_mission(world.mission)
    assert world.name == world_name(level)


def test_generation_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:  # T12
    world = BabyAIText("PutNextLocalS5N3")
    for seed in range(20):
        world.reset(seed)
    assert capfd.readouterr() == ("", "")


def test_open_doors_and_named_colors() -> None:
    world = BabyAIText("GoToLargeOpen")
    for _ in range(5):
        world.reset()
        doors = [t for t in world.engine.grid.grid if t is not None and t.type == "door"]
        assert doors
        assert all(door.is_open for door in doors)
        assert world.engine.instrs.desc.color is not None


def test_objects_in_a_room() -> None:
    for level, number in (("GoToLocal", 8), ("GoToLocalS8N4", 4), ("GoToLocalS8N16", 16)):
        world = BabyAIText(level)
        world.reset(1)
        things = [t for t in world.engine.grid.grid if t is not None and t.type != "wall"]
        assert len(things) == number


def test_engines_place_things_as_minigrids_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faster methods of ours draw and reject like those that they replace."""
    from minigrid.core.roomgrid import RoomGrid
    from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
    from minigrid.minigrid_env import MiniGridEnv

    for level in (
        find_level("GoToLocal"),
        find_level("BossLevel"),
        MIXED["MixedTrainLocal"]["open"],
    ):
        ours, theirs = make_engine(level), make_engine(level)
        own = type(theirs)
        plain = type("Plain", (own,), {})
        plain.place_obj = MiniGridEnv.place_obj  # type: ignore[attr-defined]
        plain._rand_int = MiniGridEnv._rand_int  # type: ignore[attr-defined]
        plain.check_objs_reachable = RoomGridLevel.check_objs_reachable  # type: ignore[attr-defined]
        theirs.__class__ = plain
        assert RoomGrid in plain.__mro__
        for seed in range(12):
            ours.reset(seed=seed)
            theirs.reset(seed=seed)
            assert ours.mission == theirs.mission
            assert ours.grid == theirs.grid
            assert tuple(ours.agent_pos) == tuple(theirs.agent_pos)


@pytest.mark.slow
@pytest.mark.parametrize("level", sorted({*minigrid_levels()} - BOT_CANNOT))
def test_the_bot_solves_minigrids_levels(level: str) -> None:
    world = BabyAIText(level, seed=2)
    assert all(episode.success for episode in play_shares([world], Bot(), 2))
    assert translate_mission(world.mission)
    short = BabyAIText(level, max_steps=7)
    short.reset(0)
    assert short.engine.max_steps == 7
