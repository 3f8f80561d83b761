"""Evaluating a policy: answers, rewards, counts, files, comparison, table and picture."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from llm_agents import evaluation
from llm_agents.errors import UserError
from llm_agents.evaluation import (
    BootstrapConfig,
    Results,
    combine_seeds,
    compare,
    evaluate_policy,
    read_results,
    rescore,
    write_results,
)
from llm_agents.policies import LoraConfig
from llm_agents.rewards import CallableReward, SumReward
from llm_agents.types import GenerationConfig, Prompt, PromptBatch, Turn

TEXTS = ("Hi there", "How are you today?", "Tell me a long story about a dog", "Bye", "No")
SHORT = GenerationConfig(max_new_tokens=6, batch_size=2)


def length_reward(prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
    return [
        len(prompt[-1].text) / 100 + len(text) / 1000
        for prompt, text in zip(prompts, responses, strict=True)
    ]


def length_of_answer(prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
    del prompts
    return [len(text) / 100 for text in responses]


REWARD = CallableReward(length_reward, low=0.0, high=5.0, name="length", version="1")


def batches(policy: Any, texts: Sequence[str] = TEXTS, size: int = 2) -> list[PromptBatch]:
    found = []
    for start in range(0, len(texts), size):
        prompts = tuple((Turn("user", text),) for text in texts[start : start + size])
        ids = [policy.encode_prompt(prompt) for prompt in prompts]
        width = max(map(len, ids)) + 1
        padded = torch.zeros(len(ids), width, dtype=torch.int64)
        mask = padded.bool()
        for row, tokens in enumerate(ids):
            padded[row, width - len(tokens) :] = torch.tensor(tokens)
            mask[row, width - len(tokens) :] = True
        found.append(PromptBatch(prompts, padded, mask, torch.arange(start, start + len(ids))))
    return found


@pytest.fixture(scope="module")
def policy(make_policy: Callable[..., Any]) -> Any:
    torch.manual_seed(11)  # a fresh adapter draws its A matrices
    return make_policy("llama", lora=LoraConfig(r=2), weights=0.3)


@pytest.fixture(scope="module")
def results(policy: Any) -> Results:
    sets = {"first": batches(policy), "second": batches(policy, TEXTS[:3])}
    return evaluate_policy(policy, REWARD, sets, SHORT, name="tiny")


def test_rewards_are_of_the_answers_that_were_generated(policy: Any, results: Results) -> None:
    assert [(answer.test, answer.row) for answer in results.answers] == [
        *(("first", row) for row in range(5)),
        *(("second", row) for row in range(3)),
    ]
    for answer, text in zip(results.answers, TEXTS, strict=False):
        assert answer.prompt == (Turn("user", text),)
        assert text in answer.prefix
        assert answer.reward == pytest.approx(len(text) / 100 + len(answer.response) / 1000)
        ids = policy.generate([policy.encode_prompt(answer.prompt)], SHORT)[0]
        assert answer.num_tokens == len(ids)
        assert answer.is_truncated == (ids[-1] != policy.text.end_id)


def test_the_numbers_are_means_over_prompts(results: Results) -> None:
    assert [(test.name, test.num_prompts) for test in results.tests] == [
        ("first", 5),
        ("second", 3),
        ("all", 8),
    ]
    rewards = [answer.reward for answer in results.answers]
    assert results.tests[0].reward.mean == pytest.approx(sum(rewards[:5]) / 5)
    assert results.overall.reward.mean == pytest.approx(sum(rewards) / 8)
    assert results.overall.num_truncated == sum(answer.is_truncated for answer in results.answers)
    assert results.overall.num_tokens == sum(answer.num_tokens for answer in results.answers)


def test_earlier_answers_are_scored_by_another_judge(
    policy: Any, results: Results, tmp_path: Path
) -> None:
    write_results(tmp_path, results)
    other = CallableReward(length_of_answer, low=0.0, high=9.0, name="answer", version="2")
    found = rescore(read_results(tmp_path), other)
    sets = {"first": batches(policy), "second": batches(policy, TEXTS[:3])}
    directly = evaluate_policy(policy, other, sets, SHORT)
    assert [a.response for a in found.answers] == [a.response for a in directly.answers]
    assert [a.reward for a in found.answers] == [a.reward for a in directly.answers]
    assert [t.reward for t in found.tests] == [t.reward for t in directly.tests]
    assert found.reward.name == "answer"
    with pytest.raises(UserError, match="reward"):
        combine_seeds([found], minus=[results])


def test_batching_does_not_matter(policy: Any, results: Results) -> None:
    sets = {"first": batches(policy, size=5), "second": batches(policy, TEXTS[:3], size=1)}
    again = evaluate_policy(policy, REWARD, sets, replace(SHORT, batch_size=1), name="tiny")
    assert [answer.response for answer in again.answers] == [
        answer.response for answer in results.answers
    ]
    assert again.overall.reward == results.overall.reward


def test_dropout_is_off_and_the_mode_is_restored(
    make_policy: Callable[..., Any], results: Results
) -> None:
    torch.manual_seed(11)  # the same adapter as that of `results`
    policy = make_policy("llama", lora=LoraConfig(r=2, dropout=0.9), weights=0.3)
    policy.train()
    again = evaluate_policy(policy, REWARD, {"first": batches(policy)}, SHORT)
    assert [a.response for a in again.answers] == [a.response for a in results.answers[:5]]
    assert policy.training


def test_sampling_follows_the_seed(policy: Any) -> None:
    config = replace(SHORT, temperature=1.0)
    runs = [
        evaluate_policy(policy, REWARD, {"test": batches(policy)}, config, seed=seed)
        for seed in (1, 1, 2)
    ]
    texts = [[answer.response for answer in run.answers] for run in runs]
    assert texts[0] == texts[1] != texts[2]


def test_the_first_prompts_alone_can_be_used(policy: Any, results: Results) -> None:
    few = evaluate_policy(policy, REWARD, {"first": batches(policy)}, SHORT, num_prompts=3)
    assert [a.response for a in few.answers] == [a.response for a in results.answers[:3]]
    assert [test.name for test in few.tests] == ["first"]


def test_answers_that_are_empty_are_counted(policy: Any) -> None:
    reward = CallableReward(lambda prompts, responses: [0.0] * len(responses), 0, 1, "zero", "1")
    stop = replace(SHORT, max_new_tokens=1, stop_strings=tuple("abcdefghijklmnopqrstuvwxyz .\n"))
    found = evaluate_policy(policy, reward, {"test": batches(policy)}, stop)
    empty = sum(not answer.response for answer in found.answers)
    assert found.overall.num_empty == empty
    assert all(answer.num_words == 0 for answer in found.answers if not answer.response)


def test_parts_of_a_sum_are_reported(policy: Any) -> None:
    half = SumReward({"a": REWARD, "b": REWARD}, {"b": 0.5})
    found = evaluate_policy(policy, half, {"test": batches(policy)}, SHORT)
    parts = found.overall.parts
    assert list(parts) == ["a", "b"]
    assert found.overall.reward.mean == pytest.approx(1.5 * parts["a"].mean)


def test_a_generated_turn_of_the_user_is_cut_off(
    make_policy: Callable[..., Any], make_batch: Callable[..., Any]
) -> None:
    policy = make_policy("llama")
    prompt = (Turn("user", TEXTS[0]),)
    batch = make_batch(policy, [(prompt, "Yes. ### Human: Thanks")])
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        (-policy.sequence_log_probs(batch).mean()).backward()
        optimizer.step()
    config = GenerationConfig(max_new_tokens=40)
    ids = policy.generate([policy.encode_prompt(prompt)], config)[0]
    assert policy.decode(ids) == "Yes. ### Human: Thanks"  # or the test shows nothing
    found = evaluate_policy(policy, REWARD, {"test": batches(policy, TEXTS[:1])}, config)
    assert [answer.response for answer in found.answers] == ["Yes."]


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ({}, "at least one test set"),
        ({"harmless": []}, "the test set `harmless` has no prompt"),
        ({"all": []}, "may not be called `all`"),
    ],
)
def test_test_sets_are_checked(policy: Any, sets: dict[str, list[Any]], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        evaluate_policy(policy, REWARD, sets, SHORT)


def test_a_reward_that_is_not_a_number_stops_it(policy: Any) -> None:
    reward = CallableReward(
        lambda prompts, responses: [float("nan")] * len(responses), 0, 1, "broken", "1"
    )
    with pytest.raises(UserError, match="the reward `broken` returned nan for response 0"):
        evaluate_policy(policy, reward, {"test": batches(policy)}, SHORT)


def test_files_hold_everything(results: Results, tmp_path: Path) -> None:
    path = write_results(tmp_path / "run", results)
    assert {file.name for file in path.parent.iterdir()} == {
        "results.json",
        "results.png",
        "first_eval_results.jsonl",
        "second_eval_results.jsonl",
    }
    assert read_results(path.parent) == results
    assert read_results(path, with_texts=False).tests == results.tests
    values = json.loads(path.read_text())
    assert [answer["reward"] for answer in values["answers"]] == [a.reward for a in results.answers]
    assert "response" not in values["answers"][0]
    line = json.loads((path.parent / "first_eval_results.jsonl").read_text().splitlines()[1])
    assert line["test_index"] == 1
    assert line["suffix"] == results.answers[1].response
    assert line["turns"] == [{"role": "user", "text": TEXTS[1]}]


def test_numbers_that_json_lacks_become_null_in_the_details(
    results: Results, tmp_path: Path
) -> None:
    details = {"best": float("-inf"), "steps": [1, float("nan")], "kept": "last"}
    write_results(tmp_path, replace(results, details=details))
    expected = {"best": None, "steps": [1, None], "kept": "last"}
    assert read_results(tmp_path).details == expected


def test_reading_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`lightning evaluate` writes it"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text('{"format": 99}')
    with pytest.raises(UserError, match="is not in format 1"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        read_results(tmp_path)


def with_rewards(results: Results, rewards: Sequence[float], name: str = "other") -> Results:
    pairs = zip(results.answers, rewards, strict=True)
    answers = tuple(replace(answer, reward=reward) for answer, reward in pairs)
    return replace(results, name=name, answers=answers)


def test_a_paired_comparison_counts_and_subtracts(results: Results) -> None:
    first = with_rewards(results, [0.5, 0.5, 0.5, 0.5, 0.5, 0.1, 0.2, 0.3])
    second = with_rewards(results, [0.25, 0.75, 0.5, 0.0, 0.0, 0.1, 0.2, 0.3])
    found = {entry.name: entry for entry in compare(first, second)}
    assert (found["first"].wins, found["first"].ties, found["first"].losses) == (3, 1, 1)
    assert found["first"].reward.mean == pytest.approx((0.25 - 0.25 + 0 + 0.5 + 0.5) / 5)
    assert found["second"].ties == 3
    assert found["second"].reward.low == found["second"].reward.high == 0.0
    assert found["all"].reward.n == 8


def test_a_constant_difference_is_certain_however_prompts_vary(results: Results) -> None:
    second = with_rewards(results, [a.reward - 0.125 for a in results.answers])
    difference = compare(results, second)[-1].reward
    assert difference.low == pytest.approx(0.125)
    assert difference.excludes(0.0)


def test_rewards_of_two_models_are_not_compared(results: Results) -> None:
    other = replace(results, reward=replace(results.reward, version="2"))
    with pytest.raises(UserError, match="different rewards can't be compared"):
        compare(results, other)


def test_other_prompts_are_not_compared(results: Results) -> None:
    answers = tuple(replace(a, prompt=(Turn("user", "another"),)) for a in results.answers)
    with pytest.raises(UserError, match="the test files differ"):
        compare(results, replace(results, answers=answers))
    moved = tuple(replace(a, row=a.row + 100) for a in results.answers)
    with pytest.raises(UserError, match="no prompt in common"):
        compare(results, replace(results, answers=moved))


def test_seeds_are_combined_and_subtracted(results: Results) -> None:
    rewards = [answer.reward for answer in results.answers]
    ours = [with_rewards(results, [r + 0.1 + 0.01 * seed for r in rewards]) for seed in range(3)]
    theirs = [results] * 3
    means = combine_seeds(ours)
    assert list(means) == ["first", "second", "all"]
    assert means["all"].mean == pytest.approx(sum(rewards) / 8 + 0.11)
    difference = combine_seeds(ours, theirs, BootstrapConfig(samples=500))["all"]
    assert difference.mean == pytest.approx(0.11)
    assert difference.low == pytest.approx(0.1, abs=1e-9)
    assert difference.high == pytest.approx(0.12, abs=1e-9)
    with pytest.raises(UserError, match="one result a seed on both sides, got 3 and 1"):
        combine_seeds(ours, [results])


def test_the_table_fits_a_terminal_and_shows_the_numbers(results: Results) -> None:
    output = io.StringIO()
    evaluation.print_table(results, Console(file=output, width=80))
    text = output.getvalue()
    assert "…" not in text
    assert f"{results.overall.reward.mean:.4f}" in text
    assert "distinct-1/2/3" in text
    output = io.StringIO()
    evaluation.print_table(
        [results, with_rewards(results, [0.5] * 8)], Console(file=output, width=100)
    )
    assert "other" in output.getvalue()


def test_a_comparison_table_shows_shares(results: Results) -> None:
    output = io.StringIO()
    second = with_rewards(results, [9.0] * 4 + [0.0] * 4)
    table = evaluation.comparison_table("a", "b", compare(results, second))
    Console(file=output, width=100).print(table)
    assert "50.0%" in output.getvalue()


def test_the_picture_is_a_png_of_several_policies(results: Results, tmp_path: Path) -> None:
    path = evaluation.plot_results([results, with_rewards(results, [0.5] * 8)], tmp_path / "x.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == ["x.png"]


def test_the_datas_own_answers_are_measured_too(policy: Any, tmp_path: Path) -> None:
    """Coverage and density where prompts have knowledge, METEOR and gold where data answer."""
    knowledge = "Tell me a long story about a dog"
    prompt = (Turn("system", f"Knowledge: {knowledge}"), Turn("user", "Well?"))
    ids = policy.encode_prompt(prompt)
    rows = torch.tensor([ids, ids])
    batch = PromptBatch((prompt, prompt), rows, torch.ones_like(rows).bool(), torch.arange(2))
    words = CallableReward(length_of_answer, low=0.0, high=9.0, name="answer", version="2")
    reward = SumReward({"length": REWARD, "answer": words}, {"answer": 2.0})
    references = {"test": ["a long story", None]}
    found = evaluate_policy(
        policy, reward, {"test": [batch]}, SHORT, references=references, scores_references=True
    )
    (test,) = found.tests
    assert set(test.metrics) == {"coverage", "density", "meteor"}
    assert test.metrics["meteor"].n == 1
    assert test.metrics["coverage"].n == 2
    gold = test.gold
    assert gold is not None
    assert gold.reward is not None
    assert (gold.words.mean, gold.words.n) == (3.0, 1)
    assert (gold.metrics["coverage"].mean, gold.metrics["density"].mean) == (1.0, 3.0)
    assert gold.parts["answer"].mean == pytest.approx(0.12)
    expected = gold.parts["length"].mean + 2 * gold.parts["answer"].mean
    assert gold.reward.mean == pytest.approx(expected)
    write_results(tmp_path, found)
    assert read_results(tmp_path) == found
    again = rescore(read_results(tmp_path), words)
    assert again.tests[0].gold is not None
    assert again.tests[0].gold.reward == gold.parts["answer"]
    console = Console(file=io.StringIO(), width=120)
    evaluation.print_table(found, console)
    assert "the data's own" in console.file.getvalue()  # type: ignore[attr-defined]  # StringIO
    plain = evaluate_policy(policy, REWARD, {"test": batches(policy)}, SHORT)
    assert plain.tests[0].gold is None
    assert plain.tests[0].metrics == {}
