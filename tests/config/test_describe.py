from __future__ import annotations

import pytest

from llm_agents.config.describe import describe, recipe_lines
from llm_agents.config.loading import load_recipe
from llm_agents.config.reading import read_text
from llm_agents.errors import UserError

RECIPE = """\
model:
  class_path: llm_agents.methods.ALoL
  init_args:
    policy:
      class_path: llm_agents.policies.LanguagePolicy.from_pretrained
      init_args: {base: tiny-random-llama}
    optimizer: {lr: 3e-4}
trainer: {max_steps: 2}
"""


def test_every_key_has_type_default_value_and_meaning() -> None:
    lines = {line.key: line for _, found in recipe_lines(read_text(RECIPE, "r")) for line in found}
    base = lines["model.policy.base"]
    assert (base.type, base.default, base.value) == ("a text", "required", "'tiny-random-llama'")
    assert base.meaning
    assert lines["model.optimizer.lr"].value == "0.0003"
    assert lines["model.optimizer.schedule"].type == "constant, linear or cosine"
    assert lines["model.optimizer.schedule"].default == "constant"
    assert lines["model.policy.lora.r"].default == "8"
    assert lines["trainer.max_steps"].default == "-1"
    assert lines["run.checkpoint_every"].default == "100"
    assert lines["evaluation.bootstrap.confidence"].default == "0.95"
    ours = [line for key, line in lines.items() if not key.startswith("trainer.")]
    assert len(ours) > 60
    assert [line.key for line in ours if not line.meaning] == []


def test_the_text_fits_the_terminal() -> None:
    text = describe(read_text(RECIPE, "r"), 80)
    assert "--model.policy.base 'tiny-random-llama'" in text
    assert max(len(line) for line in text.splitlines() if not line.lstrip().startswith("--")) <= 120


def test_help_begins_with_an_overview_and_a_section_is_shown_alone() -> None:
    document = load_recipe("a_lol_hha")
    whole = describe(document, 100)
    lines = whole.splitlines()
    assert lines[0].startswith("sections (`--help SECTION` shows one")
    names = [line.split()[0] for line in lines[1 : lines.index("")]]
    assert names[:4] == ["seed_everything", "model", "data", "trainer"]
    data = describe(document, 100, "data")
    assert data in whole
    assert all(line.startswith("  --data.") for line in data.splitlines() if "  --" in line[:4])
    assert "--data.max_prompt_tokens" in data
    policy = describe(document, 100, "--model.policy.lora")
    assert "--model.policy.lora.r" in policy
    assert "--model.policy.base" not in policy
    with pytest.raises(UserError, match=r"got `model\.polcy`: did you mean model\.policy\?"):
        describe(document, 100, "model.polcy")


def test_help_says_what_code_of_a_model_may_do() -> None:
    said = " ".join(describe(load_recipe("a_lol_hha"), 100, "model.policy").split())
    assert "Run code that came with a model, which can do all you can; none else." in said
