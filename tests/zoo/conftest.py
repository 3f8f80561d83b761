"""A Hub on the loopback, and a small adapter and reward model to publish."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from llm_agents.evaluation import BootstrapConfig, evaluate_policy, evaluate_reward, write_results
from llm_agents.policies.heads import RewardHead, ValueHead, save_head
from llm_agents.rewards import CallableReward, PolicyReward
from llm_agents.rewards.policy import PolicyRewardConfig
from llm_agents.types import GenerationConfig, PromptBatch, Turn
from llm_agents.zoo import save_pretrained


def load_hub_server() -> ModuleType:
    name = "hub_server"
    if name not in sys.modules:
        path = Path(__file__).with_name("hub_server.py")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Point huggingface_hub at a Hub on the loopback, with a cache of its own."""
    from huggingface_hub import constants

    with load_hub_server().running_hub() as running:
        template = running.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", running.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub_cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield running


PROMPTS = tuple((Turn("user", text),) for text in ("Hi there", "How are you?", "Tell me a story"))


def prompt_batch(policy: Any) -> PromptBatch:
    ids = [policy.encode_prompt(prompt) for prompt in PROMPTS]
    width = max(map(len, ids))
    padded = torch.zeros(len(ids), width, dtype=torch.int64)
    mask = padded.bool()
    for row, tokens in enumerate(ids):
        padded[row, width - len(tokens) :] = torch.tensor(tokens)
        mask[row, width - len(tokens) :] = True
    return PromptBatch(PROMPTS, padded, mask, torch.arange(len(ids)))


@pytest.fixture
def adapter_folder(built_adapter: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder of a small adapter."""
    return Path(shutil.copytree(built_adapter, tmp_path / "work" / built_adapter.name))


@pytest.fixture
def reward_folder(built_reward: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder of a small reward model."""
    return Path(shutil.copytree(built_reward, tmp_path / "work" / built_reward.name))


@pytest.fixture(scope="session")
def built_adapter(
    make_policy: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Make a small adapter with a value head, a recipe and results."""
    from llm_agents.policies import LoraConfig

    policy = make_policy("llama", lora=LoraConfig(r=2), weights=0.3)
    reward = CallableReward(
        lambda prompts, responses: [len(text) / 1000 for text in responses],
        low=0.0,
        high=10.0,
        name="length",
        version="1",
    )
    results = evaluate_policy(
        policy,
        reward,
        {"greetings": [prompt_batch(policy)]},
        GenerationConfig(max_new_tokens=5),
        name="tiny",
        bootstrap=BootstrapConfig(samples=50),
    )
    return save_pretrained(
        tmp_path_factory.mktemp("built") / "a_lol-hha-tiny",
        policy,
        heads={"value_head": ValueHead(policy.hidden_size)},
        method="a_lol",
        task="hha",
        template="alol",
        recipe="seed_everything: 1\npublish:\n  license: mit\n  datasets: [Anthropic/hh-rlhf]\n",
        results=results,
    )


@pytest.fixture(scope="session")
def built_reward(make_policy: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a small reward model with results."""
    from llm_agents.data.base import Example
    from llm_agents.policies import LoraConfig

    folder = tmp_path_factory.mktemp("built") / "reward-hha-tiny"
    policy = make_policy("llama", lora=LoraConfig(r=2), weights=0.3)
    policy.save_adapter(folder)
    save_head(RewardHead(policy.hidden_size), folder, "reward_head")
    PolicyRewardConfig(
        name="tiny reward",
        version="1",
        low=0.0,
        high=1.0,
        template="alol",
        max_prompt_tokens=64,
        max_response_tokens=16,
        base=policy.base,
        activation="sigmoid",
    ).write(folder / "reward.json")
    examples = [Example(prompt, ("yes", "no, never"), (0.5, -0.5), 0, {}) for prompt in PROMPTS]
    reward = PolicyReward.from_pretrained(str(folder))
    write_results(folder, evaluate_reward(reward, {"pairs": examples}))
    return folder
