"""Writing an adapter's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from llm_agents.policies import LoraConfig
from llm_agents.zoo import AdapterInfo, save_pretrained
from llm_agents.zoo.layout import replace_folder


def test_a_folder_is_replaced_whole(make_policy: Callable[..., Any], tmp_path: Path) -> None:
    policy = make_policy("llama", lora=LoraConfig(r=2), weights=0.1)
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "left over.txt").write_text("from another run")
    save_pretrained(folder, policy, method="dpo")
    assert not (folder / "left over.txt").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"adapter"}
    info = AdapterInfo.read(folder)
    assert info is not None
    assert (info.base, info.method) == ("tiny-random-llama", "dpo")


def test_a_write_that_fails_leaves_the_old_folder(
    make_policy: Callable[..., Any], tmp_path: Path
) -> None:
    policy = make_policy("llama", lora=LoraConfig(r=2), weights=0.1)
    folder = save_pretrained(tmp_path / "adapter", policy)
    before = (folder / "adapter_model.safetensors").read_bytes()
    with pytest.raises(AttributeError):
        save_pretrained(folder, policy, heads={"value_head": object()})  # type: ignore[dict-item]
    assert (folder / "adapter_model.safetensors").read_bytes() == before


def test_only_adapter_weights_are_written(make_policy: Callable[..., Any], tmp_path: Path) -> None:
    policy = make_policy("llama", lora=LoraConfig(r=2))
    folder = save_pretrained(tmp_path / "adapter", policy)
    names = load_file(folder / "adapter_model.safetensors")
    assert names
    assert all("lora_" in name for name in names)


def test_replacing_nothing_is_a_rename(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    replace_folder(tmp_path / "new", tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
