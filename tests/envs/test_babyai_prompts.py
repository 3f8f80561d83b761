"""GLAM's prompts: the release's text by its hashes, memory, tests' words, probes, recipes."""

from __future__ import annotations

import doctest
import hashlib

import pytest
from jsonargparse import ArgumentParser

from llm_agents.envs import BabyAIPrompt, BabyAIText, Moment, Observation, PromptBuilder, make_world
from llm_agents.envs import babyai_prompts as module
from llm_agents.envs.babyai_probes import PROBES, TEMPLATES, probe_choices
from llm_agents.envs.babyai_prompts import (
    OTHER_SYNONYM_ACTIONS,
    RELEASE_NAMES,
    SYNONYM_ACTIONS,
    replacements,
)
from llm_agents.errors import UserError
from llm_agents.rollouts import TextRollouts
from llm_agents.rollouts.prompted import PromptedWorld
from llm_agents.training import building


def test_the_example_runs() -> None:
    assert doctest.testmod(module).failed == 0


def digest(prompt: str) -> tuple[int, str]:
    text = f"{prompt} "  # the release's prompt ends in the space that our actions bring along
    return len(text), hashlib.sha256(text.encode()).hexdigest()[:16]


def test_the_prompts_of_the_release() -> None:  # T15
    world = PromptedWorld(BabyAIText(), BabyAIPrompt(), seed=0)
    assert digest(world.reset().prompt) == (601, "9b019f7d3fa7cbdf")
    for index in (2, 1, 2):
        choice, _ = world.step(index)
    assert digest(choice.prompt) == (1127, "ff9600332b3871aa")


def test_numbers_begin_anew_with_the_oldest_observation() -> None:  # T13
    world = PromptedWorld(BabyAIText(), BabyAIPrompt(), seed=0)
    world.reset()
    for index in (2, 1, 3, 4):
        choice, _ = world.step(index)
    lines = choice.prompt.split("\n ")
    assert [line.split(":")[0] for line in lines[2:]] == [
        "Observation 0",
        "Action 0",
        "Observation 1",
        "Action 1",
        "Observation 2",
        "Action 2",
    ]
    assert [line for line in lines if line.startswith("Action")] == [
        "Action 0: pick up ",
        "Action 1: drop ",
        "Action 2:",
    ]


def test_an_episode_begins_with_its_own_observation_alone() -> None:  # T10, T14
    world = PromptedWorld(BabyAIText(max_steps=3), BabyAIPrompt(), seed=0)
    for number in range(2):
        prompt = world.reset().prompt
        mission, said = world.world.mission, world.world.descriptions()  # type: ignore[attr-defined]
        assert (mission == "go to the green ball") is (number == 0)
        assert f"Goal of the agent: {mission} \n Observation 0: {', '.join(said)}, \n" in prompt
        assert prompt.count("Observation") == 1
        for index in (3, 3, 3):
            last, _ = world.step(index)
        assert last.prompt.count("Observation") == 3


def test_one_observation_and_no_action() -> None:
    world = PromptedWorld(BabyAIText(), BabyAIPrompt(history_length=0), seed=0)
    world.reset()
    choice, _ = world.step(2)
    assert choice.prompt.count("Observation") == 1
    assert choice.prompt.endswith(" \n Action 0:")
    with pytest.raises(UserError, match="`history_length` of 0 or more, got -1"):
        BabyAIPrompt(history_length=-1)


def test_a_prompt_without_descriptions() -> None:
    seen = Observation("", "To go to a red box, your next step is to", ("drop",), (4,), ())
    assert BabyAIPrompt().choice(seen).prompt == (
        "Possible action of the agent: drop \n Goal of the agent: go to a red box \n "
        "Observation 0: \n Action 0:"
    )


