"""Annotation through a real OpenAI-compatible server on the loopback."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llm_agents.errors import UserError
from llm_agents.rewards import (
    ChoiceAnnotator,
    GeneratedAnnotator,
    PointwiseAnnotator,
    ServerBackend,
)
from llm_agents.rewards.annotation_memory import AnswerMemory
from llm_agents.rewards.annotator import Annotator, Pairs
from llm_agents.rewards.chat_server import ChatServer
from llm_agents.types import GenerationConfig, Turn

SLEEP = time.sleep  # tests replace that of the client
WORTH = {"kill": 3.0, "wall": 0.5, "": 0.0, "hurt": -2.0}
CAPTIONS = [("kill", "wall"), ("hurt", ""), ("wall", "wall"), ("", "kill")]
EXPECTED = [0, 1, 2, 1]


@dataclass
class Server:
    """A judge who ranks captions by `WORTH`, in text or in log-probs.

    `favor` is added to the lead of whatever comes first; `delays` are served in turn. Texts with
    `refuses` in them are refused for good.
    """

    endpoint: str = ""
    key: str | None = None
    favor: float = 0.0
    gives_log_probs: bool = True
    raw: bytes | None = None
    refuses: str | None = None
    failures: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    def reply(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        text = body["prompt"] if path == "/v1/completions" else body["messages"][-1]["content"]
        wants = body.get("logprobs") is not None and self.gives_log_probs
        lead = self.lead(text)
        words = ("1", "2") if "Verdict" not in text and "Message:" not in text else ("good", "bad")
        found = {words[0]: -0.1, words[1]: -0.1 - lead, "the": -9.0, " ": -12.0}
        if path == "/v1/completions":
            likeliest = {f" {word}": value for word, value in found.items()}
            log_probs = {"top_logprobs": [likeliest]} if wants else None
            return {"choices": [{"text": self.verdict(lead), "logprobs": log_probs}]}
        tops = [{"token": word, "logprob": value} for word, value in found.items()]
        log_probs = {"content": [{"top_logprobs": tops}]} if wants else None
        message = {"role": "assistant", "content": self.verdict(lead)}
        return {"choices": [{"message": message, "logprobs": log_probs}]}

    def lead(self, text: str) -> float:
        if "description_1" in text or "Description 1" in text:
            quoted = [part for part in text.split('"') if part.partition("#")[0] in WORTH]
            one, two = (part.partition("#")[0] for part in quoted[-2:])
            return WORTH[one] - WORTH[two] + self.favor
        return WORTH[text.rpartition('Message: "')[2].partition('"')[0].partition("#")[0]]

    def verdict(self, lead: float) -> str:
        return f'So ("best_description": {1 if lead > 0 else 2})'


class Handler(BaseHTTPRequestHandler):
    state: Server
    lock = threading.Lock()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on the terminal."""

    def do_POST(self) -> None:
        state = self.state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            state.at_once += 1
            state.most_at_once = max(state.most_at_once, state.at_once)
            failure = state.failures.pop(0) if state.failures else None
            delay = state.delays.pop(0) if state.delays else 0.0
            if failure is None:
                state.asked.append({"path": self.path, **body})
        SLEEP(delay)
        with self.lock:
            state.at_once -= 1
        if failure is not None:
            return self.answer(failure[0], b'{"error": "try later"}', failure[1])
        if state.refuses and state.refuses in json.dumps(body):
            return self.answer(400, b'{"error": "no answer to that"}', {})
        if state.key and self.headers.get("Authorization") != f"Bearer {state.key}":
            return self.answer(401, b'{"error": "no key"}', {})
        content = json.dumps(state.reply(self.path, body)).encode()
        return self.answer(200, content if state.raw is None else state.raw, {})

    def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    state = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("H", (Handler,), {"state": state}))
    http.daemon_threads = True
    state.endpoint = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield state
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture
def backend(server: Server) -> ServerBackend:
    return ServerBackend(server.endpoint, "org/judge-1.5", attempts=3, timeout=30.0)


