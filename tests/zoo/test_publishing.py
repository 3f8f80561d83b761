"""What may be published and what may not, the card that goes with it, and one atomic commit."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_agents.errors import UserError
from llm_agents.evaluation import read_results, write_results
from llm_agents.zoo import PublishReport, load_pretrained, publish, pull
from llm_agents.zoo.card import START, split_card

FILES = {
    "README.md",
    "adapter_base.json",
    "adapter_config.json",
    "adapter_model.safetensors",
    "greetings_eval_results.jsonl",
    "hashes.json",
    "llm_agents.json",
    "recipe.yaml",
    "results.json",
    "results.png",
    "value_head.json",
    "value_head.safetensors",
}


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait no time between attempts."""
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)


def test_a_dry_run_writes_everything_and_sends_nothing(adapter_folder: Path, hub: Any) -> None:
    report = publish(adapter_folder, "me/tiny", dry_run=True)
    assert set(report.files) == FILES
    assert {path.name for path in report.staged.iterdir()} == FILES
    assert report.commit is None
    assert hub.requests == []


def test_publishing_is_one_commit_and_again_is_none(adapter_folder: Path, hub: Any) -> None:
    report = publish(adapter_folder, "me/tiny")
    assert report.commit is not None
    assert len(hub.repos["me/tiny"]) == 2  # the empty repository, then everything at once
    assert set(hub.repos["me/tiny"][-1].files) == FILES | {".gitattributes"}
    publish(adapter_folder, "me/tiny")
    assert len(hub.repos["me/tiny"]) == 2


def test_a_hub_that_is_overloaded_is_asked_again(adapter_folder: Path, hub: Any) -> None:
    hub.failures += [503, 429]
    publish(adapter_folder, "me/tiny")
    assert len(hub.repos["me/tiny"]) == 2


def test_a_hub_that_stays_overloaded_gets_nothing(adapter_folder: Path, hub: Any) -> None:
    hub.failures += [503] * 9
    with pytest.raises(UserError, match=r"refused to take `me/tiny` \(503\)"):
        publish(adapter_folder, "me/tiny")
    assert set(hub.repos["me/tiny"][-1].files) == {".gitattributes"}


@pytest.mark.parametrize("fault", ["lost", "unheard"])
def test_an_upload_that_breaks_off_leaves_one_clean_commit(
    adapter_folder: Path, hub: Any, fault: str
) -> None:
    hub.failures += [fault]
    publish(adapter_folder, "me/tiny")
    assert len(hub.repos["me/tiny"]) == 2
    assert set(hub.repos["me/tiny"][-1].files) == FILES | {".gitattributes"}


def test_a_hub_that_answers_no_more_is_named_and_the_same_command_tries_again(
    adapter_folder: Path, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    endpoint = constants.ENDPOINT
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"could not reach http://127\.0\.0\.1:9 in 5 attempts"):
        publish(adapter_folder, "me/tiny")
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    hub.delay = 0.05
    assert publish(adapter_folder, "me/tiny").commit


def test_another_branch_is_made_and_the_main_one_left_alone(adapter_folder: Path, hub: Any) -> None:
    for _ in range(2):
        publish(adapter_folder, "me/tiny", revision="trial")
    assert set(hub.repos["me/tiny"][-1].files) == {".gitattributes"}
    history = hub.branches["me/tiny", "trial"]
    assert [set(commit.files) for commit in history[1:]] == [FILES | {".gitattributes"}]


def test_files_of_an_earlier_publication_go_and_those_of_others_stay(
    adapter_folder: Path, hub: Any
) -> None:
    theirs = {"thumbnail.png": b"x", "notes.md": b"x", "model_index.json": b"{}"}
    hub.add("me/tiny", {**theirs, "action_head.safetensors": b"x", "replay.mp4": b"x"})
    publish(adapter_folder, "me/tiny")
    assert set(hub.repos["me/tiny"][-1].files) == FILES | set(theirs)
    assert len(hub.repos["me/tiny"]) == 2


