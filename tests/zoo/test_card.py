"""Checking and merging model cards."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from llm_agents.errors import UserError
from llm_agents.zoo.card import check_card, merge_cards, split_card
from llm_agents.zoo.provenance import Provenance, describe

GOOD: dict[str, Any] = {
    "license": "apache-2.0",
    "library_name": "peft",
    "base_model": "org/name",
    "pipeline_tag": "text-generation",
    "datasets": ["Anthropic/hh-rlhf"],
    "tags": ["lora"],
    "model-index": [
        {
            "name": "x",
            "results": [
                {
                    "task": {"type": "text-generation"},
                    "dataset": {"type": "hha", "name": "test"},
                    "metrics": [{"type": "mean_reward", "value": 0.5}],
                }
            ],
        }
    ],
}


def card(body: str = "# x\n", **changes: Any) -> str:
    values = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    return f"---\n{yaml.safe_dump(values)}---\n{body}"


def test_a_good_card_passes() -> None:
    check_card(card())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"license": None}, "`license` is missing"),
        ({"base_model": "./ckpts/base"}, "`base_model` is `./ckpts/base`, not a Hub id"),
        ({"base_model": ["org/name", "/data/base"]}, "`base_model` is `/data/base`"),
        ({"datasets": ["./train.json"]}, "`datasets` names `./train.json`"),
        ({"body": " \n"}, "there is no text"),
    ],
)
def test_a_faulty_card_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        check_card(card(**changes))


@pytest.mark.parametrize("value", ["0.5 +/- 0.1", None, True])
def test_a_metric_must_be_a_number(value: object) -> None:
    index = [{"name": "x", "results": [dict(GOOD["model-index"][0]["results"][0])]}]
    index[0]["results"][0]["metrics"] = [{"type": "mean_reward", "value": value}]
    with pytest.raises(UserError, match=r"the metric `mean_reward` on `test` is .*, not a number"):
        check_card(card(**{"model-index": index}))


def test_all_faults_are_named_together() -> None:
    with pytest.raises(UserError, match=r"`license` is missing; .*`base_model`"):
        check_card(card(license=None, base_model="~/x"))


def test_a_card_without_front_matter_is_kept_as_text() -> None:
    values, body = split_card("# written by hand\n")
    assert values == {}
    assert body == "# written by hand\n"


def test_a_card_of_another_origin_is_replaced_but_keeps_its_keys() -> None:
    merged, body = split_card(merge_cards(card(), "---\nextra: 1\nlicense: mit\n---\nold text\n"))
    assert merged["extra"] == 1
    assert merged["license"] == "apache-2.0"
    assert body == "# x\n"


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (None, "The commit that it was trained with is not recorded."),
        (Provenance(), "The commit that it was trained with is not recorded."),
        (
            Provenance(commit="abc", training_seconds=90.0, device="x86_64"),
            "Trained at commit `abc` of llm_agents; training took 1.5 minutes (x86_64).",
        ),
        (
            Provenance(commit="abc", uncommitted_changes=True),
            "Trained at commit `abc` of llm_agents, with changes that it does not hold.",
        ),
    ],
)
def test_commit_and_minutes_are_said(known: Provenance | None, said: str) -> None:
    assert describe(known) == said
