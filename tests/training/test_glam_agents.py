"""GLAM and its comparison agents from recipe to results, through the command line."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_agents.cli import main
from llm_agents.data.trajectories import TrajectoryStep, to_line
from llm_agents.envs.prompts import PromptBuilder
from llm_agents.envs.toy import Lamp
from llm_agents.evaluation.episodes import read_episode_results
from llm_agents.methods.names import name_of_class
from llm_agents.training.agents import agent_by_name

RECIPES = {
    "glam": """
model:
  class_path: llm_agents.methods.GLAM
  init_args:
    policy:
      class_path: llm_agents.policies.LanguagePolicy.from_pretrained
      init_args: {base: tiny-random-gpt2, lora: {r: 2, alpha: 4, targets: attention}}
    critic_widths: [8]
    ppo: {num_minibatches: 2, lr: 1.0e-3, critic_lr: 1.0e-3}
data:
  class_path: llm_agents.rollouts.TextRollouts
  init_args: {world: toy-lamp, num_worlds: 2, num_steps: 4, total_frames: 32}
""",
    "npae": """
model:
  class_path: llm_agents.methods.GLAM
  init_args:
    policy:
      class_path: llm_agents.policies.LanguagePolicy.from_pretrained
      init_args: {base: tiny-random-t5}
    action_head: 3
    pretrained: embeddings
    critic_widths: [8]
    ppo: {num_minibatches: 2, lr: 1.0e-3, critic_lr: 1.0e-3}
data:
  class_path: llm_agents.rollouts.TextRollouts
  init_args: {world: toy-lamp, num_worlds: 2, num_steps: 4, total_frames: 32}
""",
    "drrn": """
model:
  class_path: llm_agents.methods.DRRN
  init_args:
    network:
      class_path: llm_agents.policies.drrn.DRRNetwork
      init_args: {vocabulary_size: 100, embedding_size: 8, hidden_size: 8}
    settings: {batch_size: 4}
data:
  class_path: llm_agents.rollouts.TextRollouts
  init_args: {world: toy-lamp, num_worlds: 2, num_steps: 4, total_frames: 32}
""",
    "symbolic_ppo": """
model:
  class_path: llm_agents.methods.SymbolicPPO
  init_args:
    network:
      class_path: llm_agents.policies.babyai_symbolic.BabyAISymbolic
      init_args: {num_actions: 3, features: 8}
    ppo: {recurrence: 2}
data:
  class_path: llm_agents.rollouts.SymbolicRollouts
  init_args:
    {world: "tests.rollouts.symbolic_worlds:Balls", num_worlds: 2, num_steps: 4, total_frames: 32}
""",
    "cloning": """
model:
  class_path: llm_agents.methods.Cloning
  init_args:
    policy:
      class_path: llm_agents.policies.LanguagePolicy.from_pretrained
      init_args: {base: tiny-random-gpt2, lora: {r: 2, alpha: 4, targets: attention}}
    optimizer: {lr: 1.0e-3, schedule: cosine, warmup_steps: 1}
data:
  class_path: llm_agents.data.CloningData
  init_args: {train: trajectories.jsonl, validation: 0.2, batch_size: 4, world: toy-lamp}
