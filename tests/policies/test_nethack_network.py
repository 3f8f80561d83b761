"""The networks that play NetHack: sizes, equality with plain layers, shared computation, files."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from llm_agents.errors import UserError
from llm_agents.policies.nethack import (
    NetHackNetwork,
    ReleaseNetwork,
    SmallNetwork,
    stat_scales,
)
from llm_agents.policies.nethack_convolutions import WindowEncoder
from llm_agents.policies.nethack_core import gru_sequence, lstm_sequence
from llm_agents.policies.nethack_files import (
    NETHACK_FILE,
    NETHACK_WEIGHTS,
    is_nethack_agent,
    load_nethack_network,
    read_nethack_agent,
    save_nethack_network,
)
from llm_agents.policies.nethack_player import NetworkPlayer, _Memory, observe
from llm_agents.policies.nethack_sharing import distinct_rows, renumber
from llm_agents.policies.nethack_types import NetHackObservations
from llm_agents.policies.nethack_window import glyph_atlas, pictures


def room(seed: int, count: int) -> Tensor:
    """Return windows that repeat as games' do: blanks, floor, walls, a few colors."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.tensor([32, 32, 32, 46 + 7 * 256, 45 + 7 * 256, 124 + 7 * 256, 64 + 15 * 256, 0])
    drawn = kinds[torch.randint(len(kinds), (count, 144), generator=generator)].short()
    return torch.cat([drawn, drawn])[count // 2 : count // 2 + count]  # some of them twice


def observations(steps: int, games: int, seed: int = 0) -> NetHackObservations:
    generator = torch.Generator().manual_seed(seed)
    message = torch.zeros(steps, games, 256, dtype=torch.uint8)
    message[..., :20] = torch.randint(0, 3, (steps, games, 1), generator=generator) * 30
    return NetHackObservations(
        window=room(seed, steps * games).view(steps, games, 144),
        vector=torch.randn(steps, games, 27, generator=generator),
        message=message,
    )


# --- sizes


def test_the_released_number_of_parameters() -> None:
    assert sum(p.numel() for p in ReleaseNetwork().parameters()) == 2_795_640


def test_widths_and_state_of_the_release() -> None:
    network = ReleaseNetwork()
    assert sum(network.widths) == 795
    assert network.state_size == 512
    assert ReleaseNetwork(core="lstm").state_size == 1024


def test_heads_and_branches_start_orthogonal_and_the_image_branch_does_not() -> None:
    network = ReleaseNetwork()
    for layer in (network.policy_head, network.message[2], network.vector[0]):
        assert isinstance(layer, nn.Linear)
        weight = layer.weight if layer.weight.shape[0] <= layer.weight.shape[1] else layer.weight.T
        torch.testing.assert_close(weight @ weight.T, torch.eye(len(weight)), atol=1e-4, rtol=0)
        assert not layer.bias.any()
    assert isinstance(network.window, WindowEncoder)
    assert network.window.output.bias.any()


@pytest.mark.parametrize("options", [{"core": "rnn"}, {"num_actions": 1}])
def test_what_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(UserError, match="expected"):
        SmallNetwork(**options)  # type: ignore[arg-type]


# --- pictures and convolutions


def test_pictures_are_characters_in_colors() -> None:
    atlas = torch.from_numpy(glyph_atlas().copy())
    window = torch.full((1, 144), 32, dtype=torch.int16)
    window[0, 7 * 12 + 6] = 64 + 9 * 256  # a red @ in row 7, column 6
    (drawn,) = pictures(window, atlas)
    assert drawn.shape == (3, 72, 72)
    torch.testing.assert_close(drawn[0, 42:48, 36:42], atlas[64].float() / 255)
    assert float(drawn[0].sum()) > 5
    assert not drawn[1:].any()
    drawn[0, 42:48, 36:42] = 0
    assert not drawn.any()


def test_codes_that_nobody_prints_are_blank() -> None:
    atlas = glyph_atlas()
    assert not atlas[[0, 7, 32, 127, 160]].any()
    assert all(atlas[code].any() for code in b"@.|-#>+dZ")


@pytest.mark.parametrize("kind", ["repeating", "random"])
def test_shared_convolutions_equal_drawn_ones(kind: str) -> None:
    torch.manual_seed(0)
    encoder = WindowEncoder(16)
    window = room(0, 9) if kind == "repeating" else torch.randint(0, 4096, (5, 144)).short()
    shared, drawn = encoder(window), encoder.drawn(window)
    torch.testing.assert_close(shared, drawn, rtol=1e-4, atol=1e-6)
    weight = torch.randn_like(drawn)
    ours = torch.autograd.grad((shared * weight).sum(), list(encoder.parameters()))
    theirs = torch.autograd.grad((drawn * weight).sum(), list(encoder.parameters()))
    for mine, other in zip(ours, theirs, strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(mine / scale, other / scale, rtol=0, atol=2e-5)


def test_many_kinds_are_renumbered_by_sorting() -> None:
    numbers = torch.tensor([5, 10**9, 5, 7])
    found, places = renumber(numbers, 10**10)
    assert found.tolist() == [5, 7, 10**9]
    assert places.tolist() == [0, 2, 0, 1]


def test_rows_whose_hashes_collide_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_agents.policies import nethack_sharing

    monkeypatch.setattr(nethack_sharing, "_multipliers", lambda n: np.zeros(n, np.int64))
    table = torch.tensor([[1, 2], [3, 4], [1, 2]])
    shared = distinct_rows(table)
    assert len(shared.first) == 2
    assert torch.equal(table[shared.first][shared.kinds], table)


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.int64])
def test_distinct_rows(dtype: torch.dtype) -> None:
    table = torch.randint(0, 2, (50, 3), generator=torch.Generator().manual_seed(0)).to(dtype)
    shared = distinct_rows(table)
    assert len(shared.first) == len(torch.unique(table, dim=0))
    assert torch.equal(table[shared.first][shared.kinds], table)