def test_code_that_no_commit_holds_is_refused(adapter_folder: Path, hub: Any) -> None:
    versions = {"commit": "abc123", "uncommitted_changes": True, "platform": "x", "command": ["/x"]}
    run = adapter_folder.parent / "run"
    shutil.copytree(adapter_folder, run / "adapter")
    (run / "versions.json").write_text(json.dumps(versions))
    with pytest.raises(UserError, match=r"the commit abc123 does not hold.*--allow-dirty"):
        publish(run, "me/tiny")
    assert hub.requests == []
    tried = publish(run, "me/tiny", dry_run=True)
    assert "would be refused" in tried.warnings[0]
    report = publish(run, "me/tiny", allow_dirty=True)
    assert "`abc123` of llm_agents, with changes that it does not hold" in card_of(report)
    kept = json.loads((report.staged / "provenance.json").read_text())
    assert kept["commit"] == "abc123"
    assert "command" not in kept


def test_a_repository_with_uncommitted_changes_is_refused(adapter_folder: Path, hub: Any) -> None:
    root = adapter_folder.parent
    (root / "reward.py").write_text("old\n")
    names = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    for words in (["init", "-q"], ["add", "reward.py"], ["commit", "-q", "-m", "x"]):
        subprocess.run(["git", "-C", str(root), *names, *words], check=True)
    publish(adapter_folder, "me/tiny", dry_run=True)
    (root / "reward.py").write_text("new\n")
    with pytest.raises(UserError, match=r"has uncommitted changes: .*reward\.py"):
        publish(adapter_folder, "me/tiny")
    assert publish(adapter_folder, "me/tiny", allow_dirty=True).commit


def test_weights_are_checked_against_their_digests(
    adapter_folder: Path, hub: Any, tmp_path: Path
) -> None:
    publish(adapter_folder, "me/tiny")
    folder = pull("me/tiny", tmp_path / "pulled")
    assert json.loads((folder / "pulled.json").read_text()) == {
        "repo_id": "me/tiny",
        "commit": hub.repos["me/tiny"][-1].sha,
    }
    load_pretrained(str(folder))
    path = folder / "value_head.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(UserError, match=r"`value_head.safetensors` of .*, expected "):
        load_pretrained(str(folder))
    path.rename(folder / "action_head.safetensors")
    with pytest.raises(UserError, match=r"has no `value_head.safetensors`"):
        load_pretrained(str(folder))


def test_what_was_pulled_gives_the_same_results(
    adapter_folder: Path, hub: Any, tmp_path: Path
) -> None:
    publish(adapter_folder, "me/tiny")
    folder = pull("me/tiny", tmp_path / "pulled")
    assert read_results(folder) == read_results(adapter_folder)
    for name in ("adapter_model.safetensors", "value_head.safetensors"):
        assert (folder / name).read_bytes() == (adapter_folder / name).read_bytes()


def test_the_card_says_where_it_is_weaker_than_what_it_was_compared_with(
    adapter_folder: Path,
) -> None:
    results = read_results(adapter_folder)
    better = [replace(answer, reward=answer.reward + 0.5) for answer in results.answers]
    other = replace(results, name="runs/sft/adapter", answers=tuple(better))
    write_results(adapter_folder / "against", other)
    card = card_of(publish(adapter_folder, "me/tiny", dry_run=True))
    assert "**Weaker than what it is compared with:**" in card
    assert "On greetings its reward is below that of `adapter`: paired difference -0.5000" in card
    assert card.count("| greetings |") == 2


def card_of(report: PublishReport) -> str:
    return (report.staged / "README.md").read_text()


def test_a_token_that_may_not_write_is_told(adapter_folder: Path, hub: Any) -> None:
    hub.write_token = "secret-of-the-owner"
    with pytest.raises(UserError, match=r"401.*log in with `hf auth login`"):
        publish(adapter_folder, "me/tiny", token="another")
    assert publish(adapter_folder, "me/tiny", token="secret-of-the-owner").commit


