"""The numbers of a card: for the Hub's metadata, as tables, and where they are poor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from llm_agents.evaluation import (
    AnyResults,
    EpisodeResults,
    GamesResults,
    Interval,
    MessageRewardResults,
    Results,
    RewardResults,
    compare,
)
from llm_agents.evaluation.nethack import MEASURES
from llm_agents.evaluation.report import format_interval
from llm_agents.zoo.facts import CardFacts

Metric = tuple[str, str, float | None]
"""Type, name and value."""

_TASK_TYPES = {
    "policy": "text-generation",
    "reward": "text-classification",
    "agent": "reinforcement-learning",
}
_CHANCE = 0.5


def model_index(facts: CardFacts) -> list[dict[str, Any]]:
    """Return one entry a test set or world, every value a number."""
    task = _TASK_TYPES[facts.kind]
    entries = []
    for name, metrics in metrics_by_test(facts.results):
        kind = name if facts.kind == "agent" else facts.task or "dialogue"
        entries.append(
            {
                "task": {"type": task, "name": task.replace("-", " ")},
                "dataset": {"type": kind, "name": name},
                "metrics": [
                    {"type": kind, "name": text, "value": round(value, 6), "verified": False}
                    for kind, text, value in metrics
                    if value is not None
                ],
            }
        )
    return [entry for entry in entries if entry["metrics"]]


def metrics_by_test(results: AnyResults) -> Iterator[tuple[str, list[Metric]]]:
    """Yield each test set's or world's name with the metrics of what the results are about."""
    if isinstance(results, RewardResults):
        for agreement in results.tests:
            numbers = (
                ("accuracy", "pairs in the order that people prefer", agreement.pair_accuracy),
                ("pair_agreement", "pairs in the order of stored scores", agreement.pair_agreement),
                ("pearson", "correlation with stored scores", agreement.correlation),
            )
            yield agreement.name, [(k, text, _mean(v)) for k, text, v in numbers]
    elif isinstance(results, Results):
        for test in results.tests:
            metrics: list[Metric] = [
                ("mean_reward", f"mean reward ({results.reward.name})", test.reward.mean),
                ("mean_words", "mean words an answer", test.words.mean),
            ]
            metrics += [(f"distinct_{n}", f"distinct-{n}", v) for n, v in test.distinct.items()]
            yield test.name, metrics
    elif isinstance(results, MessageRewardResults):
        yield (
            "held-out pairs",
            [
                ("accuracy", "held-out pairs in order, without ties", _mean(results.accuracy)),
                ("accuracy_unseen", "the same, messages unseen", _mean(results.accuracy_unseen)),
                ("loss", "loss of held-out pairs", results.loss),
            ],
        )
    else:
        yield from _metrics_of_play(results)


def _metrics_of_play(results: EpisodeResults | GamesResults) -> Iterator[tuple[str, list[Metric]]]:
    """Yield each world's name with the metrics of the agent."""
    if isinstance(results, EpisodeResults):
        for world in results.worlds:
            if world.agent == results.overall.agent:
                yield (
                    world.world,
                    [
                        ("mean_reward", "mean return", world.undiscounted_return.mean),
                        ("discounted_return", "discounted return", world.discounted_return.mean),
                        ("success_rate", "success rate", world.success.mean),
                        ("mean_episode_length", "decisions an episode", world.decisions.mean),
                    ],
                )
        return
    for games in results.results:
        if games.agent == results.overall.agent:
            found: list[Metric] = [("mean_reward", "mean return", _game(games.means))]
            found += [(key, MEASURES[key], value.mean) for key, value in games.means.items()]
            yield games.task, [*found, ("success_rate", "success rate", games.success.mean)]


def _game(means: Mapping[str, Interval]) -> float:
    """Return the mean return of games."""
    return means["episode_return"].mean


def _mean(value: Interval | None) -> float | None:
    """Return a mean, if there is one."""
    return None if value is None else value.mean


# --- tables ---------------------------------------------------------------------------------------


def results_section(facts: CardFacts) -> str:
    """Return the table of measured numbers, how they were measured, and where they are poor."""
    results = facts.results
    rows = rows_of(results, facts.against)
    header, *body = ["| " + " | ".join(cells) + " |" for cells in rows]
    line = "|" + "---|" * len(rows[0])
    poor = [f"- {sentence}" for sentence in weaknesses(facts)]
    warning = ["**Weaker than what it is compared with:**", "", *poor, ""] if poor else []
    return "\n".join([*warning, header, line, *body, "", note(facts), *paper_table(facts.recipe)])


def rows_of(results: AnyResults, against: Sequence[Results] = ()) -> list[list[str]]:
    """Return the table of results, its head first."""
    if isinstance(results, RewardResults):
        return agreement_rows(results)
    if isinstance(results, EpisodeResults):
        return episode_rows(results)
    if isinstance(results, GamesResults):
        return games_rows(results)
    if isinstance(results, MessageRewardResults):
        return message_rows(results)
    return policy_rows(results, against)