@pytest.mark.parametrize("template", ["chat", "plain"])
def test_generated_preferences(backend: ServerBackend, server: Server, template: Any) -> None:
    annotator = GeneratedAnnotator(backend, template=template)
    assert annotator.annotate(Pairs.of_captions(CAPTIONS)).preferences.tolist() == EXPECTED
    assert len(server.asked) == 3
    body = server.asked[0]
    assert body["path"] == ("/v1/chat/completions" if template == "chat" else "/v1/completions")
    settings = {key: body[key] for key in ("model", "max_tokens", "temperature", "top_p", "top_k")}
    assert settings == {
        "model": "org/judge-1.5",
        "max_tokens": 4096,
        "temperature": 0.1,
        "top_p": 0.95,
        "top_k": 50,
    }
    assert len({body["seed"] for body in server.asked}) == 3
    assert body.get("stop") == (None if template == "chat" else ["\n\n"])
    assert annotator.name_parts()["model"] == "judge-1-5"


def test_settings_that_do_nothing_are_not_sent(backend: ServerBackend, server: Server) -> None:
    annotator = GeneratedAnnotator(backend, sampling=GenerationConfig(16))
    annotator.annotate(Pairs.of_captions(CAPTIONS[:1]))
    assert not {"top_k", "repetition_penalty", "stop"} & set(server.asked[0])
    beams = GeneratedAnnotator(backend, sampling=GenerationConfig(16, num_beams=2))
    with pytest.raises(UserError, match="no beam search"):
        beams.annotate(Pairs.of_captions(CAPTIONS[:1]))


@pytest.mark.parametrize("template", ["chat", "plain"])
@pytest.mark.parametrize("favor", [0.0, 9.0])
def test_choice_by_log_probs(
    backend: ServerBackend, server: Server, template: Any, favor: float
) -> None:
    server.favor = favor
    annotator = ChoiceAnnotator(backend, template=template)
    found = annotator.annotate(Pairs.of_captions(CAPTIONS))
    assert found.preferences.tolist() == EXPECTED
    assert annotator.report(found.counts)["first_place_share"] == (0.5 if favor == 0 else 1.0)
    assert len(server.asked) == 6
    assert server.asked[0]["max_tokens"] == 1
    assert server.asked[0]["temperature"] == 1.0  # log-probs of the model as it is


@pytest.mark.parametrize("template", ["chat", "plain"])
def test_pointwise_by_log_probs(backend: ServerBackend, server: Server, template: Any) -> None:
    annotator = PointwiseAnnotator(backend, version="default", template=template)
    found = annotator.annotate(Pairs.of_captions(CAPTIONS))
    assert found.preferences.tolist() == EXPECTED
    assert len(server.asked) == 4  # one a caption, "wall" beside itself included elsewhere
    assert annotator.score(["kill", "hurt"]) == pytest.approx([3.0, -2.0])


def test_a_server_without_log_probs_can_only_generate(
    backend: ServerBackend, server: Server
) -> None:
    server.gives_log_probs = False
    for template in ("chat", "plain"):
        with pytest.raises(UserError, match=r"no log-probs of `org/judge-1\.5`.*GeneratedAnn"):
            PointwiseAnnotator(backend, version="default", template=template).score(["kill"])  # type: ignore[arg-type]
    found = GeneratedAnnotator(backend).annotate(Pairs.of_captions(CAPTIONS))
    assert found.preferences.tolist() == EXPECTED


def test_neither_answer_among_the_likeliest_is_unknown(
    backend: ServerBackend, server: Server
) -> None:
    tops = {"top_logprobs": [{"token": "Hm", "logprob": -0.1}]}
    entry = {"message": {"content": "Hm"}, "logprobs": {"content": [tops]}}
    server.raw = json.dumps({"choices": [entry]}).encode()
    annotator = ChoiceAnnotator(backend)
    assert annotator.annotate(Pairs.of_captions(CAPTIONS)).preferences.tolist() == [3, 3, 2, 3]
    assert all(
        map(
            math.isnan,
            PointwiseAnnotator(backend, version="default", template="chat").score(["kill"]),
        )
    )


