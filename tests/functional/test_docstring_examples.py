"""The examples in the docstrings run, and every public function has one."""

from __future__ import annotations

import doctest
import inspect
from importlib import import_module
from types import FunctionType

import pytest

from llm_agents import functional

MODULES = (
    "action_scores",
    "advantage",
    "gae",
    "glam_scores",
    "log_probs",
    "lol",
    "masked",
    "policy_gradient",
    "preference",
    "ratio_band",
    "shaping",
    "vtrace",
    "weighted_nll",
)
FORMULAS = [
    function
    for name in functional.__all__
    if isinstance(function := getattr(functional, name), FunctionType)
    and not name.startswith("needs_")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    found = doctest.testmod(import_module(f"llm_agents.functional.{name}"))
    assert found.attempted > 0
    assert found.failed == 0


def test_formulas_are_found() -> None:
    assert len(FORMULAS) == 63


@pytest.mark.parametrize("function", FORMULAS, ids=lambda f: f.__name__)
def test_every_formula_has_its_sections(function: FunctionType) -> None:
    text = inspect.getdoc(function) or ""
    for section in ("Args:", "Returns:", "Raises:", "Example:"):
        assert f"\n{section}\n" in text
