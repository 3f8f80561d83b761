"""Motif's reward network: its size, its numbers, its optional branches, its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from llm_agents.errors import UserError
from llm_agents.functional.shaping import RewardStatistics
from llm_agents.policies import LanguageMessageScorer, MessageEncoder
from llm_agents.policies.message_branches import cropped, scaled_stats
from llm_agents.policies.message_files import (
    MESSAGE_REWARD_FILE,
    MessageRewardInfo,
    load_message_scorer,
    save_message_reward,
)
from llm_agents.types import MessageObservations
from tests.closeness import assert_rounding

STATISTICS = RewardStatistics(0.25, 4.0, tuple(i / 7 - 1 for i in range(19)))
SMALL: dict[str, Any] = {"embedding_dim": 4, "hidden_dim": 8, "crop_dim": 4}


def messages(*texts: bytes) -> Tensor:
    rows = [list(text[:256].ljust(256, b"\0")) for text in texts]
    return torch.tensor(rows, dtype=torch.uint8)


def noise(count: int, length: int) -> Tensor:
    """Return messages of `length` bytes, zeros among them."""
    found = torch.zeros(count, 256, dtype=torch.uint8)
    found[:, :length] = torch.randint(0, 256, (count, length)).byte()
    return found


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def screens(number: int) -> MessageObservations:
    return MessageObservations(
        noise(number, 20),
        torch.randint(0, 20, (number, 27)),
        torch.randint(0, 5976, (number, 21, 79)),
    )


# --- size and layers ------------------------------------------------------------------------------


def test_parameters_are_counted() -> None:
    """T34; layer by layer as the description lists them."""
    layers = (
        256 * 32,
        32 * 64 * 7 + 64,
        64 * 64 * 7 + 64,
        4 * (64 * 64 * 3 + 64),
        320 * 128 + 128,
        128 * 256 + 256,
        256 * 512 + 512,
        512 + 1,
    )
    assert sum(layers) == 306_945
    assert count(MessageEncoder()) == 306_945


def test_parameters_of_the_small_one() -> None:
    layers = (
        256 * 16,
        16 * 32 * 7 + 32,
        32 * 32 * 7 + 32,
        32 * 32 * 3 + 32,
        96 * 32 + 32,
        32 * 32 + 32,
        32 * 32 + 32,
        32 + 1,
    )
    assert count(MessageEncoder("lt_cnn_small")) == sum(layers)


def test_linear_layers_start_orthogonal_and_byte_zero_is_zero() -> None:
    encoder = MessageEncoder(use_crop=True, use_blstats=True, **SMALL)
    for layer in encoder.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            flat = layer.weight.flatten(1)
            flat = flat if flat.shape[0] <= flat.shape[1] else flat.T
            assert_rounding(flat @ flat.T, torch.eye(len(flat)))
            assert layer.bias is not None
            assert not layer.bias.any()
    assert encoder.message is not None
    assert not encoder.message.embedding.weight[0].any()
    conv = encoder.message.convolutions[0]
    assert isinstance(conv, nn.Conv1d)  # PyTorch's own start: a bias that is not 0
    assert conv.bias is not None
    assert conv.bias.any()


# --- the columns that are computed once -----------------------------------------------------------


def plain(encoder: MessageEncoder, message: Tensor) -> Tensor:
    """Return the rewards, every byte of every message computed."""
    branch = encoder.message
    assert branch is not None
    states = branch.embedding(message[:, : branch.plan.length].long()).transpose(1, 2)
    for layer, (_, pooled) in zip(branch.convolutions, branch.plan.layers, strict=True):
        states = torch.relu(layer(states))
        states = nn.functional.max_pool1d(states, 3, 3) if pooled else states
    features = encoder.features(torch.relu(branch.output(states.flatten(1))))
    reward: Tensor = encoder.reward(torch.relu(features))
    return reward[:, 0]


@pytest.mark.parametrize("model", ["lt_cnn", "lt_cnn_small"])
@pytest.mark.parametrize("length", [0, 1, 6, 27, 80, 123, 250, 256])
def test_rewards_and_gradients_are_those_of_the_whole_message(model: Any, length: int) -> None:
    encoder = MessageEncoder(model).double()
    rows = torch.cat((noise(3, length), noise(1, length // 3), messages(b"")))
    expected = plain(encoder, rows)
    expected.square().sum().backward()
    gradients = [p.grad.clone() for p in encoder.parameters() if p.grad is not None]
    encoder.zero_grad()
    found = encoder(MessageObservations(rows))
    found.square().sum().backward()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for ours, theirs in zip(encoder.parameters(), gradients, strict=True):
        torch.testing.assert_close(ours.grad, theirs, rtol=0, atol=1e-11)


def test_the_rest_of_the_batch_changes_only_the_rounding() -> None:
    encoder = MessageEncoder().eval()
    rows = torch.cat((messages(b"You see here a dagger."), noise(5, 200)))
    with torch.no_grad():
        alone = encoder(MessageObservations(rows[:1]))
        together = encoder(MessageObservations(rows))
        parts = encoder.score(MessageObservations(rows), 4)
    assert_rounding(alone, together[:1])
    assert_rounding(parts, together)


def test_zeros_inside_a_message_count() -> None:
    encoder = MessageEncoder()
    found = encoder(MessageObservations(messages(b"ab", b"a\0b", b"\0ab")))
    assert len(set(found.tolist())) == 3


def test_only_the_first_half_matters_to_the_small_one() -> None:
    rows = noise(2, 256)
    rows[1, :128] = rows[0, :128]
    small = MessageEncoder("lt_cnn_small")(MessageObservations(rows))
    whole = MessageEncoder()(MessageObservations(rows))
    assert small[0] == small[1]
    assert whole[0] != whole[1]


# --- other branches -------------------------------------------------------------------------------


def test_the_bottom_line_is_scaled_as_specified() -> None:
    stats = torch.zeros(27, dtype=torch.int64)
    stats[:9] = torch.tensor([71, 8, 17, 17, 15, 13, 9, 12, 9])
    stats[[9, 10, 12, 13, 16, 19, 20, 21]] = torch.tensor([999, 80, 3, 7000, -60, 2000, 1500, 2])
    found = scaled_stats(stats)
    expected = torch.tensor([0.898734, 0.380952, 0, 1.7, 1.5, 1.3, 0.9, 1.2, 0.9])
    torch.testing.assert_close(found[:9], expected, rtol=0, atol=6e-7)
    assert found[[9, 10, 12, 13, 16, 19, 20, 21]].tolist() == [0, 5, 0, 5, -5, 5, 1.5, 2]
    assert not found[[2, 9, 12, 17, 23, 24, 25, 26]].any()
    with pytest.raises(ValueError, match=r"shape \(…, 27\)"):
        scaled_stats(torch.zeros(26))


@pytest.mark.parametrize(("x", "y"), [(0, 0), (78, 20), (40, 10), (1, 20)])
def test_the_crop_is_centred_on_the_hero(x: int, y: int) -> None:
    glyphs = torch.arange(21 * 79).view(1, 21, 79)
    found, inside = cropped(glyphs, torch.tensor([[x, y]]), 16)
    assert found[0, 8, 8] == glyphs[0, y, x]
    for row in range(16):
        for column in range(16):
            r, c = y - 8 + row, x - 8 + column
            on_map = 0 <= r < 21 and 0 <= c < 79
            assert bool(inside[0, row, column]) == on_map
            if on_map:
                assert found[0, row, column] == glyphs[0, r, c]


def test_sizes_of_the_map_branches() -> None:
    """Two convolutions: stride 2 makes 21 × 79 into 6 × 20, the crop stays 16 × 16; 8 channels."""
    encoder = MessageEncoder(use_blstats=True, use_crop=True, use_glyphs=True)
    assert encoder.crop is not None
    assert encoder.map is not None
    assert (encoder.crop.size, encoder.map.size) == (8 * 16 * 16, 8 * 6 * 20)
    first = encoder.features[0]
    assert isinstance(first, nn.Linear)
    assert first.in_features == 128 + 2048 + 960 + 128
    assert encoder.keys == ("message", "blstats", "glyphs")
    assert encoder(screens(2)).shape == (2,)


@pytest.mark.parametrize(
    ("options", "keys", "reads"),
    [
        ({"use_blstats": True}, ("message", "blstats"), {"message", "blstats"}),
        ({"use_glyphs": True}, ("message", "glyphs"), {"message", "glyphs"}),
        ({"use_crop": True}, ("message", "blstats", "glyphs"), {"message", "blstats", "glyphs"}),
        ({"use_glyphs": True, "message_model": "none"}, ("glyphs",), {"glyphs"}),
        ({"use_blstats": True, "message_model": "none"}, ("blstats",), {"blstats"}),
    ],
)
def test_an_encoder_reads_its_keys_and_nothing_else(
    options: dict[str, Any], keys: tuple[str, ...], reads: set[str]
) -> None:
    encoder = MessageEncoder(**options, **SMALL)
    assert encoder.keys == keys
    torch.manual_seed(1)
    first, second = screens(6), screens(6)
    before = encoder(first)
    for key in ("message", "blstats", "glyphs"):
        mixed = {k: getattr(first, k) for k in ("message", "blstats", "glyphs")}
        mixed[key] = getattr(second, key)
        changed = not torch.equal(before, encoder(MessageObservations(**mixed)))
        assert changed == (key in reads), key
    encoder(first).sum().backward()
    assert all(p.grad is not None for p in encoder.parameters())


def test_what_is_refused() -> None:
    with pytest.raises(UserError, match="needs another"):
        MessageEncoder("none")
    with pytest.raises(UserError, match="lt_cnn, lt_cnn_small or none, got 'cnn'"):
        MessageEncoder("cnn")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="sizes of at least 1"):
        MessageEncoder(hidden_dim=1)
    with pytest.raises(ValueError, match="expected `blstats` in the observations"):
        MessageEncoder(use_blstats=True)(MessageObservations(messages(b"a")))
    with pytest.raises(ValueError, match=r"shape \(M, 256\) and dtype torch.uint8"):
        MessageEncoder()(MessageObservations(messages(b"a").long()))


# --- a language model -----------------------------------------------------------------------------


def test_a_language_model_scores_messages(make_policy: Any, monkeypatch: Any) -> None:
    policy = make_policy("llama", trainable=False)
    scorer = LanguageMessageScorer(policy, batch_size=2, width=4).eval()
    rows = messages(b"It hits!", b"", b"You die...", b"It hits!", b"\xff\xfe odd")
    with torch.no_grad():
        together = scorer(MessageObservations(rows))
        assert together[0] == together[3]
        alone = torch.cat([scorer(MessageObservations(rows[i : i + 1])) for i in range(5)])
    assert_rounding(together, alone)
    calls = []
    forward = policy.hidden_states
    monkeypatch.setattr(
        policy, "hidden_states", lambda *a, **k: calls.append(a) or forward(*a, **k)
    )
    fresh = MessageObservations(torch.cat((rows, messages(b"new"))))
    with torch.no_grad():
        assert torch.equal(scorer(fresh)[:5], together)
    assert sum(len(a[0]) for a in calls) == 1  # the known ones are remembered
    scorer.prepare(iter([fresh]))
    features = scorer.hidden_states(fresh)
    torch.testing.assert_close(scorer.head.center, features.mean(0))


def test_an_adapter_of_a_language_model_trains(make_policy: Any) -> None:
    from llm_agents.policies import LoraConfig

    policy = make_policy("llama", lora=LoraConfig(r=2, alpha=4), weights=0.1)
    scorer = LanguageMessageScorer(policy, pooling="last")
    scorer(MessageObservations(messages(b"It hits!", b"Ouch"))).sum().backward()
    names = {name for name, p in scorer.named_parameters() if p.grad is not None}
    assert any("lora_B" in name for name in names)
    assert names == {name for name, _ in scorer.trainable()}


# --- files ----------------------------------------------------------------------------------------


def info(**changes: Any) -> MessageRewardInfo:
    values: dict[str, Any] = {
        "name": "toy",
        "scorer": {},
        "statistics": STATISTICS,
        "step": 7,
        "annotator": "score",
        "dataset": "abc",
        "num_pairs": 9,
        "num_messages": 4,
        "outcome": {"kept": "best"},
    }
    return MessageRewardInfo(**{**values, **changes})


@pytest.mark.parametrize(
    "options", [{}, {"message_model": "lt_cnn_small"}, {"use_crop": True, **SMALL}]
)
def test_an_encoder_comes_back_the_same(tmp_path: Path, options: dict[str, Any]) -> None:
    encoder = MessageEncoder(**options)
    save_message_reward(encoder, info(), tmp_path / "reward")
    files = {path.name for path in (tmp_path / "reward").iterdir()}
    assert files == {MESSAGE_REWARD_FILE, "message_encoder.safetensors"}
    found = MessageRewardInfo.read(tmp_path / "reward")
    assert found.statistics == STATISTICS  # every digit
    assert found == info(scorer=encoder.describe())
    loaded = load_message_scorer(tmp_path / "reward", found)
    batch = screens(5)
    with torch.no_grad():
        assert torch.equal(loaded(batch), encoder.eval()(batch))
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())


@pytest.mark.parametrize("is_trained", [False, True])
def test_a_language_model_comes_back_the_same(
    tmp_path: Path, make_policy: Any, is_trained: bool
) -> None:
    from llm_agents.policies import LoraConfig

    lora = LoraConfig(r=2, alpha=4) if is_trained else None
    policy = make_policy("llama", lora=lora, trainable=is_trained, weights=0.2 * is_trained)
    scorer = LanguageMessageScorer(policy, prompt="Game:", width=3, max_tokens=9)
    save_message_reward(scorer, info(), tmp_path)
    assert (tmp_path / "adapter_model.safetensors").is_file() == is_trained
    loaded = load_message_scorer(tmp_path, MessageRewardInfo.read(tmp_path))
    rows = MessageObservations(messages(b"You kill the newt!", b"", b"x" * 200))
    with torch.no_grad():
        assert_rounding(loaded(rows), scorer.eval()(rows))


def test_damaged_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give the folder that the training of a reward model"):
        MessageRewardInfo.read(tmp_path)
    save_message_reward(MessageEncoder("lt_cnn_small"), info(), tmp_path)
    path = tmp_path / MESSAGE_REWARD_FILE
    whole = json.loads(path.read_text("utf8"))

    def changed(**values: Any) -> None:
        path.write_text(json.dumps({**whole, **values}), "utf8")

    found = MessageRewardInfo.read(tmp_path)
    path.write_text("{", "utf8")
    with pytest.raises(UserError, match="is not JSON"):
        MessageRewardInfo.read(tmp_path)
    changed(format_version=2)
    with pytest.raises(UserError, match="in format 1"):
        MessageRewardInfo.read(tmp_path)
    changed(statistics={**whole["statistics"], "variance": 0.0})
    with pytest.raises(UserError, match=r"`statistics` in .* are damaged"):
        MessageRewardInfo.read(tmp_path)
    changed(statistics={**whole["statistics"], "levels": [0.5]})
    with pytest.raises(UserError, match="at other levels"):
        MessageRewardInfo.read(tmp_path)
    weights = tmp_path / "message_encoder.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match="expected the weights of"):
        load_message_scorer(tmp_path, found)
    with pytest.raises(UserError, match="names the network 'Other'"):
        load_message_scorer(tmp_path, info(scorer={"class": "Other"}))
