"""Scores of offered actions and features of choices: each computed once and remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor, nn

from llm_agents.errors import UserError
from llm_agents.functional.action_scores import Normalization, normalize_scores
from llm_agents.policies.action_capability import choose_method
from llm_agents.policies.action_encoder_decoder import encoder_decoder_node_states
from llm_agents.policies.action_expand import expand_node_states
from llm_agents.policies.action_head import (
    BranchLogProbs,
    head_branch_log_probs,
    logits_branch_log_probs,
    restricted_log_probs,
)
from llm_agents.policies.action_history import ComputedGroups, groups_of
from llm_agents.policies.action_memory import Memory
from llm_agents.policies.action_plain import plain_node_states
from llm_agents.policies.action_prefix import PrefixStore
from llm_agents.policies.action_text import ChoiceEncoder, PreparedChoice, passes_of
from llm_agents.policies.action_tree import tree_node_states
from llm_agents.policies.action_trie import ActionTrie
from llm_agents.policies.action_trunk import ActionTrunk
from llm_agents.policies.action_types import (
    ActionScores,
    BaseFeatures,
    EncodedChoice,
    NodeStates,
)
from llm_agents.policies.frozen_trunk import FrozenTrunk
from llm_agents.policies.plain_head import head_input, output_head
from llm_agents.policies.text import TextCodec
from llm_agents.policies.weight_version import watch_optimizers, weight_version
from llm_agents.types import Choice

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TOKENS_PER_PASS = 4096  # without gradient; more tokens make no pass cheaper by the token
_MEMORY_BYTES = 2**29
_PREFIX_BYTES = 2**28

Adapters = Literal["policy", "reference", "base"]
"""Which adapters a model computes with: the trained ones, those it started from, or none."""

_TRUNK, _FEATURES = "trunk", "features"  # kinds of groups beside those of `Adapters`


class MemoryStatistics(NamedTuple):
    """How many choices were asked for, and what became of them.

    Args:
        asked: Choices in all calls, equal ones counted again.
        computed: Choices that went through the model.
        answered_from_memory: The others: known under these weights, or equal to one in their call.
    """

    asked: int
    computed: int
    answered_from_memory: int


class _Scored(NamedTuple):
    """What is known of one choice; the E tokens of its actions one after another.

    Args:
        log_probs: ``[E]`` over the whole vocabulary.
        branch_log_probs: ``[E]`` over the offered tokens.
        entropies: ``[E]``; empty if not asked for.
        branch_entropies: ``[E]``; empty if not asked for.
        prompt_state: ``[H]``.
    """

    log_probs: Tensor
    branch_log_probs: Tensor
    entropies: Tensor
    branch_entropies: Tensor
    prompt_state: Tensor

    @property
    def num_bytes(self) -> int:
        """Return the size in bytes."""
        return sum(tensor.nbytes for tensor in self)


class ActionScorer:
    """Scores choices with a model whose adapters live in its layers.

    Args:
        model: Model with its output head.
        text: Its tokenizer with its habits.
        context_length: Tokens that a prompt and an action may have; None if there is no bound.

    Attributes:
        keeps_trunk: Whether the states below the lowest adapter are kept, once computed.
        frozen_trunk: States below it on disk, for models that can't take a tree.
    """

    def __init__(self, model: PreTrainedModel, text: TextCodec, context_length: int | None) -> None:
        self.model = model
        self.encoder = ChoiceEncoder(text)
        watch_optimizers()
        self.context_length = context_length
        self.keeps_trunk = True
        self.frozen_trunk: FrozenTrunk | None = None
        self._scores: dict[Adapters, Memory[EncodedChoice, _Scored]] = {}
        self._prefixes: dict[Adapters, PrefixStore] = {}
        self._place: tuple[torch.device, torch.dtype] | None = None
        self.forget()
        self._asked = 0
        self._computed = 0

    def score(
        self,
        choices: Sequence[Choice],
        normalization: Normalization,
        *,
        entropies: bool,
        adapters: Adapters,
        version: int,
    ) -> ActionScores:
        """Return the scores of `choices`; see `LanguagePolicy.score_actions`."""
        for choice in choices:
            if not choice.actions:
                raise ValueError(
                    f"expected actions to score, got none after {choice.prompt[-60:]!r}: a prompt "
                    "alone has features (`prompt_features`) and no scores"
                )
        if not choices:
            raise ValueError("expected at least one choice, got none")
        prepared, inverse = self.distinct(choices)
        scored = self._scored(prepared, entropies=entropies, adapters=adapters, version=version)
        self._asked += len(choices)
        return self._assemble(prepared, scored, inverse, normalization, entropies=entropies)

    def base_features(
        self, choices: Sequence[Choice], bare: Callable[[], AbstractContextManager[None]]
    ) -> BaseFeatures:
        """Return features of `choices`; see `LanguagePolicy.base_features`.

        Args:
            choices: N choices, with or without actions.
            bare: Context in which the model computes without adapters.
        """
        if not choices:
            raise ValueError("expected at least one choice, got none")
        prepared, inverse = self.distinct(choices)
        states = self._base(prepared, bare)
        device = self._device
        starts = torch.tensor([0, *(len(state) for state in states)]).cumsum(0)[:-1].tolist()
        edges = Edges(prepared, device)
        nodes = [p.trie.edge_nodes if p.encoded.action_ids else () for p in prepared]
        flat = [start + node for start, own in zip(starts, nodes, strict=True) for node in own]
        rows = torch.tensor(inverse, device=device)
        return BaseFeatures(
            prompt_states=torch.stack([state[0] for state in states])[rows],
            nodes=torch.cat(states),
            places=edges.spread(torch.tensor(flat, dtype=torch.int64, device=device))[rows],
            token_mask=edges.mask()[rows],
        )

    def _base(
        self, prepared: list[PreparedChoice], bare: Callable[[], AbstractContextManager[None]]
    ) -> list[Tensor]:
        """Return the base's states ``[nodes, H]`` of distinct choices, from memory or computed."""
        self.look_at_model()
        known = {item.encoded: self._known_base(item.encoded) for item in prepared}
        missing = [item for item in prepared if known[item.encoded] is None]
        if missing:
            with bare(), torch.no_grad():
                for group in passes_of(missing, _TOKENS_PER_PASS):
                    for item, computed in zip(group, self._compute_base(group), strict=True):
                        known[item.encoded] = computed
        return [states for p in prepared if (states := known[p.encoded]) is not None]

    def _compute_base(self, group: list[PreparedChoice]) -> list[Tensor]:
        """Compute and keep the base's states of choices in one pass."""
        found = self.node_states(group, self._prefixes["base"])
        kept = [part.clone() for part in torch.split(found.states, list(found.counts))]
        for item, states in zip(group, kept, strict=True):
            self._base_states.put(item.encoded, states, states.nbytes)
            first = states[:1].clone()
            self._base_prompts.put(item.encoded.prompt_ids, first, first.nbytes)
        self._groups.add(_FEATURES, [item.encoded for item in group])
        return kept

    def _known_base(self, encoded: EncodedChoice) -> Tensor | None:
        """Return remembered states of a choice; of a prompt alone any choice with it knows them."""
        if encoded.action_ids:
            return self._base_states.get(encoded)
        return self._base_prompts.get(encoded.prompt_ids)

    def forget(self) -> None:
        """Forget all that was computed, what never changes included."""
        self._version: tuple[int, int] | None = None
        self._groups = ComputedGroups()
        for adapters in get_args(Adapters):
            self._scores[adapters] = Memory(_MEMORY_BYTES)
            self._prefixes[adapters] = PrefixStore(_PREFIX_BYTES)
        self._base_states: Memory[EncodedChoice, Tensor] = Memory(_MEMORY_BYTES)
        self._base_prompts: Memory[tuple[int, ...], Tensor] = Memory(_MEMORY_BYTES)
        self._trunk: ActionTrunk | None = None
        self._trunk_is_open = False
        self._parameters: list[nn.Parameter] = []
        self._dropouts: list[nn.Dropout] = []

    def statistics(self) -> MemoryStatistics:
        """Return the counts of `score` since the last reset."""
        return MemoryStatistics(self._asked, self._computed, self._asked - self._computed)

    def reset_statistics(self) -> None:
        """Set the counts to zero."""
        self._asked = self._computed = 0

    @property
    def _device(self) -> torch.device:
        """Return where the model computes."""
        return next(self.model.parameters()).device

    def distinct(self, choices: Sequence[Choice]) -> tuple[list[PreparedChoice], list[int]]:
        """Return each choice that differs once, and for every choice which of them it is."""
        places: dict[EncodedChoice, int] = {}
        distinct: list[PreparedChoice] = []
        inverse = []
        for choice in choices:
            prepared = self.encoder.prepare(choice)
            place = places.setdefault(prepared.encoded, len(distinct))
            if place == len(distinct):
                self._check_length(prepared.encoded)
                distinct.append(prepared)
            inverse.append(place)
        return distinct, inverse

    def _check_length(self, encoded: EncodedChoice) -> None:
        """Raise if a choice is longer than the model's window."""
        length = _length(encoded)
        if self.context_length is not None and length > self.context_length:
            raise UserError(
                f"a prompt with its longest action has {length} tokens and the model's window "
                f"{self.context_length}: show less history in the prompt, or take a base with a "
                "longer window"
            )

    def _scored(
        self, prepared: list[PreparedChoice], *, entropies: bool, adapters: Adapters, version: int
    ) -> list[_Scored]:
        """Return what is known of distinct choices, from memory or from the model."""
        self.look_at_model()
        if torch.is_grad_enabled():
            self._computed += len(prepared)
            return self._compute(prepared, None, entropies=entropies)
        memory = self._memory(adapters, version)
        known = {p.encoded: None if memory is None else memory.get(p.encoded) for p in prepared}
        missing = [p for p in prepared if known[p.encoded] is None]
        self._computed += len(missing)
        for group in passes_of(missing, _TOKENS_PER_PASS):
            if memory is None:
                results = self._compute(group, None, entropies=True)
            else:
                results = self._compute_scores(group, adapters, memory)
            known.update(zip([item.encoded for item in group], results, strict=True))
        return [scored for p in prepared if (scored := known[p.encoded]) is not None]

    def _compute_scores(
        self,
        group: list[PreparedChoice],
        adapters: Adapters,
        memory: Memory[EncodedChoice, _Scored],
    ) -> list[_Scored]:
        """Compute and keep the token log-probs of choices in one pass."""
        results = self._compute(group, self._prefixes[adapters], entropies=True)
        for item, result in zip(group, results, strict=True):
            memory.put(item.encoded, result, result.num_bytes)
        self._groups.add(adapters, [item.encoded for item in group])
        return results

    def computed_groups(self, version: int) -> dict[str, Any]:
        """Return in which groups everything was computed that is still kept: plain data.

        Args:
            version: As of `score`.
        """
        self._drop_outdated(version)
        return self._groups.state_dict()

    @torch.no_grad()
    def compute_again(
        self,
        state: Mapping[str, Any],
        contexts: Mapping[str, Callable[[], AbstractContextManager[None]]],
        version: int,
    ) -> None:
        """Compute what an interrupted run had computed, in its groups and its order.

        Args:
            state: Of `computed_groups`, as that run saved it.
            contexts: For each of `Adapters`, how the model comes to compute with them.
            version: As of `score`.
        """
        self.look_at_model()
        for kind, choices in groups_of(state):
            group = [PreparedChoice(c, ActionTrie.build(c.action_ids or ((0,),))) for c in choices]
            if kind == _TRUNK:
                if (trunk := self._open_trunk()) is not None:
                    trunk.compute(choices, [item.trie for item in group])
                continue
            with contexts["base" if kind == _FEATURES else kind]():
                if kind == _FEATURES:
                    self._compute_base(group)
                    continue
                adapters = cast(Adapters, kind)
                if (memory := self._memory(adapters, version)) is not None:
                    self._compute_scores(group, adapters, memory)

    def _memory(self, adapters: Adapters, version: int) -> Memory[EncodedChoice, _Scored] | None:
        """Return the memory for the present weights; None while dropout makes answers random."""
        if any(dropout.training and dropout.p for dropout in self._dropouts):
            return None
        self._drop_outdated(version)
        return self._scores[adapters]

    def _drop_outdated(self, version: int) -> None:
        """Forget what was computed with other weights than the present ones."""
        found = (version, weight_version(self._parameters))
        if found != self._version:
            self._scores["policy"].clear()
            self._prefixes["policy"].clear()
            self._groups.drop("policy")
            self._version = found

    def look_at_model(self) -> None:
        """Note what the model consists of; forget everything if it has moved or been converted."""
        first = next(self.model.parameters())
        if self._place != (first.device, first.dtype):
            self.forget()
            self._place = (first.device, first.dtype)
        if not self._parameters:
            self._parameters = list(self.model.parameters())
            self._dropouts = [m for m in self.model.modules() if isinstance(m, nn.Dropout)]

    def node_states(
        self, prepared: list[PreparedChoice], prefixes: PrefixStore | None
    ) -> NodeStates:
        """Run the model over distinct choices in the fastest way that is exact for it."""
        encoded, tries = [p.encoded for p in prepared], [p.trie for p in prepared]
        method = choose_method(self.model, max(map(_length, encoded)))
        if method == "tree":
            return tree_node_states(self.model, encoded, tries, self._open_trunk(), prefixes)
        if method == "encoder_decoder":
            return encoder_decoder_node_states(self.model, encoded, tries)
        other = expand_node_states if method == "expand" else plain_node_states
        return other(self.model, encoded, tries, self.frozen_trunk)

    def _open_trunk(self) -> ActionTrunk | None:
        """Return what keeps the frozen lower layers' states, if anything is to."""
        if not self.keeps_trunk:
            return None
        if not self._trunk_is_open:
            self._trunk, self._trunk_is_open = ActionTrunk.open(self.model), True
            if self._trunk is not None:
                self._trunk.note = partial(self._groups.add, _TRUNK)
        return self._trunk

    def _compute(
        self, prepared: list[PreparedChoice], prefixes: PrefixStore | None, *, entropies: bool
    ) -> list[_Scored]:
        """Return the token log-probs of distinct choices from the model."""
        found = self.node_states(prepared, prefixes)
        index = NodeIndex(prepared, found.counts, found.states.device)
        branches = self._branch_log_probs(found, index, entropies=entropies)
        restricted, choice_entropies = restricted_log_probs(
            branches.log_probs, index.nodes, found.counts
        )
        none = branches.log_probs.new_zeros(0)
        columns = [branches.log_probs[index.edge_branches], restricted[index.edge_branches]]
        for by_node in (branches.entropies, choice_entropies if entropies else None):
            columns.append(none if by_node is None else by_node[index.edge_nodes])
        sizes = index.edge_counts
        split = [
            torch.split(column, sizes) if len(column) else [none] * len(sizes) for column in columns
        ]
        starts = torch.tensor([0, *found.counts[:-1]]).cumsum(0).tolist()
        states = [found.states[start] for start in starts]
        return [_Scored(*parts) for parts in zip(*split, states, strict=True)]

    def _branch_log_probs(
        self, found: NodeStates, index: NodeIndex, *, entropies: bool
    ) -> BranchLogProbs:
        """Return the log-probs of all branches."""
        if found.logits is not None:
            return logits_branch_log_probs(
                found.logits, index.nodes, index.tokens, entropies=entropies
            )
        states = head_input(self.model, found.states)
        head = output_head(self.model)
        return head_branch_log_probs(head, states, index.nodes, index.tokens, entropies=entropies)

    def _assemble(
        self,
        prepared: list[PreparedChoice],
        scored: list[_Scored],
        inverse: list[int],
        normalization: Normalization,
        *,
        entropies: bool,
    ) -> ActionScores:
        """Return the padded tensors of a call, a row a choice."""
        device = self._device
        edges = Edges(prepared, device)
        rows = torch.tensor(inverse, device=device)

        def spread(parts: Sequence[Tensor]) -> Tensor:
            return edges.spread(torch.cat(list(parts)))[rows]

        words = torch.zeros(len(prepared), edges.shape[1], dtype=torch.int64)
        for row, item in enumerate(prepared):
            words[row, : len(item.encoded.num_words)] = torch.tensor(item.encoded.num_words)
        token_mask = edges.mask()[rows]
        token_log_probs = spread([s.log_probs for s in scored])
        ids = [torch.tensor(p.trie.edge_tokens, dtype=torch.int64) for p in prepared]
        return ActionScores(
            scores=normalize_scores(
                token_log_probs, token_mask, words.to(device)[rows], normalization=normalization
            ),
            mask=token_mask.any(-1),
            token_ids=edges.spread(torch.cat(ids).to(device))[rows],
            token_mask=token_mask,
            token_log_probs=token_log_probs,
            branch_log_probs=spread([s.branch_log_probs for s in scored]),
            token_entropies=spread([s.entropies for s in scored]) if entropies else None,
            branch_entropies=spread([s.branch_entropies for s in scored]) if entropies else None,
            is_nested=torch.tensor([p.trie.is_nested for p in prepared], device=device)[rows],
            prompt_states=torch.stack([s.prompt_state for s in scored])[rows],
        )


