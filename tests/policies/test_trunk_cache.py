from __future__ import annotations

import copy
import logging

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from llm_agents.policies.bundled import resolve_base
from llm_agents.policies.trunk_cache import (
    TrunkStore,
    bypass_lower_layers,
    capture_layer_input,
    content_key,
    frozen_depth,
    layer_list,
    trunk_digest,
    trunk_path_matches,
)

VOCABULARY, HIDDEN, LAYERS = 99, 64, 4
WIDTH = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN}
COMMON = {**WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
MLP = {**COMMON, "intermediate_size": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA = {**MLP, "num_key_value_heads": 2, "head_dim": 16}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": 4}
WINDOW = {"sliding_window": 8}
FAMILIES = {
    "llama": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "mistral": {**LLAMA, **WINDOW},
    "mixtral": {**LLAMA, "num_local_experts": 4},
    "gemma": LLAMA,
    "gemma2": {**LLAMA, **WINDOW},
    "gemma3_text": {**LLAMA, **WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "phi": MLP,
    "gpt2": {**GPT2, "bos_token_id": 1, "eos_token_id": 1},
    "gpt_neox": {**MLP, "rotary_pct": 0.5},
    "opt": {**COMMON, "ffn_dim": 128, "word_embed_proj_dim": 32},
    "bloom": {**WIDTH, "n_layer": LAYERS, "n_head": 4},
    "falcon": COMMON,
}


def build(family: str) -> PreTrainedModel:
    """Random model with weights large enough that every position shows in the logits."""
    torch.manual_seed(7)
    settings = {"attn_pdrop": 0.0, "attention_dropout": 0.0}
    config = AutoConfig.for_model(family, **{**settings, **FAMILIES[family]})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.1)
    return model.eval().requires_grad_(False)


def with_lora(model: PreTrainedModel, layers: list[int], targets: tuple[str, ...]) -> nn.Module:
    """Adapt some layers, with adapters that change the logits."""
    config = LoraConfig(r=4, target_modules=list(targets), layers_to_transform=layers)
    adapted = get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return adapted


def random_rows(lengths: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids and their mask."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids.masked_fill(~mask, 0), mask


def capture(model: nn.Module, depth: int, ids: torch.Tensor) -> torch.Tensor:
    with capture_layer_input(model, depth) as captured:
        model(input_ids=ids, use_cache=False)
    assert captured.hidden is not None
    return captured.hidden


def relative(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).abs().max() / right.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_layer_list_finds_the_decoder_layers(family):
    model = build(family)
    layers = layer_list(model)
    assert len(layers) == LAYERS
    assert len({type(layer) for layer in layers}) == 1
    share = sum(p.numel() for p in layers.parameters()) / sum(p.numel() for p in model.parameters())
    assert share > 0.4


@pytest.mark.parametrize("family", FAMILIES)
def test_stored_states_of_rows_alone_give_the_full_pass_of_a_batch(family, tmp_path):
    """Capture each row by itself, store it, hand the rows over together: window passed, too."""
    model, depth = build(family), 3
    store = TrunkStore(tmp_path, HIDDEN, torch.float32)
    ids, mask = random_rows((5, 20, 13))
    rows = [row[keep] for row, keep in zip(ids, mask, strict=True)]
    keys = [content_key(row) for row in rows]
    store.put(keys, [capture(model, depth, row[None])[0] for row in rows])
    hidden = store.read_padded(keys)
    assert hidden is not None
    with torch.no_grad():
        full = model(input_ids=ids, use_cache=False).logits
        with bypass_lower_layers(model, depth, hidden):
            short = model(input_ids=ids, use_cache=False).logits
        again = model(input_ids=ids, use_cache=False).logits
    assert relative(short[mask], full[mask]) < 1e-5
    assert torch.equal(full, again)  # the model is itself again


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("depth", [1, LAYERS - 1, LAYERS])
def test_self_check_passes(family, depth, caplog):
    with caplog.at_level(logging.WARNING, logger="llm_agents"):
        assert trunk_path_matches(build(family), depth)
    assert not caplog.records


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom"])
def test_handed_over_states_are_what_the_upper_layers_read(family):
    model = build(family)
    ids, _ = random_rows((9, 9))
    changed = capture(model, 2, ids)
    changed[:, :, 0] += 1
    with torch.no_grad():
        full = model(input_ids=ids, use_cache=False).logits
        with bypass_lower_layers(model, 2, changed):
            other = model(input_ids=ids, use_cache=False).logits
    assert relative(other, full) > 1e-2


@pytest.mark.parametrize("family", ["gpt_neox", "falcon"])
def test_only_the_needed_layers_compute(family):
    model = build(family)
    ids, _ = random_rows((6,))
    called: list[int] = []
    for number, layer in enumerate(layer_list(model)):
        # Counts the layer's own computation, which a bypass and an early end both leave out.
        norm = next(m for name, m in layer.named_modules() if "norm" in name)
        norm.register_forward_hook(lambda *_, number=number: called.append(number))
    hidden = capture(model, 2, ids)
    assert called == [0, 1]
    called.clear()
    with bypass_lower_layers(model, 3, hidden):
        called.clear()  # the first use of a model asks layer 0 what it returns
        model(input_ids=ids, use_cache=False)
    assert called == [3]


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("llama", ("q_proj", "v_proj")),
        ("gpt2", ("c_attn",)),
        ("gpt_neox", ("query_key_value",)),
        ("bloom", ("query_key_value",)),
    ],
)
@pytest.mark.parametrize("checkpointing", [None, {"use_reentrant": True}, {"use_reentrant": False}])
def test_adapter_gradients_equal_those_of_the_full_pass(family, targets, checkpointing):
    model = build(family)
    model.config.use_cache = False
    adapted = with_lora(model, [2, 3], targets)
    depth = frozen_depth(adapted)
    assert depth == 2
    ids, mask = random_rows((7, 12))

    def gradients() -> tuple[float, dict[str, torch.Tensor]]:
        adapted.zero_grad()
        logits = adapted(input_ids=ids, use_cache=False).logits
        loss = logits.log_softmax(-1)[mask].square().mean()
        loss.backward()
        found = {n: p.grad.clone() for n, p in adapted.named_parameters() if p.grad is not None}
        return loss.item(), found

    adapted.train()
    for module in adapted.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    full_loss, full = gradients()
    hidden = capture(adapted, depth, ids)
    assert not hidden.requires_grad
    hidden.requires_grad_()  # to see that no gradient comes back
    if checkpointing is not None:
        model.activation_checkpointing_enable(checkpointing)
    with bypass_lower_layers(adapted, depth, hidden):
        short_loss, short = gradients()
    assert short_loss == pytest.approx(full_loss, rel=1e-6)
    assert short.keys() == full.keys()
    assert len(full) == 2 * 2 * len(targets)
    for name, gradient in full.items():
        assert relative(short[name], gradient) < 1e-5, name
    assert hidden.grad is None


def test_frozen_depth_counts_layers_below_the_lowest_adapter():
    targets = ("q_proj",)
    assert frozen_depth(build("llama")) == LAYERS
    assert frozen_depth(with_lora(build("llama"), [1, 3], targets)) == 1
    assert frozen_depth(with_lora(build("llama"), [0], targets)) == 0


def test_frozen_depth_counts_adapters_that_are_off_or_frozen():
    adapted = with_lora(build("llama"), [3], ("q_proj",))
    second = LoraConfig(r=2, target_modules=["v_proj"], layers_to_transform=[1])
    adapted.add_adapter("reference", second)
    adapted.requires_grad_(False)
    assert frozen_depth(adapted) == 1
    with adapted.disable_adapter():
        assert frozen_depth(adapted) == 1


def test_frozen_depth_is_zero_with_something_trainable_below_the_layers():
    model = build("llama")
    model.model.embed_tokens.requires_grad_(True)
    assert frozen_depth(model) == 0
    prompt = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    assert frozen_depth(get_peft_model(build("llama"), prompt)) == 0
    embedding = LoraConfig(r=2, target_modules=["embed_tokens"])
    adapted = get_peft_model(build("llama"), embedding)
    adapted.requires_grad_(False)
    assert frozen_depth(adapted) == 0


def test_frozen_depth_allows_what_is_trainable_above_the_layers():
    model = build("llama")
    model.lm_head.requires_grad_(True)
    model.model.norm.requires_grad_(True)
    assert frozen_depth(model) == LAYERS
    tied = build("gpt2")
    tied.lm_head.requires_grad_(True)  # is the embedding, too
    assert frozen_depth(tied) == 0


def test_frozen_depth_with_a_partly_trainable_layer():
    model = build("gpt_neox")
    layer_list(model)[2].input_layernorm.requires_grad_(True)
    assert frozen_depth(model) == 2


def test_encoder_decoders_have_no_trunk():
    config = AutoConfig.for_model(
        "t5", vocab_size=VOCABULARY, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4
    )
    model = AutoModelForSeq2SeqLM.from_config(config).requires_grad_(False)
    assert frozen_depth(model) == 0
    with pytest.raises(ValueError, match="expected a causal model, got the encoder-decoder T5"):
        layer_list(model)


def test_capture_ends_as_a_hidden_state_of_transformers():
    model = build("llama")
    ids, _ = random_rows((6, 6))
    with torch.no_grad():
        states = model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    for depth in range(LAYERS):
        assert torch.equal(capture(model, depth, ids), states[depth])
    with torch.no_grad():
        last = model.model.norm(capture(model, LAYERS, ids))
    assert torch.equal(last, states[LAYERS])  # transformers' last one has passed the norm


def test_capture_is_without_dropout_or_gradients_and_restores_the_mode():
    model = build("gpt2").requires_grad_(True)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    ids, _ = random_rows((6, 6))
    expected = capture(model, 2, ids)
    model.train()
    model.transformer.h[0].eval()
    state = torch.get_rng_state()
    assert torch.equal(capture(model, 2, ids), expected)
    assert torch.equal(torch.get_rng_state(), state)
    assert not expected.requires_grad
    assert model.training
    assert model.transformer.h[1].training
    assert not model.transformer.h[0].training


def test_capture_without_a_forward_pass_raises():
    with (
        pytest.raises(RuntimeError, match="expected a forward pass of the model"),
        capture_layer_input(build("llama"), 1),
    ):
        pass


def test_another_error_inside_is_not_swallowed_and_leaves_the_model_whole():
    model = build("llama")
    ids, _ = random_rows((6,))
    with torch.no_grad():
        full = model(input_ids=ids, use_cache=False).logits
    with pytest.raises(KeyError), capture_layer_input(model, 1):
        raise KeyError("mine")
    with pytest.raises(KeyError), bypass_lower_layers(model, 1, torch.zeros(1, 6, HIDDEN)):
        raise KeyError("mine")
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids, use_cache=False).logits, full)


