"""Text and pictures of NetHack observations, and the tasks' rules: no engine needed."""

from __future__ import annotations

import doctest
from typing import get_args

import numpy as np
import pytest

from llm_agents.envs import nethack_screen, nethack_tasks
from llm_agents.envs.nethack_screen import (
    Stat,
    copy_windows,
    message_text,
    screen_lines,
    status_text,
)
from llm_agents.envs.nethack_tasks import (
    ACTIONS,
    ORACLE,
    TASKS,
    NetHackRules,
    check_keys,
    food_letter,
    has_descended,
    is_beside_oracle,
    is_sober,
    time_penalty,
)
from llm_agents.envs.nethack_text import TaskName, surroundings


def test_examples() -> None:
    assert doctest.testmod(nethack_screen).failed == 0
    assert doctest.testmod(nethack_tasks).failed == 0


def test_message_text_drops_every_zero_and_keeps_other_bytes() -> None:
    raw = np.zeros(256, dtype=np.uint8)
    raw[[0, 2, 3]] = [65, 233, 66]
    assert message_text(raw) == "AéB"
    assert message_text(raw.tobytes()) == "AéB"


@pytest.mark.parametrize(
    ("hunger", "word"),
    [(0, " Satiated"), (1, ""), (2, " Hungry"), (3, " Weak"), (4, " Fainting"), (6, " Starved")],
)
def test_status_text(hunger: int, word: str) -> None:
    stats = np.zeros(27, dtype=np.int64)
    stats[[12, 13, 10, 11, 18, 21]] = [3, 12, 10, 14, 2, hunger]
    assert status_text(stats) == f"Dlvl:3 $:12 HP:10 (14) Xp:2{word}"


def test_screens_are_lines() -> None:
    chars = np.full((24, 80), 32, dtype=np.uint8)
    chars[0, :3] = [72, 105, 33]
    chars[2, 1] = 64
    chars[3, 0] = 46
    assert screen_lines(chars)[:4] == ["Hi!", "", " @", "."]


@pytest.mark.parametrize("place", [(0, 0), (5, 40), (12, 79), (23, 0), (23, 79), (40, 90), (8, 71)])
def test_windows_are_cut_from_a_terminal_with_darkness_around(place: tuple[int, int]) -> None:
    generator = np.random.default_rng(0)
    chars = generator.integers(1, 256, (24, 80)).astype(np.uint8)
    colors = generator.integers(-128, 128, (24, 80)).astype(np.int8)
    outs = np.full((2, 12, 12), 9, dtype=np.uint8)
    copy_windows([(chars, outs[0]), (colors, outs[1])], *place)
    for terminal, out in zip((chars, colors & 15), outs, strict=True):
        padded = np.zeros((124, 180), dtype=np.uint8)
        padded[50:74, 50:130] = terminal
        row, column = place[0] + 50 - 6, place[1] + 50 - 6
        assert (out == padded[row : row + 12, column : column + 12]).all()


# --- rules


def test_the_actions_are_the_releases_23_keys() -> None:
    expected = [13, *b"kljhunby", *b"KLJHUNBY", *b"<>.", 4, *b"es"]
    assert list(ACTIONS.values()) == expected
    assert len(ACTIONS) == 23


def test_the_nine_tasks() -> None:
    assert len(TASKS) == 9
    assert get_args(TaskName) == tuple(TASKS)
    assert [rule.level for rule in TASKS.values()] == [0, 2, 3, 4, 2, 3, 4, 0, 0]
    assert [name for name, rule in TASKS.items() if not rule.ends] == [
        name for name in TASKS if "Continual" in name
    ]


@pytest.mark.parametrize(
    ("prompt", "letter"),
    [
        ("[fghi or ?*]", "f"),
        ("[a-cf or ?*]", "a"),
        ("[$Bc or ?*]", "B"),
        ("[- or ?*]", None),
        ("[ or ?*]", None),
        ("[*]", None),
        ("", None),
    ],
)
def test_the_first_letter_offered_is_eaten(prompt: str, letter: str | None) -> None:
    found = food_letter(f"What do you want to eat? {prompt} ".encode())
    assert found == (None if letter is None else ord(letter))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("constant", [0, -0.01, -0.01, -0.01, 0]),
        ("exp", [-0.01, -0.02, -0.04, -0.08, -0.01]),
        ("square", [0, -0.01, -0.04, -0.09, 0]),
        ("linear", [0, -0.01, -0.02, -0.03, 0]),
        ("always", [-0.01] * 5),
    ],
)
def test_time_penalties(mode: nethack_tasks.PenaltyMode, expected: list[float]) -> None:
    frozen = [0, 1, 2, 3, 0]
    assert [time_penalty(mode, count) for count in frozen] == pytest.approx(expected)


def test_the_level_counts_inside_its_branch() -> None:
    stats = [0] * 27
    stats[Stat.DEPTH], stats[Stat.DUNGEON], stats[Stat.LEVEL] = 3, 2, 1  # the Mines' first
    message = b"You descend the stairs."
    assert not has_descended(message, stats, 3)
    stats[Stat.DUNGEON], stats[Stat.LEVEL] = 0, 3
    assert has_descended(message, stats, 3)
    assert has_descended(b"Whee!  You descend the stairs!", stats, 3)
    assert not has_descended(b"You fall through...", stats, 3)
    assert not has_descended(message, stats, 4)


@pytest.mark.parametrize(
    ("condition", "by_bit", "by_word"),
    [
        (0, True, True),
        (512, False, False),
        (256, True, True),
        (768, False, True),
        (544, False, True),
    ],
)
def test_sobriety_is_a_bit_and_in_the_release_a_word(
    condition: int, by_bit: bool, by_word: bool
) -> None:
    assert is_sober(condition, "bit") == by_bit
    assert is_sober(condition, "word") == by_word


@pytest.mark.parametrize("place", [(0, 5), (5, 0), (78, 20), (0, 0), (40, 10)])
def test_the_map_s_edge_has_neighbors(place: tuple[int, int]) -> None:
    x, y = place
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            row, column = y + down, x + right
            if 0 <= row < 21 and 0 <= column < 79:
                glyphs = np.zeros((21, 79), dtype=np.int16)
                glyphs[row, column] = ORACLE
                assert is_beside_oracle(glyphs, x, y)
    far = np.zeros((21, 79), dtype=np.int16)
    far[(y + 10) % 21, (x + 30) % 79] = ORACLE
    assert not is_beside_oracle(far, x, y)


def test_faults_are_named() -> None:
    with pytest.raises(ValueError, match="`max_steps` ≥ 1, got 0"):
        NetHackRules(max_steps=0)
    with pytest.raises(ValueError, match="got message, color"):
        check_keys(("message", "color"))
    with pytest.raises(ValueError, match="different"):
        check_keys(("message", "message"))


def test_surroundings_in_words() -> None:
    chars = np.full((21, 79), 32, dtype=np.uint8)
    for (row, column), symbol in {(4, 5): "|", (6, 5): "|", (5, 6): "d", (2, 9): ">"}.items():
        chars[row, column] = ord(symbol)
    assert surroundings(chars, 5, 5) == (
        "Next to you: a wall (north, south), a creature d (east). "
        "You see stairs down 3 north and 4 east."
    )
    assert surroundings(np.full((21, 79), 32, dtype=np.uint8), 0, 0) == ""
