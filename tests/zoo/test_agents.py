"""Agents through the zoo: published, loaded by id, played, shown, kept; NetHack's apart."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from llm_agents import load_pretrained, play_pretrained
from llm_agents.cli import main
from llm_agents.errors import UserError
from llm_agents.evaluation import read_any_results
from llm_agents.methods import DRRN, POAD, SymbolicPPO
from llm_agents.training import keeping
from llm_agents.training.keeping import add_entry
from llm_agents.zoo import load_policy, publish, pull, show
from llm_agents.zoo.card import split_card
from llm_agents.zoo.card_numbers import weaknesses
from llm_agents.zoo.card_text import data_section
from llm_agents.zoo.facts import gather_facts
from llm_agents.zoo.hub import find_folder
from llm_agents.zoo.layout import load_heads
from llm_agents.zoo.outside_files import Renamed, zoo_names
from tests.zoo.cards import python_of

REST = """
seed_everything: 3
trainer: {accelerator: cpu, enable_progress_bar: false}
run: {checkpoint_every: 16}
evaluation: {episodes: 3, num_worlds: 1, pictures: false}
"""
RECIPES = {
    "poad": """
model:
  class_path: llm_agents.methods.POAD
  init_args:
    policy:
      class_path: llm_agents.policies.LanguagePolicy.from_pretrained
      init_args: {base: tiny-random-llama, lora: {r: 2, alpha: 4, top_layers: 1}}
    critic_widths: [8]
data:
  class_path: llm_agents.rollouts.TextRollouts
  init_args: {world: toy-chest, num_worlds: 2, num_steps: 8, total_frames: 16}
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
  init_args: {world: toy-lamp, num_worlds: 2, num_steps: 4, total_frames: 16}
""",
    "symbolic_ppo": """
model:
  class_path: llm_agents.methods.SymbolicPPO
  init_args:
    network:
      class_path: llm_agents.policies.babyai_symbolic.BabyAISymbolic
      init_args: {num_actions: 6, features: 8}
    ppo: {recurrence: 2}
data:
  class_path: llm_agents.rollouts.SymbolicRollouts
  init_args:
    {world: babyai-go-to-red-ball-no-dists, num_worlds: 2, num_steps: 4, total_frames: 8}
""",
}
KINDS: dict[str, type] = {"poad": POAD, "drrn": DRRN, "symbolic_ppo": SymbolicPPO}
Built = Callable[[str], Path]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return a function from a kind to the folder of a run that trained it."""
    root = tmp_path_factory.mktemp("agents")

    def build(kind: str) -> Path:
        run = root / kind
        if not run.exists():
            recipe = root / f"{kind}.yaml"
            recipe.write_text(RECIPES[kind] + REST)
            assert main(["run", str(recipe), "--run.folder", str(run)]) == 0
            versions = json.loads((run / "versions.json").read_text())
            (run / "versions.json").write_text(json.dumps({**versions, "uncommitted_changes": 0}))
        return run

    return build