def agreement_rows(results: RewardResults) -> list[list[str]]:
    """Return the table of a reward model."""
    rows = [["test set", "prompts", "pairs right", "pairs as stored", "correlation"]]
    for test in results.tests:
        numbers = (test.pair_accuracy, test.pair_agreement, test.correlation)
        rows.append([test.name, f"{test.num_prompts:,}", *(_shown(n, 3) for n in numbers)])
    return rows


def policy_rows(results: Results, against: Sequence[Results] = ()) -> list[list[str]]:
    """Return the table of a policy, and of others beside it."""
    rows = [["policy", "test set", "prompts", "reward", "words an answer", "distinct-1/2/3"]]
    for name, each in (("this", results), *((against_name(other), other) for other in against)):
        for test in each.tests:
            cells = [name, test.name, f"{test.num_prompts:,}", format_interval(test.reward, 4)]
            cells.append(format_interval(test.words, 1))
            shares = ("–" if v is None else f"{v:.3f}" for v in test.distinct.values())
            rows.append([*cells, "/".join(shares)])
    return rows


def episode_rows(results: EpisodeResults) -> list[list[str]]:
    """Return the table of an agent in worlds, and of those it is compared with."""
    rows = [["world", "agent", "episodes", "discounted return", "success", "decisions", "optimum"]]
    for entry in results.worlds:
        best = "–" if entry.optimal_return is None else f"{entry.optimal_return:.4f}"
        name = entry.world if entry.is_trained_on else f"{entry.world} (not trained on)"
        numbers = (entry.discounted_return, 4), (entry.success, 3), (entry.decisions, 1)
        cells = [_shown(value, digits) for value, digits in numbers]
        rows.append([name, entry.agent, f"{entry.num_episodes:,}", *cells, best])
    return rows


def games_rows(results: GamesResults) -> list[list[str]]:
    """Return the table of a NetHack agent, and of those it is compared with."""
    shown = {key: digits for key, digits in _GAME_DIGITS.items() if key in results.overall.means}
    rows = [["task", "agent", "games", *(MEASURES[key] for key in shown), "success", "deaths"]]
    for entry in results.results:
        cells = [_shown(entry.means[key], digits) for key, digits in shown.items()]
        shares = [_shown(entry.success, 3), _shown(entry.deaths, 3)]
        rows.append([entry.task, entry.agent, f"{entry.num_games:,}", *cells, *shares])
    return rows


_GAME_DIGITS = {"score": 1, "intrinsic_return": 2, "max_depth": 2, "experience_level": 2}


def message_rows(results: MessageRewardResults) -> list[list[str]]:
    """Return the table of a reward of messages."""
    loss = "–" if results.loss is None else f"{results.loss:.4f}"
    return [
        ["held out", "pairs", "ties", "pairs right", "of unseen messages", "loss"],
        [
            f"preferences of `{results.annotator}`",
            f"{results.num_pairs:,}",
            f"{results.num_ties:,}",
            _shown(results.accuracy, 3),
            _shown(results.accuracy_unseen, 3),
            loss,
        ],
    ]


def _shown(value: Interval | None, digits: int) -> str:
    """Return a number with its interval."""
    return "–" if value is None else format_interval(value, digits)


def note(facts: CardFacts) -> str:
    """Say how the numbers were measured."""
    results = facts.results
    if isinstance(results, MessageRewardResults):
        return (
            f"With {100 * results.confidence:g}% intervals over pairs without a tie; "
            f"{_training(facts)}. Measured {results.date}."
        )
    over = "prompts" if isinstance(results, Results | RewardResults) else "episodes"
    text = (
        f"With {100 * results.bootstrap.confidence:g}% bootstrap intervals over {over}; "
        f"{_training(facts)}. Measured {results.date}."
    )
    if isinstance(results, Results):
        text += (
            f" Reward: `{results.reward.name}` (version `{results.reward.version}`); scores of "
            f"another reward may not be compared with these. Decoding: {decoding(results)}."
        )
    elif not isinstance(results, RewardResults):
        text += (
            " Actions are drawn from the policy, as in training. All episodes, with seeds and "
            "lengths, are in `results.json`."
        )
    return text


def _training(facts: CardFacts) -> str:
    """Say that the numbers are of one training, and of which."""
    seed = facts.training_seed
    return f"one training seed ({seed})" if seed is not None else "one training run"


def decoding(results: Results) -> str:
    """Say how the answers were generated."""
    config = results.generation
    if config.num_beams > 1:
        how = f"beam search with {config.num_beams} beams"
    elif config.temperature == 0:
        how = "greedy"
    else:
        how = f"sampled at temperature {config.temperature:g}, top-p {config.top_p:g}"
    return f"{how}, at most {config.max_new_tokens} new tokens"


