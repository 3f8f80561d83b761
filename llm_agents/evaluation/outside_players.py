"""Players from outside: models that were not trained in a world and play it by being asked.

A model behind a server that gives log-probs of texts is *scored*: it plays exactly as the same
model in this process would, by a draw from the softmax over its scores of the offered actions. Any
other one is asked, once a decision: it *chooses* a number from a list, or *writes* the action. A
reply that can't be read is asked for once more; after a second one an action is drawn at random
and counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.evaluation.player_questions import (
    QUESTIONS_VERSION,
    AskingMode,
    Order,
    question,
    read_reply,
    repeated,
)
from llm_agents.evaluation.player_replies import (
    Echo,
    Reply,
    ReplyJournal,
    ServerSpeaker,
    Speaker,
)
from llm_agents.functional.action_scores import Normalization, list_log_probs, normalize_scores
from llm_agents.methods.whole_actions import decide
from llm_agents.policies.action_text import common_length
from llm_agents.rewards.annotation_backends import messages
from llm_agents.types import Choice, Decisions, Prompt

Mode = Literal["auto", "score", "choose", "write"]

_LARGEST_SEED = 2**31


class OutsidePlayer:
    """What players that are asked share: they count, remember, and report.

    Args:
        journal: Keeps what was answered.

    Attributes:
        counts: Decisions, and what became of questions.
    """

    def __init__(self, journal: ReplyJournal | None = None) -> None:
        self.journal = journal or ReplyJournal()
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0

    def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
        """Return a decision for each choice."""
        raise NotImplementedError

    def state_values(self, choices: Sequence[Choice]) -> Tensor:
        """Return ``[E]`` zeros."""
        return torch.zeros(len(choices))

    def report(self) -> dict[str, Any]:
        """Return what results tell of the player; no number of it changes by an interruption."""
        return {**self.counts, "requests": len(self.journal.used)}

    def note(self) -> str:
        """Return in a few words how much was asked."""
        return f"{len(self.journal.used):,} requests"

    @contextmanager
    def _clock(self) -> Iterator[None]:
        """Count the seconds spent inside."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start


class ScoringPlayer(OutsidePlayer):
    """Draws actions from a served model's log-probs of them, as TWOSOME's policy does in process.

    Prompt and action are joined and parted as `ChoiceEncoder` does it, on the server's own tokens.

    Args:
        speaker: The model.
        normalization: Length that an action's log-prob is divided by.
        journal: Keeps what was answered.
    """

    def __init__(
        self,
        speaker: ServerSpeaker,
        normalization: Normalization = "word",
        journal: ReplyJournal | None = None,
    ) -> None:
        super().__init__(journal)
        self.speaker, self.normalization = speaker, normalization

    def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
        """Draw an action for each choice."""
        self.counts["decisions"] += len(choices)
        return decide(self.action_log_probs(choices), self.state_values(choices), generator)

    def action_log_probs(self, choices: Sequence[Choice]) -> Tensor:
        """Return ``[E, A]`` float32: the log-prob of each action among those offered."""
        texts = [_texts(choice) for choice in choices]
        with self._clock():
            echoes = iter(self._echoes([text for some in texts for text in some]))
        token_log_probs = []
        for choice, some in zip(choices, texts, strict=True):
            alone, *whole = [next(echoes) for _ in some]
            token_log_probs.append(_of_actions(choice, alone, whole))
        return _scores(choices, token_log_probs, self.normalization)

    def report(self) -> dict[str, Any]:
        """Return what results tell of the player."""
        tokens = sum(len(answer["tokens"]) for answer in self.journal.used_answers())
        return {**super().report(), "prompt_tokens": tokens}

    def _echoes(self, texts: Sequence[str]) -> list[Echo]:
        """Return the tokens of texts with their log-probs."""
        model, host = self.speaker.model, self.speaker.server.host
        answers = self.journal.answers(
            [["echo", model, host, text] for text in texts],
            lambda missing, keep: self.speaker.echo(
                [texts[number] for number in missing],
                lambda place, echo: keep(place, asdict(echo)),
            ),
        )
        return [Echo(tuple(a["tokens"]), tuple(a["log_probs"])) for a in answers]


