"""A reward model of our own: a `LanguagePolicy` with a reward head, read from a folder.

The folder is what reward training writes: an adapter as PEFT writes it, ``reward_head.safetensors``
with ``reward_head.json``, and ``reward.json`` with the base, the text format and the range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal, Self, get_args

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.heads import RewardHead, load_head
from llm_agents.policies.model_digest import text_model_version
from llm_agents.policies.response_states import response_states
from llm_agents.policies.text import Template
from llm_agents.rewards.folder import file_digest, locate_folder
from llm_agents.rewards.scores import batches_by_length, check_pairs, check_scores
from llm_agents.types import Prompt, Reward, TokenBatch
from llm_agents.whole_files import read_json, write_json

SETTINGS_FILE = "reward.json"
HEAD_NAME = "reward_head"


@dataclass(frozen=True)
class PolicyRewardConfig:
    """What `reward.json` holds.

    Args:
        name: Short name for logs and tables.
        version: Version that its trainer gave it.
        low: Lowest score; null is no bound.
        high: Highest score; null is no bound.
        template: How a dialogue is written, see `llm_agents.policies.text.TextCodec.render`.
        max_prompt_tokens: Prompts keep their last tokens up to this many.
        max_response_tokens: Responses keep their first tokens, the end token included, up to this.
        base: Base model: alias, Hub id or folder.
        activation: Applied to the head's output.
        revision: Revision of the base on the Hub.
    """

    name: str
    version: str
    low: float | None
    high: float | None
    template: Template
    max_prompt_tokens: int
    max_response_tokens: int
    base: str
    activation: Literal["sigmoid", "none"]
    revision: str | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read `path`, naming every key that is missing, unknown or of no known value."""
        values = read_json(path)
        known = {field.name for field in fields(cls)}
        missing = sorted(known - {"revision"} - set(values))
        unknown = sorted(set(values) - known)
        if missing or unknown:
            raise UserError(
                f"`{path}`: missing keys {missing or 'none'}, unknown keys {unknown or 'none'}; it "
                "was written by another version, or is no reward model"
            )
        for key, allowed in (
            ("activation", ("sigmoid", "none")),
            ("template", get_args(Template)),
        ):
            if values[key] not in allowed:
                raise UserError(f"`{path}`: expected `{key}` in {allowed}, got {values[key]!r}")
        return cls(**values)

    def write(self, path: Path) -> None:
        """Write these values to `path`."""
        write_json(path, asdict(self))


class PolicyReward(Reward):
    """A frozen language model with a reward head as a judge of text.

    Args:
        policy: The language model, adapter loaded.
        head: From the hidden states of a response to one number.
        config: Text format, range and name.
        version: Changes whenever the scores may change; `config.version` by default.
        batch_size: Texts a pass; the scores do not depend on it.
    """

    def __init__(
        self,
        policy: LanguagePolicy,
        head: RewardHead,
        config: PolicyRewardConfig,
        *,
        version: str | None = None,
        batch_size: int = 16,
    ) -> None:
        if batch_size < 1:
            raise UserError(f"expected batch_size of at least 1, got {batch_size}")
        self.policy, self.head, self.config = policy.eval(), head.eval(), config
        self.batch_size = batch_size
        self.name, self.version = config.name, version or config.version
        self.low = -math.inf if config.low is None else float(config.low)
        self.high = math.inf if config.high is None else float(config.high)

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        *,
        base: str | None = None,
        revision: str | None = None,
        quantization: Literal["nf4", "int8"] | None = None,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        batch_size: int = 16,
        device: str | None = None,
    ) -> Self:
        """Load a reward model from its folder or from the Hub.

        Args:
            path: Folder that reward training wrote, or a Hub id of one.
            base: Base model to use in place of the recorded one: the same weights elsewhere.
            revision: Revision of the reward model on the Hub.
            quantization: Load the base in 4 or 8 bits.
            dtype: Type of the base's weights.
            batch_size: Texts a pass.
            device: Where it runs; the accelerator by default, if there is one.

        Returns:
            The reward, frozen and in evaluation mode.
        """
        folder = locate_folder(path, marker=SETTINGS_FILE, revision=revision)
        config = PolicyRewardConfig.read(folder / SETTINGS_FILE)
        has_adapter = (folder / "adapter_config.json").is_file()
        is_whole = (
            folder / "config.json"
        ).is_file()  # all weights trained: the folder is the model
        policy = LanguagePolicy.from_pretrained(
            str(folder) if is_whole else base or config.base,
            adapter=str(folder) if has_adapter else None,
            quantization=quantization,
            dtype=dtype,
            revision=config.revision if base is None and not is_whole else None,
            trainable=False,
        )
        head = load_head(folder, HEAD_NAME, policy.hidden_size)
        if not isinstance(head, RewardHead):
            raise UserError(f"expected a reward head in `{folder}`, got {type(head).__name__}")
        target = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if quantization is None:  # quantized weights are placed when they are loaded
            policy = policy.to(target)
        weights = [folder / SETTINGS_FILE, folder / f"{HEAD_NAME}.safetensors"]
        if has_adapter:
            weights.append(folder / "adapter_model.safetensors")
        if is_whole:
            weights += sorted(folder.glob("model*.safetensors"))
        text_version = text_model_version(policy.model, policy.tokenizer)
        return cls(
            policy,
            head.to(policy.device),
            config,
            version=f"{config.version}+{file_digest(*weights)}+{text_version}",
            batch_size=batch_size,
        )

    @torch.no_grad()
    def logits(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        """Return the head's own ``[B]`` output, before the activation."""
        check_pairs(prompts, responses)
        prompt_ids = [
            self.policy.encode_prompt(
                prompt, template=self.config.template, max_tokens=self.config.max_prompt_tokens
            )
            for prompt in prompts
        ]
        response_ids = [
            self.policy.encode_response(
                response, template=self.config.template, max_tokens=self.config.max_response_tokens
            )
            for response in responses
        ]
        rows = [[*p, *r] for p, r in zip(prompt_ids, response_ids, strict=True)]
        logits = torch.zeros(len(rows))
        for chosen in batches_by_length(rows, self.batch_size):
            batch = pad_rows(
                [prompt_ids[row] for row in chosen],
                [response_ids[row] for row in chosen],
                rows=chosen,
            ).to(self.policy.device)
            logits[chosen] = self.head(*response_states(self.policy, batch)).float().cpu()
        return logits

    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        """Return ``[B]`` scores between `low` and `high`."""
        logits = self.logits(prompts, responses)
        scores = logits.sigmoid() if self.config.activation == "sigmoid" else logits
        return check_scores(
            scores, count=len(responses), name=self.name, low=self.low, high=self.high
        )


def pad_rows(
    prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]], rows: Sequence[int]
) -> TokenBatch:
    """Return a batch with prompts padded on the left and responses on the right."""
    count = len(prompt_ids)
    width = max((len(ids) for ids in prompt_ids), default=0)
    length = max((len(ids) for ids in response_ids), default=0)
    prompts = torch.zeros(count, width, dtype=torch.int64)
    responses = torch.zeros(count, length, dtype=torch.int64)
    prompt_mask, response_mask = prompts.bool(), responses.bool()
    for row, (prompt, response) in enumerate(zip(prompt_ids, response_ids, strict=True)):
        if prompt:
            prompts[row, width - len(prompt) :] = torch.tensor(prompt)
            prompt_mask[row, width - len(prompt) :] = True
        responses[row, : len(response)] = torch.tensor(response)
        response_mask[row, : len(response)] = True
    return TokenBatch(prompts, prompt_mask, responses, response_mask, torch.tensor(list(rows)))
