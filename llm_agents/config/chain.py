"""Recipes of two stages: the section `reference` trains what the recipe's own stage starts from.

Its keys are laid over the recipe itself, so that they say only what differs: objective, rate,
steps.
"""

from __future__ import annotations

import copy

from llm_agents.config.merge import lay_over
from llm_agents.config.reading import Document, Key, Place, Value

REFERENCE = "reference"
REFERENCE_MEANING = "What is trained first, as keys over this recipe, to start from; or null."


def without_reference(document: Document) -> Document:
    """Return a recipe's own stage: all but the section `reference`."""
    values = {name: value for name, value in document.values.items() if name != REFERENCE}
    places = {key: place for key, place in document.places.items() if key[:1] != (REFERENCE,)}
    return Document(copy.deepcopy(values), places, list(document.faults))


def first_stage(document: Document) -> Document | None:
    """Return the recipe of the stage that comes first; None if there is none.

    It trains and does not evaluate, unless its `run.stages` say otherwise.
    """
    over = document.values.get(REFERENCE)
    if not isinstance(over, dict):
        return None
    places: dict[Key, Place] = {
        key[1:]: place for key, place in document.places.items() if key[:1] == (REFERENCE,)
    }
    places.setdefault((), document.place((REFERENCE,)))
    stage = lay_over(without_reference(document), Document(copy.deepcopy(over), places))
    run = stage.values.get("run")
    own = over.get("run")
    if not (isinstance(own, dict) and "stages" in own):
        stage.values["run"] = {**(run if isinstance(run, dict) else {}), "stages": ["fit"]}
    return stage


def started_from(values: dict[str, Value], trained: str) -> dict[str, Value]:
    """Return a recipe's own stage with the policy that the first stage has left behind.

    Args:
        values: The recipe.
        trained: Folder of the adapter, or of the model where no adapter trains.
    """
    found = {name: copy.deepcopy(value) for name, value in values.items() if name != REFERENCE}
    policy = policy_arguments(found)
    if policy is not None:
        trains_adapter = policy.get("lora") is not None or policy.get("adapter") is not None
        policy["adapter" if trains_adapter else "base"] = trained
    return found


def policy_arguments(values: dict[str, Value]) -> dict[str, Value] | None:
    """Return the arguments of `model.policy`, to be changed in place; None if there is none."""
    node: Value = values.get("model")
    for name in ("init_args", "policy", "init_args"):
        node = node.get(name) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else None