""",
}
REST = """
seed_everything: 3
trainer: {accelerator: cpu%s}
run: {checkpoint_every: %d}
evaluation: {episodes: 4, num_worlds: 2}
"""
QUICK, LANGUAGE = ("drrn", "symbolic_ppo"), ("glam", "npae", "cloning")

Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a recipe of the method in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2]))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    Path("trajectories.jsonl").write_text("".join(map(to_line, trajectories())), encoding="utf8")

    def run(name: str, *words: str) -> int:
        rest = REST % ((", max_steps: 8", 2) if name == "cloning" else ("", 8))
        Path(f"{name}.yaml").write_text(RECIPES[name] + rest)
        return main(["run", f"{name}.yaml", "--run.folder", "out", *words])

    return run


def trajectories() -> list[TrajectoryStep]:
    """Return episodes of somebody who can read the lamp."""
    found, world, prompts = [], Lamp(seed=7), PromptBuilder()
    for episode in range(20):
        shown = world.reset()
        choice = prompts.choice(shown)
        action = shown.vector.index(1)
        step = world.step(action)
        text = choice.actions[action]
        found.append(
            TrajectoryStep(
                episode, 0, shown.goal, choice.prompt, choice.actions, text, step.reward, True
            )
        )
    return found


def rows() -> list[dict[str, str]]:
    with Path("out/metrics.csv").open(encoding="utf8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LANGUAGE)]
)
def test_a_run_leaves_an_agent_that_plays_by_the_same_command(run: Run, name: str) -> None:
    assert run(name, "--evaluation.pictures", "false") == 0
    results = read_episode_results("out")
    world = "toy-lamp" if name != "symbolic_ppo" else "tests.rollouts.symbolic_worlds:Balls"
    who = {entry.agent for entry in results.worlds}
    assert who == ({"trained", "zero-shot", "random"} if name in ("glam", "cloning") else who)
    assert {"trained", "random"} <= who
    assert all(entry.num_episodes == 4 for entry in results.worlds)
    assert results.details["method"] == ("glam" if name == "npae" else name)
    described = json.loads(Path("out/adapter/agent.json").read_text())
    assert name_of_class(described["method"]) == results.details["method"]
    assert main(["evaluate", "out", "--out", "again"]) == 0
    again = read_episode_results("again")
    assert again.worlds[0].world == world
    trained = [e.episode for e in results.episodes if e.agent == "trained"]
    assert [e.episode for e in again.episodes if e.agent == "trained"] == trained
    assert main(["evaluate", "out", "--out", "other", "--env", world, "--episodes", "2"]) == 0


@pytest.mark.parametrize(
    "name",
    ["drrn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("symbolic_ppo", *LANGUAGE))],
)
def test_a_killed_run_continues_the_same_curve(run: Run, name: str) -> None:
    only = ("--run.stages", "[fit]")
    assert run(name, *only) == 0
    whole = rows()
    Path("out").rename("whole")
    callback = "{class_path: toy_method.SignalAt, init_args: "
    callback += "{batch: 2, name: SIGTERM, where: sent}}"
    assert run(name, *only, "--trainer.callbacks", f"[{callback}]") == 143
    assert run(name, *only, "--trainer.callbacks", f"[{callback}]", "--resume", "auto") == 0
    found = rows()
    assert len(found) == len(whole) > 2
    for expected, row in zip(whole, found, strict=True):
        for key in expected:
            if not key.startswith("time/") and expected[key] != row.get(key, ""):
                assert float(row[key]) == pytest.approx(float(expected[key]), rel=1e-4, abs=1e-6), (
                    key
                )


def test_pictures_are_drawn_of_whatever_there_is_to_see(run: Run) -> None:
    assert run("drrn") == 0
    assert Path("out/learning_curve.png").stat().st_size > 3000
    assert not Path("out/action_probabilities.png").exists()


def test_an_agent_without_a_language_model_is_no_policy(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    from llm_agents.errors import UserError
    from llm_agents.methods import DRRN
    from llm_agents.zoo import load_policy, load_pretrained

    assert run("drrn", "--run.stages", "[fit]") == 0
    with pytest.raises(UserError, match="has no language model"):
        load_policy("out")
    assert isinstance(load_pretrained("out"), DRRN)
    assert isinstance(agent_by_name("out"), DRRN)


@pytest.mark.slow
def test_several_processes_play_for_one_glam(run: Run) -> None:
    only = ("--run.stages", "[fit]", "--data.num_processes", "2")
    assert run("glam", *only) == 0
    assert [float(row["rollout/frames"]) for row in rows()] == [8, 16, 24, 32]
    assert all(float(row["train/first_ratio_error"]) < 1e-4 for row in rows())
