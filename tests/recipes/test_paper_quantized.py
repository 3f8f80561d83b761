"""The paper recipe's own model code, quantized base and paged optimizer, on a tiny Llama."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from llm_agents.cli import main
from llm_agents.methods import ALoL
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.pickled_adapters import sha256

RECIPES = Path(__file__).resolve().parents[2] / "recipes"

needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="the extra `quantized` is missing"
)


def base_bytes(policy: LanguagePolicy) -> dict[str, bytes]:
    """Return the raw bytes of everything but the adapters."""
    return {
        name: tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        for name, tensor in policy.model.named_parameters()
        if "lora_" not in name
    }


@needs_bitsandbytes
def test_two_steps_on_four_bits_leave_the_base_alone_and_a_small_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[ALoL, dict[str, bytes]]] = []

    def record(module: ALoL) -> None:
        seen.append((module, base_bytes(module.policy)))

    monkeypatch.setattr(ALoL, "on_fit_start", _then(record, ALoL.on_fit_start))
    monkeypatch.setattr(ALoL, "on_fit_end", _then(record, ALoL.on_fit_end))
    overrides = {
        "run.folder": str(tmp_path / "run"),
        "model.policy.quantization": "nf4",
        "model.policy.double_quantization": "true",
        "model.policy.compute_dtype": "float32",
        "model.policy.lora": "{r: 64, alpha: 64, targets: all-linear}",
        "model.optimizer.name": "paged_adamw_32bit",
        "trainer.max_steps": "6",  # scaled by the share of data that is left
    }
    command = ["run", str(RECIPES / "paper" / "a_lol_hha.yaml")]
    command += ["--overlay", str(RECIPES / "overlays" / "tiny.yaml")]
    assert main([*command, *(part for k, v in overrides.items() for part in (f"--{k}", v))]) == 0

    (module, before), (_, after) = seen
    packed = [name for name, p in module.policy.model.named_parameters() if p.dtype == torch.uint8]
    assert len(packed) == 14  # seven linear layers in each of two blocks
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] != after[name]] == []
    adapter = tmp_path / "run" / "adapter" / "adapter_model.safetensors"
    assert module.trainer.global_step >= 2
    assert sha256(adapter)  # it was written
    checkpoint = max((tmp_path / "run" / "checkpoints").rglob("*.ckpt"))
    overhead = 32 * 1024  # names and counters: they don't grow with the adapter
    assert checkpoint.stat().st_size <= 3 * adapter.stat().st_size + overhead
    assert adapter.stat().st_size > 8 * overhead  # else the bound would say nothing


def _then(first, second):  # type: ignore[no-untyped-def]
    """Return a method that calls `first` and then `second`."""

    def method(self: ALoL) -> None:
        first(self)
        second(self)

    return method