@pytest.fixture
def agent(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Built:
    """Return a function from a kind to a copy of its run, below the working folder."""
    monkeypatch.chdir(tmp_path)

    def copy(kind: str) -> Path:
        if kind == "symbolic_ppo":
            pytest.importorskip("minigrid")
        shutil.copytree(built(kind), tmp_path / "runs" / kind)
        text = (tmp_path / "runs" / kind / "adapter" / "recipe.yaml").read_text()
        folder = str(built(kind))
        kept = text.replace(folder, f"runs/{kind}")
        (tmp_path / "runs" / kind / "adapter" / "recipe.yaml").write_text(kept)
        return Path("runs") / kind

    return copy


@pytest.mark.parametrize("kind", ["drrn", "poad", "symbolic_ppo"])
def test_an_agent_goes_to_the_hub_and_back_and_plays_alike(
    agent: Built, hub: Any, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = agent(kind)
    name = f"me/{kind}"
    assert main(["publish", str(run), "--repo", name]) == 0
    sent = hub.repos[name][-1].files
    assert {"agent.json", "results.json", "hashes.json", "replay.html", "README.md"} <= set(sent)
    assert {"replay.mp4", "replay.gif"} & set(sent)
    metadata, body = split_card(sent["README.md"].decode())
    assert metadata["pipeline_tag"] == "reinforcement-learning"
    assert metadata["library_name"] == ("peft" if kind == "poad" else "llm_agents")
    metrics = metadata["model-index"][0]["results"][0]["metrics"]
    assert {m["type"] for m in metrics} >= {"mean_reward", "success_rate", "discounted_return"}
    assert all(isinstance(m["value"], float) for m in metrics)
    assert "| random |" in body
    assert "@inproceedings" in body
    assert isinstance(load_pretrained(name, device="cpu"), KINDS[kind])
    capsys.readouterr()
    exec(compile(python_of(body), "card", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    local = play_pretrained(str(run), episodes=2, seed=1)
    assert [first, second] == [
        f"{e.success} {e.discounted_return} {e.num_decisions}" for e in local
    ]
    assert main(["evaluate", name, "--out", "again"]) == 0
    again, before = read_any_results("again"), read_any_results(run)
    assert [e.episode for e in again.episodes] == [e.episode for e in before.episodes]
    assert main(["publish", str(run), "--repo", name]) == 0
    assert len(hub.repos[name]) == 2


@pytest.mark.parametrize("kind", ["drrn", "symbolic_ppo"])
def test_an_agent_is_watched_by_its_hub_id_with_the_probability_of_each_action(
    agent: Built, hub: Any, kind: str
) -> None:
    publish(agent(kind), f"me/{kind}")
    words = ["--max-steps", "3", "--html", "a.html", "--json", "a.json"]
    assert main(["watch", f"me/{kind}", *words]) == 0
    found = re.search(r'type="application/json">(.*?)</script>', Path("a.html").read_text(), re.S)
    assert found is not None
    content = json.loads(found[1])
    lines = ["".join(text for _, text in line) for line in content["lines"]]
    sides = ["\n".join(lines[n] for n in frame["side"]) for frame in content["frames"]]
    facts = json.loads(Path("a.json").read_text())["episodes"][0]["facts"]
    assert len(sides) == facts["decisions"] + 1
    for side in sides[:-1]:
        chances = [float(c) for c in re.findall(r"^(?:→ |  )(\d\.\d{3}) [█░]{10}", side, re.M)]
        assert sum(chances) == pytest.approx(1.0, abs=0.004)
        assert side.count("→ ") == 1
    if kind == "symbolic_ppo":
        screen = "\n".join(lines[n] for n in content["frames"][0]["screen"])
        assert "▲" in screen
        assert "it sees" in screen
        assert "advantage of the action" in sides[0]


def test_the_policy_of_an_agent_can_be_had_and_a_network_has_none(agent: Built) -> None:
    assert load_policy(str(agent("poad")), device="cpu").base == "tiny-random-llama"
    run = str(agent("drrn"))
    with pytest.raises(UserError, match="has no language model"):
        load_policy(run)
    with pytest.raises(UserError, match="drop `quantization`"):
        load_pretrained(run, quantization="nf4")
    with pytest.raises(UserError, match="drop `trainable`"):
        load_pretrained(run, trainable=True)


def test_a_strangers_recipe_that_names_other_code_is_not_run(
    agent: Built, hub: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = agent("drrn")
    publish(run, "me/drrn")
    files = dict(hub.repos["me/drrn"][-1].files)
    recipe = yaml.safe_load(files["recipe.yaml"])
    recipe["evaluation"]["reward"] = {
        "class_path": "llm_agents.rewards.CallableReward",
        "init_args": {"function": "subprocess:call"},
    }
    hub.add("evil/drrn", {**files, "recipe.yaml": yaml.safe_dump(recipe).encode()})
    pulled = pull("evil/drrn", "pulled")
    for name in ("evil/drrn", str(pulled)):
        for verb in ("evaluate", "watch"):
            assert main([verb, name]) == 2
            assert "not part of llm_agents: subprocess:call" in capsys.readouterr().err
        with pytest.raises(UserError, match="subprocess:call"):
            play_pretrained(name)
    (pulled / "pulled.json").unlink()
    assert main(["watch", str(pulled), "--max-steps", "1"]) == 0


def test_a_recipe_publishes_what_it_trained(
    built: Built, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(
        RECIPES["drrn"] + REST + "publish: {repo_id: me/trained, license: mit, private: true}\n"
    )
    status = main(["run", "a.yaml", "--run.folder", "out"])
    versions = json.loads(Path("out/versions.json").read_text())
    if versions["uncommitted_changes"]:  # this checkout's own state decides
        assert status == 2
        assert hub.repos == {}
        return
    assert status == 0
    metadata, _ = split_card(hub.repos["me/trained"][-1].files["README.md"].decode())
    assert metadata["license"] == "mit"
    assert hub.private == {"me/trained"}


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("publish: {repo_id: trained}\n", "of the form owner/name, got `trained`"),
        (
            "publish: {repo_id: me/x}\nreproduces:\n"
            "  - {paper: see /home/ada/paper, table: t, metric: m}\n",
            "would tell who and where you are: line",
        ),
    ],
)
def test_what_publishing_would_refuse_is_refused_before_the_run(
    section: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(RECIPES["drrn"] + REST + section)
    assert main(["run", "a.yaml", "--run.folder", "out"]) == 2
    assert expected in capsys.readouterr().err
    assert not Path("out/checkpoints").exists()


def test_the_zoo_shows_agents_and_keeps_them(
    agent: Built, capsys: pytest.CaptureFixture[str]
) -> None:
    run = agent("drrn")
    assert main(["zoo", "add", str(run)]) == 0
    assert "checkpoints/drrn-toy-lamp: " in capsys.readouterr().out
    folder = Path("checkpoints/drrn-toy-lamp")
    card = (folder / "README.md").read_text()
    assert 'play_pretrained("drrn-toy-lamp", episodes=2, seed=1)' in card
    assert main(["zoo", "show", "drrn-toy-lamp"]) == 0
    said = capsys.readouterr().out
    assert "kind      agent" in said
    assert "lightning watch drrn-toy-lamp" in said
    assert show("drrn-toy-lamp").kind == "agent"
    assert len(play_pretrained("drrn-toy-lamp", episodes=2)) == 2
    assert main(["zoo", "add", str(run)]) == 2
    assert "give `--replace`" in capsys.readouterr().err
    before = card
    assert main(["zoo", "card", str(folder)]) == 0
    assert (folder / "README.md").read_text() == before


def test_rounded_weights_wait_for_results_of_their_own(agent: Built) -> None:
    run = agent("drrn")
    said = list(add_entry(run, "small", rounded=True))
    assert any("measured anew" in line for line in said)
    folder = Path("checkpoints/small")
    assert not (folder / "results.json").exists()
    whole = (run / "adapter/network.safetensors").stat().st_size
    assert (folder / "network.safetensors").stat().st_size < 0.7 * whole
    assert main(["evaluate", str(folder)]) == 0
    assert main(["zoo", "card", str(folder)]) == 0
    network = load_pretrained("small", device="cpu")
    assert all(p.dtype == torch.float32 for p in network.parameters())


def test_a_value_head_that_is_too_large_is_rounded_and_the_adapter_is_not(
    adapter_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = {path.name: path.stat().st_size for path in adapter_folder.glob("*.safetensors")}
    monkeypatch.setattr(keeping, "MOST_BYTES", sum(sizes.values()) - 1)
    said = list(add_entry(adapter_folder, "small"))
    assert said[0] == "its value head is rounded to bfloat16: answers do not depend on it"
    folder = Path("checkpoints/small")
    kept = {path.name: path.stat().st_size for path in folder.glob("*.safetensors")}
    assert kept["adapter_model.safetensors"] == sizes["adapter_model.safetensors"]
    assert kept["value_head.safetensors"] < 0.8 * sizes["value_head.safetensors"]
    assert (folder / "results.json").exists()
    before, after = (load_heads(path)["value_head"] for path in (adapter_folder, folder))
    for one, other in zip(before.parameters(), after.parameters(), strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=4e-3, atol=0)


def test_a_recipe_names_the_adapter_that_it_began_with_as_the_zoo_does(
    adapter_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    list(add_entry(adapter_folder, "first"))
    values = {"policy": {"adapter": str(adapter_folder)}, "judge": {"path": "nowhere"}}
    assert zoo_names(values) == [Renamed("", str(adapter_folder), "zoo:first")]
    assert find_folder("zoo:first").name == "first"


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        ("'zoo:first'", "Training began with the zoo's `first`."),
        ("checkpoints/first", "Training began with the zoo's `first`."),
        ("runs/one/adapter", "Training began with an adapter of an earlier stage"),
        ("null", None),
    ],
)
def test_a_card_says_what_training_began_with(
    adapter_folder: Path, adapter: str, said: str | None
) -> None:
    facts = gather_facts(adapter_folder, "me/small", "org/base", None)
    recipe = f"model: {{init_args: {{policy: {{init_args: {{adapter: {adapter}}}}}}}}}"
    text = data_section(replace(facts, recipe=recipe))
    assert said in text if said is not None else "Training began" not in text
    assert "Training began" not in data_section(replace(facts, recipe=""))


@pytest.mark.parametrize(
    ("begun_at", "said"),
    [
        (0.0, None),
        (0.5, "not clearly better than `first`, which it began with: 0.5000 [0.4000, 0.6000]"),
        (0.9, "it does worse than `first`, which it began with: 0.5000 [0.4000, 0.6000] against"),
    ],
)
def test_a_card_says_where_training_gained_nothing(
    agent: Built, begun_at: float, said: str | None
) -> None:
    folder, first = agent("poad") / "adapter", Path("checkpoints/first")
    shutil.copytree(folder, first)
    reach(folder, 0.5)
    reach(first, begun_at)
    path = folder / "recipe.yaml"
    recipe = yaml.safe_load(path.read_text())
    recipe["model"]["init_args"]["policy"]["init_args"]["adapter"] = str(first)
    path.write_text(yaml.safe_dump(recipe))
    found = [
        each
        for each in weaknesses(gather_facts(folder, "me/second", "org/base", None))
        if "began with" in each
    ]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
    shutil.rmtree(first)  # what is not there can't be compared with
    assert gather_facts(folder, "me/second", "org/base", None).beginning is None
    path.write_text(path.read_text().replace(str(first), "runs/gone/adapter"))
    assert gather_facts(folder, "me/second", "org/base", None).beginning is None  # not with itself


def reach(folder: Path, mean: float) -> None:
    """Let the results of an agent's folder say that it reached a mean return, within 0.1."""
    path = next(each for each in (folder, folder.parent) if (each / "results.json").exists())
    values = json.loads((path / "results.json").read_text())
    for entry in values["worlds"]:
        if entry["agent"] == "trained":
            entry["discounted_return"] |= {"mean": mean, "low": mean - 0.1, "high": mean + 0.1}
    (path / "results.json").write_text(json.dumps(values))


def test_an_entry_keeps_what_it_is_compared_with(
    adapter_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (adapter_folder / "against").mkdir()
    shutil.copyfile(adapter_folder / "results.json", adapter_folder / "against" / "results.json")
    list(add_entry(adapter_folder, "compared"))
    folder = Path("checkpoints/compared")
    assert (folder / "against" / "results.json").is_file()
    assert "Weaker than what it is compared with" in (folder / "README.md").read_text()
    path = adapter_folder / "against" / "results.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"details": {"folder": "/home/ada/data"}}))
    with pytest.raises(UserError, match=r"results.json, line 1: the path `/home/ada"):
        list(add_entry(adapter_folder, "compared", replace=True))