# --- cores


def test_gru_equals_torchs_own_between_starts() -> None:
    torch.manual_seed(0)
    own = nn.GRU(5, 4).double()
    inputs = torch.randn(6, 3, 5, dtype=torch.float64)
    state = torch.randn(3, 4, dtype=torch.float64)
    gates = inputs @ own.weight_ih_l0.T + own.bias_ih_l0
    starts = torch.zeros(6, 3, dtype=torch.bool)
    found, last = gru_sequence(gates, state, starts, own.weight_hh_l0, own.bias_hh_l0)
    wanted, final = own(inputs, state[None])
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(last, final[0])
    with torch.no_grad():
        again, _ = gru_sequence(gates, state, starts, own.weight_hh_l0, own.bias_hh_l0)
    torch.testing.assert_close(again, wanted)


def test_lstm_equals_torchs_own_between_starts() -> None:
    torch.manual_seed(0)
    own = nn.LSTM(5, 4).double()
    inputs = torch.randn(6, 3, 5, dtype=torch.float64)
    hidden, cell = torch.randn(2, 3, 4, dtype=torch.float64)
    gates = inputs @ own.weight_ih_l0.T + own.bias_ih_l0
    starts = torch.zeros(6, 3, dtype=torch.bool)
    state = torch.cat([hidden, cell], -1)
    found, last = lstm_sequence(gates, state, starts, own.weight_hh_l0, own.bias_hh_l0)
    wanted, (final, content) = own(inputs, (hidden[None], cell[None]))
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(last, torch.cat([final[0], content[0]], -1))


@pytest.mark.parametrize("run", [gru_sequence, lstm_sequence])
def test_a_start_inside_a_sequence_makes_the_state_zero(run: object) -> None:
    num_gates = 3 if run is gru_sequence else 4
    size = 4 if run is gru_sequence else 8
    torch.manual_seed(0)
    gates, weight = torch.randn(5, 2, num_gates * 4), torch.randn(num_gates * 4, 4)
    bias, state = torch.randn(num_gates * 4), torch.randn(2, size)
    starts = torch.zeros(5, 2, dtype=torch.bool)
    starts[2, 0] = starts[0, 1] = True
    whole, _ = run(gates, state, starts, weight, bias)  # type: ignore[operator]
    no, zero = torch.zeros(5, 2, dtype=torch.bool), torch.zeros(2, size)
    after, _ = run(gates[2:], zero, no[2:], weight, bias)  # type: ignore[operator]
    torch.testing.assert_close(whole[2:, 0], after[:, 0])
    fresh, _ = run(gates, zero, no, weight, bias)  # type: ignore[operator]
    torch.testing.assert_close(whole[:, 1], fresh[:, 1])
    torch.testing.assert_close(
        whole[:2, 0],
        run(gates, state, no, weight, bias)[0][:2, 0],  # type: ignore[operator]
    )