def test_several_requests_at_a_time_and_replies_in_order(server: Server) -> None:
    server.delays = [0.3, 0.02, 0.1, 0.01, 0.02, 0.01]
    backend = ServerBackend(server.endpoint, "judge", parallel=3)
    captions = [("kill", "wall"), ("wall", "kill")] * 6
    found = GeneratedAnnotator(backend).annotate(Pairs.of_captions(captions))
    assert found.preferences.tolist() == [0, 1] * 6
    assert 2 <= server.most_at_once <= 3


def test_an_overloaded_server_is_asked_again(backend: ServerBackend, server: Server) -> None:
    server.failures += [(503, {}), (429, {"Retry-After": "1"}), (500, {})]
    backend = ServerBackend(server.endpoint, "judge", attempts=4, parallel=1)
    found = GeneratedAnnotator(backend).annotate(Pairs.of_captions(CAPTIONS))
    assert found.preferences.tolist() == EXPECTED


def test_a_server_that_asks_to_wait_is_obeyed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", waits.append)
    server.failures += [(429, {"Retry-After": "7"}), (429, {"Retry-After": "9999"}), (502, {})]
    ChatServer(server.endpoint, attempts=4).post(
        "chat/completions", {"messages": [{"content": 'Message: "kill"'}]}, lambda reply: reply
    )
    assert waits[:2] == [7, 60]  # no longer than a minute
    assert len(waits) == 3


def test_attempts_are_bounded(backend: ServerBackend, server: Server) -> None:
    server.failures += [(500, {})] * 40
    with pytest.raises(UserError, match=r"failed 3 times \(HTTP 500\).*goes on where"):
        GeneratedAnnotator(backend).annotate(Pairs.of_captions(CAPTIONS))


def test_a_slow_answer_counts_as_failed_and_is_asked_for_again(server: Server) -> None:
    server.delays = [3.0]
    backend = ServerBackend(server.endpoint, "judge", timeout=0.5, attempts=5, parallel=1)
    found = GeneratedAnnotator(backend).annotate(Pairs.of_captions(CAPTIONS[:1]))
    assert found.preferences.tolist() == [0]
    assert len(server.asked) >= 2
    server.delays = [2.0] * 20
    impatient = ServerBackend(server.endpoint, "judge", timeout=0.05, attempts=2, parallel=1)
    with pytest.raises(UserError, match=r"failed 2 times \(.*timed out"):
        GeneratedAnnotator(impatient).annotate(Pairs.of_captions(CAPTIONS[:1]))


