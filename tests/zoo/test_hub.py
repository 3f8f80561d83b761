"""Loading by folder, name and Hub id; pulling; the faults of each."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from llm_agents.errors import UserError
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.policies.pickled_adapters import sha256
from llm_agents.rewards import PolicyReward
from llm_agents.types import GenerationConfig, Turn
from llm_agents.zoo import load_heads, load_pretrained, publish, pull
from tests import fresh
from tests.closeness import assert_rounding

QUESTION = (Turn("user", "How are you?"),)
PAIRS = [("Hi there", "Hello."), ("How are you?", "Fine, thanks")]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_saved_policy_loads_with_equal_log_probs(
    make_policy: Callable[..., Any], make_batch: Callable[..., Any], tmp_path: Path
) -> None:
    from llm_agents.zoo import save_pretrained

    policy = make_policy("gpt2", lora=LoraConfig(r=2), weights=0.5).eval()
    loaded = load_pretrained(str(save_pretrained(tmp_path / "mine", policy)), device="cpu")
    assert isinstance(loaded, LanguagePolicy)
    batch = make_batch(policy, PAIRS)
    torch.testing.assert_close(loaded.log_probs(batch), policy.log_probs(batch), rtol=0, atol=0)
    assert not loaded.training
    assert not list(loaded.trainable_parameters())


def test_a_trainable_policy_starts_from_its_reference(
    adapter_folder: Path, make_batch: Any
) -> None:
    policy = load_pretrained(str(adapter_folder), trainable=True)
    batch = make_batch(policy, PAIRS)
    assert list(policy.trainable_parameters())
    with policy.reference():
        reference = policy.log_probs(batch)
    assert_rounding(policy.log_probs(batch), reference)


def test_a_fresh_process_gives_the_same_answers_and_rewards(
    adapter_folder: Path, reward_folder: Path
) -> None:
    code = (
        "import json, sys\n"
        "from llm_agents import load_pretrained\n"
        "from llm_agents.types import GenerationConfig, Turn\n"
        "question = (Turn('user', 'How are you?'),)\n"
        "policy, reward = (load_pretrained(folder, device='cpu') for folder in sys.argv[1:])\n"
        "prompt = policy.encode_prompt(question)\n"
        "ids = policy.generate([prompt], GenerationConfig(max_new_tokens=8))\n"
        "print(json.dumps([ids[0], reward([question], ['Fine']).tolist()]))\n"
    )
    folders = [str(adapter_folder), str(reward_folder)]
    done = fresh.run("-c", code, *folders)
    assert done.returncode == 0, done.stderr[-2000:]
    ids, scores = json.loads(done.stdout.splitlines()[-1])
    policy, reward = (load_pretrained(folder, device="cpu") for folder in folders)
    config = GenerationConfig(max_new_tokens=8)
    assert policy.generate([policy.encode_prompt(QUESTION)], config) == [ids]
    assert reward([QUESTION], ["Fine"]).tolist() == pytest.approx(scores, abs=1e-6)


def test_a_base_alias_loads_without_an_adapter() -> None:
    policy = load_pretrained("tiny-random-gpt2", device="cpu")
    assert isinstance(policy, LanguagePolicy)
    assert policy.base == "tiny-random-gpt2"


def test_heads_come_back(adapter_folder: Path) -> None:
    heads = load_heads(adapter_folder)
    assert list(heads) == ["value_head"]
    stored = load_file(adapter_folder / "value_head.safetensors")
    torch.testing.assert_close(heads["value_head"].state_dict()["query"], stored["query"])


def test_a_plain_peft_adapter_loads_and_ours_loads_in_plain_peft(
    make_batch: Any, tmp_path: Path
) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    base = LanguagePolicy.from_pretrained("tiny-random-llama", trainable=False)
    base_folder = tmp_path / "base"
    base.save_adapter(base_folder)  # a policy without an adapter is a whole model
    model = AutoModelForCausalLM.from_pretrained(base_folder)
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    )
    adapted.save_pretrained(tmp_path / "theirs")
    policy = load_pretrained(str(tmp_path / "theirs"), device="cpu")
    batch = make_batch(policy, [("Hi there", "Hello.")])
    ids = torch.cat([batch.prompt_ids, batch.response_ids], 1)
    logits = adapted(ids).logits.log_softmax(-1)
    count = batch.response_ids.shape[1]
    expected = logits[:, -count - 1 : -1].gather(-1, batch.response_ids[..., None])[..., 0]
    torch.testing.assert_close(policy.log_probs(batch), expected, rtol=1e-4, atol=1e-4)
    policy.save_adapter(tmp_path / "ours")
    again = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base_folder), tmp_path / "ours"
    )
    assert_rounding(again(ids).logits, adapted(ids).logits)


def test_a_path_as_base_that_is_not_here_is_named(adapter_folder: Path) -> None:
    (adapter_folder / "llm_agents.json").unlink()
    config = json.loads((adapter_folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "./ckpts/my_base"
    (adapter_folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"trained on `./ckpts/my_base`.*give `base`"):
        load_pretrained(str(adapter_folder))


def test_an_adapter_of_another_vocabulary_names_both_sizes(
    make_policy: Callable[..., Any], tmp_path: Path
) -> None:
    policy = make_policy("llama", lora=LoraConfig(r=2), weights=0.3)
    policy.save_adapter(tmp_path / "ours")
    sizes = json.loads((tmp_path / "ours" / "adapter_base.json").read_text())
    changed = {**sizes, "vocab_size": sizes["vocab_size"] + 7}
    (tmp_path / "ours" / "adapter_base.json").write_text(json.dumps(changed))
    with pytest.raises(UserError) as caught:
        load_pretrained(str(tmp_path / "ours"))
    assert str(sizes["vocab_size"]) in str(caught.value)
    assert str(sizes["vocab_size"] + 7) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("no-such-adapter-anywhere", "nothing in the zoo is called"),
        ("someone/no-such-repository", "check the spelling"),
    ],
)
def test_an_unknown_name_is_named(name: str, expected: str, hub: Any) -> None:
    with pytest.raises(UserError, match=expected):
        load_pretrained(name)


def test_a_folder_without_an_adapter_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("none")
    with pytest.raises(UserError, match=r"expected what was trained in.*found notes.txt"):
        load_pretrained(str(tmp_path))


def test_a_hub_that_cannot_be_reached_is_named(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"could not fetch `someone/thing`.*127.0.0.1:9"):
        load_pretrained("someone/thing")


def test_a_whole_model_of_the_hub_is_loaded_and_plays(
    hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_batch: Any
) -> None:
    from llm_agents.cli import main
    from llm_agents.evaluation.episodes import read_episode_results
    from llm_agents.policies.tiny import write_tiny

    write_tiny("gpt2", tmp_path / "whole")
    older = hub.add("someone/whole", files_of(tmp_path / "whole"))
    write_tiny("llama", tmp_path / "other")
    hub.add("someone/whole", files_of(tmp_path / "other"))
    here = load_pretrained("tiny-random-llama", device="cpu")
    there = load_pretrained("someone/whole", device="cpu")
    assert isinstance(there, LanguagePolicy)
    assert (there.base, there.hub_id) == ("someone/whole", "someone/whole")
    batch = make_batch(here, PAIRS)
    torch.testing.assert_close(there.log_probs(batch), here.log_probs(batch), rtol=0, atol=0)
    assert load_pretrained("someone/whole", revision=older).config.revision == older  # type: ignore[union-attr]
    monkeypatch.chdir(tmp_path)
    for name, out in (("someone/whole", "a"), ("tiny-random-llama", "b")):
        words = ["evaluate", "--policy", name, "--env", "toy-chest", "--episodes", "2"]
        assert main([*words, "--out", out]) == 0
    assert read_episode_results("a").episodes == read_episode_results("b").episodes
    with pytest.raises(UserError, match="is a whole model, which needs no copy"):
        pull("someone/whole")


@pytest.mark.parametrize("files", [{"README.md": b"nothing"}, {"model.safetensors": b"x"}])
def test_a_repository_of_neither_kind_is_named(hub: Any, files: dict[str, bytes]) -> None:
    hub.add("someone/empty", files)
    with pytest.raises(UserError, match="holds neither an adapter"):
        load_pretrained("someone/empty")


def test_publish_load_and_pull_through_the_hub(
    adapter_folder: Path, hub: Any, tmp_path: Path, make_batch: Any
) -> None:
    publish(adapter_folder, "me/a_lol-hha-tiny")
    local = load_pretrained(str(adapter_folder), device="cpu")
    remote = load_pretrained("me/a_lol-hha-tiny", device="cpu")
    batch = make_batch(local, PAIRS)
    torch.testing.assert_close(remote.log_probs(batch), local.log_probs(batch), rtol=0, atol=0)
    folder = pull("me/a_lol-hha-tiny", tmp_path / "pulled")
    assert (folder / "README.md").is_file()
    assert not (folder / "adapter_model.safetensors").is_symlink()
    again = load_pretrained(str(folder), device="cpu")
    torch.testing.assert_close(again.log_probs(batch), local.log_probs(batch), rtol=0, atol=0)


def test_a_reward_model_through_the_hub_scores_the_same(reward_folder: Path, hub: Any) -> None:
    publish(reward_folder, "me/reward-hha-tiny")
    local = load_pretrained(str(reward_folder), device="cpu")
    remote = load_pretrained("me/reward-hha-tiny", device="cpu")
    assert isinstance(remote, PolicyReward)
    answers = ["Fine, thanks.", "Go away"]
    expected = local([QUESTION, QUESTION], answers)
    torch.testing.assert_close(remote([QUESTION, QUESTION], answers), expected, rtol=0, atol=0)


def test_an_older_revision_can_be_loaded(adapter_folder: Path, hub: Any) -> None:
    first = hub.add("me/two", files_of(adapter_folder))
    other = json.loads((adapter_folder / "llm_agents.json").read_text()) | {"base": "missing-base"}
    hub.add("me/two", {"llm_agents.json": json.dumps(other).encode()})
    assert load_pretrained("me/two", revision=first).base == "tiny-random-llama"
    with pytest.raises(UserError, match="leave the revision out"):
        load_pretrained("me/two", revision="no-such-branch")


def test_a_pickled_adapter_is_read_without_running_it(
    adapter_folder: Path, hub: Any, make_batch: Any
) -> None:
    state = load_file(adapter_folder / "adapter_model.safetensors")
    files = files_of(adapter_folder)
    del files["adapter_model.safetensors"]
    pickled = adapter_folder.parent / "adapter_model.bin"
    torch.save(state, pickled)
    hub.add("authors/a_lol", {**files, "adapter_model.bin": pickled.read_bytes()})
    local, remote = load_pretrained(str(adapter_folder)), load_pretrained("authors/a_lol")
    batch = make_batch(local, PAIRS)
    torch.testing.assert_close(remote.log_probs(batch), local.log_probs(batch), rtol=0, atol=0)
    named = LanguagePolicy.from_pretrained(local.base, adapter="authors/a_lol")  # as recipes do
    named.eval()
    torch.testing.assert_close(named.log_probs(batch), local.log_probs(batch), rtol=0, atol=0)


def test_a_pickle_with_code_in_it_is_refused(adapter_folder: Path, hub: Any) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (print, ("this must not run",))

    files = files_of(adapter_folder)
    del files["adapter_model.safetensors"]
    evil = adapter_folder.parent / "evil.bin"
    torch.save({"weight": Evil()}, evil)
    hub.add("evil/adapter", {**files, "adapter_model.bin": evil.read_bytes()})
    with pytest.raises(UserError, match="might run code: it is not read"):
        load_pretrained("evil/adapter")


def test_a_pointer_fetches_the_weights_and_checks_them(
    adapter_folder: Path, hub: Any, tmp_path: Path
) -> None:
    revision = hub.add("me/large", files_of(adapter_folder))
    pointing = tmp_path / "checkpoints" / "large"
    pointing.mkdir(parents=True)
    digest = sha256(adapter_folder / "adapter_model.safetensors")
    pointer = {"repo_id": "me/large", "revision": revision}
    pointer["files"] = {"adapter_model.safetensors": digest}  # type: ignore[assignment]  # JSON
    (pointing / "hub.json").write_text(json.dumps(pointer))
    assert isinstance(load_pretrained(str(pointing)), LanguagePolicy)
    pointer["files"] = {"adapter_model.safetensors": "0" * 64}  # type: ignore[assignment]  # JSON
    (pointing / "hub.json").write_text(json.dumps(pointer))
    with pytest.raises(UserError, match=f"has the SHA-256 {digest}, expected 000"):
        load_pretrained(str(pointing))


def test_keys_of_a_newer_version_are_named_and_ignored(
    adapter_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = adapter_folder / "llm_agents.json"
    values = json.loads(path.read_text()) | {"package_version": "9.9", "new_thing": 1}
    path.write_text(json.dumps(values))
    with caplog.at_level(logging.WARNING):
        load_pretrained(str(adapter_folder))
    assert "llm-agents 9.9" in caplog.text
    assert "new_thing" in caplog.text


def test_a_reward_model_is_not_loaded_for_training(reward_folder: Path) -> None:
    with pytest.raises(UserError, match="is a reward model, which is loaded frozen"):
        load_pretrained(str(reward_folder), trainable=True)
