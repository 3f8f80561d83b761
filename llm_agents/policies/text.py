"""Text to token ids and back: one rule for begin tokens, boundaries, end tokens and truncation.

Prompt and response are tokenized apart and their ids concatenated, in rollout, training and
evaluation alike; ids are never turned to text and encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from llm_agents.errors import UserError
from llm_agents.policies.chat_format import ChatFormat, write_chat
from llm_agents.types import Prompt, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Template = Literal["alol", "chat", "plain", "eos", "verbatim"]

ALOL_SYSTEM = (
    "A chat between a curious human and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions."
)
_ALOL_NAMES = {"user": "Human", "assistant": "Assistant"}


class TextCodec:
    """Turns dialogues and responses into ids for one model.

    - A begin token is put before a prompt exactly where the tokenizer does so by itself, once, even
      if a chat template has written it already; it survives truncation.
    - The blank between prompt and response belongs to the response. Tokenizers that put a blank
      before every text by themselves (SentencePiece) get none from us.
    - A response ends with the end token, unless truncation took it: the chat template's own under
      ``chat``, the tokenizer's otherwise. One that a text brings along is not doubled.

    Args:
        tokenizer: The model's tokenizer.
        is_encoder_decoder: Whether prompts go to an encoder, which sees the end token too if the
            tokenizer adds one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, is_encoder_decoder: bool) -> None:
        self.tokenizer = tokenizer
        self.is_encoder_decoder = is_encoder_decoder
        if tokenizer.eos_token_id is None:
            raise UserError(
                f"the tokenizer of {tokenizer.name_or_path!r} has no end token: set `eos_token` in "
                "its tokenizer_config.json"
            )
        self.end_id = int(tokenizer.eos_token_id)
        self._formats: dict[str, ChatFormat | None] = {}
        bare = self._ids("a")
        full = list(tokenizer("a", verbose=False).input_ids)
        start = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
        self.begin_ids = full[:start]
        self.prompt_end_ids = full[start + len(bare) :] if is_encoder_decoder else []
        first = str(tokenizer.convert_ids_to_tokens(bare)[0])
        self.adds_blank = first.startswith(("▁", "Ġ"))

    def encode_text(self, text: str, *, begin: bool) -> list[int]:
        """Return the ids of `text` as it stands.

        Args:
            text: Any text; special tokens written in it count as such.
            begin: Put the begin token first where the model has one. The result is then never
                empty: a text of no tokens becomes a begin (or else end) token.
        """
        ids = self._ids(text)
        if not begin:
            return ids
        return self._framed(ids, max_tokens=None)

    def encode_prompt(
        self, turns: Prompt, *, template: Template = "alol", max_tokens: int | None = None
    ) -> list[int]:
        """Return the ids of a dialogue up to where the assistant is to speak.

        Args:
            turns: The dialogue.
            template: How it is written, see `render`.
            max_tokens: Keep the last tokens up to this many, begin token included; None keeps all.
        """
        return self._framed(self._ids(self.render(turns, template)), max_tokens)

    def encode_response(
        self, text: str, *, template: Template = "alol", max_tokens: int | None = None
    ) -> list[int]:
        """Return the ids of a response to a prompt written in `template`, end token included.

        Args:
            text: The response; an empty one is the end token alone.
            template: How its prompt is written.
            max_tokens: Keep the first tokens up to this many; the end token then falls away.
        """
        text = self.without_end(text)
        uses_chat = template == "chat" and not self.is_encoder_decoder
        chat = self._required_format() if uses_chat else None
        end = [self.end_id if chat is None else self._chat_end(chat)]
        if not text.strip():
            return end[:max_tokens]
        if chat is not None:
            ids = self._ids_without_blank(chat.answer(text))
            return (ids if chat.frame.end_token else [*ids, *end])[:max_tokens]
        if self.separator(template) == " ":
            ids = self._ids(text.lstrip() if self.adds_blank else " " + text.lstrip())
        else:
            ids = self._ids_without_blank(text)
        return [*ids, *end][:max_tokens]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens and surrounding blanks.

        What the chat template puts around an answer is no part of it: its end token, and an empty
        think block before it.
        """
        text = self.decode_exactly(ids).strip()
        chat = self._format()
        return text if chat is None else chat.bare(text)

    @property
    def end_ids(self) -> frozenset[int]:
        """Return the ids that end a response: the tokenizer's, and the chat template's."""
        chat = self._format()
        return frozenset((self.end_id, self.end_id if chat is None else self._chat_end(chat)))

    def without_end(self, text: str) -> str:
        """Return a text without end tokens at its end, and the blanks between and behind these."""
        chat = self._format()
        names = [self.tokenizer.eos_token, self.tokenizer.pad_token, chat and chat.frame.end_token]
        ends = tuple(str(name) for name in names if name)
        while (bare := text.rstrip()).endswith(ends):
            text = bare[: -max(len(end) for end in ends if bare.endswith(end))]
        return text

    def decode_exactly(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens, blanks kept."""
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)

    def render(self, turns: Prompt, template: Template) -> str:
        """Return a dialogue as text that ends where the assistant's words begin.

        ``alol`` is the A-LoL authors' layout for HHA, ``chat`` the model's own chat template,
        ``plain`` the turns' texts, one a line, ``eos`` each turn's text followed by the end token
        (as DialoGPT reads dialogues), and ``verbatim`` the turns' texts as they stand, blanks at
        the end included. A system turn replaces ``alol``'s system sentence.
        """
        if template == "alol":
            system = ALOL_SYSTEM
            if turns and turns[0].role == "system":
                system, turns = turns[0].text, turns[1:]
            body = "".join(f" ### {_ALOL_NAMES.get(t.role, 'Human')}: {t.text}" for t in turns)
            return f"{system}\n{f'{body} ### Assistant: '.strip()}"
        if template == "chat":
            return self._chat(turns, generation_prompt=True)
        if template == "plain":
            return "\n".join(turn.text for turn in turns).rstrip()
        if template == "eos":
            end = self.tokenizer.eos_token
            return "".join(f"{self.without_end(turn.text)}{end}" for turn in turns)
        if template == "verbatim":
            return "\n".join(turn.text for turn in turns)
        raise ValueError(f"expected `template` {', '.join(get_args(Template))}, got {template!r}")

    def separator(self, template: Template) -> str:
        """Return what stands between a prompt and its response, as part of the response."""
        if self.is_encoder_decoder or template in ("eos", "verbatim"):
            return ""
        return self._required_format().frame.separator if template == "chat" else " "

    def _chat(self, turns: Prompt, *, generation_prompt: bool) -> str:
        """Write `turns` with the model's chat template."""
        turns = tuple(Turn(turn.role, self.without_end(turn.text)) for turn in turns)
        return write_chat(self.tokenizer, turns, generation_prompt=generation_prompt)

    def _required_format(self) -> ChatFormat:
        """Return the model's chat template, or say why there is none."""
        found = self._format()
        return ChatFormat(self.tokenizer) if found is None else found

    def _format(self) -> ChatFormat | None:
        """Return the model's chat template; None if it has none, or none for a plain question."""
        from jinja2 import TemplateError

        key = str(self.tokenizer.chat_template or "")
        if key not in self._formats:
            try:
                self._formats[key] = ChatFormat(self.tokenizer) if key else None
            except (TemplateError, UserError):
                self._formats[key] = None
        return self._formats[key]

    def _chat_end(self, chat: ChatFormat) -> int:
        """Return the id that ends an answer under the chat template."""
        token = chat.frame.end_token
        if token is None or token == self.tokenizer.eos_token:
            return self.end_id
        return int(self.tokenizer.get_added_vocab()[token])

    def _ids(self, text: str) -> list[int]:
        """Tokenize without special tokens of the tokenizer's own adding."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids)

    def _ids_without_blank(self, text: str) -> list[int]:
        """Tokenize without the blank that some tokenizers put before every text."""
        if not self.adds_blank or self.is_encoder_decoder:
            return self._ids(text)
        line, joint = self._ids("\n"), self._ids("\n" + text)
        return joint[len(line) :] if joint[: len(line)] == line else self._ids(text)

    def _framed(self, ids: list[int], max_tokens: int | None) -> list[int]:
        """Cut a prompt's ids on the left and put its begin and end tokens around them, once."""
        begin, end = self.begin_ids, self.prompt_end_ids
        if begin and ids[: len(begin)] == begin:
            ids = ids[len(begin) :]
        if max_tokens is not None:
            room = max_tokens - len(begin) - len(end)
            if room < 1:
                least = len(begin) + len(end) + 1
                raise ValueError(f"expected `max_tokens` of at least {least}, got {max_tokens}")
            ids = ids[-room:]
        framed = [*begin, *ids, *end]
        if framed:
            return framed
        begin_id = self.tokenizer.bos_token_id
        return [self.end_id if begin_id is None else int(begin_id)]
