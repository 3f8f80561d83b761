"""Real responses beside wrong ones, and single responses for a reward model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_agents.data import ContrastPreparation
from llm_agents.data.base import DropReport, Example
from llm_agents.data.contrast import contrast_rows, subject_of
from llm_agents.data.reading import read_examples
from llm_agents.data.selection import RowRules, require_pairs
from llm_agents.errors import UserError
from llm_agents.rewards.comet import prompt_parts
from llm_agents.types import Prompt, Turn


def rows_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()]


@pytest.mark.parametrize("samples", ["comet", "wow"])
def test_a_wrong_response_is_of_another_subject(samples: str, tmp_path: Path) -> None:
    found = ContrastPreparation(samples=samples, negatives=2).run(tmp_path)
    examples, _ = read_examples("sample", samples=samples)
    real: dict[Prompt, set[str]] = {}
    owners: dict[str, list[Prompt]] = {}
    for example in examples:
        for text in example.responses:
            real.setdefault(example.prompt, set()).add(text.strip().lower())
            owners.setdefault(text, []).append(example.prompt)
    subjects: list[set[str]] = []
    for name in ("train.jsonl", "val.jsonl", "test.jsonl"):
        made, _ = read_examples(str(tmp_path / name))
        assert len(made) == found[name] > 0
        subjects.append({subject_of(example.prompt) for example in made})
        for example in made:
            right, *wrong = example.responses
            assert example.rewards == (1.0, 0.0, 0.0)
            assert example.preferred == 0
            assert example.prompt in owners[right]
            assert len(set(wrong)) == 2
            for text in wrong:
                assert text.strip().lower() not in real[example.prompt]
                mine = prompt_parts(example.prompt)
                theirs = [prompt_parts(prompt) for prompt in owners[text]]
                if mine is not None:  # another event with the same relation
                    assert any(parts is not None and parts[1] == mine[1] for parts in theirs)
    assert not subjects[0] & (subjects[1] | subjects[2])
    assert not subjects[1] & subjects[2]


def grounded(knowledge: str, said: str, response: str) -> Example:
    turns = (Turn("system", f"Knowledge: {knowledge}"), Turn("user", said))
    return Example(turns, (response,), (1.0,), 0, {})


def test_what_fits_the_same_knowledge_is_not_wrong() -> None:
    own = [grounded("cats purr", f"say {n}", f"cats {n}") for n in range(40)]
    found = contrast_rows([*own, grounded("dogs bark", "and dogs?", "dogs")], 1, seed=1)
    assert {str(row["responses"][1]) for row in found[:-1]} == {"dogs"}
    assert len(found) > 20


def test_a_response_that_the_prompt_really_has_is_not_wrong() -> None:
    own = grounded("cats purr", "and cats?", "I don't know")
    others = [grounded(f"fact {n}", f"{n}?", "i don't know ") for n in range(40)]
    assert contrast_rows([own, *others], 1, seed=1) == []
    found = contrast_rows(
        [own, *others, grounded("dogs bark", "and dogs?", "They bark")], 1, seed=1
    )
    assert {str(row["responses"][1]) for row in found[:-1]} == {"They bark"}


def test_the_same_seed_gives_the_same_rows(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / name).mkdir()
        ContrastPreparation(seed=seed).run(tmp_path / name)
    a, b, c = (rows_of(tmp_path / name / "train.jsonl") for name in "abc")
    assert a == b != c


def test_settings_are_checked() -> None:
    with pytest.raises(UserError, match="`negatives` of at least 1, got 0"):
        ContrastPreparation(negatives=0)
    with pytest.raises(UserError, match=r"`data\.rules\.min_responses` of at least 1, got 0"):
        RowRules(min_responses=0)


def test_single_responses_are_kept_when_asked_for() -> None:
    prompt = (Turn("user", "Hi"),)
    one = Example(prompt, ("a",), (1.0,), 0, {})
    two = Example(prompt, ("a", "b"), (1.0, 0.0), 0, {})
    same = Example(prompt, ("a", "a"), (1.0, 0.0), 0, {})
    report = DropReport(rows=3)
    assert require_pairs([one, two, same], RowRules(), report) == [two]
    assert report.dropped == {"a single response": 1, "identical responses": 1}
    assert require_pairs([one, two, same], RowRules(min_responses=1), report) == [one, two]
    assert require_pairs([one, two], RowRules(min_responses=3), DropReport()) == []