def paper_table(recipe: str) -> list[str]:
    """Return the recipe's `reproduces` entries as a table, if there are any."""
    loaded = yaml.safe_load(recipe) if recipe.strip() else None
    entries = loaded.get("reproduces") if isinstance(loaded, dict) else None
    if not entries:
        return []
    lines = ["", "What its recipe reproduces; – stands where the paper gives no number or nobody "]
    lines[-1] += "has run it:"
    lines += ["", "| paper | table | metric | paper's value | ours |", "|---|---|---|---|---|"]
    for entry in entries:
        keys = ("paper", "table", "metric", "paper_value", "our_value")
        cells = (entry.get(key) for key in keys)
        lines.append("| " + " | ".join("–" if v is None else str(v) for v in cells) + " |")
    return lines


# --- where it is poor -----------------------------------------------------------------------------


def weaknesses(facts: CardFacts) -> list[str]:
    """Return a sentence for each comparison that it does not win beyond its interval."""
    results = facts.results
    if isinstance(results, EpisodeResults):
        gained = [] if facts.beginning is None else _no_gain(results, facts, facts.beginning)
        return [*_weak_in_worlds(results), *gained]
    if isinstance(results, GamesResults):
        return _weak_in_games(results)
    if isinstance(results, Results):
        return _weak_answers(results, facts.against)
    found = []
    if isinstance(results, MessageRewardResults):
        pairs = [("held-out pairs", results.accuracy)]
    else:
        pairs = [(test.name, test.pair_accuracy) for test in results.tests]
    for name, accuracy in pairs:
        if accuracy is not None and _low(accuracy) <= _CHANCE:
            found.append(
                f"On {name} it orders {format_interval(accuracy, 3)} of the pairs right: no better "
                "than chance within the interval."
            )
    return found


def _weak_in_worlds(results: EpisodeResults) -> list[str]:
    """Compare an agent with the others, world by world."""
    found = []
    for own in results.worlds:
        if own.agent != results.overall.agent:
            continue
        for other in results.worlds:
            if other.world == own.world and other.agent != own.agent:
                said = _compared(own.discounted_return, other.discounted_return, 4)
                if said:
                    found.append(f"In {own.world}, {said.format(f'the {other.agent} agent')}.")
    return found


def _no_gain(results: EpisodeResults, facts: CardFacts, beginning: EpisodeResults) -> list[str]:
    """Compare an agent with the one that its training began with, where both have played."""
    name = (facts.began_with or "").removesuffix("/adapter").rpartition("/")[2]
    found = []
    for own in results.worlds:
        earlier = beginning.of(own.world, beginning.overall.agent)
        if earlier is not None and own.agent == results.overall.agent:
            said = _compared(own.discounted_return, earlier.discounted_return, 4)
            if said:
                found.append(f"In {own.world}, {said.format(f'`{name}`, which it began with')}.")
    return found


def _weak_in_games(results: GamesResults) -> list[str]:
    """Compare a NetHack agent with the others, task by task, by score."""
    found = []
    for own in results.results:
        for other in results.results if own.agent == results.overall.agent else ():
            if other.task == own.task and other.agent != own.agent:
                said = _compared(own.means["score"], other.means["score"], 1)
                if said:
                    found.append(
                        f"In {own.task}, {said.format(f'the {other.agent} agent')} (score)."
                    )
    return found


def _weak_answers(results: Results, against: Sequence[Results]) -> list[str]:
    """Compare a policy with others, prompt by prompt, where both were measured."""
    found = []
    pairs = [(other, entry) for other in against for entry in compare(results, other)]
    for other, entry in pairs:
        if _low(entry.reward) <= 0:
            word = "below" if entry.reward.mean < 0 else "not clearly above"
            found.append(
                f"On {entry.name} its reward is {word} that of {against_name(other)}: paired "
                f"difference {format_interval(entry.reward, 4, signed=True)}."
            )
    return found


def against_name(against: Results) -> str:
    """Return what another policy is called; of a folder the last part."""
    return f"`{against.name.rstrip('/').rpartition('/')[2]}`"


def _compared(own: Interval, other: Interval, digits: int) -> str:
    """Return how a mean falls short of another's; empty where it is above beyond the intervals."""
    numbers = f"{format_interval(own, digits)} against {format_interval(other, digits)}"
    if own.mean < other.mean:
        return f"it does worse than {{}}: {numbers}"
    return "" if _low(own) > _high(other) else f"it is not clearly better than {{}}: {numbers}"


def _low(value: Interval) -> float:
    """Return the lower end of an interval; the mean where there is none."""
    return value.mean if value.low is None else value.low


def _high(value: Interval) -> float:
    """Return the upper end of an interval; the mean where there is none."""
    return value.mean if value.high is None else value.high
