"""What Keras calls the parameters of a COMET critic, and how it holds them."""

from __future__ import annotations

from typing import Any

from llm_agents.rewards.comet import CometCriticNetwork


def keras_name(name: str) -> str:
    """Return what Keras calls a parameter of our critic."""
    inner, _, last = name.rpartition(".")
    if not name.startswith("encoder."):
        inner = {"hidden": "dense", "output": "dense_1"}[inner]
        return f"critic/{inner}/{'kernel' if last == 'weight' else 'bias'}:0"
    inner = inner.removeprefix("encoder.").replace("encoder.layer.", "encoder/layer_._", 1)
    inner = inner.replace(".", "/").replace("layer_/_", "layer_._")
    if inner.endswith("LayerNorm"):
        last = {"weight": "gamma", "bias": "beta"}[last]
    elif inner.endswith("word_embeddings"):
        last = "weight"
    elif inner.endswith("_embeddings"):
        last = "embeddings"
    elif last == "weight":
        last = "kernel"
    return f"critic/roberta/{inner}/{last}:0"


def keras_weights(network: CometCriticNetwork) -> dict[str, Any]:
    """Return a critic's weights as Keras holds them: kernels are (in, out)."""
    found = {}
    for name, value in network.state_dict().items():
        keras = keras_name(name)
        array = value.numpy()
        found[keras] = array.T if keras.endswith("kernel:0") else array
    return found