def test_the_grus_own_gradient() -> None:
    torch.manual_seed(0)
    parts = [
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((4, 2, 9), (2, 3), (9, 3), (9,))
    ]
    starts = torch.zeros(4, 2, dtype=torch.bool)
    starts[2, 1] = starts[0, 0] = True

    def outputs(gates: Tensor, state: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return gru_sequence(gates, state, starts, weight, bias)[0]

    assert torch.autograd.gradcheck(outputs, parts)


def test_a_core_refuses_rows_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="expected `state`"):
        gru_sequence(
            torch.zeros(2, 3, 12), torch.zeros(1, 4), torch.zeros(2, 3, dtype=torch.bool),
            torch.zeros(12, 4), torch.zeros(12),
        )  # fmt: skip


# --- the whole


def plain(network: NetHackNetwork, seen: NetHackObservations) -> tuple[Tensor, Tensor]:
    """Compute a network from zero states with torch's layers alone, one step after another."""
    state, logits, values = None, [], []
    for step in range(seen.shape[0]):
        vector = seen.vector[step]
        window = network.window
        image = window.drawn if isinstance(window, WindowEncoder) else window
        features = torch.cat(
            [
                image(seen.window[step]),
                network.vector(vector),
                vector,
                network.message(seen.message[step].float() / 255),
            ],
            -1,
        )
        hidden, state = network.core(features[None], state)
        logits.append(network.policy_head(hidden[0]))
        values.append(network.value_head(hidden[0])[:, 0])
    return torch.stack(logits), torch.stack(values)


@pytest.mark.parametrize(
    "network",
    [ReleaseNetwork(), SmallNetwork(32), SmallNetwork(32, core="lstm")],
    ids=["release", "small", "lstm"],
)
def test_a_network_equals_plain_layers(network: NetHackNetwork) -> None:
    seen = observations(3, 4)
    starts = torch.zeros(3, 4, dtype=torch.bool)
    found = network(seen, torch.zeros(4, network.state_size), starts)
    logits, values = plain(network, seen)
    torch.testing.assert_close(found.logits, logits, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(found.values, values, atol=2e-5, rtol=1e-4)


def test_nothing_seen_is_changed_by_a_pass_and_a_second_one_says_the_same() -> None:
    network, seen = SmallNetwork(16), observations(2, 3)
    kept = copy.deepcopy(seen)
    starts, state = torch.zeros(2, 3, dtype=torch.bool), torch.zeros(3, 16)
    first = network(seen, state, starts)
    first.logits.sum().backward()
    second = network(seen, state, starts)
    assert torch.equal(first.logits, second.logits)
    for name in ("window", "vector", "message"):
        assert torch.equal(getattr(seen, name), getattr(kept, name))


def test_bfloat16_autocast_trains_the_release() -> None:
    network, seen = ReleaseNetwork(), observations(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        found = network(seen, torch.zeros(2, 512), torch.zeros(2, 2, dtype=torch.bool))
        (found.logits.square().mean() + found.values.square().mean()).backward()
    assert found.logits.dtype == torch.float32
    grads = [p.grad for p in network.parameters()]
    assert all(grad is not None and bool(grad.isfinite().all()) for grad in grads)


# --- observations and players


def raw(count: int = 1) -> dict[str, np.ndarray]:
    blstats = np.zeros((count, 27), np.int64)
    blstats[:, :9] = [71, 8, 17, 17, 15, 13, 9, 12, 9]
    return {
        "window_chars": np.full((count, 12, 12), 64, np.uint8),
        "window_colors": np.full((count, 12, 12), 7, np.uint8),
        "blstats": blstats,
        "message": np.zeros((count, 256), np.uint8),
    }


def test_the_released_scales_of_the_bottom_line() -> None:
    engine = raw()
    engine["blstats"][0, [10, 13, 16, 19]] = [80, 7000, -60, 2000]
    engine["blstats"][0, [9, 12, 17, 23, 24, 25, 26]] = 9
    found = observe(engine).vector[0].tolist()
    wanted = [0.898734, 0.380952, 0.0, 1.7, 1.5, 1.3, 0.9, 1.2, 0.9]
    assert found[:9] == pytest.approx(wanted, abs=1e-6)
    assert [found[place] for place in (10, 13, 16, 19)] == [5.0, 5.0, -5.0, 5.0]
    assert not any(found[place] for place in (9, 12, 17, 23, 24, 25, 26))
    assert int((stat_scales() == 0).sum()) == 8


def test_bits_above_the_color_are_left_out() -> None:
    engine = raw()
    engine["window_colors"][:] = 16 + 3
    assert observe(engine).window[0, 0] == 64 + 3 * 256


def test_what_was_observed_does_not_change_with_the_engines_arrays() -> None:
    engine = raw()
    seen = observe(engine)
    for array in engine.values():
        array[:] = 9
    assert int(seen.message.sum()) == 0
    assert float(seen.vector[0, 4]) == pytest.approx(1.5)


def test_a_player_says_what_its_network_says() -> None:
    torch.manual_seed(0)
    network = SmallNetwork(16)
    player, seen = NetworkPlayer(network), observations(1, 5)
    state = torch.randn(5, 16)
    starts = torch.tensor([False, True, False, False, True])
    step = seen.map(lambda part: part[0])
    with torch.no_grad():
        wanted = network(seen, state, starts[None])
    found = player.act(step, state, starts, torch.Generator().manual_seed(3))
    torch.testing.assert_close(found.values, wanted.values[0])
    torch.testing.assert_close(found.state, wanted.state)
    log_probs = wanted.logits[0].log_softmax(-1)
    torch.testing.assert_close(found.log_probs, log_probs.gather(1, found.actions[:, None])[:, 0])
    again = player.act(step, state, starts, torch.Generator().manual_seed(3))
    assert torch.equal(found.actions, again.actions)


def test_actions_are_drawn_in_proportion() -> None:
    network = SmallNetwork(8, num_actions=3)
    with torch.no_grad():
        network.policy_head.weight.zero_()
        network.policy_head.bias.copy_(torch.tensor([0.5, 0.3, 0.2]).log())
    seen = observations(1, 4000).map(lambda part: part[0])
    player = NetworkPlayer(network)
    found = player.act(
        seen, player.initial_state(4000), torch.ones(4000, dtype=torch.bool),
        torch.Generator().manual_seed(0),
    )  # fmt: skip
    shares = found.actions.bincount(minlength=3) / 4000
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.3, 0.2]), atol=0.03, rtol=0)


