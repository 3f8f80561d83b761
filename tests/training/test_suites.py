"""The suite of generalisation through the command line, and the worlds that its tests play."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("minigrid")

from llm_agents.cli import main
from llm_agents.envs import BabyAIPrompt, BabyAIText, make_world
from llm_agents.envs.babyai_levels import KINDS
from llm_agents.envs.babyai_prompts import SYNONYM_ACTIONS
from llm_agents.errors import UserError
from llm_agents.evaluation import RandomAgent, read_episode_results
from llm_agents.evaluation.baselines import BotAgent
from llm_agents.evaluation.episodes import TRAINED
from llm_agents.evaluation.suites import GENERALISATION, NO_CHANGE, SuiteTest
from llm_agents.evaluation.unfinished import FILE
from llm_agents.policies import LoraConfig
from llm_agents.training import suites
from llm_agents.training.playing import TrainingWorlds, unfinished_episodes
from llm_agents.training.settings import EvaluationConfig
from llm_agents.training.suites import _places, worlds_of
from llm_agents.types import Episode

ROOT = Path(__file__).resolve().parents[2]
RECIPE = """
seed_everything: 1
model:
  class_path: llm_agents.methods.GLAM
  init_args:
    policy:
      class_path: llm_agents.policies.LanguagePolicy.from_pretrained
      init_args: {base: tiny-random-llama, lora: {r: 2, alpha: 4, targets: attention}}
    critic_widths: [8]
    ppo: {num_minibatches: 1}
data:
  class_path: llm_agents.rollouts.TextRollouts
  init_args:
    world: babyai-go-to-local
    world_options: {max_steps: 4}
    num_worlds: 2
    num_steps: 4
    total_frames: 8
    prompt: {class_path: llm_agents.envs.BabyAIPrompt, init_args: {history_length: 0}}
