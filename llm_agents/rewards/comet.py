"""Is a commonsense statement plausible? The critic of ATOMIC 10x, which judges COMET's tails.

A RoBERTa reads the head and the tail as a pair of texts, the relation spoken out between them, and
a small network on its pooler's output gives a probability. The published weights are Keras's:
`llm_agents.rewards.comet_conversion` turns them into the folder that is loaded here.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from llm_agents.errors import UserError
from llm_agents.messages import quietly
from llm_agents.policies.model_digest import text_model_version
from llm_agents.rewards.dialogue import without_end_tokens
from llm_agents.rewards.folder import locate_folder
from llm_agents.rewards.scores import batches_by_length, check_pairs, check_scores
from llm_agents.types import Prompt, Reward

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, RobertaConfig

HEAD_FILE = "critic_head.safetensors"
WEIGHTS_FILE = "model.safetensors"

RELATION_PHRASES = {
    "HinderedBy": "can be hindered by",
    "xNeed": "but before, PersonX needed",
    "xWant": "as a result, PersonX wants",
    "xIntent": "because PersonX wanted",
    "xReact": "as a result, PersonX feels",
    "xAttr": "so, PersonX is seen as",
    "xEffect": "as a result, PersonX",
}
"""What is said between head and tail, for the seven relations that the critic knows."""

FIRST_NAMES = (
    *("Alex", "Anna", "Ben", "Carla", "Chris", "Daniel", "Diana", "Emma", "Eric", "Eva", "Felix"),
    *("Frank", "Grace", "Helen", "Henry", "Ian", "Irene", "Jack", "Jane", "John", "Julia", "Karen"),
    *("Kevin", "Laura", "Leo", "Linda", "Maria", "Mark", "Martin", "Mary", "Michael", "Nina"),
    *("Oliver", "Paul", "Peter", "Rachel", "Robert", "Sara", "Simon", "Susan", "Thomas", "Tina"),
)
_PROMPT = re.compile(r"<head>\s*(.*?)\s*</head>\s*<relation>\s*(\w+)\s*</relation>", re.DOTALL)


class Statement(NamedTuple):
    """A head, a relation and a tail.

    Args:
        head: An event, such as ``PersonX sees a doctor``.
        relation: One of `RELATION_PHRASES`.
        tail: What the relation leads to.
    """

    head: str
    relation: str
    tail: str


def read_statement(prompt: Prompt, response: str) -> Statement:
    """Return the statement that a COMET prompt and its response make.

    Args:
        prompt: Its text holds ``<head> … </head> <relation> … </relation>``.
        response: The tail.

    Raises:
        UserError: The prompt is of another kind, or the relation unknown.

    Example:
        >>> from llm_agents.types import Turn
        >>> text = "<head> PersonX runs </head> <relation> xEffect </relation> [GEN] "
        >>> read_statement((Turn("user", text),), "gets tired").relation
        'xEffect'
    """
    found = prompt_parts(prompt)
    if found is None:
        text = " ".join(turn.text for turn in prompt)
        raise UserError(
            "expected a prompt `<head> … </head> <relation> … </relation> [GEN]` for the COMET "
            f"critic, got {text[:80]!r}"
        )
    head, relation = found
    if relation not in RELATION_PHRASES:
        raise UserError(
            f"the COMET critic knows the relations {', '.join(RELATION_PHRASES)}, got {relation}: "
            "leave such rows out"
        )
    return Statement(head, relation, without_end_tokens(response))


def prompt_parts(prompt: Prompt) -> tuple[str, str] | None:
    """Return the head and the relation of a COMET prompt; None for a prompt of another kind."""
    found = _PROMPT.search("\n".join(turn.text for turn in prompt))
    return None if found is None else (found[1], found[2])


def repair_text(text: str) -> str:
    """Return `text` with UTF-8 that was read as Windows-1252 put right.

    Example:
        >>> repair_text("PersonXâ€™s cafÃ©"), repair_text("café")
        ('PersonX’s café', 'café')
    """
    content = bytearray()
    for character in text:
        try:
            content += character.encode("cp1252")
        except UnicodeEncodeError:
            if ord(character) > 255:
                return text
            content.append(ord(character))  # one of five bytes without a meaning in Windows-1252
    try:
        return content.decode("utf8")
    except UnicodeDecodeError:
        return text


def spoken(statement: Statement, draw: int = 0) -> tuple[str, str]:
    """Return the two texts that the critic reads: the head, and relation and tail.

    PersonX and PersonY get two different first names, which the statement and `draw` decide: the
    same statement always gets the same score, where the release draws new names at every call.

    Args:
        statement: What to say.
        draw: Which choice of names.

    Example:
        >>> head, tail = spoken(Statement("PersonX runs", "xEffect", "gets tired"))
        >>> tail.startswith("as a result, ") and tail.endswith(" gets tired"), "PersonX" in head
        (True, False)
    """
    key = "\x1f".join((*statement, str(draw))).encode()
    chooser = random.Random(int.from_bytes(hashlib.sha256(key).digest()[:8], "big"))
    first, second = chooser.sample(FIRST_NAMES, 2)
    texts = (
        statement.head,
        f"{RELATION_PHRASES[statement.relation]} {statement.tail}".rstrip(),
    )
    named = [
        re.sub(r"Person ?Y", second, re.sub(r"Person ?X", first, repair_text(text)))
        for text in texts
    ]
    return named[0], named[1]


class CometCriticNetwork(nn.Module):
    """RoBERTa, its pooler, and two linear layers.

        logit = w · gelu(U · pooler(h) + u) + b

    Args:
        config: Of the encoder.
        width: Hidden units between pooler and output.
    """

    def __init__(self, config: RobertaConfig, width: int = 512) -> None:
        from transformers import RobertaModel

        super().__init__()
        self.encoder = RobertaModel(config, add_pooling_layer=True)
        self.hidden = nn.Linear(config.hidden_size, width)
        self.output = nn.Linear(width, 1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return ``[B]`` logits.

        Args:
            input_ids: ``[B, T]`` int64, padded on the right.
            attention_mask: ``[B, T]``, 1 = real token.
        """
        # The pooler's output: the first token's own state gives other, lower scores.
        pooled = self.encoder(input_ids, attention_mask=attention_mask).pooler_output
        logits: Tensor = self.output(nn.functional.gelu(self.hidden(pooled)))
        return logits[:, 0]

    def save_pretrained(self, folder: Path) -> None:
        """Write the encoder as transformers does, and the head as ``critic_head.safetensors``."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        self.encoder.save_pretrained(folder)
        head = {
            key: value.detach().contiguous()
            for key, value in self.state_dict().items()
            if not key.startswith("encoder.")
        }
        temporary = folder / f".{HEAD_FILE}.tmp"
        save_file(head, temporary)
        temporary.replace(folder / HEAD_FILE)

    @classmethod
    def from_folder(cls, folder: Path, *, dtype: torch.dtype = torch.float32) -> Self:
        """Load what `save_pretrained` wrote, in evaluation mode."""
        from safetensors.torch import load_file
        from transformers import RobertaConfig, RobertaModel

        head = load_file(folder / HEAD_FILE)
        network = cls(RobertaConfig.from_pretrained(folder), head["hidden.weight"].shape[0])
        with quietly():
            network.encoder = RobertaModel.from_pretrained(folder, add_pooling_layer=True)
        missing = network.load_state_dict(head, strict=False).missing_keys
        if wrong := [key for key in missing if not key.startswith("encoder.")]:
            raise UserError(f"`{folder / HEAD_FILE}` holds no {', '.join(wrong)}")
        return network.to(dtype).eval()


class CometCritic(Reward):
    """Probability that a COMET tail is plausible.

        score = mean over draws of σ(critic(head, phrase tail))

    Args:
        network: The critic.
        tokenizer: RoBERTa's.
        version: Changes whenever the scores may change.
        name: Name in logs and tables.
        num_draws: Choices of first names that a score is the mean of.
        batch_size: Texts a pass; the scores do not depend on it.
        max_tokens: Longer pairs lose the longer text's end.
    """

    def __init__(
        self,
        network: CometCriticNetwork,
        tokenizer: PreTrainedTokenizerBase,
        *,
        version: str,
        name: str = "p_valid_model",
        num_draws: int = 1,
        batch_size: int = 32,
        max_tokens: int = 128,
    ) -> None:
        if num_draws < 1 or batch_size < 1:
            raise UserError(
                f"expected num_draws and batch_size of at least 1, got {num_draws} and {batch_size}"
            )
        self.network, self.tokenizer = network.eval(), tokenizer
        self.name, self.version = name, f"{version}:{num_draws}:{max_tokens}"
        self.num_draws, self.batch_size, self.max_tokens = num_draws, batch_size, max_tokens
        self.low, self.high = 0.0, 1.0

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        *,
        revision: str | None = None,
        num_draws: int = 1,
        batch_size: int = 32,
        max_tokens: int = 128,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str | None = None,
    ) -> Self:
        """Load a critic from the folder that its conversion wrote, or from the Hub.

        Args:
            model: Folder or Hub id.
            revision: Revision on the Hub.
            num_draws: Choices of first names that a score is the mean of.
            batch_size: Texts a pass; the scores do not depend on it.
            max_tokens: Longer pairs lose the longer text's end.
            dtype: Type of the weights.
            device: Where it runs; the accelerator by default, if there is one.

        Raises:
            UserError: There is no such folder, or it holds no critic.
        """
        from transformers import AutoTokenizer

        folder = locate_folder(model, marker=HEAD_FILE, revision=revision)
        network = CometCriticNetwork.from_folder(folder, dtype=getattr(torch, dtype))
        network.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return cls(
            network,
            tokenizer,
            version=text_model_version(network, tokenizer),
            num_draws=num_draws,
            batch_size=batch_size,
            max_tokens=max_tokens,
        )

    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        """Return ``[B]`` scores.

        Args:
            prompts: COMET prompts, see `read_statement`.
            responses: Tails.
        """
        check_pairs(prompts, responses)
        statements = [read_statement(*pair) for pair in zip(prompts, responses, strict=True)]
        texts = [spoken(one, draw) for one in statements for draw in range(self.num_draws)]
        scores = self._logits(texts).sigmoid().view(-1, self.num_draws).mean(1)
        return check_scores(
            scores, count=len(responses), name=self.name, low=self.low, high=self.high
        )

    @torch.no_grad()
    def _logits(self, texts: Sequence[tuple[str, str]]) -> Tensor:
        """Return ``[N]`` float32 logits of pairs of texts."""
        rows = [
            list(
                self.tokenizer(*pair, truncation="longest_first", max_length=self.max_tokens)[
                    "input_ids"
                ]
            )
            for pair in texts
        ]
        device = self.network.output.weight.device
        logits = torch.zeros(len(rows))
        for chosen in batches_by_length(rows, self.batch_size):
            width = len(rows[chosen[0]])
            pad = self.tokenizer.pad_token_id
            ids = torch.tensor([rows[row] + [pad] * (width - len(rows[row])) for row in chosen])
            lengths = torch.tensor([len(rows[row]) for row in chosen])
            mask = (torch.arange(width) < lengths[:, None]).long()
            logits[chosen] = self.network(ids.to(device), mask.to(device)).float().cpu()
        return logits
