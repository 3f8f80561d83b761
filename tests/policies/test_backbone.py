"""Bases and adapters: loading, quantization, plain PEFT both ways, optimizers, what is refused."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, LlamaConfig, LlamaForCausalLM

from llm_agents.errors import MissingExtraError, UserError
from llm_agents.policies import LanguagePolicy, LoraConfig, build_optimizer
from llm_agents.policies.bundled import resolve_base

FAMILIES = ("llama", "qwen2", "gpt2", "neox", "opt", "t5")
PAIRS = [("How can I help you?", "I know a good book."), ("Hi", "Yes.")]
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="the extra `quantized` is missing"
)
ADAMW = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.0}


def step(policy, batch, num_steps=3, optimizer="adamw", **changes):
    """Take a few steps up the log-prob of a batch; return the losses."""
    parameters = [p for _, p in policy.trainable_parameters()]
    chosen = build_optimizer(optimizer, parameters, **{**ADAMW, **changes})
    losses = []
    for _ in range(num_steps):
        loss = -policy.sequence_log_probs(batch).mean()
        chosen.zero_grad()
        loss.backward()
        chosen.step()
        losses.append(float(loss.detach()))
    return losses


# --- where adapters sit -------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("targets", ["attention", "all-linear"])
def test_top_layers_alone_are_adapted(make_policy, family, targets):
    policy = make_policy(family, lora=LoraConfig(targets=targets, top_layers=1))
    names = [name for name, _ in policy.trainable_parameters()]
    assert names
    assert all("lora_" in name for name in names)
    assert all(any(f".{part}.1." in name for part in ("layers", "h", "block")) for name in names)
    assert policy.frozen_depth == (0 if family == "t5" else 1)
    everywhere = make_policy(family, lora=LoraConfig(targets=targets))
    assert len(list(everywhere.trainable_parameters())) == 2 * len(names)
    assert everywhere.frozen_depth == 0


def test_named_targets_and_numbers_are_those_of_the_adapter(make_policy, tmp_path):
    lora = LoraConfig(r=3, alpha=7, dropout=0.2, targets=("up_proj",))
    make_policy("llama", lora=lora).save_adapter(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (3, 7, 0.2)
    assert config["target_modules"] == ["up_proj"]


@pytest.mark.parametrize(
    ("lora", "text"),
    [
        (LoraConfig(targets=("nowhere",)), "nowhere"),
        (LoraConfig(top_layers=3), "from 1 to 2"),
        (LoraConfig(top_layers=0), "from 1 to 2"),
    ],
)
def test_an_impossible_lora_is_refused(make_policy, lora, text):
    with pytest.raises(UserError, match=text):
        make_policy("llama", lora=lora)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_reaches_every_adapter_tensor(make_policy, make_batch, family):
    """Nothing at the bottom requires a gradient, which is where re-entrant checkpoints lose it."""
    plain = make_policy(family, lora=LoraConfig(targets="all-linear"), weights=0.1)
    saving = make_policy(
        family, lora=LoraConfig(targets="all-linear"), weights=0.1, gradient_checkpointing=True
    )
    saving.load_adapter_weights(plain.adapter_state_dict())
    batch = make_batch(plain, PAIRS)
    assert any(getattr(m, "gradient_checkpointing", False) for m in saving.modules())
    for policy in (plain, saving):
        policy.sequence_log_probs(batch).sum().backward()
    expected = dict(plain.trainable_parameters())
    for name, parameter in saving.trainable_parameters():
        assert parameter.grad.abs().max() > 0, name
        torch.testing.assert_close(parameter.grad, expected[name].grad, atol=1e-5, rtol=1e-4)


# --- plain PEFT ---------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_our_adapter_loads_in_plain_peft(make_policy, family, tmp_path):
    policy = make_policy(family, lora=LoraConfig(targets="all-linear"), weights=0.3).eval()
    policy.save_adapter(tmp_path)
    auto = AutoModelForSeq2SeqLM if family == "t5" else AutoModelForCausalLM
    base = auto.from_pretrained(resolve_base(f"tiny-random-{family}").source)
    model = peft.PeftModel.from_pretrained(base, tmp_path)
    inputs = {"input_ids": torch.tensor([[5, 6, 7]])}
    if family == "t5":
        inputs["decoder_input_ids"] = torch.tensor([[0, 5]])
    assert torch.equal(model(**inputs).logits, policy.causal_model(**inputs).logits)


def plain_peft_adapter(folder, family="llama", base="tiny-random-llama", **options):
    model = AutoModelForCausalLM.from_pretrained(resolve_base(f"tiny-random-{family}").source)
    config = peft.LoraConfig(**{"r": 4, "target_modules": ["v_proj"], **options})
    adapted = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    adapted.peft_config["default"].base_model_name_or_path = base
    adapted.save_pretrained(folder)
    return adapted.eval()


def test_an_adapter_of_plain_peft_loads_here(make_policy, tmp_path):
    theirs = plain_peft_adapter(tmp_path, use_rslora=True)
    ours = make_policy("llama", adapter=str(tmp_path), trainable=False)
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(theirs(input_ids=ids).logits, ours.causal_model(input_ids=ids).logits)


def test_only_safetensors_and_json_are_written(make_policy, tmp_path):
    make_policy("llama", lora=LoraConfig()).save_adapter(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "adapter_base.json",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert (
        json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"]
        == "tiny-random-llama"
    )
    assert str(tmp_path) not in "".join(path.read_text() for path in tmp_path.glob("*.json"))


def test_lora_beside_an_adapter_must_agree_and_gives_the_dropout(make_policy, tmp_path):
    lora = LoraConfig(r=4, alpha=8, dropout=0.3, top_layers=1)
    make_policy("llama", lora=lora).save_adapter(tmp_path)
    again = make_policy(
        "llama", adapter=str(tmp_path), lora=LoraConfig(r=4, alpha=8, dropout=0.0, top_layers=1)
    )
    assert again.model.peft_config["default"].lora_dropout == 0.0
    assert (
        make_policy("llama", adapter=str(tmp_path)).model.peft_config["default"].lora_dropout == 0.3
    )
    for other, text in [
        (LoraConfig(r=8, alpha=8, top_layers=1), "r 4 and not 8"),
        (LoraConfig(r=4, alpha=16, top_layers=1), "alpha 8 and not 16"),
        (LoraConfig(r=4, alpha=8), "layers"),
        (LoraConfig(r=4, alpha=8, top_layers=1, targets=("k_proj",)), "targets"),
    ]:
        with pytest.raises(UserError, match=text):
            make_policy("llama", adapter=str(tmp_path), lora=other)


# --- adapters for another base ------------------------------------------------------------------


def small_llama(folder, **changes):
    """Write a Llama whose sizes differ from the tiny one's."""
    shutil.copytree(resolve_base("tiny-random-llama").source, folder)
    config = LlamaConfig.from_pretrained(folder)
    for key, value in changes.items():
        setattr(config, key, value)
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def test_an_adapter_for_another_vocabulary_names_both_sizes(make_policy, tmp_path):
    make_policy("llama", lora=LoraConfig()).save_adapter(tmp_path / "adapter")
    base = small_llama(tmp_path / "base", vocab_size=333)
    with pytest.raises(UserError, match=r"tiny-random-llama.*vocab_size 320.*vocab_size 333"):
        make_policy(base=base, adapter=str(tmp_path / "adapter"))