def test_a_player_learns_of_new_weights_by_refresh_alone() -> None:
    torch.manual_seed(0)
    network = SmallNetwork(16)
    player = NetworkPlayer(network)
    seen, state = observations(1, 4).map(lambda part: part[0]), torch.zeros(4, 16)
    before = player.values(seen, state)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
    assert torch.equal(player.values(seen, state), before)
    player.refresh()
    after = player.values(seen, state)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, NetworkPlayer(network).values(seen, state))


def test_a_memory_computes_each_row_once_and_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def double(rows: Tensor) -> Tensor:
        asked.append(len(rows))
        return rows.float() * 2

    memory = _Memory(double)
    rows = torch.tensor([[1], [2], [1]], dtype=torch.int16)
    assert memory(rows).flatten().tolist() == [2.0, 4.0, 2.0]
    assert memory(rows[:2]).flatten().tolist() == [2.0, 4.0]
    assert asked == [2]
    monkeypatch.setattr("llm_agents.policies.nethack_player._REMEMBERED", 1)
    assert memory(rows).flatten().tolist() == [2.0, 4.0, 2.0]
    assert asked == [2, 2]


# --- files


@pytest.mark.parametrize("network", [SmallNetwork(8, core="lstm", num_actions=5)])
def test_a_saved_network_is_the_same(network: NetHackNetwork, tmp_path: Path) -> None:
    save_nethack_network(network, tmp_path, {"task": "NetHackScore-v1"})
    assert is_nethack_agent(tmp_path)
    assert read_nethack_agent(tmp_path)["task"] == "NetHackScore-v1"
    loaded = load_nethack_network(tmp_path)
    assert loaded.describe() == network.describe()
    for name, value in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    assert sorted(path.name for path in tmp_path.iterdir()) == [NETHACK_FILE, NETHACK_WEIGHTS]


def test_an_agent_keeps_the_drawings_it_learnt_on(tmp_path: Path) -> None:
    network = ReleaseNetwork()
    assert isinstance(network.window, WindowEncoder)
    network.window.glyphs[64] = 77
    save_nethack_network(network, tmp_path, {})
    loaded = load_nethack_network(tmp_path)
    assert isinstance(loaded.window, WindowEncoder)
    assert (loaded.window.glyphs[64] == 77).all()


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is missing"):
        load_nethack_network(tmp_path)
    save_nethack_network(SmallNetwork(8), tmp_path, {})
    whole = (tmp_path / NETHACK_WEIGHTS).read_bytes()
    (tmp_path / NETHACK_WEIGHTS).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="doesn't hold the network's weights"):
        load_nethack_network(tmp_path)
    described = json.loads((tmp_path / NETHACK_FILE).read_text())
    (tmp_path / NETHACK_FILE).write_text(json.dumps({**described, "format_version": 9}))
    with pytest.raises(UserError, match="format 9"):
        load_nethack_network(tmp_path)
    (tmp_path / NETHACK_FILE).write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        read_nethack_agent(tmp_path)
