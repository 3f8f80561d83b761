"""The version of a reward function of a notebook, which is in no file."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from llm_agents.errors import UserError
from llm_agents.rewards import CallableReward

NOTEBOOK = """
import math
import re

SCALE = {scale}
WORD = re.compile(r"{pattern}")
STOPS = {{"a", "the"}}

def length(text):
    return {helper}

def make(bonus):
    def brevity(prompts, responses, *, floor={floor}):
        found = [len([w for w in WORD.findall(text) if w not in STOPS]) for text in responses]
        return [max(floor, math.exp(-n / SCALE)) + bonus + 0 * length("") for n in found]
    return brevity

reward = make({bonus})
"""
GIVEN = {"scale": 20, "pattern": r"\w+", "helper": "len(text)", "floor": 0.0, "bonus": 0.0}


def reward(**changes: Any) -> CallableReward:
    """Return the reward as a notebook has it: defined in no file."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(NOTEBOOK.format(**{**GIVEN, **changes}), names)
    return CallableReward(names["reward"])


def test_the_same_code_in_another_session_has_the_same_version() -> None:
    assert reward().version == reward().version
    assert reward()([()], ["one two"]).tolist() == pytest.approx([0.904837], abs=1e-6)  # e^(-2/20)


@pytest.mark.parametrize(
    "change",
    [
        {"scale": 21},
        {"pattern": r"\S+"},
        {"helper": "len(text) + 1"},
        {"floor": 0.1},
        {"bonus": 0.5},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_the_function_refers_to_is_part_of_its_version(change: dict[str, Any]) -> None:
    assert reward(**change).version != reward().version


def test_functions_that_call_each_other_have_a_version() -> None:
    code = "def a(p, r):\n    return b(p, r)\ndef b(p, r):\n    return [0.0] if r else a(p, r)\n"
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(code, names)
    other: dict[str, Any] = {"__name__": "__main__"}
    exec(code.replace("0.0", "1.0"), other)
    assert CallableReward(names["a"]).version != CallableReward(other["a"]).version


def defined(code: str) -> CallableReward:
    """Return the reward `judge` that code defines."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(code, names)
    return CallableReward(names["judge"])


MODEL = """
class Model:
    def __init__(self, scale):
        self.scale = scale
    def score(self, text):
        return len(text) {sign} 1
model = Model({scale})
def judge(prompts, responses):
    return [model.score(text) for text in responses]
"""


def test_an_object_that_the_function_refers_to_is_part_of_its_version() -> None:
    code = MODEL.format(sign="+", scale=1)
    assert defined(code).version == defined(code).version
    assert defined(MODEL.format(sign="+", scale=2)).version != defined(code).version
    assert defined(MODEL.format(sign="-", scale=1)).version != defined(code).version


def test_an_object_that_cant_be_compared_between_runs_needs_a_version() -> None:
    code = "import threading\nlock = threading.Lock()\ndef judge(p, r):\n    return [lock]\n"
    with pytest.raises(UserError, match=r"can't be compared between runs .*give `version`"):
        defined(code)


@pytest.mark.slow
def test_the_version_is_the_same_in_every_process() -> None:
    """The order of a set of texts differs from process to process; the version doesn't."""
    code = NOTEBOOK.format(**GIVEN)
    program = f"names = {{'__name__': '__main__'}}; exec({code!r}, names)\n"
    program += "from llm_agents.rewards import CallableReward\n"
    program += "print(CallableReward(names['reward']).version)"
    versions = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(versions) == 1
