"""Chat templates as they write an answer: what stands before it, and what ends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_agents.errors import UserError
from llm_agents.types import Prompt, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_QUESTION, _ANSWER = Turn("user", "q"), "ANSWER-ANSWER"


@dataclass(frozen=True)
class AnswerFrame:
    """What a chat template writes around an answer.

    Args:
        before: All of it up to the answer's first word.
        after: All of it behind the answer's last word.
        separator: What of `before` is not in the prompt: a blank, or an empty think block.
        ending: What of `after` ends the answer: up to the template's end token, or without one all
            of it but blanks at the end.
        end_token: The template's end token; None if it has none.
    """

    before: str
    after: str
    separator: str
    ending: str
    end_token: str | None


class ChatFormat:
    """A model's chat template.

    Args:
        tokenizer: The model's tokenizer, with a chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.frame = self._frame()

    def write(self, turns: Prompt, *, generation_prompt: bool) -> str:
        """Return a dialogue as the template writes it."""
        return write_chat(self.tokenizer, turns, generation_prompt=generation_prompt)

    def answer(self, text: str) -> str:
        """Return what the template writes behind a prompt for an answer, its ending included.

        Blanks that the template trims are gone.
        """
        frame = self.frame
        whole = self.write((_QUESTION, Turn("assistant", text)), generation_prompt=False)
        inside = whole.startswith(frame.before) and whole.endswith(frame.after)
        if inside and len(whole) >= len(frame.before) + len(frame.after):
            text = whole[len(frame.before) : len(whole) - len(frame.after)]
        return frame.separator + text + frame.ending

    def bare(self, text: str) -> str:
        """Return the answer alone of a text that was written in the template's form."""
        text = text.strip()
        block, ending = self.frame.separator.strip(), self.frame.ending.strip()
        if block and text.startswith(block):
            text = text[len(block) :].lstrip()
        if ending and text.endswith(ending):
            text = text[: -len(ending)].rstrip()
        return text

    def _frame(self) -> AnswerFrame:
        """Read off the template what it writes around an answer."""
        prompt = self.write((_QUESTION,), generation_prompt=True)
        whole = self.write((_QUESTION, Turn("assistant", _ANSWER)), generation_prompt=False)
        before, found, after = whole.rpartition(_ANSWER)
        if not found:  # a template that doesn't show answers
            return AnswerFrame("", "", "", "", None)
        separator = before[len(prompt) :] if before.startswith(prompt) else ""
        tokens = {str(token) for token in self.tokenizer.get_added_vocab()}
        tokens.add(str(self.tokenizer.eos_token))
        places = [(after.find(token), -len(token), token) for token in tokens if token in after]
        if not places:
            return AnswerFrame(before, after, separator, after.rstrip(), None)
        place, _, token = min(places)
        return AnswerFrame(before, after, separator, after[: place + len(token)], token)


def write_chat(
    tokenizer: PreTrainedTokenizerBase, turns: Prompt, *, generation_prompt: bool
) -> str:
    """Return a dialogue as a tokenizer's chat template writes it.

    Raises:
        UserError: There is no such template, or it refuses the dialogue, as some do system turns.
    """
    if not tokenizer.chat_template:
        raise UserError(
            f"the tokenizer of {tokenizer.name_or_path!r} has no chat template: use the "
            "template `alol` or `plain`, or a base model made for chat"
        )
    from jinja2 import TemplateError

    messages = [{"role": turn.role, "content": turn.text} for turn in turns]
    try:
        return str(
            tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=generation_prompt
            )
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise UserError(_refusal(tokenizer, turns, error)) from error


def _refusal(tokenizer: PreTrainedTokenizerBase, turns: Prompt, error: Exception) -> str:
    """Say which dialogue a template refuses, and what to do about it."""
    roles = ", ".join(turn.role for turn in turns)
    begin = turns[0].text[:60] if turns else ""
    system = "it may know no system turn: " if "system" in roles else ""
    return (
        f"the chat template of {tokenizer.name_or_path!r} refuses the dialogue that begins "
        f"{begin!r} (turns: {roles}): {error}. {system.capitalize()}Use the template `alol` or "
        "`plain`, a base whose template takes such turns, or put the system's words into the "
        "first question"
    )