def test_bypass_refuses_states_of_another_shape():
    model = build("llama")
    ids, _ = random_rows((6, 6))
    with (
        pytest.raises(
            ValueError, match=r"shape \(2, 6, 64\) like the model's input, got \(2, 5, 64\)"
        ),
        bypass_lower_layers(model, 2, torch.zeros(2, 5, HIDDEN)),
    ):
        model(input_ids=ids, use_cache=False)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "bloom"])
def test_bypass_refuses_a_key_value_cache(family):
    model = build(family)
    ids, _ = random_rows((6,))
    with (
        pytest.raises(ValueError, match="use_cache=False"),
        bypass_lower_layers(model, 2, torch.zeros(1, 6, HIDDEN)),
    ):
        model(input_ids=ids, use_cache=True)


@pytest.mark.parametrize("depth", [0, LAYERS + 1])
def test_bypass_refuses_a_depth_outside_the_model(depth):
    with (
        pytest.raises(ValueError, match="expected `depth` from 1 to 4"),
        bypass_lower_layers(build("llama"), depth, torch.zeros(1, 6, HIDDEN)),
    ):
        pass


def test_self_check_reports_layers_that_share_what_they_compute(caplog):
    """A model whose upper layers read what a lower layer left behind can't be bypassed."""
    model = build("llama")
    layers = layer_list(model)
    left: list[torch.Tensor] = []
    layers[0].register_forward_hook(lambda m, a, out: left.append(out * 2))
    layers[3].register_forward_hook(lambda m, a, out: out + left[-1])
    with caplog.at_level(logging.WARNING):
        assert not trunk_path_matches(model, 2)
    assert "bypassing 2 layers of LlamaForCausalLM changes its logits by" in caplog.text


