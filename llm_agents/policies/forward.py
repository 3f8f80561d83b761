"""One pass of a model over a batch: hidden states and log-probs, for either kind of model."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from llm_agents.errors import UserError
from llm_agents.policies.frozen_trunk import FrozenTrunk
from llm_agents.policies.generation import decoder_start_id
from llm_agents.policies.output_head import head_token_log_probs, logits_token_log_probs
from llm_agents.policies.packing import ATTENTION, enable_packing, pack_rows, packed_inputs
from llm_agents.policies.plain_head import has_plain_head, head_input, output_head
from llm_agents.policies.rows import (
    CausalRows,
    causal_rows,
    gather_positions,
    response_positions,
)
from llm_agents.types import PromptBatch, TokenBatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Part = Literal["prompt", "response", "all"]


class LogProbsAndStates(NamedTuple):
    """What one pass gives to A-LoL's preparation.

    Args:
        log_probs: ``[B, T]`` float32.
        prompt_states: ``[B, P, H]`` hidden states of the prompts.
        prompt_mask: ``[B, P]`` bool, True = real token.
    """

    log_probs: Tensor
    prompt_states: Tensor
    prompt_mask: Tensor


class _Computed(NamedTuple):
    """What a model gave for a batch.

    Args:
        prompt: ``[B, P, H]`` prompt states, right-padded.
        prompt_mask: ``[B, P]`` bool.
        predictors: ``[B, T, H]`` states that predict each response token.
        logits: ``[B, T, V]`` their logits, where the model must compute them itself; else None.
    """

    prompt: Tensor
    prompt_mask: Tensor
    predictors: Tensor
    logits: Tensor | None


class ForwardPass:
    """Computes hidden states and log-probs with a model whose adapters live in its layers.

    Args:
        model: Model with its output head.
        context_length: Tokens that a row may have; None if there is no bound.
    """

    def __init__(self, model: PreTrainedModel, context_length: int | None) -> None:
        self.model = model
        self.context_length = context_length
        self.trunk: FrozenTrunk | None = None
        self._takes_packed: bool | None = None

    def log_probs(self, batch: TokenBatch) -> Tensor:
        """Return ``[B, T]`` float32 log-probs of the response tokens, 0 under a False mask."""
        return self._token_log_probs(self._compute(batch), batch)

    def log_probs_and_prompt_states(self, batch: TokenBatch) -> LogProbsAndStates:
        """Return both of one pass."""
        computed = self._compute(batch)
        log_probs = self._token_log_probs(computed, batch)
        return LogProbsAndStates(log_probs, computed.prompt, computed.prompt_mask)

    def log_probs_and_predictors(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Return `log_probs` and the ``[B, T, H]`` states that predict each response token."""
        computed = self._compute(batch)
        return self._token_log_probs(computed, batch), computed.predictors

    def hidden_states(self, batch: TokenBatch | PromptBatch, part: Part) -> tuple[Tensor, Tensor]:
        """Return ``[B, L, H]`` states after the final norm and their ``[B, L]`` mask."""
        if part not in ("prompt", "response", "all"):
            raise ValueError(f"expected `part` prompt, response or all, got {part!r}")
        if not isinstance(batch, TokenBatch):
            if part == "response":
                raise ValueError("a PromptBatch has no responses: ask for part='prompt'")
            part = "prompt"
        if part == "prompt" or not isinstance(batch, TokenBatch):
            rows = causal_rows(batch, prompts_only=True)
            if self._has_encoder:
                return self._encoder_states(rows), rows.mask
            return self._causal_states(rows)[0], rows.mask
        if self._has_encoder:
            prompt = causal_rows(batch, prompts_only=True)
            encoded = self._encoder_states(prompt)
            states = self._decoder_states(batch, encoded, prompt, with_last=True)[0][:, 1:]
            if part == "response":
                return states, batch.response_mask
            return torch.cat((encoded, states), 1), torch.cat((prompt.mask, batch.response_mask), 1)
        rows = causal_rows(batch)
        states = self._causal_states(rows)[0]
        if part == "all":
            return states, rows.mask
        positions = response_positions(rows, batch, shift=0)
        return gather_positions(states, positions), batch.response_mask

    @property
    def _has_encoder(self) -> bool:
        """Tell whether prompts go to an encoder."""
        return bool(self.model.config.is_encoder_decoder)

    def _compute(self, batch: TokenBatch) -> _Computed:
        """Run the model over prompts and responses."""
        if self._has_encoder:
            prompt = causal_rows(batch, prompts_only=True)
            encoded = self._encoder_states(prompt)
            states, logits = self._decoder_states(batch, encoded, prompt, with_last=False)
            return _Computed(encoded, prompt.mask, states, logits)
        rows = causal_rows(batch)
        states, logits = self._causal_states(rows, needs_logits=not has_plain_head(self.model))
        positions = response_positions(rows, batch, shift=-1)
        width = int(rows.prompt_lengths.max())
        offsets = torch.arange(width, device=states.device)
        return _Computed(
            prompt=states[:, :width],
            prompt_mask=offsets < rows.prompt_lengths[:, None],
            predictors=gather_positions(states, positions),
            logits=None if logits is None else gather_positions(logits, positions),
        )

    def _token_log_probs(self, computed: _Computed, batch: TokenBatch) -> Tensor:
        """Return the log-probs of the response tokens from the states that predict them."""
        mask = batch.response_mask
        ids = batch.response_ids[mask]
        if computed.logits is not None:
            chosen = logits_token_log_probs(computed.logits[mask], ids)
        else:
            states = head_input(self.model, computed.predictors[mask])
            chosen = head_token_log_probs(output_head(self.model), states, ids)
        zeros = torch.zeros(mask.shape, dtype=chosen.dtype, device=chosen.device)
        return zeros.masked_scatter(mask, chosen)

    def _causal_states(
        self, rows: CausalRows, *, needs_logits: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return ``[B, L, H]`` states and, if asked, ``[B, L, V]`` logits.

        Rows that leave much padding, or share prompts, are packed. Otherwise padding comes last,
        so that neither mask nor positions are given: with them, transformers builds a mask of its
        own, and attention leaves its fast path.
        """
        length = rows.ids.shape[1]
        if self.context_length is not None and length > self.context_length:
            raise UserError(
                f"a row of prompt and response has {length} tokens and the model's window "
                f"{self.context_length}: lower `max_prompt_tokens` or `max_response_tokens`"
            )
        packed = pack_rows(rows) if self.can_pack() else None
        inputs = {"input_ids": rows.ids, "use_cache": False}
        bypass = nullcontext() if self.trunk is None else self.trunk.handed_over(rows, packed)
        with bypass:
            if packed is None:
                return self._run(needs_logits=needs_logits, **inputs)
            states, logits = self._run(needs_logits=needs_logits, **packed_inputs(packed))
        return packed.unpack(states), None if logits is None else packed.unpack(logits)

    def can_pack(self) -> bool:
        """Tell whether the model takes packed rows; found out once, unless it was switched off."""
        if self._takes_packed is None:
            self._takes_packed = enable_packing(self.model)
        return self._takes_packed and self.model.config._attn_implementation == ATTENTION

    def _run(self, *, needs_logits: bool, **inputs: object) -> tuple[Tensor, Tensor | None]:
        """Run the layers, or the whole model where its logits are not the head's alone."""
        if not needs_logits:
            layers = getattr(self.model, self.model.base_model_prefix)
            states: Tensor = layers(**inputs).last_hidden_state
            return states, None
        seen: list[Tensor] = []
        head = output_head(self.model)
        handle = head.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        try:
            logits: Tensor = self.model(**inputs).logits
        finally:
            handle.remove()
        return seen[0], logits

    def _encoder_states(self, prompt: CausalRows) -> Tensor:
        """Return ``[B, P, H]`` states of the encoder."""
        encoder = self.model.get_encoder()
        states: Tensor = encoder(
            input_ids=prompt.ids, attention_mask=prompt.mask.long()
        ).last_hidden_state
        return states

    def _decoder_states(
        self, batch: TokenBatch, encoded: Tensor, prompt: CausalRows, *, with_last: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return ``[B, T, H]`` states before each response token, and their logits if need be.

        With `with_last` there are T + 1 states, the last one after the last token.
        """
        ids = batch.response_ids.masked_fill(~batch.response_mask, 0)
        start = ids.new_full((len(ids), 1), decoder_start_id(self.model))
        ids = torch.cat((start, ids if with_last else ids[:, :-1]), 1)
        if not with_last and not has_plain_head(self.model):
            from transformers.modeling_outputs import BaseModelOutput

            return self._run(
                needs_logits=True,
                encoder_outputs=BaseModelOutput(last_hidden_state=encoded),
                attention_mask=prompt.mask.long(),
                decoder_input_ids=ids,
                use_cache=False,
            )
        states: Tensor = self._decoder()(
            input_ids=ids,
            encoder_hidden_states=encoded,
            encoder_attention_mask=prompt.mask.long(),
            use_cache=False,
        ).last_hidden_state
        return states, None

    def _decoder(self) -> nn.Module:
        """Return the decoder of an encoder-decoder."""
        get: Any = self.model.get_decoder
        decoder: nn.Module = get()
        return decoder
