"""Claims of a card about a training: each follows from the recipe or from a file, none is a guess.

Where neither says it, the card says that it is not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from llm_agents.entries import zoo_name
from llm_agents.envs.registry import origin_of
from llm_agents.policies.bundled import rounding_of
from llm_agents.zoo.facts import CardFacts

_OBJECTIVES = ("wbc", "r_gold", "r_lol")
_FLAW = (
    "A learnt reward prefers some styles and lengths for no good reason, and a policy trained on "
    "it takes these over."
)


def recipe_part(facts: CardFacts, *keys: str) -> Any:  # noqa: ANN401  (a recipe's content)
    """Return a part of the recipe; None if it has none."""
    found: Any = yaml.safe_load(facts.recipe) if facts.recipe.strip() else None
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _class_of(facts: CardFacts, section: str) -> str:
    """Return the name of the class that a section of the recipe names, without its module."""
    return str(recipe_part(facts, section, "class_path") or "").rpartition(".")[2]


def _named(place: object) -> str | None:
    """Return how a card calls a reward or an adapter that a recipe names."""
    if not isinstance(place, str) or not place:
        return None
    return f"`{zoo_name(place) or place}`"


# --- agents ---------------------------------------------------------------------------------------


def paid_by(facts: CardFacts) -> str:
    """Say what paid an agent of NetHack: the game, a reward of messages, or both."""
    coefficients = [_coefficient(facts, name) for name in ("extrinsic_coef", "intrinsic_coef")]
    game, messages = coefficients
    reward = _reward_of_messages(facts)
    if messages is None or game is None:
        return "What paid it is not recorded."
    if messages == 0 or reward is None:
        return f"Only the game paid it (coefficient {game:g})."
    if game == 0:
        return (
            f"Only the reward of messages {reward} paid it (coefficient {messages:g}); the game's "
            "score paid nothing."
        )
    return (
        f"The game paid it (coefficient {game:g}), and beside it the reward of messages {reward} "
        f"(coefficient {messages:g})."
    )


def _coefficient(facts: CardFacts, name: str) -> float | None:
    """Return a weight of the rewards: as the agent's file tells it, else as the recipe does."""
    for value in (
        facts.described.get(name),
        recipe_part(facts, "model", "init_args", "ppo", name),
        facts.results.details.get(name),
    ):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _reward_of_messages(facts: CardFacts) -> str | None:
    """Return what the reward of messages is called that the recipe names; None if it names none."""
    known = facts.results.details.get("reward")  # the training's, by its own name
    own = f"`{known['name']}`" if isinstance(known, Mapping) else None
    if not facts.recipe.strip():
        return own
    section = recipe_part(facts, "data", "init_args", "reward")
    if not isinstance(section, Mapping):
        return None
    path = (section.get("init_args") or {}).get("path")
    is_entry = isinstance(path, str) and zoo_name(path) is not None
    return (_named(path) if is_entry else own or _named(path)) or f"`{section.get('class_path')}`"


def trained_in(facts: CardFacts) -> str:
    """Say in which world an agent was trained, and how."""
    world = facts.task or "not recorded"
    kind = _class_of(facts, "data")
    if kind == "CloningData":
        how = "It was trained on recorded episodes (`data.train` in the recipe), not by playing."
    elif kind.endswith("Rollouts"):
        frames = recipe_part(facts, "data", "init_args", "total_frames")
        count = f" {frames:,} decisions" if isinstance(frames, int) else ""
        how = f"It was trained by playing{count}."
    else:
        how = "How it was trained is not recorded."
    return f"The world is {world}, {origin_of(world)}. {how}"


def variant(facts: CardFacts) -> list[str]:
    """Say which variant of a method was trained, where the published one is another."""
    options = facts.described.get("options")
    if facts.method != "poad" or not isinstance(options, Mapping):
        return []
    behaviour, tokens = options.get("behaviour"), options.get("tokens")
    if (behaviour, tokens) == ("list", "all"):
        return ["It is POAD as published: `behaviour: list`, `tokens: all`."]
    return [
        f"It is this package's variant of POAD, `behaviour: {behaviour}` with `tokens: {tokens}`; "
        "the published form is `behaviour: list` with `tokens: all`, and these numbers say nothing "
        "of it."
    ]


# --- policies that write, and rewards of answers --------------------------------------------------


def learned_from(facts: CardFacts) -> str:
    """Say by what a policy, or a reward of answers, was told good from bad."""
    kind = _class_of(facts, "model")
    options = recipe_part(facts, "model", "init_args") or {}
    if kind == "ALoL":
        return _advantage_objective(options)
    if kind in ("DPO", "PRO"):
        ranked = recipe_part(facts, "data", "init_args", "rules", "rank_by")
        order = "of the stored rewards" if ranked == "reward" else "that the data give them"
        return f"It learned to prefer responses in the order {order}; no score entered it."
    if kind == "PPO":
        judge = _named(_path_of(options.get("reward"))) or "the reward of its recipe"
        return f"It was paid by {judge} for answers of its own. {_FLAW}"
    if kind == "RewardTraining":
        if options.get("objective") == "scores":
            return "It learned to give the scores that the data store, a reward model's."
        return "It learned to order responses as the data do."
    return "By what it was trained is not recorded."


