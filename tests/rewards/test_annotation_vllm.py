"""The vLLM back end against a stand-in with the interface of vLLM's `LLM` and `SamplingParams`.

vLLM needs a GPU or its own build; what is checked here is what is passed and how replies are read.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from llm_agents.errors import MissingExtraError, UserError
from llm_agents.rewards import ChoiceAnnotator, GeneratedAnnotator, PointwiseAnnotator, VLLMBackend
from llm_agents.rewards.annotator import Pairs
from llm_agents.types import GenerationConfig


@dataclass(frozen=True)
class SamplingParams:
    """The parameters of vLLM's class that are used; another name fails."""

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    stop: list[str] = field(default_factory=list)
    seed: int | None = None
    logprobs: int | None = None


class LLM:
    """vLLM's offline engine, of a model that likes long captions."""

    made: list[dict[str, Any]] = []  # noqa: RUF012  # shared on purpose
    asked: list[tuple[Any, SamplingParams]] = []  # noqa: RUF012

    def __init__(
        self,
        model: str,
        *,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        gpu_memory_utilization: float = 0.9,
        **engine: Any,
    ) -> None:
        assert set(engine) == {"max_model_len", "max_logprobs", "enable_prefix_caching"}
        self.made.append({"model": model, "dtype": dtype, "gpus": tensor_parallel_size, **engine})

    def generate(
        self, prompts: Sequence[str], params: Sequence[SamplingParams], *, use_tqdm: bool = True
    ) -> list[Any]:
        return [self.output(p, p, s) for p, s in zip(prompts, params, strict=True)]

    def chat(
        self,
        messages: Sequence[list[dict[str, str]]],
        params: Sequence[SamplingParams],
        use_tqdm: bool = True,
    ) -> list[Any]:
        return [self.output(m, m[-1]["content"], s) for m, s in zip(messages, params, strict=True)]

    def output(self, prompt: Any, text: str, params: SamplingParams) -> Any:
        self.asked.append((prompt, params))
        quoted = [part for part in text.split('"') if set(part) <= {"x"} and part]
        if "description" in text.lower():
            lead, words = float(len(quoted[-2]) - len(quoted[-1])), ("1", "2")
        else:
            lead = float(len(quoted[-1]))
            words = ("yes", "no") if "Screen" in text else ("good", "bad")
        found = {7: (f" {words[0]}", -1.0), 8: (words[1], -1.0 - lead)}
        tokens = {
            i: SimpleNamespace(logprob=value, rank=i, decoded_token=token)
            for i, (token, value) in found.items()
        }
        reply = f'("best_description": {1 if lead > 0 else 2})'
        log_probs = [tokens] if params.logprobs else None
        return SimpleNamespace(outputs=[SimpleNamespace(text=reply, logprobs=log_probs)])


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> type[LLM]:
    module = ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, SamplingParams  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    LLM.made.clear()
    LLM.asked.clear()
    return LLM


PAIRS = Pairs.of_captions([("xxx", "x"), ("x", "xx"), ("x", "x")])


@pytest.mark.parametrize("template", ["chat", "plain"])
@pytest.mark.parametrize("kind", [GeneratedAnnotator, ChoiceAnnotator, PointwiseAnnotator])
def test_every_mode_works(vllm: type[LLM], kind: Any, template: Any) -> None:
    annotator = kind(VLLMBackend("org/model", num_gpus=8), template=template)
    assert vllm.made == []  # loaded when it is first asked
    assert annotator.annotate(PAIRS).preferences.tolist() == [0, 1, 2]
    assert len(vllm.made) == 1
    assert vllm.made[0]["gpus"] == 8
    assert vllm.made[0]["dtype"] == "float16"
    assert isinstance(vllm.asked[0][0], list if template == "chat" else str)


def test_sampling_is_passed_on(vllm: type[LLM]) -> None:
    GeneratedAnnotator(VLLMBackend("m"), template="plain").annotate(PAIRS)
    params = [params for _, params in vllm.asked]
    assert {(p.temperature, p.top_p, p.top_k, p.max_tokens) for p in params} == {
        (0.1, 0.95, 50, 4096)
    }
    assert params[0].stop == ["\n\n"]
    assert len({p.seed for p in params}) == 2
    with pytest.raises(UserError, match="num_beams: 1"):
        VLLMBackend("m").generate([], "chat", GenerationConfig(num_beams=2), [])


def test_nothing_to_ask_loads_nothing(vllm: type[LLM]) -> None:
    backend = VLLMBackend("m")
    assert backend.generate([], "chat", GenerationConfig(), []) == []
    assert backend.answer_log_probs([], "chat", ("1", "2")).shape == (0, 2)
    assert vllm.made == []


def test_without_vllm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtraError, match=r"llm-agents\[vllm\]"):
        PointwiseAnnotator(VLLMBackend("m")).score(["x"])
    with pytest.raises(UserError, match="`num_gpus` of at least 1"):
        VLLMBackend("m", num_gpus=0)


def test_an_answer_that_is_not_listed_is_bounded(vllm: type[LLM]) -> None:
    good, other = VLLMBackend("m").answer_log_probs(
        [PointwiseAnnotator(VLLMBackend("m")).prompts[0].question("xx")], "plain", ("good", "fine")
    )[0]
    assert (float(good), float(other)) == (-1.0, -3.0)
    assert not math.isnan(float(other))