def test_a_private_repository(adapter_folder: Path, hub: Any) -> None:
    publish(adapter_folder, "me/tiny", private=True)
    assert hub.private == {"me/tiny"}


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("optimizer.pt", b"x", "pickles may run code"),
        ("last.ckpt", b"x", "pickles may run code"),
        ("pytorch_model.bin", b"x", "pickles may run code"),
        ("model.safetensors", b"x", "weights of a base model"),
        ("model-00001-of-00002.safetensors", b"x", "weights of a base model"),
        ("base.gguf", b"x", "weights of a base model"),
    ],
)
def test_what_is_unfit_is_refused(
    adapter_folder: Path, hub: Any, name: str, content: bytes, expected: str
) -> None:
    (adapter_folder / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{expected}.*{name}"):
        publish(adapter_folder, "me/tiny")
    assert hub.requests == []


def test_all_reasons_are_named_together(adapter_folder: Path) -> None:
    (adapter_folder / "results.json").unlink()
    (adapter_folder / "a.pkl").write_bytes(b"x")
    (adapter_folder / "model.safetensors").write_bytes(b"x")
    with pytest.raises(UserError) as caught:
        publish(adapter_folder, "me/tiny", dry_run=True)
    for part in ("lightning evaluate", "a.pkl", "model.safetensors"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("token: hf_" + "aBcD" * 8, "an access token"),
        ("key: sk-" + "0123456789abcdef" * 2, "an access token"),
        ("# of /home/ada/data", "the path `/home/ada`"),
        ("note: see /Users/ada/data", "the path `/Users/ada`"),
        ("# 'C:\\Users\\ada\\data'", "the path"),
        (f"note: it was {Path.home()}/x", "a folder of this machine"),
        (f"# {Path.cwd()}-elsewhere/x", "a folder of this machine"),
    ],
)
def test_private_things_are_refused(adapter_folder: Path, hub: Any, line: str, what: str) -> None:
    (adapter_folder / "llm_agents.json").write_text('{"base": "tiny-random-llama"}')
    (adapter_folder / "recipe.yaml").write_text(f"seed_everything: 1\n{line}\n")
    with pytest.raises(UserError, match=r"nothing was sent.*recipe\.yaml, line 2: ") as caught:
        publish(adapter_folder, "me/tiny")
    assert what in str(caught.value)
    assert hub.requests == []


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("folder: /home/ada/data", "folder: data"),
        ("folder: '/home/ada/my data/part 1'", "folder: 'part 1'"),
        ("folder: 'C:\\Users\\ada\\hha'", "folder: 'hha'"),
        ("train: ~/hha/train.jsonl", "train: train.jsonl"),
        ("test: [/scratch/a/test.jsonl, sample]", "test: [test.jsonl, sample]"),
        ("adapter: /home/ada/exp/runs/nll/adapter", "adapter: runs/nll/adapter"),
        ("other: /scratch/hha", "other: hha"),
        (f"path: {Path.home()}/x", "path: x"),
    ],
)
def test_paths_of_this_machine_get_names_that_tell_nothing(
    adapter_folder: Path, hub: Any, line: str, sent: str
) -> None:
    text = f"seed_everything: 1\n{line}\n"
    (adapter_folder / "recipe.yaml").write_text(text)
    report = publish(adapter_folder, "me/tiny")
    assert report.commit
    assert (report.staged / "recipe.yaml").read_text() == f"seed_everything: 1\n{sent}\n"
    assert f"```yaml\nseed_everything: 1\n{sent}\n```" in card_of(report)
    assert any("not by its path on this machine" in warning for warning in report.warnings)
    assert (adapter_folder / "recipe.yaml").read_text() == text  # what is published is a copy
    for path in report.staged.iterdir():
        for told in (b"ada/", b"/home", b"scratch", str(Path.home()).encode()):
            assert told not in path.read_bytes() or path.suffix == ".safetensors", path.name


def test_files_are_known_by_their_digest(adapter_folder: Path, tmp_path: Path) -> None:
    """Two files of one name stay apart, and each card's digest is that of what was read."""
    lines = {"a": b'{"x": 1}\n', "b": b'{"x": 2}\n'}
    places = []
    for name, content in lines.items():
        place = tmp_path / name / "rows.jsonl"
        place.parent.mkdir()
        place.write_bytes(content)
        places.append(place)
    text = f"data: {{init_args: {{train: {places[0]}, test: [{places[1]}, sample]}}}}\n"
    (adapter_folder / "recipe.yaml").write_text(text)
    report = publish(adapter_folder, "me/tiny", dry_run=True)
    told = json.loads((report.staged / "files.json").read_text())["files"]
    assert [entry["key"] for entry in told] == ["data.train", "data.test"]
    expected = [hashlib.sha256(content).hexdigest() for content in lines.values()]
    assert [entry["sha256"] for entry in told] == expected
    names = [entry["name"] for entry in told]
    assert names[0] == "rows.jsonl"
    assert names[1].startswith("rows-")
    assert f"train: {names[0]}, test: [{names[1]}, sample]" in card_of(report)
    for entry in told:
        assert f"| `{entry['name']}` | 9 | `{entry['sha256']}` |" in card_of(report)


