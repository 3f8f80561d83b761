"""Keras weights in PyTorch's layout, and the COMET critic made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import RobertaConfig, RobertaModel

from llm_agents.errors import UserError
from llm_agents.rewards.comet import CometCriticNetwork
from llm_agents.rewards.comet_conversion import build_critic
from llm_agents.rewards.keras_weights import convert_roberta, read_keras_weights
from llm_agents.rewards.tensor_bundle import read_checkpoint
from tests.rewards.keras_critic import keras_name, keras_weights

GOLDEN = Path(__file__).parent / "golden" / "keras_critic"
SIZES: dict[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
}


def random_critic(width: int = 4) -> CometCriticNetwork:
    torch.manual_seed(2)
    network = CometCriticNetwork(RobertaConfig(**SIZES, initializer_range=0.5), width=width)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return network.eval()


def test_a_saved_model_of_tensorflow_gives_kerass_own_scores() -> None:
    """The files are TensorFlow's, optimizer state included; the numbers are Keras's."""
    found = convert_roberta(read_keras_weights(GOLDEN))
    network = build_critic(found, RobertaConfig(**SIZES))
    expected = json.loads((GOLDEN / "expected.json").read_text())
    with torch.no_grad():
        logits = network(torch.tensor(expected["ids"]), torch.tensor(expected["mask"]))
    torch.testing.assert_close(
        logits.sigmoid(), torch.tensor(expected["scores"]), rtol=1e-5, atol=1e-6
    )
    assert (len(found.encoder), found.num_transposed, len(found.head)) == (23, 7, 4)


def test_a_square_kernel_is_transposed() -> None:
    kernel = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
    found = convert_roberta({"m/roberta/pooler/dense/kernel": kernel})
    layer = torch.nn.Linear(2, 2, bias=False)
    layer.weight.data = found.encoder["pooler.dense.weight"]
    assert layer(torch.tensor([1.0, 0.0])).tolist() == [1.0, 2.0]


def test_the_published_critic_has_391_tensors_145_of_them_kernels() -> None:
    """24 layers and 1024 units, without the numbers: only shapes are made."""
    sizes = SIZES | {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16}
    sizes |= {"intermediate_size": 4096, "vocab_size": 50265, "max_position_embeddings": 514}
    with torch.device("meta"):
        network = CometCriticNetwork(RobertaConfig(**sizes))
    state = network.state_dict()
    encoder = [name for name in state if name.startswith("encoder.")]
    kernels = [name for name in state if keras_name(name).endswith("kernel:0")]
    assert len(encoder) == 391
    assert len([name for name in kernels if name.startswith("encoder.")]) == 145
    square = [
        name
        for name in kernels
        if name.startswith("encoder.") and state[name].shape[0] == state[name].shape[1]
    ]
    assert len(square) == 97
    counts = {name: value.numel() for name, value in state.items()}
    assert sum(counts[name] for name in encoder) == 355_359_744
    assert sum(counts.values()) == 355_885_057


@pytest.mark.parametrize("kind", ["h5", "npz"])
def test_a_keras_shaped_file_gives_the_same_network(tmp_path: Path, kind: str) -> None:
    network = random_critic()
    path = tmp_path / f"critic.{kind}"
    if kind == "h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            for name, value in keras_weights(network).items():
                file[name] = value
            file["optimizer_weights/critic/roberta/pooler/dense/kernel:0"] = np.zeros((8, 8))
    else:
        np.savez(path, **keras_weights(network))
    again = build_critic(convert_roberta(read_keras_weights(path)), RobertaConfig(**SIZES))
    for name, value in network.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_the_pooler_is_read_not_the_first_token() -> None:
    network = random_critic()
    ids = torch.tensor([[0, 5, 9, 2]])
    mask = torch.ones_like(ids)
    encoder = RobertaModel(RobertaConfig(**SIZES)).eval()
    encoder.load_state_dict(network.encoder.state_dict())
    with torch.no_grad():
        output = encoder(ids, attention_mask=mask)
        head = torch.nn.Sequential(network.hidden, torch.nn.GELU(), network.output)
        torch.testing.assert_close(network(ids, mask), head(output.pooler_output)[:, 0])
        raw = head(output.last_hidden_state[:, 0])[:, 0]
        assert not torch.isclose(network(ids, mask), raw).any()


def test_missing_and_wrong_tensors_are_named() -> None:
    weights = convert_roberta(
        {name.removesuffix(":0"): value for name, value in keras_weights(random_critic()).items()}
    )
    config = RobertaConfig(**SIZES)
    cut = dict(list(weights.encoder.items())[1:])
    with pytest.raises(UserError, match="missing"):
        build_critic(weights._replace(encoder=cut), config)
    with pytest.raises(UserError, match="two dense layers above RoBERTa"):
        build_critic(weights._replace(head={}), config)
    with pytest.raises(UserError, match=r"of shape \(30, 8\), got \(24, 8\)"):
        build_critic(weights, RobertaConfig(**SIZES | {"vocab_size": 30}))
    with pytest.raises(UserError, match="found no RoBERTa"):
        convert_roberta({"dense/kernel": np.zeros((2, 2), dtype=np.float32)})
    twice = {f"{p}/roberta/pooler/dense/bias": np.zeros(2, dtype=np.float32) for p in "ab"}
    with pytest.raises(UserError, match="twice"):
        convert_roberta(twice)


def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="found no"):
        read_checkpoint(tmp_path)
    source = GOLDEN / "variables"
    index = (source / "variables.index").read_bytes()
    (tmp_path / "v.index").write_bytes(index)
    with pytest.raises(UserError, match="no TensorFlow checkpoint that is read"):
        read_checkpoint(tmp_path / "v.index")  # its numbers are missing
    (tmp_path / "v.index").write_bytes(index[:-9])
    with pytest.raises(UserError, match="does not end as one"):
        read_checkpoint(tmp_path / "v.index")
    (tmp_path / "v.index").write_bytes(b"short")
    with pytest.raises(UserError, match="too short"):
        read_checkpoint(tmp_path)
    (tmp_path / "w.index").write_bytes(index)
    with pytest.raises(UserError, match="name one"):
        read_checkpoint(tmp_path)
    pickled = tmp_path / "a.npz"
    np.savez(pickled, x=np.array([{}], dtype=object))
    with pytest.raises(UserError, match="holds no plain arrays"):
        read_keras_weights(pickled)
