"""A small OpenAI-compatible server on the loopback that answers with a real language model.

Its ``completions`` with ``echo`` have the layout of vLLM's, computed by the model's own forward
pass, token by token, apart from our scoring.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import torch

from llm_agents.policies import LanguagePolicy
from llm_agents.types import GenerationConfig, Turn

Say = Callable[[list[dict[str, str]]], str | None]


@dataclass
class ModelServer:
    """What the server knows, and what it does.

    Args:
        policy: The model; its chat template and greedy decoding give the replies.
        say: Gives the replies in place of the model.
        echo: What it makes of ``echo``: log-probs, nothing, a refusal, or a failure of its own.
        key: The only key that it takes.
        known: Names of its models.
        limit_name: The only name of the limit of new tokens that it takes, if it is set.
        takes_temperature: Refuse any other than its own if False.
        failures: What the next requests get: a status with headers, bytes in place of JSON, or
            ``hang``.
        dies_after: Answers after which it breaks every connection.
        asked: Bodies of what was answered, with their paths.
    """

    policy: LanguagePolicy | None = None
    say: Say | None = None
    echo: Literal["yes", "ignored", "refused", "fails"] = "yes"
    key: str | None = None
    known: tuple[str, ...] = ("tiny",)
    limit_name: str | None = None
    takes_temperature: bool = True
    failures: list[tuple[int, dict[str, str]] | bytes | str] = field(default_factory=list)
    dies_after: int | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    endpoint: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_over: threading.Event = field(default_factory=threading.Event)

    def questions(self) -> list[dict[str, Any]]:
        """Return what was answered, without the probes before the first episode."""
        probes = ("Answer with the number 1 and nothing else.", "The sky is blue today")
        return [body for body in self.asked if not any(probe in str(body) for probe in probes)]

    def reply(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and content of an answer."""
        if body["model"] not in self.known:
            return 404, {"error": f"The model `{body['model']}` does not exist."}
        if self.limit_name not in (None, *body):
            return 400, {"error": f"Unsupported parameter: use '{self.limit_name}' instead."}
        if not self.takes_temperature and "temperature" in body:
            return 400, {"error": "Unsupported value: 'temperature' does not support 0."}
        if path == "/v1/completions":
            return self._completion(body)
        if path == "/v1/chat/completions":
            return 200, self._chat(body)
        return 404, {"error": "no such path"}

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant"}
        if self.say is not None:
            message["content"] = self.say(body["messages"])
            usage = {"prompt_tokens": 7, "completion_tokens": 2}
            return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
        assert self.policy is not None
        turns = tuple(Turn(turn["role"], turn["content"]) for turn in body["messages"])
        prompt = self.policy.encode_prompt(turns, "chat")
        limit = body.get("max_tokens") or body["max_completion_tokens"]
        config = GenerationConfig(limit, body.get("temperature", 1.0))
        draws = [torch.Generator().manual_seed(body.get("seed", 0))]
        (ids,) = self.policy.generate([prompt], config, draws)
        message["content"] = self.policy.decode(ids)
        is_cut = len(ids) == limit and ids[-1] not in self.policy.generation_vocabulary().end_ids
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        reason = "length" if is_cut else "stop"
        return {"choices": [{"message": message, "finish_reason": reason}], "usage": usage}

    def _completion(self, body: dict[str, Any]) -> tuple[int, Any]:
        if self.echo in ("refused", "fails"):
            return (400 if self.echo == "refused" else 500), {"error": "Only no echo is supported"}
        assert self.policy is not None
        tokenizer, model = self.policy.tokenizer, self.policy.causal_model
        ids = list(tokenizer(body["prompt"]).input_ids)
        with torch.no_grad():
            log_probs = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        written = int(log_probs[-1].argmax())
        values = [None, *(float(log_probs[i, ids[i + 1]]) for i in range(len(ids) - 1))]
        values.append(float(log_probs[-1, written]))
        tokens = [tokenizer.decode([token]) for token in [*ids, written]]
        start = len(ids) if self.echo == "ignored" else 0
        text = tokens[-1] if self.echo == "ignored" else body["prompt"] + tokens[-1]
        offsets = [len("".join(tokens[:i])) for i in range(len(tokens))]
        found = {
            "tokens": tokens[start:],
            "token_logprobs": values[start:],
            "text_offset": offsets[start:],
            "top_logprobs": [None] * len(tokens[start:]),
        }
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1}
        choice = {"index": 0, "text": text, "logprobs": found, "finish_reason": "length"}
        return 200, {"choices": [choice], "usage": usage}


class Handler(BaseHTTPRequestHandler):
    """Speaks HTTP for a `ModelServer`."""

    state: ModelServer

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on the terminal."""

    def do_GET(self) -> None:
        """List the models."""
        self.answer(200, json.dumps({"data": [{"id": name} for name in self.state.known]}).encode())

    def do_POST(self) -> None:
        """Answer, fail, or break the connection."""
        state = self.state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with state.lock:
            failure = state.failures.pop(0) if state.failures else None
            is_dead = state.dies_after is not None and len(state.asked) >= state.dies_after
            if is_dead:
                self.close_connection = True
                return
            if failure == "hang":
                state.lock.release()
                state.is_over.wait(5)
                state.lock.acquire()
                return
            if isinstance(failure, bytes):
                self.answer(200, failure)
                return
            if isinstance(failure, tuple):
                self.answer(failure[0], b'{"error": "try later"}', failure[1])
                return
            if state.key and self.headers.get("Authorization") != f"Bearer {state.key}":
                self.answer(401, b'{"error": "Incorrect API key provided"}')
                return
            status, values = state.reply(self.path, body)
            if status == 200:
                state.asked.append({"path": self.path, **body})
        self.answer(status, json.dumps(values).encode())

    def answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        """Send an answer."""
        try:
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):  # the client has not waited
            self.close_connection = True


@contextmanager
def serving(state: ModelServer) -> Iterator[ModelServer]:
    """Serve, on a port of the system's choice or on that of an endpoint that was served before."""
    port = int(state.endpoint.rpartition(":")[2].partition("/")[0]) if state.endpoint else 0
    http = ThreadingHTTPServer(("127.0.0.1", port), type("H", (Handler,), {"state": state}))
    http.daemon_threads = True
    state.endpoint = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.is_over.set()
        http.shutdown()
        http.server_close()
        thread.join()
