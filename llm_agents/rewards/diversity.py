"""How rare the words of a response are: A-LoL's tf-idf diversity, a reward without a network.

The fitted state is a vocabulary with its inverse document frequencies, kept as JSON.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.rewards.dialogue import without_end_tokens
from llm_agents.rewards.scores import check_pairs, check_scores
from llm_agents.types import Prompt, Reward
from llm_agents.whole_files import write_text

_SAMPLES = Path(__file__).resolve().parents[1] / "data" / "samples"
_FORMAT = 1
_WORD = re.compile(r"\b\w\w+\b")
_FEW_WORDS = 5  # the release's comment says 10, its code and its scores are those of 5
_RESPONSE_KEYS = ("response", "responses", "references")


def words_of(text: str) -> list[str]:
    """Return the lower-cased words of two characters or more, end tokens left out.

    Example:
        >>> words_of("I saw The cat.<|endoftext|>")
        ['saw', 'the', 'cat']
    """
    return _WORD.findall(without_end_tokens(text).lower())


class DiversityReward(Reward):
    """Mean tf-idf weight of a response's words.

        x_w   = count(w) · idf(w),   idf(w) = ln((1 + n) / (1 + df(w))) + 1
        score = mean of x_w / ‖x‖ over the response's known words  ·  penalty
        penalty = (distinct known words) / 10 below five of them, else 1

    A response without a known word scores 0. With k equal weights the mean is 1/√k: the score falls
    with length above five distinct words, and a response of rare words beside common ones scores
    lower than one of equally rare words.

    Args:
        idf: Inverse document frequency of each known word.
        name: Name in logs and tables.

    References:
        A-LoL's dialogue tasks. Differs: end tokens written in a text are no words.
    """

    def __init__(self, idf: Mapping[str, float], *, name: str = "tfidf") -> None:
        if not idf:
            raise UserError("expected a vocabulary of at least one word for the tf-idf diversity")
        self.idf = {str(word): float(value) for word, value in idf.items()}
        self.name = name
        content = json.dumps(sorted(self.idf.items())).encode()
        self.version = f"{_FORMAT}:{hashlib.sha256(content).hexdigest()[:12]}"
        self.low, self.high = 0.0, 1.0

    @classmethod
    def fit(cls, responses: Iterable[str], *, name: str = "tfidf") -> Self:
        """Count in how many responses each word occurs.

        Args:
            responses: Training responses.
            name: Name in logs and tables.

        Raises:
            UserError: No response has a word.

        Example:
            >>> reward = DiversityReward.fit(["the cat sat", "a dog sat"])
            >>> round(reward.idf["dog"], 6)
            1.405465
        """
        counts: Counter[str] = Counter()
        total = 0
        for response in responses:
            counts.update(set(words_of(response)))
            total += 1
        if not counts:
            raise UserError(f"expected words in the responses to fit to, found none in {total}")
        return cls(
            {word: math.log((1 + total) / (1 + count)) + 1 for word, count in counts.items()},
            name=name,
        )

    @classmethod
    def from_file(cls, path: str, *, name: str = "tfidf") -> Self:
        """Load what `save` wrote, or fit to the responses of a JSON-lines file.

        Args:
            path: A ``.json`` file that `save` wrote; or a ``.jsonl`` or ``.jsonl.gz`` file of rows
                with ``response``, ``responses`` or ``references``, to fit to; ``sample:NAME`` is a
                bundled one of these.
            name: Name in logs and tables.

        Raises:
            UserError: The file is missing, damaged, or holds something else.
        """
        sample = path.removeprefix("sample:")
        file = Path(path).expanduser() if sample == path else _SAMPLES / f"{sample}.jsonl"
        if not file.is_file():
            raise UserError(
                f"found no file `{path}` for the tf-idf diversity: give the `tfidf.json` that the "
                "task's preparation writes, or a JSON-lines file of training responses"
            )
        if file.suffix != ".json":
            return cls.fit(_responses_of(file), name=name)
        values = _parsed(file.read_text(encoding="utf8"), str(file))
        if not isinstance(values, dict) or values.get("format") != _FORMAT:
            raise UserError(f"expected a tf-idf file of format {_FORMAT} in `{path}`")
        return cls(values["idf"], name=name)

    def save(self, path: str | Path) -> None:
        """Write vocabulary and frequencies as JSON, under a temporary name first.

        Args:
            path: Ends in ``.json``; its folder is made if it isn't there.
        """
        text = json.dumps({"format": _FORMAT, "idf": self.idf}, ensure_ascii=False)
        write_text(Path(path), text + "\n")

    def score(self, response: str) -> float:
        """Return the score of one response.

        Args:
            response: Any text.
        """
        counts = Counter(word for word in words_of(response) if word in self.idf)
        if not counts:
            return 0.0
        weights = [count * self.idf[word] for word, count in counts.items()]
        length = math.sqrt(sum(weight * weight for weight in weights))
        penalty = len(counts) / 10 if len(counts) < _FEW_WORDS else 1.0
        return sum(weights) / length / len(weights) * penalty

    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        """Return ``[B]`` scores; the prompts play no part."""
        check_pairs(prompts, responses)
        scores = torch.tensor([self.score(response) for response in responses])
        return check_scores(
            scores, count=len(responses), name=self.name, low=self.low, high=self.high
        )


def _responses_of(path: Path) -> Iterator[str]:
    """Yield the responses of a JSON-lines file's rows."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            row = _parsed(line.decode("utf8"), where)
            key = next((k for k in _RESPONSE_KEYS if isinstance(row, dict) and k in row), None)
            if key is None:
                raise UserError(f"{where}: expected one of the keys {', '.join(_RESPONSE_KEYS)}")
            yield from [row[key]] if isinstance(row[key], str) else row[key]


def _parsed(text: str, where: str) -> Any:  # noqa: ANN401  # JSON
    """Return a JSON value."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not JSON: {error}") from error
