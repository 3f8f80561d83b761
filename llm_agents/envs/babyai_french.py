"""BabyAI's goals in French."""

from __future__ import annotations

import re

from llm_agents.envs.babyai_text import FRENCH_COLORS, FRENCH_TYPES

_THING = re.compile(
    r"(?P<article>a|the) (?:(?P<color>red|green|blue|purple|yellow|grey) )?"
    r"(?P<noun>box|ball|key|door|object)"
    r"(?: (?P<place>in front of you|behind you|on your left|on your right))?"
)
_PLACES = {
    "in front of you": "devant toi",
    "behind you": "derrière toi",
    "on your left": "à ta gauche",
    "on your right": "à ta droite",
}
_MASCULINE = {
    "red": "rouge",
    "green": "vert",
    "blue": "bleu",
    "purple": "violet",
    "yellow": "jaune",
    "grey": "gris",
}
_VERBS = {
    "go to": ("aller à", "être allé à"),
    "pick up": ("attraper", "avoir attrapé"),
    "open": ("ouvrir", "avoir ouvert"),
}


def translate_mission(mission: str, *, as_released: bool = False) -> str:
    """Return a goal of BabyAI's language in French.

    Args:
        mission: As `BabyAIText.mission` gives it.
        as_released: Take the article as GLAM's release took it, which is "une" wherever the goal
            has an "a"; only for "go to".

    Raises:
        ValueError: It is no goal of BabyAI's, or not a "go to" as released.

    Example:
        >>> translate_mission("go to the red ball")
        'aller à la balle rouge'
        >>> translate_mission("go to the red ball", as_released=True)
        'aller à une balle rouge'
        >>> translate_mission("open the door after you pick up a grey key")
        'ouvrir la porte après avoir attrapé une clef grise'
    """
    if as_released:
        return _as_released(mission)
    if ", then " in mission:
        first, second = mission.split(", then ")
        return f"{_conjunction(first)}, puis {_conjunction(second)}"
    if " after you " in mission:
        second, first = mission.split(" after you ")
        return f"{_conjunction(second)} après {_conjunction(first, past=True)}"
    return _conjunction(mission)


def _conjunction(mission: str, *, past: bool = False) -> str:
    """Translate actions joined by "and"."""
    return " et ".join(_action(part, past=past) for part in mission.split(" and "))


def _action(mission: str, *, past: bool) -> str:
    """Translate one action."""
    if mission.startswith("put ") and mission.count(" next to ") == 1:
        moved, fixed = mission.removeprefix("put ").split(" next to ")
        verb = "avoir mis" if past else "mettre"
        beside = re.sub(r"^de (?=une? )", "d'", f"de {_thing(fixed)}")
        return f"{verb} {_thing(moved)} à côté {beside}"
    for english, forms in _VERBS.items():
        if mission.startswith(f"{english} "):
            return f"{forms[past]} {_thing(mission.removeprefix(f'{english} '))}"
    raise ValueError(f"expected a goal of BabyAI, got {mission!r}")


def _thing(text: str) -> str:
    """Translate an object."""
    match = _THING.fullmatch(text)
    if match is None:
        raise ValueError(f"expected an object of BabyAI, got {text!r}")
    article, color, noun, place = match.group("article", "color", "noun", "place")
    if noun == "object":
        words = ["l'objet"] if article == "the" else ["un", "objet"]
        colors = _MASCULINE
    else:
        words = ["la" if article == "the" else "une", FRENCH_TYPES[noun]]
        colors = FRENCH_COLORS
    words += [colors[color]] if color else []
    words += [_PLACES[place]] if place else []
    return " ".join(words)


def _as_released(mission: str) -> str:
    """Translate a "go to" by what its text contains."""
    match = re.fullmatch(r"go to (?:a|the) (\w+) (\w+)", mission)
    if match is None:
        raise ValueError(
            f"expected a goal `go to …`, the only one that the release translates, got {mission!r}"
        )
    color, noun = match.groups()
    article = "une" if "a" in mission else "la"
    return f"aller à {article} {FRENCH_TYPES[noun]} {FRENCH_COLORS[color]}"
