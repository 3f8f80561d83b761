"""The published COMET critic, a Keras model, as a folder that `CometCritic` loads.

It is done once: docs/bring_your_own.md shows the recipe.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.rewards.comet import CometCritic, CometCriticNetwork
from llm_agents.rewards.keras_weights import ConvertedWeights, convert_roberta, read_keras_weights
from llm_agents.types import Job, Turn

log = logging.getLogger(__name__)

_TRIPLE = ("PersonX decides to see a therapist", "xEffect", "feels better")


class CometCriticConversion(Job):
    """Turns the critic's Keras weights into safetensors, names and transposes included.

    Args:
        source: Folder of the TensorFlow saved model, its checkpoint, an ``.h5`` or an ``.npz``.
        output: Folder to write; the run's ``critic`` folder by default.
        base: Hub id or folder of the RoBERTa whose sizes and tokenizer the critic has.
        revision: Revision of `base` on the Hub.
    """

    def __init__(
        self,
        source: str,
        output: str | None = None,
        base: str = "FacebookAI/roberta-large-mnli",
        revision: str | None = None,
    ) -> None:
        self.source, self.output, self.base, self.revision = source, output, base, revision

    def run(self, folder: Path) -> Mapping[str, object]:
        """Convert, write, load again, and score the release's test statement.

        Args:
            folder: The run's folder.

        Returns:
            Counts of tensors, and the score of "PersonX decides to see a therapist; as a result,
            PersonX feels better": the published weights give about 0.99.

        Raises:
            UserError: The weights are not the critic's, or `base` has other sizes.
        """
        from transformers import AutoConfig, AutoTokenizer, RobertaConfig

        found = convert_roberta(read_keras_weights(self.source))
        try:
            config = AutoConfig.from_pretrained(self.base, revision=self.revision)
            tokenizer = AutoTokenizer.from_pretrained(self.base, revision=self.revision)
        except OSError as error:
            raise UserError(f"cannot load `{self.base}`: {str(error).splitlines()[0]}") from error
        if not isinstance(config, RobertaConfig):
            raise UserError(f"expected a RoBERTa as `base`, got a {config.model_type}")
        network = build_critic(found, config)
        output = folder / "critic" if self.output is None else Path(self.output).expanduser()
        network.save_pretrained(output)
        tokenizer.save_pretrained(output)
        head, relation, tail = _TRIPLE
        prompt = (Turn("user", f"<head> {head} </head> <relation> {relation} </relation> [GEN] "),)
        score = float(CometCritic.from_pretrained(str(output), device="cpu")([prompt], [tail])[0])
        log.info("%s: score of the test statement %.4f", output, score)
        return {
            "output": str(output),
            "encoder_tensors": len(found.encoder),
            "transposed": found.num_transposed,
            "head_tensors": len(found.head),
            "test_statement_score": score,
        }


def build_critic(found: ConvertedWeights, config: object) -> CometCriticNetwork:
    """Return the critic with converted weights.

    The two linear layers of the head are told apart by their sizes.

    Args:
        found: As `convert_roberta` returns them.
        config: A ``RobertaConfig`` of the same sizes.

    Raises:
        UserError: A tensor is missing, left over, or of another size.
    """
    from transformers import RobertaConfig

    if not isinstance(config, RobertaConfig):
        raise TypeError(f"expected a RobertaConfig, got {type(config).__name__}")
    head = _named_head(found.head, int(config.hidden_size))
    network = CometCriticNetwork(config, width=head["hidden.weight"].shape[0])
    weights = {f"encoder.{name}": value for name, value in found.encoder.items()} | head
    wanted = {name: value.shape for name, value in network.state_dict().items()}
    missing, unknown = sorted(set(wanted) - set(weights)), sorted(set(weights) - set(wanted))
    if missing or unknown:
        raise UserError(
            f"the Keras weights are not those of a critic of this size: missing {missing[:3]}, "
            f"unknown {unknown[:3]}; `base` must be the RoBERTa that it was made from"
        )
    for name, shape in wanted.items():
        if weights[name].shape != shape:
            raise UserError(
                f"expected `{name}` of shape {tuple(shape)}, got {tuple(weights[name].shape)}: "
                "`base` must be the RoBERTa that the critic was made from"
            )
    network.load_state_dict(weights)
    return network.eval()


def _named_head(head: Mapping[str, Tensor], hidden_size: int) -> dict[str, Tensor]:
    """Return the head's tensors under our names."""
    layers = {name.rpartition("/")[0] for name in head}
    named: dict[str, Tensor] = {}
    for layer in sorted(layers):
        weight, bias = head.get(f"{layer}/weight"), head.get(f"{layer}/bias")
        if weight is None or bias is None or weight.dim() != 2:
            continue
        if weight.shape[1] == hidden_size and "hidden.weight" not in named:
            named |= {"hidden.weight": weight, "hidden.bias": bias}
        elif weight.shape[0] == 1:
            named |= {"output.weight": weight, "output.bias": bias}
    if len(named) != 4:
        raise UserError(
            f"expected two dense layers above RoBERTa, {hidden_size} to some width to 1, found "
            f"{', '.join(sorted(layers)) or 'none'}"
        )
    return named
