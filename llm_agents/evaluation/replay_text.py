"""An episode of a text world as frames: what the agent read, what it could do, what it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from llm_agents.evaluation.replay_frames import SCREEN_COLUMNS, SIDE_COLUMNS, Frame, Line, Span

_BAR = 10
_CHOSEN, _DIM = "#ffff66", "#808080"
_GOOD, _BAD = (40, 150, 60), (190, 50, 50)
_PAPER = (16, 16, 20)


@dataclass(frozen=True)
class Token:
    """A piece of the action that was taken, with its credit.

    Args:
        text: A token, tokens between which the action can't part from others, or all of it.
        advantage: Of the piece.
    """

    text: str
    advantage: float


@dataclass(frozen=True)
class Moment:
    """A decision of an agent in a text world.

    Args:
        prompt: What it read.
        actions: What it could do.
        probabilities: One an action, which the agent drew from; None where it has none.
        chosen: Position of the action that it took.
        value: What it expected.
        reward: What came of it.
        tokens: The action's tokens with their advantages; empty where the agent has no credit.
    """

    prompt: str
    actions: tuple[str, ...]
    probabilities: tuple[float, ...] | None
    chosen: int
    value: float
    reward: float
    tokens: tuple[Token, ...] = ()


def text_frames(
    episode: int, moments: Sequence[Moment], closing: str, *, is_complete: bool
) -> list[Frame]:
    """Return an episode as frames: one a decision, and one of what it ended in.

    Args:
        episode: Number of the episode.
        moments: Its decisions.
        closing: What the world said at last.
        is_complete: Whether it ended.
    """
    limit = max((abs(t.advantage) for m in moments for t in m.tokens), default=0.0) or 1.0
    frames, total = [], 0.0
    for step, moment in enumerate(moments):
        status = (("value", f"{moment.value:.3f}"), ("return so far", f"{total:.3f}"))
        side = decision_lines(moment, limit)
        frames.append(Frame(episode, step, status, wrapped(moment.prompt), side))
        total += moment.reward
    end = "end" if is_complete else "left here"
    last = (("return", f"{total:.3f}"), ("", end))
    frames.append(Frame(episode, len(moments), last, wrapped(closing), ()))
    return frames


def wrapped(text: str, columns: int = SCREEN_COLUMNS) -> tuple[Line, ...]:
    """Return a text as lines of at most so many characters, its own line breaks kept."""
    lines: list[str] = []
    for line in text.splitlines() or [""]:
        lines += wrap(line, columns, drop_whitespace=True) or [""]
    return tuple((Span(line),) if line else () for line in lines)


def decision_lines(moment: Moment, limit: float) -> tuple[Line, ...]:
    """Return the actions with their probabilities, then the one taken with its credit.

    Args:
        moment: The decision.
        limit: Advantage that gets the strongest color.
    """
    lines: list[Line] = [(Span("actions", _DIM),)]
    order = range(len(moment.actions))
    if moment.probabilities is not None:
        chances = moment.probabilities
        order = sorted(order, key=lambda place: -chances[place])  # type: ignore[assignment]  # any sequence
    for place in order:
        lines.append(_action_line(moment, place))
    lines += [(), (Span("reward ", _DIM), Span(f"{moment.reward:+.3f}", bold=True))]
    if moment.tokens:
        what = "the action" if len(moment.tokens) == 1 else "each part"
        lines += [(), (Span(f"advantage of {what}", _DIM),)]
        lines += [_token_line(token, limit) for token in moment.tokens]
    return tuple(lines)


def _action_line(moment: Moment, place: int) -> Line:
    """Return an action with its bar; the one that was taken is marked."""
    is_chosen = place == moment.chosen
    mark = Span("→ " if is_chosen else "  ", _CHOSEN, bold=True)
    ink = _CHOSEN if is_chosen else None
    if moment.probabilities is None:
        columns = SIDE_COLUMNS - 2
        return (mark, Span(_shortened(moment.actions[place], columns), ink, bold=is_chosen))
    chance = moment.probabilities[place]
    filled = round(_BAR * chance)
    bar = (Span("█" * filled, "#5c7cff"), Span("░" * (_BAR - filled), "#404048"))
    columns = SIDE_COLUMNS - 9 - _BAR
    text = _shortened(moment.actions[place], columns)
    return (mark, Span(f"{chance:5.3f} "), *bar, Span(f" {text}", ink, bold=is_chosen))


def _token_line(token: Token, limit: float) -> Line:
    """Return a token on a background that is green for a gain and red for a loss."""
    share = min(1.0, abs(token.advantage) / limit)
    goal = _GOOD if token.advantage > 0 else _BAD
    mixed = (round(p + share * (g - p)) for p, g in zip(_PAPER, goal, strict=True))
    shade = "#" + "".join(f"{part:02x}" for part in mixed)
    text = _shortened(token.text.replace("\n", "⏎"), 30)
    return (Span(f"{token.advantage:+9.4f} ", _DIM), Span(f"{text:<16}", "#ffffff", shade))


def _shortened(text: str, columns: int) -> str:
    """Return a text of at most so many characters."""
    return text if len(text) <= columns else f"{text[: columns - 1]}…"
