"""METEOR by hand, its alignment against all alignments, Porter's stems."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agents.evaluation import MeteorWeights, meteor_score
from llm_agents.evaluation.meteor import Alignment, align, tokens_of
from llm_agents.evaluation.porter import porter_stem

STEMS = {  # the examples of Porter's article, section 2
    "caresses": "caress", "ponies": "poni", "ties": "ti", "cats": "cat", "feed": "feed",
    "agreed": "agre", "plastered": "plaster", "bled": "bled", "motoring": "motor", "sing": "sing",
    "conflated": "conflat", "troubled": "troubl", "sized": "size", "hopping": "hop",
    "tanned": "tan", "falling": "fall", "hissing": "hiss", "fizzed": "fizz", "failing": "fail",
    "filing": "file", "happy": "happi", "sky": "sky", "relational": "relat",
    "conditional": "condit", "rational": "ration", "valenci": "valenc", "digitizer": "digit",
    "vietnamization": "vietnam", "predication": "predic", "operator": "oper",
    "feudalism": "feudal", "decisiveness": "decis", "hopefulness": "hope", "callousness": "callous",
    "formaliti": "formal", "sensitiviti": "sensit", "sensibiliti": "sensibl",
    "triplicate": "triplic", "formative": "form", "formalize": "formal", "electrical": "electr",
    "hopeful": "hope", "goodness": "good", "revival": "reviv", "allowance": "allow",
    "inference": "infer", "airliner": "airlin", "gyroscopic": "gyroscop", "adjustable": "adjust",
    "defensible": "defens", "irritant": "irrit", "replacement": "replac", "adjustment": "adjust",
    "dependent": "depend", "adoption": "adopt", "communism": "commun", "activate": "activ",
    "angulariti": "angular", "homologous": "homolog", "effective": "effect",
    "bowdlerize": "bowdler", "probate": "probat", "rate": "rate", "cease": "ceas",
    "controll": "control", "roll": "roll", "is": "is", "café": "café", "1960s": "1960s",
}  # fmt: skip


@pytest.mark.parametrize(("word", "stem"), STEMS.items())
def test_stems(word: str, stem: str) -> None:
    assert porter_stem(word) == stem


def test_words_and_marks_are_tokens() -> None:
    assert tokens_of("It's 5 o’clock, ANNA!") == ["it's", "5", "o’clock", ",", "anna", "!"]


@pytest.mark.parametrize(
    ("response", "reference", "expected"),
    [
        # m = 6 of 6, one chunk: F = 1, penalty = ½ (1/6)³
        ("the cat sat on the mat", "the cat sat on the mat", 1 - 0.5 / 216),
        # m = 6, both "the" where they lie best: on | the mat | sat … → "on", "the mat", "sat",
        # "the cat": four chunks
        ("on the mat sat the cat", "the cat sat on the mat", 1 - 0.5 * (3 / 6) ** 3),
        # m = 2 of 3 and 3, two chunks
        ("the cat sat", "the dog sat", 2 / 3 * (1 - 0.5)),
        # P = 1, R = 2/4: F = 0.5 / (0.9 + 0.05), one chunk of two
        ("a dog", "a dog ran away", 0.5 / 0.95 * (1 - 0.5 / 8)),
        # equal stems match
        ("cats were running", "cat runs", 2 / 3 / (0.9 * 2 / 3 + 0.1) * 0.5),
        ("x", "y", 0.0),
        ("", "y", 0.0),
        ("x", "", 0.0),
    ],
)
def test_scores_by_hand(response: str, reference: str, expected: float) -> None:
    if response.startswith("on the"):
        assert align(response.split(), reference.split()) == Alignment(6, 3)
    assert meteor_score(response, reference) == pytest.approx(expected, abs=1e-12)


def test_the_best_reference_counts_and_weights_matter() -> None:
    assert meteor_score("a dog", ["a cat", "a dog"]) == 1 - 0.5 / 8
    assert meteor_score("a dog", []) == 0.0
    flat = MeteorWeights(alpha=0.5, beta=1.0, gamma=0.0)
    assert meteor_score("a dog", "a dog ran", weights=flat) == pytest.approx(2 * 2 / 5)


def test_synonyms_match_if_they_are_known() -> None:
    known = {"car": {"automobile"}}
    assert meteor_score("car", "automobile") == 0.0
    assert meteor_score("car", "automobile", synonyms=lambda w: known.get(w, ())) == 0.5


def every_alignment(response: list[str], reference: list[str]) -> Alignment:
    """Return the best of all alignments."""
    options = [
        [None, *(place for place, other in enumerate(reference) if other == word)]
        for word in response
    ]
    best = (0, 0)
    for choice in product(*options):
        taken = [place for place in choice if place is not None]
        if len(set(taken)) < len(taken):
            continue
        chunks, last = 0, None
        for place in choice:
            chunks += place is not None and (last is None or place != last + 1)
            last = place
        best = min(best, (-len(taken), chunks))
    return Alignment(-best[0], best[1])


@settings(deadline=None)
@given(st.lists(st.sampled_from("xyz"), max_size=6), st.lists(st.sampled_from("xyz"), max_size=6))
def test_the_alignment_is_the_best_of_all(response: list[str], reference: list[str]) -> None:
    assert align(response, reference) == every_alignment(response, reference)
