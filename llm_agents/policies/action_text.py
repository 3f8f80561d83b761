"""Choices as token ids: one rule for where the prompt ends and the actions begin.

The text is tokenized as a whole, prompt and action together, as the model would read it. A
choice's *prompt* is the longest common beginning of the tokens of the prompt alone and of all its
sequences; the rest of each sequence is the *action*. So tokens never reach over the boundary
unnoticed: a token that the tokenizer merges, splits or begins anew at the boundary counts as the
action's, with byte-level BPE and SentencePiece, with and without begin token, fast and slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_agents.policies.action_memory import Memory
from llm_agents.policies.action_trie import ActionTrie
from llm_agents.policies.action_types import EncodedChoice
from llm_agents.policies.text import TextCodec
from llm_agents.types import Choice

_REMEMBERED = 100_000  # encoded choices; a prompt of 300 tokens takes about 10 kB


@dataclass(frozen=True)
class PreparedChoice:
    """An encoded choice with the trie of its actions.

    Args:
        encoded: Token ids.
        trie: Inner nodes and edges of the actions' trie.
    """

    encoded: EncodedChoice
    trie: ActionTrie


class ChoiceEncoder:
    """Turns choices into token ids and remembers them.

    - A blank stands between prompt and action, unless the prompt is empty or ends in a line break.
      Blanks that the prompt ends in are dropped before: they belong to the action.
    - The begin token comes first, once, where the tokenizer puts one by itself. A prompt without
      any token becomes a begin (or else end) token, for something must predict the action's first.
    - Actions get no end token.
    - With an encoder the prompt goes there as `TextCodec` frames it, and the actions, tokenized
      alone, to the decoder.

    Args:
        text: The model's tokenizer with its habits.
    """

    def __init__(self, text: TextCodec) -> None:
        self.text = text
        self._remembered: Memory[Choice, PreparedChoice] = Memory(_REMEMBERED)

    def encode(self, choice: Choice) -> EncodedChoice:
        """Return the ids of a choice; see `prepare`."""
        return self.prepare(choice).encoded

    def prepare(self, choice: Choice) -> PreparedChoice:
        """Return the ids of a choice and the trie of its actions.

        A choice without actions, as after an episode's end, has the prompt's end as its only node:
        its trie is that of one action of one token, which nobody reads.

        Raises:
            ValueError: An action is empty, begins with a blank or comes twice, as text or as ids.
        """
        prepared = self._remembered.get(choice)
        if prepared is None:
            encoded = self._encode(choice)
            trie = ActionTrie.build(encoded.action_ids or ((0,),))
            prepared = PreparedChoice(encoded, trie)
            self._remembered.put(choice, prepared, size=1)
        return prepared

    def _encode(self, choice: Choice) -> EncodedChoice:
        """Tokenize a choice."""
        actions = choice.actions
        _check_actions(actions)
        prompt = choice.prompt.rstrip(" ")
        if self.text.is_encoder_decoder:
            prompt_ids = self.text.encode_text(prompt, begin=True)
            action_ids = [self.text.encode_text(action, begin=False) for action in actions]
        else:
            prompt_ids, action_ids = self._split(prompt, actions)
        for action, ids in zip(actions, action_ids, strict=True):
            if not ids:
                raise ValueError(
                    f"the tokenizer of {self.text.tokenizer.name_or_path!r} gives no token for the "
                    f"action {action!r}: call it something else"
                )
        if len({tuple(ids) for ids in action_ids}) < len(action_ids):
            raise ValueError(
                f"two of the actions {list(actions)} have the same tokens, so that nothing can "
                "tell them apart: give each a text of its own"
            )
        words = tuple(len(action.split()) for action in actions)
        return EncodedChoice(tuple(prompt_ids), tuple(map(tuple, action_ids)), words)

    def _split(self, prompt: str, actions: Sequence[str]) -> tuple[list[int], list[list[int]]]:
        """Return the ids of the prompt and the rest of each sequence."""
        blank = "" if not prompt or prompt[-1].isspace() else " "
        alone = self.text.encode_text(prompt, begin=True)
        whole = [self.text.encode_text(prompt + blank + action, begin=True) for action in actions]
        length = min((common_length(alone, ids) for ids in whole), default=len(alone))
        prompt_ids = alone[:length] or self.text.encode_text("", begin=True)
        return prompt_ids, [ids[length:] for ids in whole]


def passes_of(prepared: Sequence[PreparedChoice], num_tokens: int) -> list[list[PreparedChoice]]:
    """Cut choices, sorted so that common beginnings meet, into passes of about `num_tokens`."""
    ordered = sorted(prepared, key=lambda item: item.encoded.prompt_ids)
    groups: list[list[PreparedChoice]] = []
    room = 0
    for item in ordered:
        size = len(item.encoded.prompt_ids) + item.trie.num_nodes
        if not groups or size > room:
            groups.append([])
            room = num_tokens
        groups[-1].append(item)
        room -= size
    return groups


def _check_actions(actions: Sequence[str]) -> None:
    """Raise unless the actions are distinct texts that don't begin with a blank."""
    for action in actions:
        if not action.strip() or action[0].isspace():
            raise ValueError(
                f"expected actions that begin with a word, got {action!r} in {list(actions)}: "
                "leave out blanks at their beginning"
            )
    if len(set(actions)) < len(actions):
        repeated = sorted({action for action in actions if actions.count(action) > 1})
        raise ValueError(f"expected distinct actions, got {repeated} more than once")


def common_length(first: Sequence[object], second: Sequence[object]) -> int:
    """Return how many tokens two sequences have in common at their beginning."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # whole slices are compared much faster than tokens one by one
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
