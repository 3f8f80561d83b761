"""Worlds that a recipe can't have are refused with its other faults, before anything is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llm_agents.config.check import check_recipe
from llm_agents.config.options import override
from llm_agents.config.reading import Document, RecipeError, read_text
from llm_agents.config.worlds import world_faults

RECIPE = """\
model:
  class_path: llm_agents.methods.TWOSOME
  init_args:
    policy:
      class_path: llm_agents.policies.LanguagePolicy.from_pretrained
      init_args: {base: tiny-random-llama, lora: {r: 4}}
data:
  class_path: llm_agents.rollouts.TextRollouts
  init_args:
    world: overcooked-tomato-salad
    world_options: {radius: 3}
evaluation: {worlds: [toy-lamp]}
"""


def recipe() -> Document:
    return read_text(RECIPE, "r.yaml")


def test_sound_worlds_pass() -> None:
    check_recipe(recipe())


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("data.world", "toy-lam", "expected a world, got `toy-lam`: do you mean `toy-lamp`?"),
        ("data.world_options.radias", "3", "got `radias`; do you mean `radius`?"),
        ("data.world_options.radius", "far", "the option `radius` of the world"),
        ("data.world_options.gamma", "1.5", "refuses its options"),
        ("evaluation.worlds", "[toy-chest, toy-clok]", "do you mean `toy-clock`?"),
    ],
)
def test_each_kind_of_fault_is_found(option: str, value: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        check_recipe(override(recipe(), option, value))
    (fault,) = caught.value.faults
    assert message in fault.message
    assert fault.key.startswith(option.rpartition(".")[0])


def test_all_faults_of_a_list_come_together() -> None:
    values = override(recipe(), "data.world", "[toy-lam, toy-lamp, toy-chess]").values
    values["evaluation"] = {"worlds": ["toy-clok"]}
    values["data"]["init_args"]["world_options"] = None
    assert [key for key, _ in world_faults(values)] == [
        ("data", "init_args", "world", 0),
        ("data", "init_args", "world", 2),
        ("evaluation", "worlds", 0),
    ]


def test_other_data_may_call_anything_a_world() -> None:
    values = {"data": {"class_path": "llm_agents.data.HHAData", "init_args": {"world": "mine"}}}
    assert list(world_faults(values)) == []
    assert list(world_faults({"data": {"class_path": "no_such.Data"}})) == []
    assert list(world_faults({})) == []


def test_the_command_refuses_a_world_without_loading_a_network(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE.replace("tomato-salad", "tomato-salat"), encoding="utf8")
    code = (
        "import sys; from llm_agents.cli import main\n"
        f"code = main(['run', {str(path)!r}])\n"
        "print(code, [m for m in ('torch', 'lightning', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2 []"
    assert "r.yaml: line 10: data.world: expected a world, got" in done.stderr