def test_a_result_of_a_folder_of_this_machine_is_called_by_its_last_part(
    adapter_folder: Path,
) -> None:
    values = json.loads((adapter_folder / "results.json").read_text())
    values["name"] = "/home/ada/work/a_lol-hha-tiny"
    (adapter_folder / "results.json").write_text(json.dumps(values))
    report = publish(adapter_folder, "me/tiny", dry_run=True)
    assert json.loads((report.staged / "results.json").read_text())["name"] == "a_lol-hha-tiny"


def test_a_missing_base_is_said_once(
    adapter_folder: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    from llm_agents.cli import main

    config = json.loads((adapter_folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "./ckpts/my_base"
    (adapter_folder / "adapter_config.json").write_text(json.dumps(config))
    (adapter_folder / "llm_agents.json").write_text('{"base": "./ckpts/my_base"}')
    words = ["publish", str(adapter_folder), "--repo", "me/tiny", "--dry-run"]
    with caplog.at_level(logging.WARNING):
        assert main(words) == 0
    said = [record for record in caplog.records if "card names none" in record.getMessage()]
    assert len(said) == 1
    assert "card names none" not in capsys.readouterr().out


def test_paths_below_the_working_folder_lose_it(
    adapter_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (adapter_folder / "llm_agents.json").write_text('{"base": "tiny-random-llama"}')
    text = f"data: {{train: {tmp_path}/data/train.jsonl, test: [{tmp_path}/data/test.jsonl]}}\n"
    (adapter_folder / "recipe.yaml").write_text(text)
    report = publish(adapter_folder, "me/tiny", dry_run=True)
    sent = (report.staged / "recipe.yaml").read_text()
    assert sent == "data: {train: data/train.jsonl, test: [data/test.jsonl]}\n"
    assert (adapter_folder / "recipe.yaml").read_text() == text


def test_the_token_in_the_environment_is_found(
    adapter_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "plainsecret")
    (adapter_folder / "recipe.yaml").write_text("note: plainsecret\n")
    with pytest.raises(UserError, match=r"recipe\.yaml, line 1: an access token"):
        publish(adapter_folder, "me/tiny", dry_run=True)


@pytest.mark.parametrize(
    "line",
    [
        "path: checkpoints/reward-hha",
        "url: https://example.org/a/b",
        "ratio: 1/2",
        "template: '/no_think'",
        "targets: [q_proj, v_proj]",
    ],
)
def test_harmless_lines_pass(adapter_folder: Path, line: str) -> None:
    (adapter_folder / "recipe.yaml").write_text(f"{line}\n")
    assert "recipe.yaml" in publish(adapter_folder, "me/tiny", dry_run=True).files


def test_a_base_that_is_a_path_is_left_out_with_a_warning(
    adapter_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = json.loads((adapter_folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "./ckpts/my_base"
    (adapter_folder / "adapter_config.json").write_text(json.dumps(config))
    (adapter_folder / "llm_agents.json").write_text('{"base": "./ckpts/my_base"}')
    with caplog.at_level(logging.WARNING):
        report = publish(adapter_folder, "me/tiny", dry_run=True)
    assert "the card names none" in caplog.text
    assert report.warnings
    for path in report.staged.iterdir():
        assert b"ckpts" not in path.read_bytes(), path.name
    metadata, _ = split_card((report.staged / "README.md").read_text())
    assert "base_model" not in metadata
    assert json.loads((adapter_folder / "adapter_config.json").read_text()) == config


def test_a_base_given_by_hub_id_replaces_the_path(adapter_folder: Path) -> None:
    config = json.loads((adapter_folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "./ckpts/my_base"
    (adapter_folder / "adapter_config.json").write_text(json.dumps(config))
    report = publish(adapter_folder, "me/tiny", dry_run=True, base_model="org/my-base")
    written = json.loads((report.staged / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == "org/my-base"
    metadata, body = split_card((report.staged / "README.md").read_text())
    assert metadata["base_model"] == "org/my-base"
    assert "base_model:adapter:org/my-base" in metadata["tags"]
    assert 'AutoModelForCausalLM.from_pretrained("org/my-base")' in body


def test_other_files_are_left_out_and_named(adapter_folder: Path) -> None:
    (adapter_folder / "events.out.tfevents.1").write_bytes(b"x")
    (adapter_folder / "logs").mkdir()
    report = publish(adapter_folder, "me/tiny", dry_run=True)
    assert set(report.left_out) == {"events.out.tfevents.1", "logs"}


def test_a_link_out_of_the_folder_is_refused(adapter_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (adapter_folder / "LICENSE").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match="links lead out of the folder"):
        publish(adapter_folder, "me/tiny", dry_run=True)


@pytest.mark.parametrize("repo_id", ["tiny", "a/b/c", "me/", "/work", "me/na me"])
def test_a_repository_needs_an_owner_and_a_name(adapter_folder: Path, repo_id: str) -> None:
    with pytest.raises(UserError, match="expected a repository `owner/name`"):
        publish(adapter_folder, repo_id, dry_run=True)


def test_a_folder_without_an_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a folder with an adapter or an agent"):
        publish(tmp_path, "me/tiny", dry_run=True)


def test_the_recipe_says_licence_and_data(adapter_folder: Path) -> None:
    report = publish(adapter_folder, "me/tiny", dry_run=True)
    metadata, _ = split_card((report.staged / "README.md").read_text())
    assert metadata["license"] == "mit"
    assert metadata["datasets"] == ["Anthropic/hh-rlhf"]


def test_an_existing_card_keeps_what_others_wrote(adapter_folder: Path, hub: Any) -> None:
    publish(adapter_folder, "me/tiny")
    card = hub.repos["me/tiny"][-1].files["README.md"].decode()
    metadata, body = split_card(card)
    metadata["thumbnail"] = "picture.png"
    metadata["tags"].append("favorite")
    verified = {
        "task": {"type": "text-generation"},
        "dataset": {"type": "hha", "name": "held out by the Hub"},
        "metrics": [{"type": "mean_reward", "value": 0.5, "verified": True}],
    }
    metadata["model-index"][0]["results"].append(verified)
    edited = f"---\n{yaml.safe_dump(metadata)}---\n" + body.replace(START, f"A note.\n\n{START}")
    hub.add("me/tiny", {"README.md": edited.encode()})
    publish(adapter_folder, "me/tiny")
    merged, text = split_card(hub.repos["me/tiny"][-1].files["README.md"].decode())
    assert merged["thumbnail"] == "picture.png"
    assert "favorite" in merged["tags"]
    assert verified in merged["model-index"][0]["results"]
    assert len(merged["model-index"][0]["results"]) == 2
    assert "A note." in text
    assert text.count(START) == 1


def test_the_code_on_the_card_runs(adapter_folder: Path, hub: Any, capsys: Any) -> None:
    report = publish(adapter_folder, "me/tiny")
    blocks = re.findall(
        r"```python\n(.*?)```", (report.staged / "README.md").read_text(), re.DOTALL
    )
    assert len(blocks) == 1  # the tiny base is not on the Hub, so there is no block for plain PEFT
    for block in blocks:
        exec(compile(block, "card", "exec"), {})
    assert capsys.readouterr().out


def test_the_code_on_a_reward_models_card_runs(
    reward_folder: Path, hub: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    report = publish(reward_folder, "me/tiny-reward")
    card = (report.staged / "README.md").read_text()
    metadata, body = split_card(card)
    assert metadata["pipeline_tag"] == "text-classification"
    types = [m["type"] for m in metadata["model-index"][0]["results"][0]["metrics"]]
    assert types == ["accuracy", "pair_agreement", "pearson"]
    (block,) = re.findall(r"```python\n(.*?)```", body, re.DOTALL)
    exec(compile(block, "card", "exec"), {})
    assert "tensor([" in capsys.readouterr().out


def test_the_hubs_own_reader_takes_the_card(adapter_folder: Path) -> None:
    from huggingface_hub import ModelCard

    report = publish(adapter_folder, "me/tiny", dry_run=True)
    card = ModelCard.load(report.staged / "README.md")
    results = card.data.eval_results
    assert results is not None
    assert {entry.metric_type for entry in results} >= {"mean_reward", "mean_words"}
    assert all(isinstance(entry.metric_value, float) for entry in results)
