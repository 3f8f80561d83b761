"""Annotators that ask a language model: what is asked, how often, and what becomes of answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agents.errors import UserError
from llm_agents.policies import LanguagePolicy
from llm_agents.rewards import (
    ChoiceAnnotator,
    GeneratedAnnotator,
    PointwiseAnnotator,
    PolicyBackend,
)
from llm_agents.rewards.annotation_backends import (
    answers_from_likeliest,
    file_name_of,
    weights_digest,
)
from llm_agents.rewards.annotation_prompts import PairPrompts
from llm_agents.rewards.annotator import Pairs
from llm_agents.types import GenerationConfig, Turn
from tests.rewards.annotation_backends import RuleBackend

CAPTIONS = [("kill", "wall"), ("wall", "kill"), ("", ""), ("kill", "kill"), ("wall", "hurt")]
GREEDY = GenerationConfig(max_new_tokens=4)


def captions_of(text: str) -> tuple[str, str]:
    """Return the two captions of a chat question."""
    one, two = (text.partition(f'"description_{n}":\n"')[2].partition('"\n}')[0] for n in (1, 2))
    return one, two


def better_of(text: str) -> str:
    """Return the verdict of a judge who ranks kill over wall over hurt."""
    order = ["hurt", "wall", "kill"]
    one, two = (order.index(caption) for caption in captions_of(text))
    return f'Well. ("best_description": {1 if one > two else 2 if two > one else None})'


# --- generated


def test_equal_captions_are_not_asked_about() -> None:
    backend = RuleBackend(reply=lambda text, seed: better_of(text))
    found = GeneratedAnnotator(backend).annotate(Pairs.of_captions(CAPTIONS))
    assert found.preferences.tolist() == [0, 1, 2, 2, 0]
    assert len(backend.asked) == 3
    assert found.counts == {"equal_captions": 2, "asked": 3}
    assert sorted(found.conversations) == [0, 1, 4]


@pytest.mark.parametrize("kind", [GeneratedAnnotator, ChoiceAnnotator, PointwiseAnnotator])
def test_a_batch_of_equal_captions_asks_nobody(kind: Any) -> None:
    backend = RuleBackend()
    found = kind(backend).annotate(Pairs.of_captions([("a", "a"), ("", "")]))
    assert found.preferences.tolist() == [2, 2]
    assert backend.calls == 0
    assert kind(backend).annotate(Pairs.of_captions([])).preferences.tolist() == []


def test_a_reply_without_verdict_is_asked_about_once_more() -> None:
    def reply(text: str, seed: int) -> str:
        if "in the end" not in text:  # the first question
            return "" if "wall" in text else "Hard to say."
        return "nothing" if len(backend.asked) > 5 else '("best_description": 2)'

    backend = RuleBackend(reply=reply)
    found = GeneratedAnnotator(backend).annotate(Pairs.of_captions([("a", "b"), ("wall", "c")]))
    assert found.preferences.tolist() == [1, 1]
    assert found.counts == {"asked": 2, "asked_again": 2}
    assert [turn.role for turn in backend.asked[-1]] == ["system", "user", "assistant", "user"]
    silent = RuleBackend(reply=lambda text, seed: "I can't tell.")
    found = GeneratedAnnotator(silent).annotate(Pairs.of_captions([("a", "b")]))
    assert found.preferences.tolist() == [3]
    assert found.counts == {"asked": 1, "asked_again": 1, "unreadable": 1}
    assert silent.calls == 2  # one retry, not more
    assert found.conversations[0].count("I can't tell.") == 2
    assert found.conversations[0].startswith("[system]\nYou are an expert on NetHack")


def test_the_last_verdict_can_count() -> None:
    text = '("best_description": 1) or ("best_description": 2): ("best_description": 2)'
    backend = RuleBackend(reply=lambda asked, seed: text)
    pairs = Pairs.of_captions([("a", "b")])
    assert GeneratedAnnotator(backend).annotate(pairs).preferences.tolist() == [0]
    assert GeneratedAnnotator(backend, match="last").annotate(pairs).preferences.tolist() == [1]


def test_both_orders_must_agree() -> None:
    def reply(text: str, seed: int) -> str:
        if "same" in text:
            return '("best_description": None)'
        if "mumble" in text or "in the end" in text:
            return "?"
        return better_of(text) if "kill" in text else '("best_description": 1)'

    backend = RuleBackend(reply=reply)
    pairs = Pairs.of_captions(
        [("kill", "wall"), ("wall", "kill"), ("x", "y"), ("same", "x"), ("mumble", "x")]
    )
    annotator = GeneratedAnnotator(backend, both_orders=True)
    found = annotator.annotate(pairs)
    assert found.preferences.tolist() == [0, 1, 2, 2, 3]
    # first place: kill|wall yes, wall|kill no and the same exchanged, x|y yes twice
    report = annotator.report(found.counts)
    assert report["first_place_share"] == pytest.approx(4 / 6)
    assert report["order_agreement"] == pytest.approx(3 / 4)  # x|y contradicts itself
    assert (report["asked"], report["asked_again"], report["unreadable"]) == (10, 2, 2)
    assert "=== sides exchanged ===" in found.conversations[0]


def test_every_pair_has_a_seed_of_its_own() -> None:
    seeds: dict[str, int] = {}

    def reply(text: str, seed: int) -> str:
        seeds[text] = seed
        return '("best_description": 1)'

    annotator = GeneratedAnnotator(RuleBackend(reply=reply))
    captions = [(f"a{i}", f"b{i}") for i in range(6)]
    annotator.annotate(Pairs.of_captions(captions))
    whole = dict(seeds)
    seeds.clear()
    annotator.annotate(Pairs.of_captions(captions[4:], start=4))
    assert len(set(whole.values())) == 6
    assert seeds == {text: whole[text] for text in seeds}
    assert len(seeds) == 2
    GeneratedAnnotator(RuleBackend(reply=reply), seed=1).annotate(Pairs.of_captions(captions))
    assert not set(seeds.values()) & set(whole.values())


def test_a_policys_reply_does_not_depend_on_the_batch(make_policy: Callable[..., Any]) -> None:
    backend = PolicyBackend("tiny-random-qwen2")
    prompts = [(Turn("user", f"Say {word}."),) for word in ("a", "bcd", "efghi", "j")]
    sampling = GenerationConfig(max_new_tokens=8, temperature=1.0, batch_size=3)
    whole = backend.generate(prompts, "chat", sampling, [5, 6, 7, 8])
    part = backend.generate(prompts[2:3], "chat", sampling, [7])
    assert part == whole[2:3]
    assert backend.generate(prompts, "chat", sampling, [1, 2, 3, 4]) != whole
    assert backend.generate([], "chat", sampling, []) == []
    with pytest.raises(ValueError, match="expected 4 generators, one a prompt, got 1"):
        backend.generate(prompts, "chat", sampling, [5])


# --- choice


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(["hurt", "wall", "kill", "idle"]), min_size=2, max_size=2, unique=True
    ),
    st.floats(-3, 3),
)
def test_favor_for_a_place_adds_up_to_nothing(pair: list[str], favor: float) -> None:
    worth = {"hurt": 0.0, "idle": 1.0, "wall": 2.0, "kill": 3.0}

    def lead(text: str) -> float:
        one, two = captions_of(text)
        return worth[one] - worth[two] + favor

    annotator = ChoiceAnnotator(RuleBackend(lead=lead))
    first, second = pair
    both = annotator.annotate(Pairs.of_captions([(first, second), (second, first)]))
    expected = 0 if worth[first] > worth[second] else 1
    assert both.preferences.tolist() == [expected, 1 - expected]
    assert both.counts["asked"] == 2  # the pair once in each order, whichever way it is shown
    report = annotator.report(both.counts)
    gap = abs(worth[first] - worth[second])
    if abs(favor) > gap + 1e-6:
        assert report["order_agreement"] == 0.0
        assert report["first_place_share"] == (1.0 if favor > 0 else 0.0)
    if abs(favor) < gap - 1e-6:
        assert (report["order_agreement"], report["first_place_share"]) == (1.0, 0.5)


def test_choice_ties_within_the_margin_and_knows_when_it_is_not_answered() -> None:
    leads = {"a": 1.0, "b": 0.6, "odd": math.nan}
    backend = RuleBackend(
        lead=lambda text: leads[captions_of(text)[0]] - leads[captions_of(text)[1]]
    )
    pairs = Pairs.of_captions([("a", "b"), ("b", "a"), ("a", "odd")])
    assert ChoiceAnnotator(backend).annotate(pairs).preferences.tolist() == [0, 1, 3]
    wide = ChoiceAnnotator(backend, margin=0.5)
    found = wide.annotate(pairs)
    assert found.preferences.tolist() == [2, 2, 3]
    assert wide.report(found.counts)["unreadable"] == 1
    with pytest.raises(UserError, match=r"`margin` of at least 0, got -1"):
        ChoiceAnnotator(backend, margin=-1)


def plain_log_prob(policy: LanguagePolicy, text: str, answer: str) -> float:
    """Return log π(answer | text) of one sequence, computed with transformers alone."""
    prompt = policy.text.encode_text(text, begin=True)
    whole = policy.text.encode_text(
        f"{text}{'' if text[-1] == chr(10) else ' '}{answer}", begin=True
    )
    assert whole[: len(prompt)] == prompt
    with torch.no_grad():
        logits = policy.causal_model(input_ids=torch.tensor([whole])).logits[0].double()
    log_probs = logits.log_softmax(-1)
    return sum(float(log_probs[i - 1, whole[i]]) for i in range(len(prompt), len(whole)))


@pytest.mark.parametrize("template", ["chat", "plain"])
def test_choice_is_the_difference_of_plain_log_probs(template: Any) -> None:
    backend = PolicyBackend("tiny-random-qwen2")
    annotator = ChoiceAnnotator(backend, template=template)
    annotator.prompts = prompts = PairPrompts("zeroknowledge", "default", template)
    policy = backend.policy
    d = 0.0
    for one, two, sign in (("You hit it.", "Ouch!", 0.5), ("Ouch!", "You hit it.", -0.5)):
        text = policy.text.render(prompts.choice(one, two), template)
        d += sign * (plain_log_prob(policy, text, "1") - plain_log_prob(policy, text, "2"))
    annotator.compare([])
    pairs = Pairs.of_captions([("You hit it.", "Ouch!")])
    preference = annotator.annotate(pairs).preferences.tolist()
    one, two = annotator.memory.get(("Ouch!", "You hit it.")) or (0.0, 0.0)
    assert 0.5 * (one + two) == pytest.approx(-d, abs=1e-4)
    assert preference == [0 if d > 0 else 1]


# --- pointwise


def worth_of(text: str) -> float:
    caption = text.rpartition(': "')[2].partition('"\n')[0]
    return {"kill": 3.0, "hit": 2.95, "": -1.0, "hurt": -2.0, "odd": math.nan}[caption]


def test_pointwise_asks_once_about_each_caption() -> None:
    backend = RuleBackend(lead=worth_of)
    annotator = PointwiseAnnotator(backend, margin=0.1, version="default")
    captions = [("kill", ""), ("hurt", "kill"), ("kill", "hit"), ("", "hurt"), ("odd", "kill")]
    found = annotator.annotate(Pairs.of_captions(captions * 50))
    assert found.preferences.tolist() == [0, 1, 2, 0, 3] * 50
    assert len(backend.asked) == 5
    assert found.counts["asked"] == 5
    again = annotator.annotate(Pairs.of_captions([("hit", "hurt")]))
    assert again.preferences.tolist() == [0]
    assert len(backend.asked) == 5
    report = annotator.report(found.counts)
    assert report["highest"] == [("kill", 3.0), ("hit", 2.95), ("", -1.0), ("hurt", -2.0)]
    assert report["lowest"] == [("hurt", -2.0), ("", -1.0), ("hit", 2.95), ("kill", 3.0)]
    assert report["captions_known"] == 4  # what was not answered is asked about again


def test_pointwise_scores_are_plain_log_odds() -> None:
    backend = PolicyBackend("tiny-random-llama")
    annotator = PointwiseAnnotator(backend, version="default", num_examples=4)
    texts = ["You kill the newt!", "", "Ouch!", "You kill the newt!"]
    scores = annotator.score(texts)
    for text, score in zip(texts, scores, strict=True):
        asked = annotator.prompts[0].question(text)[0].text
        good, bad = (plain_log_prob(backend.policy, asked, word) for word in ("good", "bad"))
        assert score == pytest.approx(good - bad, abs=2e-4)
    assert scores[0] == scores[3]
    assert len(set(scores)) == 3


def test_both_wordings_are_averaged(tmp_path: Path) -> None:
    def lead(text: str) -> float:
        caption = text.rpartition(': "')[2].partition('"\n')[0]
        leads = {"a": (1.0, -3.0), "b": (0.5, 0.5), "c": (5.0, math.nan)}[caption]
        return leads["Screen" in text]

    backend = RuleBackend(lead=lead)
    annotator = PointwiseAnnotator(backend)
    annotator.keep_answers(tmp_path / "answers.jsonl")
    found = annotator.annotate(Pairs.of_captions([("a", "b"), ("b", "a"), ("b", "c")]))
    assert found.preferences.tolist() == [1, 0, 3]  # (1 − 3) / 2 < ½
    assert annotator.score(["a", "b"]) == [-1.0, 0.5]
    assert found.counts["asked"] == len(backend.asked) == 6
    assert annotator.name_parts()["version"] == "both"
    again = PointwiseAnnotator(RuleBackend())
    again.keep_answers(tmp_path / "answers.jsonl")
    assert again.score(["a", "b"]) == [-1.0, 0.5]
    for version, score in (("default", 1.0), ("reworded", -3.0)):
        one = PointwiseAnnotator(backend, version=version)  # type: ignore[arg-type]
        assert one.score(["a"]) == [score]
    with pytest.raises(UserError, match="expected `version`"):
        PointwiseAnnotator(backend, version="x")  # type: ignore[arg-type]


def test_answers_survive_in_their_file(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    captions = [("kill", ""), ("hurt", "odd"), ("kill", "hurt")]
    one = PointwiseAnnotator(RuleBackend(lead=worth_of), version="default")
    one.keep_answers(path)
    expected = one.annotate(Pairs.of_captions(captions)).preferences.tolist()
    with path.open("a") as file:
        file.write('{"asked": ["torn')  # a process that was killed
    backend = RuleBackend(lead=worth_of)
    two = PointwiseAnnotator(backend, version="default")
    two.keep_answers(path)
    assert two.annotate(Pairs.of_captions(captions)).preferences.tolist() == expected
    assert [worth_of(p[-1].text) for p in backend.asked] == [pytest.approx(math.nan, nan_ok=True)]
    assert "torn" not in path.read_text()
    odd = "caf\x85 \u2028 \x0b"  # what other readers take for line ends
    two.memory.put({(odd,): (1.5,)})
    three = PointwiseAnnotator(RuleBackend())
    three.keep_answers(path)
    assert three.score([odd]) == [1.5]
    path.write_text(path.read_text() + '{"asked": 3}\n')
    with pytest.raises(UserError, match=r"line 5 of .*answers\.jsonl` holds no answer"):
        PointwiseAnnotator(RuleBackend()).keep_answers(path)


def test_choice_keeps_its_answers_too(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    pairs = Pairs.of_captions([("a", "b"), ("b", "a")])
    one = ChoiceAnnotator(RuleBackend(lead=lambda text: 1.0 if captions_of(text)[0] == "b" else -2))
    one.keep_answers(path)
    assert one.annotate(pairs).preferences.tolist() == [1, 0]
    silent = RuleBackend()
    two = ChoiceAnnotator(silent)
    two.keep_answers(path)
    assert two.annotate(pairs).preferences.tolist() == [1, 0]
    assert silent.asked == []


# --- models


def test_names_and_digests_tell_models_apart(make_policy: Callable[..., Any]) -> None:
    assert file_name_of("org/Llama-3.2-1B") == "llama-3-2-1b"  # a dot would end an array's name
    assert file_name_of("some/folder/my model") == "my-model"
    with pytest.raises(UserError, match="a model's name"):
        file_name_of("...")
    llama = PolicyBackend("tiny-random-llama")
    assert llama.identity() == PolicyBackend("tiny-random-llama").identity()
    policy = make_policy("llama", trainable=False)
    before = weights_digest(policy)
    assert before == llama.identity()["weights"]
    with torch.no_grad():
        next(policy.causal_model.model.layers[1].parameters())[0, 0] += 1e-3
    assert weights_digest(policy) != before


def test_identity_changes_with_what_is_asked() -> None:
    backend = RuleBackend()
    annotators = [
        PointwiseAnnotator(backend),
        PointwiseAnnotator(backend, goal="combat"),
        PointwiseAnnotator(backend, version="default"),
        PointwiseAnnotator(backend, version="reworded"),
        PointwiseAnnotator(backend, template="chat"),
        PointwiseAnnotator(backend, margin=0.2),
        PointwiseAnnotator(backend, num_examples=3),
        PointwiseAnnotator(RuleBackend(model="other")),
        ChoiceAnnotator(backend),
        ChoiceAnnotator(backend, margin=0.2),
        GeneratedAnnotator(backend),
        GeneratedAnnotator(backend, match="last"),
        GeneratedAnnotator(backend, both_orders=True),
        GeneratedAnnotator(backend, seed=1),
        GeneratedAnnotator(backend, sampling=GREEDY),
    ]
    assert len({str(annotator.identity()) for annotator in annotators}) == len(annotators)
    batches = GenerationConfig(4096, 0.1, 0.95, 50, batch_size=2)
    same = GeneratedAnnotator(backend, sampling=batches)  # how many at once does not matter
    assert same.identity() == GeneratedAnnotator(backend).identity()
    assert np.all([a.name_parts()["model"] in ("rule", "other") for a in annotators])


def test_answers_are_read_off_the_likeliest_tokens() -> None:
    likeliest = {" good": math.log(0.5), "good": math.log(0.1), " bad": math.log(0.2), "the": -5.0}
    good, bad = answers_from_likeliest(likeliest, ("good", "bad"))
    assert (good, bad) == (pytest.approx(math.log(0.6)), pytest.approx(math.log(0.2)))
    one, two = answers_from_likeliest({"1": -0.1, "\n": -4.0}, ("1", "2"))
    assert (one, two) == (-0.1, -4.0)  # no more likely than the least likely one listed
    assert all(map(math.isnan, answers_from_likeliest({"I": -0.1, " ": -2.0}, ("1", "2"))))
    pieces = answers_from_likeliest({"y": -1.0, "n": -2.0}, ("yes", "no"))
    assert pieces == [-1.0, -2.0]
    both = answers_from_likeliest({"un": -1.0, "like": -0.5}, ("unlike", "undone"))
    assert all(map(math.isnan, both))  # "un" begins both


@pytest.mark.parametrize("kind", [GeneratedAnnotator, ChoiceAnnotator, PointwiseAnnotator])
def test_the_bar_s_total_is_what_is_answered(kind: Any) -> None:
    captions = [("a", "b"), ("b", "a"), ("a", "a"), ("c", "a"), ("c", "b"), ("a", "b")]
    pairs = Pairs.of_captions(captions)
    backend = RuleBackend(reply=lambda text, seed: '("best_description": 1)', lead=lambda text: 1.0)
    annotator = kind(backend)
    expected = {GeneratedAnnotator: 5, ChoiceAnnotator: 2 * 3, PointwiseAnnotator: 2 * 3}[kind]
    assert annotator.num_questions(pairs) == expected
    parts = list(annotator.annotate_each(pairs))
    assert sum(part.answers for part in parts) == expected == len(backend.asked)
    assert sorted(place for part in parts for place in part.places.tolist()) == list(range(6))
    left = 5 if kind is GeneratedAnnotator else 0  # replies belong to pairs, answers are kept
    assert annotator.num_questions(pairs) == left
