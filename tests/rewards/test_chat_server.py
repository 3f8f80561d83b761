"""The client of OpenAI-compatible servers: what it keeps, what it refuses, what it never shows."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from llm_agents.errors import UserError
from llm_agents.rewards.chat_server import (
    ChatServer,
    ServerFailureError,
    ServerRefusalError,
    chat_text,
)

KEY = "sk-very-secret"


class Handler(BaseHTTPRequestHandler):
    """Answers with the question in capitals; the number after `status` in it is the status."""

    authorizations: list[str | None]

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on the terminal."""

    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": "small"}, {"id": "large"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.authorizations.append(self.headers.get("Authorization"))
        text = str(body["text"])
        if not text.startswith("status"):
            self.answer(200, {"choices": [{"message": {"content": text.upper()}}]})
            return
        status = int(text.split()[1])
        where = f"http://127.0.0.1:{self.server.server_port}/elsewhere"  # type: ignore[attr-defined]
        reason = {"error": f"no: {self.headers.get('Authorization')}"}
        self.answer(status, reason, {"Location": where} if status < 400 else {})

    def answer(self, status: int, values: Any, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(values).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def seen() -> list[str | None]:
    """Return the keys that the server has seen, by request."""
    return []


@pytest.fixture
def endpoint(seen: list[str | None], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    handler = type("H", (Handler,), {"authorizations": seen})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}/v1"
    http.shutdown()
    http.server_close()
    thread.join()


def bodies(*texts: str) -> list[dict[str, str]]:
    return [{"model": "m", "text": text} for text in texts]


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("parallel", [1, 2, 8])
def test_one_request_that_fails_loses_no_answer_that_came(
    endpoint: str, status: int, parallel: int
) -> None:
    kept: dict[int, str] = {}
    server = ChatServer(endpoint, attempts=2, parallel=parallel)
    asked = bodies("a", "b", "c", f"status {status}", *(f"later {n}" for n in range(40)))
    with pytest.raises(UserError, match=f"HTTP {status}"):
        server.post_all("chat/completions", asked, chat_text, kept.__setitem__)
    assert {0, 1, 2} <= set(kept)
    assert 3 not in kept
    assert all(kept[number] == asked[number]["text"].upper() for number in kept)
    assert len(kept) < 43  # no further one is sent


def test_each_reply_is_kept_once_and_in_its_place(endpoint: str) -> None:
    kept: list[tuple[int, str]] = []
    server = ChatServer(endpoint, parallel=4)
    replies = server.post_all(
        "chat/completions", bodies(*"abcdefgh"), chat_text, lambda *reply: kept.append(reply)
    )
    assert replies == list("ABCDEFGH")
    assert sorted(kept) == list(enumerate("ABCDEFGH"))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_named_and_not_followed_with_the_key(
    endpoint: str, seen: list[str | None], status: int
) -> None:
    with pytest.raises(ServerRefusalError, match=r"it has moved to http://127.*elsewhere"):
        ChatServer(endpoint).post("chat/completions", bodies(f"status {status}")[0], chat_text)
    assert seen == [f"Bearer {KEY}"]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_server_that_repeats_the_key_does_not_get_it_printed(endpoint: str, status: int) -> None:
    with pytest.raises(ServerRefusalError) as caught:
        ChatServer(endpoint).post("chat/completions", bodies(f"status {status}")[0], chat_text)
    assert KEY not in str(caught.value)
    assert KEY not in caught.value.reason
    assert caught.value.status == status
    expected = "its models are small, large" if status == 404 else "$OPENAI_API_KEY"
    assert expected in str(caught.value)


@pytest.mark.parametrize("around", ["{}\n", " {}\r\n", "\t{}"])
def test_blanks_around_a_key_are_no_part_of_it(
    endpoint: str, seen: list[str | None], monkeypatch: pytest.MonkeyPatch, around: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", around.format(KEY))
    ChatServer(endpoint).post("chat/completions", bodies("a")[0], chat_text)
    assert seen == [f"Bearer {KEY}"]


@pytest.mark.parametrize(
    "inside", ["sk-very\nsecret", "sk-vérysecret", "sk\x07secret", "sk…secret"]
)
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(
    endpoint: str, seen: list[str | None], monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", inside)
    with pytest.raises(UserError, match=r"printable ASCII .*OPENAI_API_KEY") as caught:
        ChatServer(endpoint).post("chat/completions", bodies("a")[0], chat_text)
    assert "secret" not in str(caught.value)
    assert seen == []


@pytest.mark.parametrize("variable", ["sk-very-secret", "", "MY KEY", "sk.secret", "1KEY"])
def test_a_key_in_place_of_its_variables_name_is_refused_and_not_shown(variable: str) -> None:
    with pytest.raises(UserError, match="the name of an environment variable") as caught:
        ChatServer("http://127.0.0.1:9/v1", key_variable=variable)
    assert not variable or variable not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("yes", "yes"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "ye"}, {"type": "text", "text": "s"}], "yes"),
        ([{"type": "image"}], ""),
    ],
)
def test_the_text_of_a_reply_in_parts(content: Any, text: str) -> None:
    assert chat_text({"choices": [{"message": {"content": content}}]}) == text


def test_failures_and_refusals_are_two_things(endpoint: str) -> None:
    with pytest.raises(ServerFailureError, match=r"failed 2 times \(HTTP 503\)"):
        ChatServer(endpoint, attempts=2).post("x", bodies("status 503")[0], chat_text)
    nowhere = ChatServer("http://127.0.0.1:9/v1", attempts=2)
    with pytest.raises(ServerFailureError, match=r"127\.0\.0\.1:9/v1 failed 2 times"):
        nowhere.post("x", bodies("a")[0], chat_text)
    assert nowhere.models() == ()


@pytest.mark.parametrize(
    "address",
    [
        "http://user:word@127.0.0.1:1/v1",
        "http://127.0.0.1:1/v1?key=word",
        "http://127.0.0.1:1/v1#word",
        "http:///v1",
    ],
)
def test_a_key_has_no_place_in_the_address(address: str) -> None:
    with pytest.raises(UserError, match=r"a key belongs into \$OPENAI_API_KEY") as caught:
        ChatServer(address)
    assert "word" not in str(caught.value).replace("password", "")