def test_self_check_reports_a_family_that_raises(caplog):
    model = build("llama")
    layers = layer_list(model)
    left: list[torch.Tensor] = []
    model.register_forward_pre_hook(lambda *_: left.clear())
    layers[0].self_attn.register_forward_hook(lambda m, args, out: left.append(out[0]))
    layers[3].register_forward_pre_hook(lambda *_: left[0].shape and None)
    with caplog.at_level(logging.WARNING):
        assert not trunk_path_matches(model, 2)
    assert "the layers of LlamaForCausalLM can't be bypassed: IndexError" in caplog.text


def test_bfloat16_states_pass_through_exactly(tmp_path):
    model = build("qwen2").to(torch.bfloat16)
    assert trunk_path_matches(model, 3)
    ids, _ = random_rows((8, 8))
    hidden = capture(model, 2, ids)
    store = TrunkStore(tmp_path, HIDDEN, torch.bfloat16)
    keys = [content_key(row) for row in ids]
    store.put(keys, list(hidden))
    assert torch.equal(store.read_padded(keys), hidden)


def test_nf4_base_passes_the_check():
    bitsandbytes = pytest.importorskip("bitsandbytes", reason="extra `quantized` is not installed")
    model = build("llama")
    for layer in layer_list(model):
        for parent in (layer.self_attn, layer.mlp):
            for name, linear in list(parent.named_children()):
                if isinstance(linear, nn.Linear):
                    shape = (linear.in_features, linear.out_features)
                    quantized = bitsandbytes.nn.Linear4bit(*shape, bias=False, quant_type="nf4")
                    quantized.load_state_dict(linear.state_dict())
                    setattr(parent, name, quantized.to("cpu"))
    adapted = with_lora(model, [3], ("q_proj", "v_proj"))
    assert layer_list(adapted)[0].mlp.up_proj.weight.dtype == torch.uint8
    assert frozen_depth(adapted) == 3
    assert trunk_path_matches(adapted, 3)