def test_a_refusal_ends_the_batch(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.key = "k-secret"
    backend = ServerBackend(server.endpoint, "judge", parallel=1)
    captions = [(f"kill{i}", "wall") for i in range(30)]
    with pytest.raises(UserError, match=r"refuses the model `judge` \(HTTP 401\).*OPENAI_API_KEY"):
        GeneratedAnnotator(backend).annotate(Pairs.of_captions(captions))
    assert len(server.asked) < 10  # not all thirty
    monkeypatch.setenv("OPENAI_API_KEY", "k-secret")
    found = GeneratedAnnotator(backend).annotate(Pairs.of_captions(CAPTIONS))
    assert found.preferences.tolist() == EXPECTED
    assert "k-secret" not in json.dumps(GeneratedAnnotator(backend).identity())


def numbered(count: int) -> list[tuple[str, str]]:
    """Return pairs of captions that all differ, and what is right about them."""
    return [
        (f"kill#{i}", f"hurt#{i}") if i % 3 else (f"wall#{i}", f"kill#{i}") for i in range(count)
    ]


def collect(pairs: Pairs, annotator: Annotator, found: dict[int, int]) -> None:
    """Put the preferences that come into `found`, by pair."""
    for part in annotator.annotate_each(pairs):
        found |= dict(zip(part.places.tolist(), part.annotated.preferences, strict=True))


def judged(pairs: Pairs, annotator: Annotator) -> dict[int, int]:
    """Return the preferences that came before the annotator failed, by pair."""
    found: dict[int, int] = {}
    with pytest.raises(UserError, match=r"no answer to that|failed 2 times"):
        collect(pairs, annotator, found)
    return found


@pytest.mark.parametrize(("bad", "parallel"), [(0, 1), (40, 8), (63, 3)])
def test_one_failing_request_loses_no_reply_that_came(
    server: Server, bad: int, parallel: int
) -> None:
    """F29: up to 255 replies were lost with the batch of the one that failed."""
    pairs = Pairs.of_captions(numbered(64))
    backend = ServerBackend(server.endpoint, "judge", parallel=parallel, attempts=2)
    server.refuses = f'#{bad}\\"'  # as JSON has a quoted caption's end
    found = judged(pairs, GeneratedAnnotator(backend))
    came = len(server.asked) - 1  # all but the refused one
    assert len(found) == came >= bad
    assert bad not in found
    assert all(value == (0 if pair % 3 else 1) for pair, value in found.items())


@pytest.mark.parametrize("kind", [ChoiceAnnotator, PointwiseAnnotator])
@pytest.mark.parametrize("bad", [0, 20, 31])
def test_answers_that_came_are_in_the_file(
    server: Server, tmp_path: Path, kind: Any, bad: int
) -> None:
    pairs = Pairs.of_captions(numbered(32))
    path = tmp_path / "answers.jsonl"
    backend = ServerBackend(server.endpoint, "judge", parallel=4, attempts=2)
    options = {"template": "chat", "version": "default"}
    server.refuses = f'#{bad}\\"'
    annotator = kind(backend, **options)
    annotator.keep_answers(path)
    judged(pairs, annotator)
    asked = len(server.asked)
    memory = AnswerMemory()
    memory.open(path)
    kept = len(memory)
    per_answer = 2 if kind is ChoiceAnnotator else 1
    # A pair that waits for its other order is asked about again; a few were on their way.
    assert per_answer * kept >= asked - 2 * 4
    assert kept >= bad - 4
    server.refuses, server.asked = None, []
    again = kind(backend, **options)
    again.keep_answers(path)
    total = again.num_questions(pairs)
    assert again.annotate(pairs).preferences.tolist() == [0 if i % 3 else 1 for i in range(32)]
    assert len(server.asked) == total == per_answer * ((64 if per_answer == 1 else 32) - kept)


@pytest.mark.parametrize("raw", [b"<html>", b"{}", b'{"choices": []}', b"[]"])
def test_another_protocol_is_named(backend: ServerBackend, server: Server, raw: bytes) -> None:
    server.raw = raw
    with pytest.raises(UserError, match="does not speak the protocol of OpenAI's chat/completions"):
        GeneratedAnnotator(backend).annotate(Pairs.of_captions(CAPTIONS))


def test_an_address_and_limits_are_checked() -> None:
    with pytest.raises(UserError, match="expected an `endpoint` with http://"):
        ServerBackend("localhost:8000/v1", "judge")
    with pytest.raises(UserError, match="`parallel` above 0"):
        ServerBackend("http://127.0.0.1:9/v1", "judge", parallel=0)
    with pytest.raises(UserError, match="`likeliest` of at least 2"):
        ServerBackend("http://127.0.0.1:9/v1", "judge", likeliest=1)


def test_nothing_to_ask_asks_nobody(backend: ServerBackend, server: Server) -> None:
    assert backend.generate([], "chat", GenerationConfig(), []) == []
    assert backend.answer_log_probs([], "plain", ("1", "2")).shape == (0, 2)
    assert server.asked == []
    turns = (Turn("user", 'Message: "kill"'),)
    assert backend.answer_log_probs([turns], "chat", ("good", "bad")).shape == (1, 2)