def test_a_plain_adapter_with_a_resized_vocabulary_names_both_sizes(make_policy, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(resolve_base("tiny-random-llama").source)
    model.resize_token_embeddings(325)
    config = peft.LoraConfig(
        r=2, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"]
    )
    peft.get_peft_model(model, config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"vocabulary of 325 tokens .* has 320"):
        make_policy("llama", adapter=str(tmp_path))


def test_an_adapter_that_records_another_base_is_refused(make_policy, tmp_path):
    plain_peft_adapter(tmp_path / "named", base="tiny-random-qwen2")
    with pytest.raises(UserError, match=r"tiny-random-qwen2.*tiny-random-llama"):
        make_policy("llama", adapter=str(tmp_path / "named"))
    plain_peft_adapter(tmp_path / "path", base="/home/somebody/llama")
    make_policy("llama", adapter=str(tmp_path / "path"))  # a path says nothing here


def test_an_adapter_of_other_shapes_or_layers_is_refused(make_policy, tmp_path):
    plain_peft_adapter(tmp_path / "adapter", base="/somewhere/else")
    base = small_llama(tmp_path / "wide", hidden_size=32, head_dim=16)
    with pytest.raises(UserError, match="does not fit the base"):
        make_policy(base=base, adapter=str(tmp_path / "adapter"))
    deep = small_llama(tmp_path / "deep", num_hidden_layers=3)
    with pytest.raises(UserError, match="2 tensors are missing"):
        make_policy(base=deep, adapter=str(tmp_path / "adapter"))
    with pytest.raises(UserError, match="does not fit the base"):
        make_policy("gpt2", adapter=str(tmp_path / "adapter"))


def test_what_is_no_adapter_of_layers_is_refused(make_policy, tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        make_policy("llama", adapter=str(tmp_path / "missing"))
    with pytest.raises(UserError, match=r"no adapter_config\.json"):
        make_policy("llama", adapter=str(tmp_path))
    model = AutoModelForCausalLM.from_pretrained(resolve_base("tiny-random-llama").source)
    config = peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    peft.get_peft_model(model, config).save_pretrained(tmp_path / "prompt")
    with pytest.raises(UserError, match="changes the input"):
        make_policy("llama", adapter=str(tmp_path / "prompt"))
    plain_peft_adapter(tmp_path / "pickled")
    (tmp_path / "pickled" / "adapter_model.safetensors").rename(
        tmp_path / "pickled" / "adapter_model.bin"
    )
    with pytest.raises(UserError, match=r"adapter_model\.bin.*is not read|can't be read"):
        make_policy("llama", adapter=str(tmp_path / "pickled"))


def test_a_pickled_adapter_is_read_like_its_safetensors(
    make_policy, make_batch, tmp_path, monkeypatch
):
    monkeypatch.setenv("LLM_AGENTS_CACHE", str(tmp_path / "cache"))
    plain_peft_adapter(tmp_path / "safe")
    shutil.copytree(tmp_path / "safe", tmp_path / "pickled")
    weights = tmp_path / "pickled" / "adapter_model.safetensors"
    torch.save(load_file(weights), tmp_path / "pickled" / "adapter_model.bin")
    weights.unlink()
    safe = make_policy("llama", adapter=str(tmp_path / "safe"))
    pickled = make_policy("llama", adapter=str(tmp_path / "pickled"))
    batch = make_batch(safe, [([5, 6, 7], [8, 9])])
    torch.testing.assert_close(pickled.log_probs(batch), safe.log_probs(batch), rtol=0, atol=0)
    assert list((tmp_path / "cache" / "adapters").glob("*/adapter_model.safetensors"))


# --- bases --------------------------------------------------------------------------------------


def test_a_pickled_base_is_refused(make_policy, tmp_path):
    folder = small_llama(tmp_path / "base")
    for file in tmp_path.glob("base/*.safetensors"):
        file.rename(file.with_name("pytorch_model.bin"))
    with pytest.raises(UserError, match="holds its weights as pickle"):
        make_policy(base=folder, trainable=False)
    (tmp_path / "base" / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match=r"no \*\.safetensors"):
        make_policy(base=folder, trainable=False)


def test_code_beside_a_model_is_not_run(make_policy, tmp_path):
    folder = small_llama(tmp_path / "base")
    marker = tmp_path / "ran"
    (tmp_path / "base" / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    config["model_type"] = "unheard_of"
    (tmp_path / "base" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="can't be loaded"):
        make_policy(base=folder, trainable=False)
    assert not marker.exists()


def test_a_broken_weights_file_is_named(make_policy, tmp_path):
    folder = small_llama(tmp_path / "base")
    (tmp_path / "base" / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{broken}")
    with pytest.raises(UserError, match="can't be loaded"):
        make_policy(base=folder, trainable=False)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_bases_train_float32_adapters(make_policy, make_batch, dtype):
    policy = make_policy("llama", lora=LoraConfig(), dtype=dtype)
    assert policy.causal_model.dtype == getattr(torch, dtype)
    assert all(p.dtype == torch.float32 for _, p in policy.trainable_parameters())
    batch = make_batch(policy, PAIRS)
    assert policy.log_probs(batch).dtype == torch.float32
    losses = step(policy, batch)
    assert losses[-1] < losses[0]


# --- quantization -------------------------------------------------------------------------------


def base_bytes(policy):
    """Return every tensor that does not train, quantization constants included."""
    trained = {id(p) for _, p in policy.trainable_parameters()}
    return {
        name: tensor.detach().clone()
        for name, tensor in policy.causal_model.state_dict(keep_vars=True).items()
        if isinstance(tensor, torch.Tensor) and id(tensor) not in trained
    }


@needs_bitsandbytes
@pytest.mark.parametrize("optimizer", ["adamw", "paged_adamw_32bit", "adamw_8bit"])
@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "nf4"},
        {"quantization": "nf4", "double_quantization": True},
        {"quantization": "nf4", "dtype": "float16", "compute_dtype": "float32"},
        {"quantization": "int8"},
    ],
    ids=["nf4", "nf4-double", "nf4-float16", "int8"],
)
def test_a_quantized_base_stays_bit_identical(make_policy, make_batch, options, optimizer):
    lora = LoraConfig(targets="all-linear")
    policy = make_policy("llama", lora=lora, gradient_checkpointing=True, **options)
    before = base_bytes(policy)
    packed = [name for name, t in before.items() if t.dtype in (torch.uint8, torch.int8)]
    assert len(packed) >= 14  # seven linear layers in each of two layers
    losses = step(policy, make_batch(policy, PAIRS), optimizer=optimizer, num_steps=4)
    assert losses[-1] < losses[0]
    after = base_bytes(policy)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    held = sum(tensor.numel() for tensor in policy.adapter_state_dict().values())
    assert held == sum(p.numel() for _, p in policy.trainable_parameters())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("quantization", [None, "nf4", "int8"])
def test_a_gpu_gives_the_processors_numbers_and_leaves_the_base(
    make_policy, make_batch, quantization
):
    lora = LoraConfig(targets="all-linear")
    policy = make_policy("llama", lora=lora, weights=0.1, quantization=quantization)
    batch = make_batch(policy, PAIRS)
    with torch.no_grad():
        expected = policy.log_probs(batch)
        policy.to("cuda")
        found = policy.log_probs(batch.to("cuda")).cpu()
    # int8 rounds activations too, by other kernels
    torch.testing.assert_close(
        found, expected, atol=1e-3 if quantization != "int8" else 0.1, rtol=0
    )
    before = base_bytes(policy)
    losses = step(policy, batch.to("cuda"), num_steps=4)
    assert losses[-1] < losses[0]
    after = base_bytes(policy)
    assert [name for name in before if not torch.equal(before[name], after[name])] == []


@needs_bitsandbytes
def test_an_adapter_on_a_quantized_base_round_trips(make_policy, make_batch, tmp_path):
    options = {"quantization": "nf4", "double_quantization": True}
    policy = make_policy("llama", lora=LoraConfig(), weights=0.3, **options).eval()
    policy.save_adapter(tmp_path)
    again = make_policy("llama", adapter=str(tmp_path), **options).eval()
    batch = make_batch(policy, PAIRS)
    assert torch.equal(again.log_probs(batch), policy.log_probs(batch))
    with again.reference():
        assert torch.equal(again.log_probs(batch), policy.log_probs(batch))


@needs_bitsandbytes
def test_merging_dequantizes_and_keeps_the_function(make_policy, make_batch, tmp_path):
    policy = make_policy("llama", lora=LoraConfig(), weights=0.3, quantization="nf4").eval()
    report = policy.merge(tmp_path)
    assert report.max_logit_difference <= 1e-4 * report.max_logit
    merged = make_policy(base=str(tmp_path), trainable=False)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    batch = make_batch(policy, PAIRS)
    torch.testing.assert_close(merged.log_probs(batch), policy.log_probs(batch), atol=1e-3, rtol=0)


@pytest.mark.slow
def test_without_bitsandbytes_all_else_works_and_the_extra_is_named(cache_root, tmp_path):
    code = (
        "import sys\n"
        "from importlib.abc import MetaPathFinder\n"
        "class Hidden(MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'bitsandbytes': raise ModuleNotFoundError(name)\n"
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = (\n"
        "    lambda name, package=None: None if name == 'bitsandbytes' else find(name, package))\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "from llm_agents.errors import MissingExtraError\n"
        "from llm_agents.policies import LanguagePolicy, LoraConfig, build_optimizer\n"
        "policy = LanguagePolicy.from_pretrained('tiny-random-llama', lora=LoraConfig())\n"
        "print(policy.generate([[5]], __import__('llm_agents.types').types.GenerationConfig(2)))\n"
        "for call in (\n"
        "    lambda: LanguagePolicy.from_pretrained(\n"
        "        'tiny-random-llama', lora=LoraConfig(), quantization='nf4'),\n"
        "    lambda: build_optimizer('adamw_8bit', policy.parameters(), lr=1e-3, betas=(.9, .9),\n"
        "        eps=1e-8, weight_decay=0.0),\n"
        "):\n"
        "    try:\n"
        "        call()\n"
        "    except MissingExtraError as error:\n"
        "        print(error.extra, error)\n"
        "from llm_agents.cli import main\n"
        "print(main(['run', *sys.argv[1:], '--model.policy.quantization', 'nf4']))\n"
    )
    recipes = Path(__file__).resolve().parents[2] / "recipes"
    recipe = [str(recipes / "a_lol_hha.yaml"), "--overlay", str(recipes / "overlays" / "tiny.yaml")]
    done = subprocess.run(
        [sys.executable, "-c", code, *recipe],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 4
    assert lines[3] == "2"
    assert "error: the package `bitsandbytes` is needed to load a base model" in done.stderr
    for line in lines[1:3]:
        assert line.startswith("quantized ")
        assert "pip install 'llm-agents[quantized]'" in line


# --- optimizers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "adamw",
        pytest.param("paged_adamw_32bit", marks=needs_bitsandbytes),
        pytest.param("adamw_8bit", marks=needs_bitsandbytes),
    ],
)
def test_every_number_of_the_optimizer_is_ours(name):
    """bitsandbytes decays by 0.01 unless told otherwise."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = build_optimizer(
        name, [weight], lr=3e-4, betas=(0.8, 0.9), eps=1e-5, weight_decay=0.0
    )
    group = optimizer.param_groups[0]
    assert group["lr"] == 3e-4
    assert tuple(group["betas"])[:2] == (0.8, 0.9)
    assert group["eps"] == 1e-5
    assert group["weight_decay"] == 0.0
    weight.grad = torch.zeros(3)
    optimizer.step()
    assert torch.equal(weight, torch.ones(3))


def test_parameter_groups_are_passed_on():
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    groups = [{"params": [weights[0]], "lr": 0.5}, {"params": [weights[1]]}]
    optimizer = build_optimizer("adamw", groups, **ADAMW)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 1e-2]


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(UserError, match="got 'sgd'"):
        build_optimizer("sgd", [torch.nn.Parameter(torch.ones(1))], **ADAMW)


def test_missing_extra_is_a_user_error():
    assert issubclass(MissingExtraError, UserError)
    assert Path(LanguagePolicy.from_pretrained.__code__.co_filename).name == "language_policy.py"
