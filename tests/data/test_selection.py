"""Cleaning, ranking order, splits by prompt, limits."""

from __future__ import annotations

import pytest

from llm_agents.data import DropReport, Example, PromptSplit, RowRules, split_by_prompt
from llm_agents.data.selection import clean, limit, order_responses, require_pairs
from llm_agents.errors import UserError
from llm_agents.types import Turn


def example(
    prompt: str,
    *responses: str,
    rewards: tuple[float, ...] | None = None,
    preferred: int = 0,
) -> Example:
    return Example((Turn("user", prompt),), responses, rewards, preferred, {})


def test_the_colon_rule_looks_at_either_response() -> None:
    rows = [
        example("1", "good:", "bad"),
        example("2", "good", "bad:"),
        example("3", "good: x", "bad"),
        example("4"),
    ]
    report = DropReport(rows=4)
    assert [e.prompt[0].text for e in clean(rows, drop_colon=True, report=report)] == ["3"]
    assert report.dropped == {"a response ends with ':'": 2, "no response": 1}
    assert report.kept == 1
    assert len(clean(rows, drop_colon=False, report=DropReport())) == 3


def test_file_order_puts_the_preferred_first_and_reward_order_sorts() -> None:
    rows = [
        example("1", "a", "b", "c", rewards=(0.0, 2.0, 1.0), preferred=2),
        example("2", "a", "b"),
    ]
    report = DropReport()
    first, second = order_responses(rows, RowRules(), report)
    assert first.responses == ("c", "a", "b")
    assert first.rewards == (1.0, 0.0, 2.0)
    assert first.preferred == 0
    assert second.responses == ("a", "b")
    assert report.changed == {"rows whose reward prefers another response": 1}

    report = DropReport()
    (only,) = order_responses(rows, RowRules(rank_by="reward"), report)
    assert only.responses == ("b", "c", "a")
    assert only.rewards == (2.0, 1.0, 0.0)
    assert only.preferred == 0
    assert report.dropped == {"no rewards to rank by": 1}


def test_equal_rewards_keep_the_preferred_first() -> None:
    rows = [example("1", "a", "b", rewards=(1.0, 1.0), preferred=1)]
    report = DropReport()
    (only,) = order_responses(rows, RowRules(rank_by="reward"), report)
    assert only.responses == ("b", "a")
    assert not report.changed


def test_what_cannot_be_ranked_is_left_out() -> None:
    rows = [example("1", "a", "a"), example("2", "a"), example("3", "a", "b")]
    report = DropReport()
    assert len(require_pairs(rows, RowRules(), report)) == 1
    assert report.dropped == {"identical responses": 1, "a single response": 1}
    assert len(require_pairs(rows, RowRules(drop_identical=False), DropReport())) == 2


def test_no_prompt_falls_on_both_sides_of_a_split() -> None:
    rows = [example(str(i % 150), f"answer {i}") for i in range(300)]
    train, held_out = split_by_prompt(rows, PromptSplit(seed=1, held_out=0.3))
    prompts = [{e.prompt for e in part} for part in (train, held_out)]
    assert not prompts[0] & prompts[1]
    assert len(train) + len(held_out) == 300
    assert 60 <= len(held_out) <= 120
    assert train == [e for e in rows if e in train]


def test_a_split_depends_on_prompt_and_seed_alone() -> None:
    rows = [example(str(i), "a") for i in range(200)]
    split = PromptSplit(seed=1, held_out=0.3)
    _, held_out = split_by_prompt(rows, split)
    _, of_half = split_by_prompt(rows[::2][::-1], split)
    assert {e.prompt for e in of_half} == {e.prompt for e in held_out} & {
        e.prompt for e in rows[::2]
    }
    _, other = split_by_prompt(rows, PromptSplit(seed=2, held_out=0.3))
    assert {e.prompt for e in other} != {e.prompt for e in held_out}
    assert split_by_prompt(rows, PromptSplit(0, 0.0))[1] == []
    assert split_by_prompt(rows, PromptSplit(0, 1.0))[0] == []
    with pytest.raises(UserError, match=r"`data\.split_by_prompt\.held_out` from 0 to 1, got 1\.5"):
        PromptSplit(0, 1.5)


def test_a_limit_keeps_the_same_prompts_whatever_the_order() -> None:
    rows = [example(str(i), "a") for i in range(50)]
    report = DropReport(rows=50)
    kept = limit(rows, 10, report)
    assert report.dropped == {"over the limit": 40}
    assert kept == [e for e in rows if e in kept]
    assert {e.prompt for e in limit(rows[::-1], 10, DropReport())} == {e.prompt for e in kept}
    assert limit(rows, None, report) == rows
    assert limit(rows, 60, report) == rows
    with pytest.raises(ValueError, match="at least 1, got 0"):
        limit(rows, 0, report)


def test_reports_add_up_and_leave_out_zeros() -> None:
    one, two = DropReport(rows=3), DropReport(rows=2)
    one.dropped["x"] += 1
    two.dropped["x"] += 1
    two.dropped["y"] += 0
    two.changed["prompts truncated"] += 2
    both = one + two
    assert both.as_dict() == {
        "rows": 5,
        "kept": 3,
        "dropped": {"x": 2},
        "changed": {"prompts truncated": 2},
    }
    assert str(both) == "3 of 5 rows kept; 2 dropped (x); 2 prompts truncated"


@pytest.mark.parametrize("name", ["min_responses", "max_train", "max_validation"])
def test_limits_of_rows_below_one_name_the_setting(name: str) -> None:
    with pytest.raises(UserError, match=rf"`data\.rules\.{name}` of at least 1, got 0"):
        RowRules(**{name: 0})
