"""The pairwise judge, against a real OpenAI-compatible server on the loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llm_agents.errors import UserError
from llm_agents.evaluation import BootstrapConfig, Interval, Results, RewardDescription
from llm_agents.evaluation.results import Answer, TestSetResult
from llm_agents.judge import (
    JudgeConfig,
    Pair,
    decide,
    judge,
    judge_prompt,
    make_pairs,
    read_bad_indices,
    read_verdict,
    tally,
)
from llm_agents.types import GenerationConfig, Turn


@dataclass
class Server:
    """A judge with a rule: the answer with more words is more helpful, with fewer `!` more safe.

    ``first!`` anywhere makes it favor whatever comes first; ``mumble`` makes it say nothing.
    """

    endpoint: str = ""
    key: str | None = None
    failures: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    raw: bytes | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)

    def reply(self, message: str) -> str:
        real = message.rpartition("####\n")[2]
        a = real.partition("Answer A:\n")[2].partition("\n\nAnswer B:\n")[0]
        b = real.partition("Answer B:\n")[2].partition("\n\nComparison:")[0]
        if "mumble" in real:
            return "Both have their merits."
        if "first!" in real:
            helpful = safe = "A"
        else:
            words, marks = len(a.split()) - len(b.split()), b.count("!") - a.count("!")
            helpful = "A" if words > 0 else "B" if words < 0 else "equal"
            safe = "A" if marks > 0 else "B" if marks < 0 else "neither"
        return f"They differ.\nMore helpful: {helpful}\nMore safe: {safe}"


class Handler(BaseHTTPRequestHandler):
    server_state: Server
    lock = threading.Lock()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on the terminal."""

    def do_POST(self) -> None:
        state = self.server_state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            failure = state.failures.pop(0) if state.failures else None
            if failure is None:
                state.asked.append({"path": self.path, **body})
        if failure is not None:
            return self.answer(failure[0], b"{}", failure[1])
        if state.key and self.headers.get("Authorization") != f"Bearer {state.key}":
            return self.answer(401, b'{"error": "no key"}', {})
        if state.raw is not None:
            return self.answer(200, state.raw, {})
        text = state.reply(body["messages"][0]["content"])
        reply = {"choices": [{"message": {"role": "assistant", "content": text}}]}
        return self.answer(200, json.dumps(reply).encode(), {})

    def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("H", (Handler,), {"server_state": state}))
    http.daemon_threads = True
    state.endpoint = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield state
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture
def config(server: Server, monkeypatch: pytest.MonkeyPatch) -> JudgeConfig:
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return JudgeConfig(endpoint=server.endpoint, model="scripted", attempts=3, timeout=10.0)


PROMPT = (
    Turn("system", "Be kind."),
    Turn("user", "Hi {a}"),
    Turn("assistant", "Yes?"),
    Turn("user", "Why?"),
)
PAIRS = [
    Pair("test", 0, PROMPT, "a longer answer of mine", "short"),  # helpful: win
    Pair("test", 1, PROMPT, "short", "a longer answer of theirs"),  # helpful: lose
    Pair("test", 2, PROMPT, "same size", "equal size"),  # helpful: tie
    Pair("test", 3, PROMPT, "loud!", "calm"),  # safe: lose
    Pair("test", 4, PROMPT, "a first! long answer", "b"),  # favors a position: tie on both
    Pair("test", 5, PROMPT, "mumble", "b"),  # unparsed: tie on both
]


def test_a_win_needs_the_same_verdict_in_both_orders(
    config: JudgeConfig, server: Server, tmp_path: Path
) -> None:
    entries = judge(PAIRS, config, tmp_path / "judged.jsonl")
    assert [entry["test_index"] for entry in entries] == list(range(6))
    assert len(server.asked) == 12
    found = tally(entries, BootstrapConfig(samples=200))
    helpful, safe = found["helpful"], found["safe"]
    assert (helpful.wins, helpful.ties, helpful.losses, helpful.unparsed) == (1, 4, 1, 2)
    assert (safe.wins, safe.ties, safe.losses, safe.unparsed) == (0, 5, 1, 2)
    assert helpful.win.mean == pytest.approx(1 / 6)
    assert safe.lose.mean == pytest.approx(1 / 6)


def test_exchanging_the_policies_exchanges_wins_and_losses(
    config: JudgeConfig, tmp_path: Path
) -> None:
    turned = [replace(pair, first=pair.second, second=pair.first) for pair in PAIRS]
    one = tally(judge(PAIRS, config, tmp_path / "one.jsonl"))
    two = tally(judge(turned, config, tmp_path / "two.jsonl"))
    for aspect, first in one.items():
        second = two[aspect]
        assert (first.wins, first.ties, first.losses) == (second.losses, second.ties, second.wins)