trainer: {accelerator: cpu}
evaluation: {episodes: 2, num_worlds: 2, baselines: [zero-shot], pictures: false}
"""
BY_NAME = {test.name: test for test in GENERALISATION}


def home(name: str = "babyai-go-to-local", **options: Any) -> TrainingWorlds:
    return TrainingWorlds((name,), options, BabyAIPrompt(history_length=0))


def places(test: str, at: TrainingWorlds) -> list[tuple[str, dict[str, Any]]]:
    return [(name, dict(options)) for _, name, options in _places(BY_NAME[test], at)]


def test_a_test_in_words_is_played_in_the_agents_own_world() -> None:
    assert places("unseen nouns", home(max_steps=9)) == [("babyai-go-to-local", {"max_steps": 9})]
    ((name, options),) = places("synonym actions", home())
    assert (name, options) == ("babyai-go-to-local", {"actions": list(SYNONYM_ACTIONS)})
    three = home(actions=["turn left", "turn right", "go forward"])
    ((_, options),) = places("synonym actions", three)
    assert options["actions"] == ["rotate left", "rotate right", "move ahead"]
    nine = home(actions=[*SYNONYM_ACTIONS, "sleep", "do nothing", "think"])
    ((_, options),) = places("other synonym actions", nine)
    assert options["actions"][5:] == ["turn", "sleep", "do nothing", "think"]


def test_another_world_keeps_what_an_agent_can_do_and_its_own_horizon() -> None:  # T7
    three = home(actions=["turn left", "turn right", "go forward"], max_steps=9, reward_scale=1.0)
    ((name, options),) = places("two pick-ups", three)
    assert name == "babyai-pick-up-seq-pick-up-local"
    assert options == {"actions": three.options["actions"], "reward_scale": 1.0}
    ((name, options),) = places("go to, in French", three)
    assert name == "babyai-go-to-local-french"
    assert options["actions"] == ["tourner à gauche", "tourner à droite", "aller tout droit"]


def test_kinds_have_equal_weight() -> None:  # T9
    found = places("mixed tasks, unseen pairs", home())
    assert [name for name, _ in found] == [f"babyai-mixed-test-local-{kind}" for kind in KINDS]
    assert all("kind_mode" not in options for _, options in found)
    own = home("babyai-mixed-train-local", kind_mode="per_env")
    assert len(places(NO_CHANGE, own)) == 5
    assert len(places(NO_CHANGE, home("babyai-mixed-train-local-open"))) == 1
    worlds = worlds_of(BY_NAME["mixed tasks"], home(), EvaluationConfig(episodes=10, num_worlds=2))
    assert [len(world.play(BotAgent(), 99, None)) for world in worlds] == [2] * 5  # type: ignore[arg-type]


def test_other_builders_prompts_change_their_words_too() -> None:
    at = TrainingWorlds(("babyai-go-to-local",), {}, None)
    (world,) = worlds_of(BY_NAME["invented words"], at, EvaluationConfig(episodes=1, num_worlds=1))
    seen: list[str] = []

    class Reads(RandomAgent):
        def act(self, choices: Any, generator: Any) -> Any:
            seen.extend(choice.prompt for choice in choices)
            return super().act(choices, generator)

    world.play(Reads(), 1, torch.Generator().manual_seed(0))
    assert seen[0].endswith("your next step is to")
    assert {"dax", "xolo", "afze"} & set(seen[0].replace(",", "").split())
    with pytest.raises(UserError, match="whose prompts label the goal"):
        worlds_of(BY_NAME["goal as a wish"], at, EvaluationConfig())


def test_french_actions_have_no_english_synonyms() -> None:
    with pytest.raises(UserError, match="expected English actions"):
        places("synonym actions", home("babyai-go-to-local-french"))


def test_prompts_and_candidates_change_together() -> None:  # T18
    seen: list[tuple[str, tuple[str, ...]]] = []

    class First:
        def act(self, choices: Any, generator: Any) -> Any:
            seen.extend((choice.prompt, choice.actions) for choice in choices)
            return RandomAgent().act(choices, generator)

    config = EvaluationConfig(episodes=1, num_worlds=1)
    for test in (BY_NAME["synonym actions"], BY_NAME["unseen nouns and adjectives"]):
        (world,) = worlds_of(test, home(max_steps=3), config)
        world.play(First(), 1, torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    prompt, actions = seen[0]
    assert actions == SYNONYM_ACTIONS
    assert ", ".join(SYNONYM_ACTIONS) in prompt
    prompt, actions = seen[-1]
    assert actions[0] == "turn left"
    assert not {"key", "ball", "box", "red", "green", "blue"} & set(prompt.replace(",", "").split())


def test_a_trained_agent_takes_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("glam.yaml").write_text(RECIPE)
    assert main(["run", "glam.yaml", "--run.folder", "out"]) == 0
    own = Path("out/results.json").read_bytes()
    chosen = ["unseen nouns", "mixed tasks", "go to, in French"]
    words = [part for name in chosen for part in ("--test", name)]
    assert main(["evaluate", "out", "--suite", "generalisation", *words]) == 0
    assert "invented words" not in capsys.readouterr().out
    assert Path("out/results.json").read_bytes() == own  # the run's own results stay
    results = read_episode_results("out/generalisation")
    assert [(e.world, e.agent) for e in results.worlds] == [
        (test, agent) for test in (NO_CHANGE, *chosen) for agent in (TRAINED, "zero-shot")
    ]
    assert results.of("mixed tasks").num_episodes == 5  # type: ignore[union-attr]
    assert sorted(results.details["kinds"]["mixed tasks"][TRAINED]) == sorted(KINDS)
    assert results.details["tests"]["unseen nouns"]["modification"] == "other_nouns"
    head = Path("out/generalisation/table.md").read_text().splitlines()[0]
    assert head == "| test | trained | zero-shot |"
    assert Path("out/generalisation/success.png").stat().st_size > 3000
    both = ["glam=out/generalisation", "glam=out/generalisation"]
    assert main(["plot", *both, "--out", "bars.png"]) == 0
    assert "±0" in Path("bars.md").read_text()


def test_a_suite_that_is_killed_goes_on_with_the_tests_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("glam.yaml").write_text(RECIPE)
    assert main(["run", "glam.yaml", "--run.folder", "out"]) == 0
    tests = ("no change", "unseen nouns", "synonym actions")
    words = ["--suite", "generalisation", *(w for name in tests for w in ("--test", name))]
    assert main(["evaluate", "out", *words, "--out", "whole"]) == 0
    played: list[str] = []
    fresh = suites.play_fresh

    def dies_at_the_third(place: TrainingWorlds, name: str, *rest: Any) -> list[Episode]:
        played.append(name)
        if len(played) == 3:
            raise KeyboardInterrupt
        return fresh(place, name, *rest)

    monkeypatch.setattr(suites, "play_fresh", dies_at_the_third)
    with contextlib.suppress(KeyboardInterrupt):
        main(["evaluate", "out", *words])
    assert len(played) == 3
    assert not Path("out/generalisation/results.json").exists()
    assert main(["evaluate", "out", *words]) == 0
    assert len(played) == 3 + 3 * 2 - 2  # two agents take three tests, two of these were there
    whole = read_episode_results("whole/generalisation")
    assert read_episode_results("out/generalisation").episodes == whole.episodes
    assert not Path("out/generalisation", FILE).exists()


def test_an_evaluation_is_another_where_weights_are(tmp_path: Path, make_policy: Any) -> None:
    policy = make_policy("llama", lora=LoraConfig(r=2, alpha=4), weights=0.1)
    agent = nn.Module()
    agent.policy = policy
    agent.head = nn.Linear(2, 1)
    given = (tmp_path, agent, home(), [], EvaluationConfig(), {"task": "w"})
    unfinished_episodes(*given).keep("w", TRAINED, [], 1.0)
    assert unfinished_episodes(*given).find("w", TRAINED) is not None
    parts = dict(agent.named_parameters())
    of_the_adapter = next(name for name in parts if "lora_B" in name)
    for name in (of_the_adapter, "head.bias"):
        before = parts[name].detach().clone()
        with torch.no_grad():
            parts[name] += 1
        assert unfinished_episodes(*given).find("w", TRAINED) is None
        with torch.no_grad():
            parts[name].copy_(before)
    assert unfinished_episodes(*given).find("w", TRAINED) is not None
    assert unfinished_episodes(*given[:5], {"task": "v"}).find("w", TRAINED) is None
    longer = TrainingWorlds(home().names, {}, BabyAIPrompt(history_length=1))
    for other in (longer, home(max_steps=9)):
        assert unfinished_episodes(*given[:2], other, *given[3:]).find("w", TRAINED) is None


def test_bot_and_chance_are_evaluated_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--env", "babyai-go-to-local", "--episodes"]
    assert main(["evaluate", "bot", *words, "50"]) == 0
    bot = read_episode_results("evaluations/bot")
    assert (bot.overall.agent, bot.overall.success.mean) == ("bot", 1.0)
    assert bot.overall.decisions.mean == pytest.approx(5.33, abs=1.5)
    assert bot.of("babyai-go-to-local", "random").success.mean < 0.6  # type: ignore[union-attr]
    assert main(["evaluate", "random", *words, "20"]) == 0
    assert len(read_episode_results("evaluations/random").worlds) == 1
    assert main(["evaluate", "bot", "--suite", "generalisation", *words, "5"]) == 0
    found = read_episode_results("evaluations/bot/generalisation")
    assert [entry.world for entry in found.worlds if entry.agent == "bot"] == [
        NO_CHANGE,
        *(
            t.name
            for t in GENERALISATION
            if t.world and t.compared_with is None and t.name != "go to"
        ),
    ]
    assert all(entry.success.mean == 1.0 for entry in found.worlds if entry.agent == "bot")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bot", "--env", "toy-lamp"], "expected a world of BabyAI for its bot"),
        (["bot", "--env", "babyai-go-to-local", "--behaviour", "list"], "has one behaviour"),
        (["bot", "--suite", "generalisation"], "in which world `bot` is to play: give `--env`"),
        (["random", "--test", "unseen nouns"], "add --suite"),
        (["random", "--data", "sample", "--env", "toy-lamp"], "plays worlds: leave --data out"),
        (
            ["random", "--suite", "generalisation", "--env", "toy-lamp"],
            "expected one world of BabyAI",
        ),
    ],
)
def test_what_cannot_be_played_is_refused(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.rglob("results.json"))


def test_every_test_has_a_world_that_can_be_made() -> None:
    for test in GENERALISATION:
        for _, name, options in _places(test, home()):
            assert isinstance(make_world(name, **options), BabyAIText)
    assert SuiteTest("x").is_another_world


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("scale", "stages", "start"),
    [
        ("tiny", ["collect", "cloning", "advice", "corrected", "ppo"], "corrected"),
        ("default", ["collect", "cloning", "advice", "corrected", "ppo"], "corrected"),
        ("paper", ["collect", "cloning", "ppo"], None),
    ],
)
def test_the_makefile_chains_the_stages(
    scale: str, stages: list[str], start: str | None, tmp_path: Path
) -> None:
    words = ["make", "--dry-run", "reproduce-glam", f"SCALE={scale}", f"GLAM={tmp_path}"]
    environment = {key: value for key, value in os.environ.items() if "MAKE" not in key}
    plan = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, check=True)
    commands = [line.split() for line in plan.stdout.decode().splitlines() if " run " in line]
    assert [Path(each[each.index("--run.folder") + 1]).name for each in commands] == stages
    by_stage = dict(zip(stages, commands, strict=True))

    def value(stage: str, key: str) -> str | None:
        found = by_stage[stage]
        return found[found.index(key) + 1] if key in found else None

    written = value("collect", "--job.plan.output")
    assert value("cloning", "--data.train") == written == f"{tmp_path}/trajectories.jsonl"
    adapter = None if start is None else f"{tmp_path}/{start}/adapter"
    assert value("ppo", "--model.policy.adapter") == adapter
    if start is not None:
        cloned, advice = f"{tmp_path}/cloning/adapter", f"{tmp_path}/advice.jsonl"
        assert value("advice", "--job.policy.adapter") == cloned
        assert value("corrected", "--model.policy.adapter") == cloned
        assert value("advice", "--job.plan.output") == value("corrected", "--data.train") == advice
    assert len({value(stage, "--data.world") for stage in ("cloning", "ppo")}) == 1