def _length(encoded: EncodedChoice) -> int:
    """Return the tokens of a prompt with its longest action."""
    return len(encoded.prompt_ids) + max(map(len, encoded.action_ids), default=0)


class Edges:
    """Where the tokens of distinct choices' actions go in ``[D, A, L]``."""

    def __init__(self, prepared: list[PreparedChoice], device: torch.device) -> None:
        places = [
            (row, action, position)
            for row, item in enumerate(prepared)
            if item.encoded.action_ids
            for action, position in zip(
                item.trie.edge_actions, item.trie.edge_positions, strict=True
            )
        ]
        self.index = torch.tensor(places, dtype=torch.int64, device=device).reshape(-1, 3).unbind(1)
        self.shape = (
            len(prepared),
            max(len(p.encoded.action_ids) for p in prepared),
            max((len(ids) for p in prepared for ids in p.encoded.action_ids), default=0),
        )

    def spread(self, values: Tensor) -> Tensor:
        """Return ``[D, A, L]``: `values` (``[E]``) in their places, 0 elsewhere."""
        return values.new_zeros(self.shape).index_put(self.index, values)

    def mask(self) -> Tensor:
        """Return ``[D, A, L]`` bool, True = token."""
        return self.spread(torch.ones_like(self.index[0], dtype=torch.bool))


class NodeIndex:
    """Branches and edges of distinct choices over the nodes of all of them."""

    def __init__(
        self, prepared: list[PreparedChoice], counts: Sequence[int], device: torch.device
    ) -> None:
        nodes: list[int] = []
        tokens: list[int] = []
        edge_branches: list[int] = []
        edge_nodes: list[int] = []
        start = 0
        for item, count in zip(prepared, counts, strict=True):
            branches = item.trie.branches
            edge_branches += [len(nodes) + branch for branch in branches.of_edges]
            edge_nodes += [start + node for node in item.trie.edge_nodes]
            nodes += [start + node for node in branches.nodes]
            tokens += branches.tokens
            start += count
        self.nodes, self.tokens, self.edge_branches, self.edge_nodes = (
            torch.tensor(column, dtype=torch.int64, device=device)
            for column in (nodes, tokens, edge_branches, edge_nodes)
        )
        self.edge_counts = [len(item.trie.edge_nodes) for item in prepared]