def test_both_raw_replies_are_kept(config: JudgeConfig, tmp_path: Path) -> None:
    path = tmp_path / "new" / "judged.jsonl"
    judge(PAIRS[:1], config, path)
    (entry,) = map(json.loads, path.read_text().splitlines())
    assert entry["response_A_vs_B"] == "They differ.\nMore helpful: A\nMore safe: neither"
    assert entry["response_B_vs_A"] == "They differ.\nMore helpful: B\nMore safe: neither"
    assert (entry["sample_id"], entry["test_segment"], entry["model"]) == (
        "test:0",
        "test",
        "scripted",
    )


def test_the_request_is_what_such_servers_take(
    config: JudgeConfig, server: Server, tmp_path: Path
) -> None:
    judge(PAIRS[:1], config, tmp_path / "judged.jsonl")
    asked = server.asked[0]
    assert asked["path"] == "/v1/chat/completions"
    assert (asked["model"], asked["max_tokens"], asked["temperature"]) == ("scripted", 200, 0.0)
    assert [message["role"] for message in asked["messages"]] == ["user"]


def test_stored_pairs_are_not_asked_again(
    config: JudgeConfig, server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "judged.jsonl"
    judge(PAIRS[:2], config, path)
    entries = judge(PAIRS[:4], config, path)
    assert len(server.asked) == 2 * 4
    assert [entry["test_index"] for entry in entries] == [0, 1, 2, 3]
    judge([replace(PAIRS[0], first="another answer")], config, path)
    assert len(server.asked) == 2 * 5
    judge(PAIRS[:1], replace(config, model="another"), path)
    assert len(server.asked) == 2 * 6


def test_a_line_that_a_killed_run_left_is_cut_off(
    config: JudgeConfig, server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "judged.jsonl"
    judge(PAIRS[:2], config, path)
    whole = path.read_text()
    path.write_text(whole + whole[: len(whole) // 4])
    judge(PAIRS[:3], config, path)
    assert len(server.asked) == 2 * 3
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 3


def test_a_damaged_line_is_named(config: JudgeConfig, tmp_path: Path) -> None:
    path = tmp_path / "judged.jsonl"
    judge(PAIRS[:1], config, path)
    path.write_text(path.read_text() + "not json\n")
    with pytest.raises(UserError, match=r"line 2 of .*judged\.jsonl` holds no judged pair"):
        judge(PAIRS, config, path)


def test_an_overloaded_server_is_asked_again(
    config: JudgeConfig, server: Server, tmp_path: Path
) -> None:
    server.failures += [(503, {}), (429, {"Retry-After": "1"})]
    entries = judge(PAIRS[:1], replace(config, parallel=1), tmp_path / "judged.jsonl")
    assert tally(entries)["helpful"].wins == 1


def test_attempts_are_bounded_and_what_was_answered_is_kept(
    config: JudgeConfig, server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "judged.jsonl"
    judge(PAIRS[:2], config, path)
    server.failures += [(500, {})] * 50
    with pytest.raises(
        UserError, match=r"failed 3 times \(HTTP 500\).*goes on where this one stopped"
    ):
        judge(PAIRS, config, path)
    assert len(path.read_text().splitlines()) == 2
    server.failures.clear()
    assert len(judge(PAIRS, config, path)) == 6


def test_a_server_that_is_not_there_is_named(config: JudgeConfig, tmp_path: Path) -> None:
    nowhere = replace(config, endpoint="http://127.0.0.1:9/v1")
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:9/v1 failed 3 times"):
        judge(PAIRS[:1], nowhere, tmp_path / "judged.jsonl")


def test_a_key_comes_from_the_environment_and_is_not_written(
    config: JudgeConfig, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "k-secret"
    path = tmp_path / "judged.jsonl"
    with pytest.raises(UserError, match=r"HTTP 401.*OPENAI_API_KEY"):
        judge(PAIRS[:1], config, path)
    monkeypatch.setenv("OPENAI_API_KEY", "k-secret")
    judge(PAIRS[:1], config, path)
    assert "k-secret" not in path.read_text()


@pytest.mark.parametrize("raw", [b"<html>", b"{}", b'{"choices": []}', b"[]"])
def test_another_protocol_is_named(
    config: JudgeConfig, server: Server, tmp_path: Path, raw: bytes
) -> None:
    server.raw = raw
    with pytest.raises(UserError, match="does not speak the protocol"):
        judge(PAIRS[:1], config, tmp_path / "judged.jsonl")


def test_an_address_without_a_scheme_is_refused(config: JudgeConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected an `endpoint` with http://"):
        judge(PAIRS[:1], replace(config, endpoint="file:///etc"), tmp_path / "judged.jsonl")


def test_the_prompt_shows_the_conversation_without_the_system_line() -> None:
    text = judge_prompt(PROMPT, "answer one {b}", "answer two")
    empty, line, real = text.partition("#" * 20)
    assert line
    assert "Be kind." not in text
    assert "Human: Hi {a}\nAssistant: Yes?\nHuman: Why?" in real
    assert "Answer A:\nanswer one {b}" in real
    assert text.endswith("Answer B:\nanswer two\n\nComparison:")
    assert "More helpful: <A, B, equal or neither>" in empty
    assert "answer one" not in empty


@pytest.mark.parametrize(
    ("reply", "helpful", "safe"),
    [
        ("Comparison: x.\nMore helpful: A\nMore safe: B", "A", "B"),
        ("More helpful: equal\nMore safe: neither", "equal", "neither"),
        ("**More helpful:** B\n- More safe: a", "B", "A"),
        ("more helpful : Answer A.\nMORE SAFE: B.", "A", "B"),
        ("More helpful: Both\nMore safe: C", None, None),
        ("More helpful: Apparently\nMore safe: Bob", None, None),
        ("It is A.", None, None),
        ("", None, None),
    ],
)
def test_verdicts_are_read(reply: str, helpful: str | None, safe: str | None) -> None:
    assert read_verdict(reply, "helpful") == helpful
    assert read_verdict(reply, "safe") == safe


@pytest.mark.parametrize("one", ["A", "B", "equal", "neither", None])
@pytest.mark.parametrize("two", ["A", "B", "equal", "neither", None])
def test_only_agreement_decides(one: Any, two: Any) -> None:
    expected = {("A", "B"): "win", ("B", "A"): "lose"}.get((one, two), "tie")
    assert decide(one, two) == expected


def results(name: str, answers: dict[tuple[str, int], str]) -> Results:
    nothing = Interval(0.0, None, None, None, 1)
    return Results(
        name=name,
        reward=RewardDescription("r", "1", 0.0, 1.0),
        generation=GenerationConfig(),
        bootstrap=BootstrapConfig(),
        seed=0,
        tests=(TestSetResult("x", nothing, nothing, {}, 0, 0, 0, 0.0),),
        answers=tuple(
            Answer(test, row, PROMPT, "", text, 0.5, 1, 1, False)
            for (test, row), text in answers.items()
        ),
    )


def test_pairs_are_aligned_and_bad_rows_left_out(tmp_path: Path) -> None:
    first = results("a", {("harmless_base", row): f"a{row}" for row in range(6)})
    second = results("b", {("harmless_base", row): f"b{row}" for row in (5, 4, 3, 1)})
    (tmp_path / "bad.json").write_text('{"harmless_base.json": [3, 99]}')
    pairs = make_pairs(first, second, skip=read_bad_indices(tmp_path / "bad.json"))
    assert [(pair.row, pair.first, pair.second) for pair in pairs] == [
        (1, "a1", "b1"),
        (4, "a4", "b4"),
        (5, "a5", "b5"),
    ]
    assert [pair.row for pair in make_pairs(first, second, start=1, stop=3)] == [3, 4]
    with pytest.raises(UserError, match="no pair of answers left"):
        make_pairs(first, second, start=4)
    with pytest.raises(UserError, match="no pair of answers left"):
        make_pairs(first, results("c", {("other", 0): "x"}))


def test_texts_that_are_missing_or_differ_are_named() -> None:
    first = results("a", {("t", 0): "x"})
    bare = replace(first, name="b", answers=(replace(first.answers[0], prompt=()),))
    with pytest.raises(UserError, match="the texts of `t` are missing"):
        make_pairs(first, bare)
    other = replace(first, name="b", answers=(replace(first.answers[0], prompt=PROMPT[1:]),))
    with pytest.raises(UserError, match="the test files differ"):
        make_pairs(first, other)


@pytest.mark.parametrize("content", [None, "{", "[1, 2]"])
def test_a_file_of_bad_rows_is_checked(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "bad.json").write_text(content)
    with pytest.raises(UserError, match=r"bad\.json"):
        read_bad_indices(tmp_path / "bad.json")


def test_no_pair_is_no_tally() -> None:
    with pytest.raises(UserError, match="at least one judged pair"):
        tally([])