@pytest.mark.parametrize("actions", [SYNONYM_ACTIONS, OTHER_SYNONYM_ACTIONS])
def test_synonyms_stand_in_prompt_memory_and_candidates(actions: tuple[str, ...]) -> None:  # T18
    world = PromptedWorld(BabyAIText(actions=list(actions)), BabyAIPrompt(), seed=0)
    world.reset()
    choice, _ = world.step(2)
    assert choice.actions == actions
    assert choice.prompt.startswith(f"Possible action of the agent: {', '.join(actions)} \n")
    assert f" \n Action 0: {actions[2]} \n" in choice.prompt
    assert "go forward" not in choice.prompt
    assert "turn left" not in choice.prompt


def test_french_prompts() -> None:
    world = PromptedWorld(make_world("babyai-go-to-local-french"), BabyAIPrompt(), seed=0)
    choice = world.reset()
    assert choice.actions[0] == "tourner à gauche"  # the release scored English candidates here
    assert choice.prompt.startswith(
        "Actions possibles pour l'agent: tourner à gauche, tourner à droite, aller tout droit, "
        "attraper, lâcher, basculer \n But de l'agent: aller à la balle verte \n Observation 0: "
        "Tu vois un mur à 2 pas à gauche, "
    )


@pytest.mark.parametrize(
    ("modification", "english", "french"),
    [
        ("other_nouns", "a red car and a grey chair", "une voiture rouge, une chaise grise"),
        (
            "other_adjectives",
            "a vermilion box and a silver key",
            "une boîte vermilion, une clef argent",
        ),
        ("invented_nouns", "a red afze and a grey dax", "une afze rouge, une dax grise"),
        ("invented_adjectives", "a faze box and a sil key", "une boîte faze, une clef sil"),
        ("invented_words", "a faze afze and a sil dax", "une afze faze, une dax sil"),
        ("none", "a red box and a grey key", "une boîte rouge, une clef grise"),
    ],
)
def test_words_are_replaced(modification: str, english: str, french: str) -> None:
    builder = BabyAIPrompt(modification=modification)  # type: ignore[arg-type]
    for goal, text, wanted in (
        ("To see, your next step is to", "a red box and a grey key", english),
        (
            "Pour voir, ta prochaine étape est de",
            "une boîte rouge, une clef grise",
            french,
        ),
    ):
        seen = Observation(text, goal, ("take the red key",), (0,), ())
        choice = builder.choice(seen)
        assert f"Observation 0: {wanted}," in choice.prompt
        assert choice.actions == ("take the red key",)  # what is scored stays


def test_all_replacements() -> None:
    assert replacements("other_adjectives", "english") == {
        "red": "vermilion",
        "green": "jade",
        "blue": "cyan",
        "purple": "violet",
        "yellow": "golden",
        "grey": "silver",
    }
    assert replacements("invented_words", "english") == {
        "key": "dax",
        "ball": "xolo",
        "box": "afze",
        "red": "faze",
        "green": "jatu",
        "blue": "croh",
        "purple": "vurst",
        "yellow": "gakul",
        "grey": "sil",
    }
    assert replacements("other_adjectives", "french")["violette"] == "mauve"
    assert len(RELEASE_NAMES) == 8


def test_letters_are_replaced_as_in_the_release() -> None:  # T16
    seen = Observation(
        "une porte verte ouverte, une balle grise",
        "Pour voir, ta prochaine étape est de",
        (),
        (),
        (),
    )
    words, letters = (
        BabyAIPrompt(modification="other_adjectives", replacement=how).choice(seen).prompt  # type: ignore[arg-type]
        for how in ("words", "letters")
    )
    assert "une porte jade ouverte, une balle argent" in words
    assert "une porte jade oujade, une balle argente" in letters


