from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llm_agents import doctor
from llm_agents.cli import main
from llm_agents.doctor import Finding, _answer, _command, examine, requirements, size


def by_subject() -> dict[str, Finding]:
    return {finding.subject: finding for finding in examine(offline=True)}


def test_it_looks_at_everything() -> None:
    found = by_subject()
    for subject in ("Python", "torch", "accelerator", "memory", "cache", "Hub", "Hub token"):
        assert subject in found
    assert "sandbox" in found
    assert found["Python"].text.endswith(sys.executable)
    assert "offline" in found["Hub"].text


def test_every_lack_has_a_cure() -> None:
    assert [f for f in examine(offline=True) if f.is_fault and not f.cure] == []


def test_requirements_name_their_extra() -> None:
    found = {requirement.name: extra for requirement, extra in requirements()}
    assert found["torch"] is None
    assert found["bitsandbytes"] == "quantized"
    assert found["nle"] == "nethack"


def test_the_tested_versions_are_those_of_the_constraints() -> None:
    assert doctor.tested_versions()["torch"] == "2.13.0"
    assert "huggingface-hub" in doctor.tested_versions()


def test_a_cache_that_cannot_be_written_is_a_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_AGENTS_CACHE", str(tmp_path / "new" / "cache"))
    assert str(tmp_path / "new" / "cache") in by_subject()["cache"].text


@pytest.mark.parametrize(
    ("text", "verdict", "word"),
    [
        ("from llm_agents.cli import main", "good", ""),
        ("from lightning_sdk.cli import main", "note", "lightning-sdk's"),
        ("#!/bin/sh", "note", "another package's"),
    ],
)
def test_it_says_whose_program_lightning_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, verdict: str, word: str
) -> None:
    script = tmp_path / "lightning"
    script.write_text(text)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = _command()
    assert found.verdict == verdict
    assert word in found.text


def test_no_program_called_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not on the path" in _command().text


def test_a_hub_that_does_not_answer_is_told_why() -> None:
    assert isinstance(_answer("http://127.0.0.1:9"), str)
    assert isinstance(_answer("no address"), str)


def test_the_verb_prints_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor", "--offline"])
    said = capsys.readouterr().out
    assert status == int("LACK" in said)
    assert "smollm2-135m-instruct" in said


def test_sizes_in_units() -> None:
    assert [size(n) for n in (0, 2048, 3 * 2**20, 5 * 2**40)] == [
        "0 B",
        "2.0 KiB",
        "3.0 MiB",
        "5120.0 GiB",
    ]