@dataclass(frozen=True)
class _Plan:
    """How one decision is come to.

    Args:
        orders: The lists that are shown, each an order of the actions' indices.
        seed: Of the replies.
        fallback: The action that is taken where no reply can be read.
        tie: Which of two actions is taken where two lists lead to different ones.
    """

    orders: tuple[tuple[int, ...], ...]
    seed: int
    fallback: int
    tie: int


class AskedPlayer(OutsidePlayer):
    """Asks a model in words what to do.

    Lists are shuffled, so that a liking for a place on the list is no policy. With ``both`` each
    list is shown in two orders, one the other's reverse: where the two lead to different actions,
    one of them is drawn.

    Args:
        speaker: The model.
        mode: Whether it chooses a number or writes the action.
        order: How the actions are listed: ``shuffled``, as ``listed`` by the world, or ``both``.
        journal: Keeps what was answered.
    """

    def __init__(
        self,
        speaker: Speaker,
        mode: AskingMode = "choose",
        order: Order = "shuffled",
        journal: ReplyJournal | None = None,
    ) -> None:
        super().__init__(journal)
        self.speaker, self.mode, self.order = speaker, mode, order
        self._identity = (QUESTIONS_VERSION, dict(speaker.identity()))

    def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
        """Return a decision for each choice; its draws do not depend on the replies."""
        plans = [self._plan(choice, generator) for choice in choices]
        asked = [
            (row, order, question(choices[row], order, self.mode))
            for row, plan in enumerate(plans)
            for order in plan.orders
        ]
        found = self._read(choices, plans, asked)
        index = [
            self._settle(plan, [found[n] for n, entry in enumerate(asked) if entry[0] == row])
            for row, plan in enumerate(plans)
        ]
        return Decisions(
            index=torch.tensor(index, dtype=torch.int64),
            log_probs=torch.zeros(len(choices), 1),
            values=torch.zeros(len(choices), 1),
            mask=torch.ones(len(choices), 1, dtype=torch.bool),
        )

    def report(self) -> dict[str, Any]:
        """Return what results tell of the player."""
        answers = self.journal.used_answers()
        counts = {
            name: self.counts[name]
            for name in ("decisions", "questions", "asked_again", "drawn_at_random", "disagreed")
        }
        return {
            **counts,
            "invalid_share": self.counts["drawn_at_random"] / max(1, self.counts["decisions"]),
            "requests": len(answers),
            "cut_replies": sum(bool(answer["is_cut"]) for answer in answers),
            "prompt_tokens": sum(int(answer["prompt_tokens"]) for answer in answers),
            "new_tokens": sum(int(answer["new_tokens"]) for answer in answers),
        }

    def note(self) -> str:
        """Return in a few words how much was asked."""
        invalid = self.counts["drawn_at_random"]
        unread = f", {invalid} decisions drawn" if invalid else ""
        return f"{super().note()}{unread}"

    def _plan(self, choice: Choice, generator: torch.Generator) -> _Plan:
        """Draw all that a decision may need."""
        count = len(choice.actions)
        if not count:
            raise ValueError("expected at least one action in every choice, got an empty list")
        shuffled = torch.randperm(count, generator=generator).tolist()
        order = tuple(range(count)) if self.order == "listed" else tuple(shuffled)
        seed, fallback, tie = (
            int(torch.randint(high, (1,), generator=generator))
            for high in (_LARGEST_SEED, count, 2)
        )
        orders = (order, order[::-1]) if self.order == "both" and count > 1 else (order,)
        return _Plan(orders, seed, fallback, tie)

    def _read(
        self,
        choices: Sequence[Choice],
        plans: Sequence[_Plan],
        asked: Sequence[tuple[int, tuple[int, ...], Prompt]],
    ) -> list[int | None]:
        """Ask, and once more where a reply can't be read; return the actions by question."""
        found: list[int | None] = [None] * len(asked)
        dialogues = [dialogue for _, _, dialogue in asked]
        left = list(range(len(asked)))
        for is_again in (False, True):
            seeds = [plans[asked[number][0]].seed for number in left]
            replies = self._replies([dialogues[number] for number in left], seeds)
            self.counts["questions"] += len(left)
            self.counts["asked_again"] += len(left) if is_again else 0
            for number, reply in zip(left, replies, strict=True):
                row, order, _ = asked[number]
                actions = choices[row].actions
                found[number] = read_reply(reply.text, actions, order, self.mode)
                dialogues[number] = repeated(dialogues[number], reply.text, len(actions), self.mode)
            left = [number for number in left if found[number] is None]
            if not left:
                break
        return found

    def _replies(self, dialogues: Sequence[Prompt], seeds: Sequence[int]) -> list[Reply]:
        """Return replies, those that are known without asking."""
        is_sure = self.speaker.settings.temperature == 0
        used = [0 if is_sure else seed for seed in seeds]
        with self._clock():
            answers = self.journal.answers(
                [
                    [*self._identity, dialogue, seed]
                    for dialogue, seed in zip(dialogues, used, strict=True)
                ],
                lambda missing, keep: self.speaker.ask(
                    [dialogues[number] for number in missing],
                    [used[number] for number in missing],
                    lambda place, reply: keep(
                        place, {"asked": messages(dialogues[missing[place]]), **asdict(reply)}
                    ),
                ),
            )
        names = [field.name for field in fields(Reply)]
        return [Reply(**{name: answer[name] for name in names}) for answer in answers]

    def _settle(self, plan: _Plan, found: Sequence[int | None]) -> int:
        """Return the action that is taken, and count how it was come to."""
        self.counts["decisions"] += 1
        named = list(dict.fromkeys(index for index in found if index is not None))
        if not named:
            self.counts["drawn_at_random"] += 1
            return plan.fallback
        if len(named) > 1:
            self.counts["disagreed"] += 1
        return named[plan.tie % len(named)]