@pytest.mark.parametrize(
    ("modification", "english", "french"),
    [
        ("speaker_first_person", "I would like the agent to", "Je veux que l'agent fasse"),
        ("agent_first_person", "You have to", "Tu dois faire"),
    ],
)
def test_the_goal_may_be_introduced_otherwise(modification: str, english: str, french: str) -> None:
    builder = BabyAIPrompt(modification=modification)  # type: ignore[arg-type]
    prompt = builder.choice(BabyAIText().reset(0)).prompt
    assert f" \n {english}: go to the green ball \n" in prompt
    assert "Goal of the agent" not in prompt
    prompt = builder.choice(BabyAIText(language="french").reset(0)).prompt
    assert f" \n {french}: aller à la balle verte \n" in prompt


def test_english_tables_are_safe_as_letters_too() -> None:
    for name in ("MixedTrainLocal", "GoToLocal"):
        world = BabyAIText(name)
        for seed in range(8):
            seen = world.reset(seed)
            for modification in RELEASE_NAMES:
                words, letters = (
                    BabyAIPrompt(modification=modification, replacement=how).choice(seen)  # type: ignore[arg-type]
                    for how in ("words", "letters")
                )
                assert words == letters


def test_another_worlds_observations() -> None:
    world = make_world("overcooked-tomato-salad")
    choice = BabyAIPrompt().choice(world.reset())
    assert f"Goal of the agent: {world.reset().goal} \n" in choice.prompt


# --- probes


def test_the_probes() -> None:
    choices = probe_choices()
    assert len(choices) == len(PROBES) == 11
    assert [probe.sensible for probe in PROBES] == [2, 0, 0, 3, 5, 1, 3, 4, 0, 0, 4]
    assert probe_choices(2) == choices[:2]
    assert len(TEMPLATES[2]) == 2
    assert len({choice.prompt for choice in choices}) == 11
    for probe, choice in zip(PROBES, choices, strict=True):
        assert f"Goal of the agent: {probe.mission} \n" in choice.prompt
        assert choice.prompt.count("Observation") == len(probe.seen) == len(probe.taken) + 1
        assert not any(far in choice.prompt for far in ("4 steps left", "4 steps right", "7 steps"))
    assert "You carry a purple key, You see a wall 1 step left" in choices[4].prompt
    assert "You see a locked purple door 1 step forward, \n Action 2:" in choices[4].prompt


def test_probes_for_other_actions_and_in_french() -> None:
    head = "Possible action of the agent: rotate left, rotate right, move ahead, take"
    assert all(c.prompt.startswith(head) for c in probe_choices(actions=SYNONYM_ACTIONS))
    assert " \n Action 0: move ahead \n" in probe_choices(actions=SYNONYM_ACTIONS)[1].prompt
    assert len(probe_choices(2, actions=["turn left", "turn right", "go forward"])[1].actions) == 3
    assert (
        "But de l'agent: ouvrir la porte violette \n" in probe_choices(language="french")[2].prompt
    )


# --- recipes


def test_a_recipe_may_name_the_builder() -> None:
    assert building.PromptBuilder is PromptBuilder
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(TextRollouts, "data")
    options = {"world": "toy-lamp", "total_frames": 128}
    named = {"class_path": "llm_agents.envs.BabyAIPrompt", "init_args": {"history_length": 5}}
    made = parser.instantiate(parser.parse_object({"data": {**options, "prompt": named}})).data
    assert made.prompt == BabyAIPrompt(history_length=5)
    plain = {"data": {**options, "prompt": {"history_length": 1}}}
    assert parser.instantiate(parser.parse_object(plain)).data.prompt == PromptBuilder(
        history_length=1
    )


def test_moments_are_told_in_order() -> None:
    past = [Moment(f"You see a wall {n} steps left.", "", f"act {n}") for n in range(2, 6)]
    seen = Observation("", "", ("drop",), (4,), ())
    prompt = BabyAIPrompt(history_length=3).choice(seen, past).prompt
    assert [n for n in range(2, 6) if f"act {n} \n" in prompt] == [3, 4, 5]
    assert prompt.index("Observation 0: You see a wall 3") < prompt.index("Action 0: act 3")
