"""The bot and chance: their success and lengths, and the two rules of counting episodes."""

from __future__ import annotations

import doctest
from statistics import mean

import pytest

from llm_agents.envs import BabyAIText, babyai_bot
from llm_agents.envs.babyai_bot import Bot, Chance, play_first, play_shares
from llm_agents.envs.babyai_text import COLORS, TYPES
from llm_agents.envs.babyai_view import EMPTY
from llm_agents.errors import UserError

# level, kind: the bot's mean length and mean return; chance's success and mean length
TABLE = {
    ("MixedTrainLocal", "goto"): (5.27, 0.926, 0.307, 53.1),
    ("MixedTrainLocal", "pickup"): (6.28, 0.912, 0.153, 59.1),
    ("MixedTrainLocal", "open"): (15.91, 0.888, 0.007, 127.7),
    ("MixedTrainLocal", "putnext"): (11.85, 0.917, 0.018, 127.1),
    ("MixedTrainLocal", "seq"): (12.64, 0.911, 0.096, 122.5),
    ("GoToLocal", None): (5.33, 0.925, 0.292, 53.5),
    ("PickUpSeqPickUpLocal", None): (13.51, 0.905, 0.065, 124.7),
}


def test_the_example_runs() -> None:
    assert doctest.testmod(babyai_bot).failed == 0


@pytest.mark.parametrize(("level", "kind"), TABLE)
def test_the_bot_always_succeeds(level: str, kind: str | None) -> None:
    world = BabyAIText(level, kind=kind, seed=8)  # type: ignore[arg-type]
    episodes = play_shares([world], Bot(), 12)
    assert all(episode.success for episode in episodes)
    length = TABLE[level, kind][0]
    assert mean(e.num_decisions for e in episodes) == pytest.approx(length, rel=0.5)


def test_chance_succeeds_now_and_then() -> None:
    world = BabyAIText("MixedTrainLocal", kind="goto", seed=8)
    episodes = play_shares([world], Chance(1), 150)
    assert mean(e.success for e in episodes) == pytest.approx(0.307, abs=0.13)


@pytest.mark.parametrize(("number", "success"), [(3, 0.414), (6, 0.292), (9, 0.223)])
def test_more_actions_make_it_harder_for_chance(number: int, success: float) -> None:
    texts = [*BabyAIText().actions, "sleep", "do nothing", "think"]
    world = BabyAIText(actions=texts[:number], seed=8)
    episodes = play_shares([world], Chance(1), 120)
    assert mean(e.success for e in episodes) == pytest.approx(success, abs=0.14)


def test_one_bot_plays_several_worlds_and_episodes() -> None:
    worlds = [BabyAIText(seed=seed) for seed in range(3)]
    episodes = play_first(worlds, Bot(), 9)
    assert 9 <= len(episodes) <= 11
    assert all(episode.success for episode in episodes)


def test_each_world_plays_its_share() -> None:
    worlds = [BabyAIText(max_steps=1, seed=seed) for seed in range(3)]
    play_shares(worlds, Chance(), 7)
    assert [world.num_episodes for world in worlds] == [3, 2, 2]


def test_the_first_to_finish_favour_short_episodes() -> None:  # T9
    """Two worlds, episodes of 1 and of 9 steps: the short ones are 9 of 10."""
    worlds = [BabyAIText(max_steps=1), BabyAIText(max_steps=9, actions=["pick up", "turn left"])]
    lengths = [e.num_decisions for e in play_first(worlds, lambda _: 0, 40)]
    assert lengths.count(9) == 4
    lengths = [e.num_decisions for e in play_shares(worlds, lambda _: 0, 40)]
    assert lengths.count(1) == 20


def test_a_world_must_offer_what_the_bot_does() -> None:
    world = BabyAIText("MixedTrainLocal", kind="pickup", actions=["left", "right", "on"])
    bot = Bot()
    world.reset(0)
    while (ahead := world.view()[26]) == EMPTY or f"{COLORS[ahead[1]]} {TYPES[ahead[0]]}" not in (
        world.mission
    ):
        world.step(bot(world))
    with pytest.raises(UserError, match="BabyAI's action 3, got 3 actions"):
        bot(world)
    with pytest.raises(ValueError, match="at least one world"):
        play_first([], bot, 1)


def test_a_bot_without_a_way_says_so() -> None:
    for level, seed in (("UnlockToUnlock", 2), ("KeyInBox", 0)):
        world, bot = BabyAIText(level, seed=seed), Bot()
        world.reset()
        world.reset()
        with pytest.raises(UserError, match="finds no way to"):  # noqa: PT012
            while True:
                world.step(bot(world))


@pytest.mark.slow
@pytest.mark.parametrize(("level", "kind"), TABLE)
def test_the_whole_table(level: str, kind: str | None) -> None:
    length, score, success, random_length = TABLE[level, kind]
    world = BabyAIText(level, kind=kind)  # type: ignore[arg-type]
    bot, episodes = Bot(), []
    for seed in range(1000 if level == "GoToLocal" else 300):  # the specification's own episodes
        world.reset(seed)
        episode = None
        while episode is None:
            episode = world.step(bot(world)).episode
        episodes.append(episode)
    assert all(episode.success for episode in episodes)
    assert mean(e.num_decisions for e in episodes) == pytest.approx(length, abs=0.0051)
    assert mean(e.discounted_return for e in episodes) == pytest.approx(score, abs=0.00051)
    episodes = play_shares([world], Chance(0), 1000)
    assert mean(e.success for e in episodes) == pytest.approx(success, abs=0.05)
    assert mean(e.num_decisions for e in episodes) == pytest.approx(random_length, rel=0.04)


@pytest.mark.slow
def test_chance_on_the_mixed_task() -> None:  # T9
    """0.116 where each episode draws its kind, 0.160 as the release counted."""
    fair = [BabyAIText("MixedTrainLocal", kind_mode="in_turn", seed=s) for s in range(4)]
    episodes = play_shares(fair, Chance(0), 1000)
    assert mean(e.success for e in episodes) == pytest.approx(0.116, abs=0.025)
    rates = []
    for seed in range(10, 14):  # a run varies by its draw of 32 kinds: 0.125 to 0.191 in eight
        worlds = [
            BabyAIText("MixedTrainLocal", kind_mode="per_env", seed=1000 * seed + e)
            for e in range(32)
        ]
        rates.append(mean(e.success for e in play_first(worlds, Chance(seed), 1000)))
    assert mean(rates) == pytest.approx(0.16, abs=0.02)