def _texts(choice: Choice) -> list[str]:
    """Return the prompt alone, and with each action."""
    prompt = choice.prompt.rstrip(" ")
    blank = "" if not prompt or prompt[-1].isspace() else " "
    return [prompt, *(f"{prompt}{blank}{action}" for action in choice.actions)]


def _of_actions(choice: Choice, alone: Echo, whole: Sequence[Echo]) -> list[list[float]]:
    """Return the log-probs of each action's tokens.

    Raises:
        UserError: The server's tokens leave nothing to part them at.
    """
    lengths = [common_length(alone.tokens, echo.tokens) for echo in whole]
    length = min(lengths, default=0)
    found = [[v for v in echo.log_probs[length:] if v is not None] for echo in whole]
    if not length or not all(found):
        raise UserError(
            f"the server's tokens of {choice.prompt[-40:]!r} and of its actions can't be parted: "
            "let the model play with `--mode choose`"
        )
    return found


def _scores(
    choices: Sequence[Choice],
    token_log_probs: Sequence[Sequence[Sequence[float]]],
    normalization: Normalization,
) -> Tensor:
    """Return ``[E, A]`` log-probs over each list; −∞ where there is no action."""
    widest = max(len(choice.actions) for choice in choices)
    longest = max(len(tokens) for actions in token_log_probs for tokens in actions)
    values = torch.zeros(len(choices), widest, longest)
    mask = torch.zeros(values.shape, dtype=torch.bool)
    words = torch.ones(values.shape[:2], dtype=torch.int64)
    for row, (choice, actions) in enumerate(zip(choices, token_log_probs, strict=True)):
        for column, (action, tokens) in enumerate(zip(choice.actions, actions, strict=True)):
            values[row, column, : len(tokens)] = torch.tensor(tokens)
            mask[row, column, : len(tokens)] = True
            words[row, column] = len(action.split())
    scores = normalize_scores(values, mask, words, normalization=normalization)
    return list_log_probs(scores, mask.any(-1))
