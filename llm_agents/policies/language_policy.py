"""`LanguagePolicy`: a language model as a policy over responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from llm_agents.errors import UserError
from llm_agents.functional.action_scores import Normalization
from llm_agents.policies import adapter_files, backbone
from llm_agents.policies.action_scoring import ActionScorer, Adapters, MemoryStatistics
from llm_agents.policies.action_types import ActionScores, BaseFeatures
from llm_agents.policies.backbone import LoraConfig
from llm_agents.policies.base_model import (
    BaseConfig,
    DtypeName,
    LoadedBase,
    Quantization,
    check_training,
    load_base,
)
from llm_agents.policies.forward import ForwardPass, LogProbsAndStates, Part
from llm_agents.policies.frozen_trunk import FrozenTrunk
from llm_agents.policies.generation import Vocabulary, generate
from llm_agents.policies.heads import Head, save_head
from llm_agents.policies.merging import MergeReport, merge_adapter
from llm_agents.policies.modes import evaluation
from llm_agents.policies.rows import causal_rows
from llm_agents.policies.text import Template, TextCodec
from llm_agents.policies.trained import expect_start, trained_parameters, weight_sums
from llm_agents.policies.trunk_cache import frozen_depth
from llm_agents.types import Choice, GenerationConfig, Prompt, PromptBatch, TokenBatch

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class LanguagePolicy(nn.Module):
    """A causal or encoder-decoder language model, its tokenizer and its adapters.

    Make one with `from_pretrained`. The *reference* is the policy at the start of training: the
    base for a fresh LoRA, a frozen copy of the adapter for one that was loaded.

    A frozen base has no dropout; an adapter's own counts in train mode, and never in the reference.

    Args:
        base: The base model; its weights are frozen if `model` carries adapters.
        model: The base model with adapters, or the bare one: then all of it trains.
        config: How the base was loaded.
        trainable: Whether anything trains.

    Attributes:
        scorer: Scores actions, and knows what it has computed.
    """

    def __init__(
        self,
        base: LoadedBase,
        model: PreTrainedModel | PeftModel,
        config: BaseConfig,
        *,
        trainable: bool,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer: PreTrainedTokenizerBase = base.tokenizer
        self.config = config
        self.base = base.name
        self.hub_id = base.resolved.hub_id
        self.revision = base.resolved.revision
        self.trainable = trainable
        self.parameter_version = 0
        self.is_encoder_decoder = bool(base.model.config.is_encoder_decoder)
        sizes = adapter_files.base_sizes(base.model)
        self.hidden_size, self.num_layers = sizes["hidden_size"], sizes["num_layers"]
        self.vocab_size = sizes["vocab_size"]
        settings = base.model.config.get_text_config()
        window = getattr(settings, "max_position_embeddings", None)  # T5 has none: no bound
        self.context_length: int | None = None if window is None else int(window)
        self.text = TextCodec(self.tokenizer, is_encoder_decoder=self.is_encoder_decoder)
        self.forward_pass = ForwardPass(self.causal_model, self.context_length)
        self.scorer = ActionScorer(self.causal_model, self.text, self.context_length)
        self._reference_depth = 0
        self._bare_depth = 0
        self._start_digest: tuple[float, ...] | None = None
        self.begin_here()
        self.train(trainable)

    @classmethod
    def from_pretrained(
        cls,
        base: str,
        *,
        adapter: str | None = None,
        lora: LoraConfig | None = None,
        quantization: Quantization | None = None,
        double_quantization: bool = False,
        dtype: DtypeName = "float32",
        compute_dtype: DtypeName | None = None,
        revision: str | None = None,
        trainable: bool = True,
        gradient_checkpointing: bool = False,
        trunk_cache: bool | str = False,
        trunk_top_layers: int | None = None,
        trust_remote_code: bool = False,
    ) -> Self:
        """Load a base model and attach an adapter, a fresh LoRA, or nothing (full fine-tuning).

        Args:
            base: Alias, folder, GGUF file or Hub id.
            adapter: Folder or Hub id of an adapter in PEFT's format. It goes on training from
                there, and a frozen copy of it is the reference.
            lora: A fresh adapter; beside `adapter`, what that one must be (its dropout is free).
            quantization: Hold the base's linear layers in 4 bits (``nf4``) or 8 bits (``int8``).
            double_quantization: Quantize the nf4 constants too.
            dtype: Type of the weights that are not quantized.
            compute_dtype: Type in which nf4 layers compute; `dtype` if None.
            revision: Branch, tag or commit of `base` on the Hub.
            trainable: False gives a frozen policy in eval mode.
            gradient_checkpointing: Recompute layers in the backward pass to save memory.
            trunk_cache: Keep the states of the layers below all adapters on disk and compute the
                layers above alone: True in the user's cache, or in the folder named.
            trunk_top_layers: How many these are at least; as many as another run adapts share it.
            trust_remote_code: Run code that came with a model, which can do all you can; none else.
        """
        config = BaseConfig(
            base,
            revision,
            quantization,
            double_quantization,
            dtype,
            compute_dtype,
            trust_remote_code,
        )
        check_training(adapter, lora, quantization, trainable=trainable)
        is_frozen = not trainable or adapter is not None or lora is not None
        loaded = load_base(config, keep_dropout=not is_frozen)
        if is_frozen:
            backbone.freeze(loaded.model, raise_precision=trainable and quantization is not None)
        if gradient_checkpointing and trainable:
            backbone.enable_gradient_checkpointing(loaded.model)
        model: PreTrainedModel | PeftModel = loaded.model
        if adapter is not None:
            folder = adapter_files.locate_adapter(adapter)
            model = backbone.attach_adapter(loaded, folder, trainable=trainable, lora=lora)
        elif lora is not None:
            model = backbone.add_lora(loaded.model, lora)
        policy = cls(loaded, model, config, trainable=trainable)
        return policy.use_trunk_cache(trunk_cache, trunk_top_layers)

    @property
    def causal_model(self) -> PreTrainedModel:
        """Return the transformers model with its output head; its layers carry the adapters."""
        if backbone.is_adapted(self.model):
            return backbone.unwrapped(self.model)
        return self.model

    @property
    def device(self) -> torch.device:
        """Return where the policy computes."""
        return next(self.model.parameters()).device

    @property
    def frozen_depth(self) -> int:
        """Return how many of the lowest layers carry no adapter and nothing that trains."""
        return frozen_depth(self.causal_model)

    def train(self, mode: bool = True) -> Self:
        """Switch dropout of the adapter on or off; a frozen policy stays in eval mode."""
        return super().train(mode and self.trainable)

    # --- text -----------------------------------------------------------------------------------

    def encode_prompt(
        self, turns: Prompt, template: Template = "alol", max_tokens: int | None = None
    ) -> list[int]:
        """Return a dialogue's ids, cut on the left; see `TextCodec.encode_prompt`."""
        return self.text.encode_prompt(turns, template=template, max_tokens=max_tokens)

    def encode_response(
        self, text: str, template: Template = "alol", max_tokens: int | None = None
    ) -> list[int]:
        """Return a response's ids, end token included; see `TextCodec.encode_response`."""
        return self.text.encode_response(text, template=template, max_tokens=max_tokens)

    def encode_text(self, text: str, *, begin: bool) -> list[int]:
        """Return the ids of `text` as it stands; see `TextCodec.encode_text`."""
        return self.text.encode_text(text, begin=begin)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens and surrounding blanks."""
        return self.text.decode(ids)

    # --- scoring --------------------------------------------------------------------------------

    def log_probs(self, batch: TokenBatch) -> Tensor:
        """Return the log-prob of each response token.

        Each row is computed as if it were alone: padding is never seen. Gradients flow to whatever
        trains. Only the positions that predict a response token pass through the output head.

        Args:
            batch: B rows with responses of up to T tokens.

        Returns:
            ``[B, T]`` float32, 0 under a False mask.
        """
        return self.forward_pass.log_probs(batch)

    def sequence_log_probs(self, batch: TokenBatch) -> Tensor:
        """Return ``[B]`` float32: the sum of each response's `log_probs`."""
        return self.log_probs(batch).sum(1)

    def hidden_states(
        self, batch: TokenBatch | PromptBatch, part: Part = "prompt"
    ) -> tuple[Tensor, Tensor]:
        """Return hidden states after the final norm, and which of them are real.

        Args:
            batch: B rows. Responses are not computed for ``prompt``.
            part: ``prompt`` (of an encoder-decoder: the encoder's), ``response`` (the state that
                has read each response token, in the layout of ``response_ids``) or ``all``.

        Returns:
            ``[B, L, H]`` states and ``[B, L]`` bool mask, True = real token.
        """
        return self.forward_pass.hidden_states(batch, part)

    def log_probs_and_prompt_states(self, batch: TokenBatch) -> LogProbsAndStates:
        """Return `log_probs` and the prompts' `hidden_states` from one pass."""
        return self.forward_pass.log_probs_and_prompt_states(batch)

    def generate(
        self,
        prompts: PromptBatch | Sequence[Sequence[int]],
        config: GenerationConfig,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
    ) -> list[list[int]]:
        """Return the ids of a response to each prompt.

        The response ends with the end token where the model gave one, before the first stop string,
        or after ``max_new_tokens``. It does not depend on the other prompts.

        Args:
            prompts: N prompts, as a batch or as ids without padding.
            config: How to generate.
            generator: Source of randomness for sampling, or one for each prompt, which then does
                not depend on the others; torch's global one if None.

        Returns:
            N lists of ids.
        """
        if isinstance(prompts, PromptBatch):
            prompts = causal_rows(prompts).token_lists()
        with evaluation(self), torch.no_grad():
            return generate(
                self.causal_model,
                prompts,
                config,
                vocabulary=self.generation_vocabulary(),
                generator=generator,
            )

    def generation_vocabulary(self) -> Vocabulary:
        """Return what generation must know; the tokenizer and the model both name end tokens."""
        named = getattr(self.causal_model.generation_config, "eos_token_id", None)
        more = [named] if isinstance(named, int) else list(named or ())
        ends = frozenset((*self.text.end_ids, *more))
        return Vocabulary(ends, self.text.decode_exactly, self.context_length)

    # --- actions --------------------------------------------------------------------------------

    def score_actions(
        self,
        choices: Sequence[Choice],
        normalization: Normalization,
        *,
        entropies: bool = False,
    ) -> ActionScores:
        """Return the score of every action of each choice, exactly as if each were read alone.

        Equal choices in a call are computed once, and so are common beginnings of their prompts.
        Gradients flow to whatever trains. Without gradient a choice is computed once until the
        weights change, in whatever way they are changed.

        Args:
            choices: B choices of at least one action each.
            normalization: What an action's log-prob is divided by: nothing (``sum``), its tokens
                (``token``) or its words (``word``).
            entropies: Also return the entropies of what each token is drawn from.
        """
        return self.scorer.score(
            choices,
            normalization,
            entropies=entropies,
            adapters=self._adapters(),
            version=self.parameter_version,
        )

    def base_features(self, choices: Sequence[Choice]) -> BaseFeatures:
        """Return hidden states of the frozen base alone, once computed for the life of the policy.

        Args:
            choices: N choices; their actions may be empty.

        Raises:
            UserError: There is no frozen base, as all weights train.
        """
        return self.scorer.base_features(choices, self.without_adapters)

    def prompt_features(self, prompts: Sequence[str]) -> Tensor:
        """Return ``[N, H]``: `base_features` at the end of prompts that no action follows.

        They are those of a choice with this prompt unless its actions change the prompt's tokens.
        """
        return self.base_features([Choice(prompt, ()) for prompt in prompts]).prompt_states

    def parameters_changed(self) -> None:
        """Tell that weights were changed; all but writes through ``.data`` are noticed anyway."""
        self.parameter_version += 1

    def memory_statistics(self) -> MemoryStatistics:
        """Return how many choices `score_actions` was asked for, computed and remembered."""
        return self.scorer.statistics()

    def reset_memory_statistics(self) -> None:
        """Set the counts of `memory_statistics` to zero."""
        self.scorer.reset_statistics()

    def _adapters(self) -> Adapters:
        """Return which adapters are switched on."""
        if self._bare_depth > 0:
            return "base"
        if self._reference_depth == 0 or not self.trainable or not backbone.is_adapted(self.model):
            return "policy"
        return "base" if backbone.reference_adapter(self.model) is None else "reference"

    @contextmanager
    def without_adapters(self) -> Iterator[None]:
        """Be the base model alone inside, in eval mode, whatever the reference is.

        Raises:
            UserError: All weights train, so that there is no base apart from the policy.
        """
        if self.trainable and not backbone.is_adapted(self.model):
            raise UserError(
                "all weights of this policy train, so that no base model stays as it was: train an "
                "adapter (`lora: {r: 8}`)"
            )
        off: AbstractContextManager[None] = nullcontext()
        if backbone.is_adapted(self.model) and self._adapters() != "base":
            off = backbone.adapter_switched(self.model, None)
        self._bare_depth += 1
        try:
            with evaluation(self), off:
                yield
        finally:
            self._bare_depth -= 1

    # --- the reference --------------------------------------------------------------------------

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Be the reference inside: the policy at the start of training, without dropout.

        Afterwards everything is as before, the set of trainable parameters included, also when an
        exception leaves the block. Blocks may be nested.

        Raises:
            UserError: All weights train and have changed, so the start is gone.
        """
        if self._reference_depth == 0 and self._start_digest is not None:
            expect_start(self.model, self._start_digest)
        self._reference_depth += 1
        try:
            with evaluation(self):
                is_itself = not self.trainable or self._reference_depth > 1
                if is_itself or not backbone.is_adapted(self.model):
                    yield
                    return
                name = backbone.reference_adapter(self.model)
                with backbone.adapter_switched(self.model, name):
                    yield
        finally:
            self._reference_depth -= 1

    def begin_here(self) -> None:
        """Take the present weights for the reference, where all of them train."""
        if self.trainable and not backbone.is_adapted(self.model):
            self._start_digest = weight_sums(self.model)

    # --- what trains ----------------------------------------------------------------------------

    def trainable_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the name and tensor of everything that trains."""
        return trained_parameters(self)

    def adapter_state_dict(self) -> dict[str, Tensor]:
        """Return what checkpoints hold: the adapter under PEFT's names, or all that trains."""
        if backbone.is_adapted(self.model):
            state = backbone.adapter_state(self.model)
        else:
            state = dict(self.model.named_parameters()) if self.trainable else {}
        return {name: tensor.detach() for name, tensor in state.items()}

    def load_adapter_weights(self, state: Mapping[str, Tensor]) -> None:
        """Set what `adapter_state_dict` returned; the reference stays what it is.

        Raises:
            UserError: The tensors are not those of this policy.
        """
        if backbone.is_adapted(self.model):
            backbone.load_adapter_state(self.model, state)
        else:
            own = dict(self.model.named_parameters()) if self.trainable else {}
            adapter_files.copy_tensors(own, state)
        self.parameters_changed()

    def save_adapter(self, folder: Path | str, *, base_name: str | None = None) -> None:
        """Write the adapter as PEFT does; without an adapter, the whole model and its tokenizer.

        Args:
            folder: Made if it isn't there.
            base_name: Recorded as the base; None is the base's Hub id, or else the name given.
        """
        folder = Path(folder)
        if backbone.is_adapted(self.model):
            name = base_name or self.hub_id or self.base
            backbone.write_adapter(self.model, folder, base_name=name)
        else:
            self.model.save_pretrained(str(folder))
            self.tokenizer.save_pretrained(folder)

    def save_pretrained(
        self, folder: Path | str, *, heads: Mapping[str, Head] | None = None
    ) -> None:
        """Write what `llm_agents.load_pretrained(folder)` needs to give the same policy again.

        `heads` are kept beside it, by names such as ``value_head`` (`zoo.load_heads`).
        """
        self.save_adapter(folder)
        for name, head in (heads or {}).items():
            save_head(head, folder, name)
        if backbone.is_adapted(self.model):
            adapter_files.write_info(Path(folder), self.base, self.revision, heads or ())

    def merge(self, folder: Path | str, *, probe: str = "The quick brown fox") -> MergeReport:
        """Write the base with the adapter merged into it as a model of its own.

        A quantized base is de-quantized first and stays so: rounding the sum again would lose much
        of the adapter.

        Args:
            folder: Made if it isn't there.
            probe: Text on which the logits before and after are compared.

        Returns:
            The largest difference between the logits of this policy and of the merged model.
        """
        if not backbone.is_adapted(self.model):
            raise UserError("there is no adapter to merge: `save_adapter` writes the model itself")
        ids = self.text.encode_text(probe, begin=True)
        with evaluation(self):
            merged, report = merge_adapter(self.model, self.config, ids)
        merged.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        return report

    # --- the frozen trunk -----------------------------------------------------------------------

    def use_trunk_cache(
        self, folder: bool | str | Path | None, top_layers: int | None = None
    ) -> Self:
        """Keep the states below all adapters, and below `top_layers`, on disk; return the policy.

        `folder` True or None is the user's cache, False switches the cache off.
        """
        trunk = None
        if folder is not False:
            place = Path(folder) if isinstance(folder, str | Path) else None
            trunk = FrozenTrunk.open(self.causal_model, place, top_layers)
        if trunk is not None:
            trunk.can_pack = self.forward_pass.can_pack
        self.forward_pass.trunk = self.scorer.frozen_trunk = trunk
        return self

    def fill_trunk_cache(self, batches: Iterable[TokenBatch]) -> int:
        """Compute and store the trunk's states for `batches`; return how many rows were new.

        Without a trunk cache nothing is done.
        """
        if (trunk := self.forward_pass.trunk) is None:
            return 0
        return sum(trunk.fill(causal_rows(batch.to(self.device))) for batch in batches)
