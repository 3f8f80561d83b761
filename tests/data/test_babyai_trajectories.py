"""Trajectories of the bot, of chance and of a language model; interruption and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_agents.data.babyai_trajectories import (
    AgentTrajectories,
    BotTrajectories,
    DAggerTrajectories,
)
from llm_agents.data.trajectories import episodes_of, read_trajectories
from llm_agents.data.trajectory_collection import TrajectoryJob, TrajectoryPlan
from llm_agents.envs import BabyAIPrompt, BabyAIText, PromptBuilder
from llm_agents.envs.babyai_bot import Bot
from llm_agents.errors import UserError
from llm_agents.types import Choice

WORLD = "babyai-go-to-red-ball"


def collection(**options: Any) -> TrajectoryPlan:
    return TrajectoryPlan(
        **{"world": WORLD, "num_steps": 40, "prompt": BabyAIPrompt(), "seed": 3, **options}
    )


def test_the_bots_trajectories(tmp_path: Path) -> None:
    numbers = BotTrajectories(collection()).run(tmp_path)
    file = tmp_path / "trajectories.jsonl"
    episodes = episodes_of(read_trajectories(file))
    steps = [step for episode in episodes for step in episode]
    assert numbers == {
        "file": str(file),
        "steps": len(steps),
        "episodes": len(episodes),
        "success_rate": 1.0,
    }
    assert len(steps) >= 40 > len(steps) - len(episodes[-1])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "trajectories.jsonl",
        "trajectories.jsonl.settings.json",
    ]
    for number, episode in enumerate(episodes):
        assert [step.step for step in episode] == list(range(len(episode)))
        assert [step.done for step in episode] == [False] * (len(episode) - 1) + [True]
        assert episode[-1].reward > 2
        assert {step.episode for step in episode} == {number}
        assert "red ball" in episode[0].goal
        assert episode[0].prompt.count("Observation") == 1  # its own first one, not the last's end
        if len(episode) > 1:
            assert f"Action 0: {episode[0].action} \n" in episode[1].prompt


def test_every_action_leads_to_the_next_prompt(tmp_path: Path) -> None:
    BotTrajectories(collection(num_steps=20)).run(tmp_path)
    steps = list(read_trajectories(tmp_path / "trajectories.jsonl"))
    for before, after in pairwise(steps):
        if not before.done:
            told = after.prompt.split(f"Action {min(before.step, 1)}: ")[1].split(" \n")[0]
            assert told == before.action
        assert before.actions == BabyAIText().actions


@pytest.mark.parametrize("kept", [0.0, 0.37, 0.8])
def test_an_interrupted_collection_goes_on(tmp_path: Path, kept: float) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    BotTrajectories(collection()).run(whole)
    text = (whole / "trajectories.jsonl").read_bytes()
    settings = (whole / "trajectories.jsonl.settings.json").read_bytes()
    (cut / "trajectories.jsonl.settings.json").write_bytes(settings)
    (cut / "trajectories.jsonl.part").write_bytes(text[: int(kept * len(text))])
    BotTrajectories(collection()).run(cut)
    assert (cut / "trajectories.jsonl").read_bytes() == text
    assert not (cut / "trajectories.jsonl.part").exists()


def test_a_finished_file_is_kept(tmp_path: Path) -> None:
    output = str(tmp_path / "bot.jsonl")
    first = BotTrajectories(collection(output=output)).run(tmp_path / "a")
    stamp = Path(output).stat().st_mtime_ns
    assert BotTrajectories(collection(output=output)).run(tmp_path / "b") == first
    assert Path(output).stat().st_mtime_ns == stamp


def test_worlds_beside_each_other_change_nothing(tmp_path: Path) -> None:
    for number in (1, 3):
        job = BotTrajectories(collection(num_worlds=number), player="chance")
        job.run(tmp_path / str(number))
    one, three = (
        (tmp_path / number / "trajectories.jsonl").read_text(encoding="utf8")
        for number in ("1", "3")
    )
    assert one == three


def test_noise_leads_the_bot_astray_and_its_advice_is_written(tmp_path: Path) -> None:
    plan = collection(num_steps=150)
    numbers = BotTrajectories(plan, noise=0.4).run(tmp_path)
    assert numbers["success_rate"] == 1.0
    slot, bot, astray, steps = plan.slots()[0], Bot(), 0, 0
    for episode in episodes_of(read_trajectories(tmp_path / "trajectories.jsonl")):
        slot.begin(episode[0].episode)
        for written, following in zip(episode, [*episode[1:], None], strict=True):
            choice = slot.choice
            assert written.choice == choice
            advice = bot(slot.world, slot.astray)  # type: ignore[arg-type]
            assert written.action == choice.actions[advice]
            draw = slot.draws.random()
            taken = slot.draws.randrange(3) if draw < 0.4 else advice
            assert slot.step(choice, advice, taken) == (following is None)
            if following is not None:  # the history has what was done
                assert choice.actions[taken] in following.prompt.split("Action ")[-2]
            astray, steps = astray + (taken != advice), steps + 1
    assert 0.15 < astray / steps < 0.4  # a third of the draws are what the bot wanted


@pytest.mark.parametrize("world", ["babyai-go-to-local", "babyai-pick-up-then-go-to-local"])
def test_the_bot_finds_back_from_any_move(world: str, tmp_path: Path) -> None:
    plan = TrajectoryPlan(world, num_steps=1500, seed=5)
    numbers = BotTrajectories(plan, noise=0.3).run(tmp_path)
    assert float(str(numbers["success_rate"])) > 0.98


def test_noise_is_each_episodes_own(tmp_path: Path) -> None:
    for number in (1, 3):
        BotTrajectories(collection(num_worlds=number), noise=0.3).run(tmp_path / str(number))
    one, three = (tmp_path / number / "trajectories.jsonl" for number in ("1", "3"))
    assert one.read_bytes() == three.read_bytes()
    with pytest.raises(UserError, match="got another `noise`"):
        BotTrajectories(collection(), noise=0.2).run(tmp_path / "1")


@pytest.mark.parametrize(("player", "noise"), [("bot", -0.1), ("bot", 1.0), ("chance", 0.1)])
def test_a_noise_that_is_none_is_refused(player: Any, noise: float) -> None:
    with pytest.raises(UserError, match=rf"`noise`.*got {noise} for the player `{player}`"):
        BotTrajectories(collection(), player=player, noise=noise)


def test_a_language_models_trajectories(tmp_path: Path, make_policy: Callable[..., Any]) -> None:
    policy = make_policy()
    jobs: dict[str, TrajectoryJob] = {
        "one": AgentTrajectories(collection(num_steps=12), policy),
        "two": AgentTrajectories(collection(num_steps=12, num_worlds=2), policy),
        "best": AgentTrajectories(collection(num_steps=3), policy, temperature=0),
    }
    steps = {}
    for name, job in jobs.items():
        job.run(tmp_path / name)
        steps[name] = list(read_trajectories(tmp_path / name / "trajectories.jsonl"))
    assert steps["one"] == steps["two"]
    assert len({step.action for step in steps["one"]}) > 1
    best = steps["best"][0]
    choice = Choice(best.prompt, best.actions)
    with torch.no_grad():
        assert best.index == int(policy.score_actions([choice], "sum").scores.argmax())
    assert (
        json.loads(
            (tmp_path / "one" / "trajectories.jsonl.settings.json").read_text(encoding="utf8")
        )["normalization"]
        == "sum"
    )


def test_the_bot_corrects_what_a_language_model_does(
    tmp_path: Path, make_policy: Callable[..., Any]
) -> None:
    policy = make_policy()
    world = "babyai-pick-up-then-go-to-local"  # where the bot has to know what was done
    plan = collection(world=world, num_steps=300, prompt=PromptBuilder())
    DAggerTrajectories(plan, policy, beta=0.4, normalization="token").run(tmp_path)
    slot, bot = plan.slots()[0], Bot()
    advised = drawn = refused = 0
    for episode in episodes_of(read_trajectories(tmp_path / "trajectories.jsonl")):
        slot.begin(episode[0].episode)
        for written, following in zip(episode, [*episode[1:], None], strict=True):
            choice = slot.choice
            assert written.choice == choice, "what was done before leads here"
            advice = bot(slot.world, slot.astray)  # type: ignore[arg-type]
            assert written.action == choice.actions[advice], "what is written is the bot's"
            taken = advice
            if slot.draws.random() >= 0.4:
                with torch.no_grad():
                    row = policy.score_actions([choice], "token").scores.double().softmax(1)[0]
                wanted = slot.draws.choices(range(len(row)), row.tolist())[0]
                taken = wanted if wanted < 3 else advice
                drawn, refused = drawn + 1, refused + (wanted >= 3)
            assert slot.step(choice, advice, taken) == (following is None)
            advised += 1
    assert 0.45 < drawn / advised < 0.75
    assert refused, "an untrained model wants to toggle and drop, too"


def test_a_models_worlds_beside_each_other_change_nothing(
    tmp_path: Path, make_policy: Callable[..., Any]
) -> None:
    policy = make_policy()
    for number in (1, 3):
        plan = collection(num_worlds=number, prompt=PromptBuilder())
        DAggerTrajectories(plan, policy, normalization="token").run(tmp_path / str(number))
    plan = collection(prompt=PromptBuilder())
    BotTrajectories(plan).run(tmp_path / "bot")
    DAggerTrajectories(plan, policy, beta=1).run(tmp_path / "advice")
    one, three, of_the_bot, advice = (
        (tmp_path / name / "trajectories.jsonl").read_text(encoding="utf8")
        for name in ("1", "3", "bot", "advice")
    )
    assert one == three
    assert advice == of_the_bot, "with β = 1 only the bot plays"
    assert one != of_the_bot
    with pytest.raises(UserError, match="got another `beta`, `expert`"):
        AgentTrajectories(plan, policy, normalization="token").run(tmp_path / "1")
    with pytest.raises(UserError, match="got another `beta`:"):
        DAggerTrajectories(plan, policy, beta=0.25, normalization="token").run(tmp_path / "1")


def test_refusals(tmp_path: Path, make_policy: Callable[..., Any]) -> None:
    BotTrajectories(collection(num_steps=5)).run(tmp_path)
    with pytest.raises(UserError, match="begun with, got another `player`"):
        BotTrajectories(collection(num_steps=5), player="chance").run(tmp_path)
    with pytest.raises(UserError, match="got another `num_steps`, `seed`"):
        BotTrajectories(collection(num_steps=6, seed=4)).run(tmp_path)
    stranger = tmp_path / "other.jsonl"
    stranger.write_text("{}\n", encoding="utf8")
    with pytest.raises(UserError, match="which this job has not written"):
        BotTrajectories(collection(output=str(stranger))).run(tmp_path)
    with pytest.raises(UserError, match="a world of BabyAI for its bot, got `toy-lamp`"):
        BotTrajectories(TrajectoryPlan("toy-lamp")).run(tmp_path / "lamp")
    with pytest.raises(UserError, match="of at least 1, got 0 and 1"):
        collection(num_steps=0)
    with pytest.raises(UserError, match="`temperature` of 0 or more"):
        AgentTrajectories(collection(), make_policy(), temperature=-1)
    for beta in (-0.1, 1.1):
        with pytest.raises(UserError, match=f"`beta` from 0 to 1, got {beta}"):
            DAggerTrajectories(collection(), make_policy(), beta=beta)
    with pytest.raises(UserError, match="a world of BabyAI for its bot, got `toy-lamp`"):
        DAggerTrajectories(TrajectoryPlan("toy-lamp"), make_policy()).run(tmp_path / "lamps")


def test_chance_may_play_any_world(tmp_path: Path) -> None:
    job = BotTrajectories(TrajectoryPlan("toy-lamp", num_steps=6, seed=0), player="chance")
    assert job.run(tmp_path)["steps"] == 6