def test_trunk_digest_covers_what_is_below_and_nothing_above():
    model = build("llama")
    digest = trunk_digest(model, 2)
    assert trunk_digest(copy.deepcopy(model), 2) == digest
    assert trunk_digest(with_lora(copy.deepcopy(model), [2, 3], ("q_proj",)), 2) == digest
    changed = copy.deepcopy(model)
    nn.init.normal_(layer_list(changed)[2].mlp.up_proj.weight)
    assert trunk_digest(changed, 2) == digest
    nn.init.normal_(layer_list(changed)[1].mlp.up_proj.weight)
    assert trunk_digest(changed, 2) != digest
    assert trunk_digest(model, 1) != digest
    assert trunk_digest(copy.deepcopy(model).to(torch.bfloat16), 2) != digest
    turned = copy.deepcopy(model)
    turned.config.rope_parameters = {**turned.config.rope_parameters, "rope_theta": 77.0}
    assert trunk_digest(turned, 2) != digest


@pytest.mark.slow
def test_bundled_model_on_stored_states(tmp_path):
    source = resolve_base("smollm2-135m-instruct").source
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).requires_grad_(False)
    adapted = with_lora(model, list(range(24, 30)), ("q_proj", "v_proj"))
    assert frozen_depth(adapted) == 24
    assert trunk_path_matches(adapted, 24)
    store = TrunkStore(tmp_path, 576, torch.float32)
    ids, mask = random_rows((40, 17))
    rows = [row[keep] for row, keep in zip(ids, mask, strict=True)]
    keys = [content_key(row) for row in rows]
    store.put(keys, [capture(adapted, 24, row[None])[0] for row in rows])
    hidden = store.read_padded(keys)
    assert hidden is not None
    with torch.no_grad():
        full = adapted(input_ids=ids, use_cache=False).logits
        with bypass_lower_layers(adapted, 24, hidden):
            short = adapted(input_ids=ids, use_cache=False).logits
    assert relative(short[mask], full[mask]) < 1e-5