def _advantage_objective(options: Mapping[str, Any]) -> str:
    """Say what weighs the responses of an objective of A-LoL's family."""
    algorithm = str(options.get("algorithm", "a_lol_seq"))
    scored = (options.get("options") or {}).get("training_rewards") == "scored"
    judge = _named(_path_of(options.get("reward")))
    source = f"the scores of {judge}" if scored else "the rewards that the data store"
    if algorithm == "nll":
        if options.get("sampling", "uniform") == "uniform":
            return "Its objective is the likelihood of the responses alone: no reward entered it."
        return f"Its objective is the likelihood of the responses, drawn by {source}. {_FLAW}"
    if algorithm in _OBJECTIVES:
        return f"Its objective weighs each response by {source}. {_FLAW}"
    return (
        f"Its objective weighs each response by {source}, less the value of its prompt: what "
        f"{judge or 'the reward'} gave to answers of the policy that training began with. {_FLAW}"
    )


def _path_of(section: object) -> object:
    """Return the path in a reward's section of a recipe."""
    if not isinstance(section, Mapping):
        return None
    return (section.get("init_args") or {}).get("path")


# --- what every card says -------------------------------------------------------------------------


def rounded_base(facts: CardFacts) -> list[str]:
    """Say that the base's weights were rounded, where they were."""
    rounding = None if facts.alias is None else rounding_of(facts.alias)
    if rounding is None:
        return []
    return [
        f"The base's weights were {rounding}. All numbers here are of these rounded weights, "
        f"which `{facts.alias}` names; with the unrounded ones of the Hub they differ."
    ]


def selected(facts: CardFacts) -> list[str]:
    """Say how this training was chosen among several, where it was."""
    chosen = None if facts.provenance is None else facts.provenance.selection
    return [] if chosen is None else [f"**Chosen among several trainings:** {chosen}."]


def began_with(facts: CardFacts) -> list[str]:
    """Say which adapter training began with, if it did."""
    place = facts.began_with or ""
    folder, _, name = place.rpartition("/")
    entry = zoo_name(place) or (name if folder == "checkpoints" else None)
    if entry is not None:
        return [f"Training began with the zoo's `{entry}`."]
    earlier = "Training began with an adapter of an earlier stage: see `policy.adapter` above."
    return [earlier] if name else []


# --- how it is made again -------------------------------------------------------------------------


def reproduction(facts: CardFacts) -> str:
    """Return the commands that give the numbers and the training again, and what they read."""
    lines = ["The numbers:", "", "```bash", f"lightning evaluate {facts.repo_id}"]
    tests = [file for file in facts.files if file.key == "data.test"]
    if tests:
        given = "".join(f" --data {file.name}" for file in tests)
        bundled = _bundled_tests(facts)
        lines[-1] += "  # the bundled test set" if bundled else given
        lines += [f"lightning evaluate {facts.repo_id}{given}"] if bundled else []
    lines += [f"lightning zoo check {facts.repo_id}  # beside those of this card", "```", ""]
    lines += ["The training:", "", "```bash", f"lightning run {_recipe_place(facts)}", "```", ""]
    return "\n".join([*lines, *_outside(facts)])


def _bundled_tests(facts: CardFacts) -> bool:
    """Return whether the recipe names test sets that come with the package."""
    tests = recipe_part(facts, "data", "init_args", "test")
    listed = tests if isinstance(tests, list) else [tests]
    return any(isinstance(test, str) and test.partition(":")[0] == "sample" for test in listed)


def _recipe_place(facts: CardFacts) -> str:
    """Return how the recipe is named: an entry's by the entry, else as a file beside the card."""
    if "/" in facts.repo_id:
        return "recipe.yaml  # from the folder of this repository"
    return f"zoo:{facts.repo_id}"


def _outside(facts: CardFacts) -> list[str]:
    """Return a table of the files that the recipe reads and that do not lie beside it."""
    source = recipe_part(facts, "publish", "data_source")
    told = [f"Where the data come from: {source}.", ""] if source else []
    if not facts.files:
        return told
    lines = [
        "Files that its recipe reads and that are not part of it; another one of the same name is "
        "refused:",
        "",
        "| key | file | bytes | SHA-256 |",
        "|---|---|---|---|",
    ]
    for file in facts.files:
        lines.append(f"| `{file.key}` | `{file.name}` | {file.num_bytes:,} | `{file.sha256}` |")
    return [*lines, "", *told]
