"""A client of OpenAI-compatible servers: bounded retries, several requests at a time."""

from __future__ import annotations

import http.client
import json
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from tenacity import (
    RetryCallState,
    before_sleep_log,
    retry,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from llm_agents.errors import UserError

log = logging.getLogger(__name__)

T = TypeVar("T")

_MAY_PASS = (408, 409, 425, 429)
_LONGEST_WAIT = 60.0


class _TransientError(Exception):
    """A failure that may pass: no connection, an overloaded server, a limit on requests.

    Args:
        reason: What happened.
        retry_after: Seconds that the server asks to wait.
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


@dataclass(frozen=True)
class ChatServer:
    """An OpenAI-compatible server.

    Args:
        endpoint: Its address up to ``/v1``.
        timeout: Seconds until a request counts as failed.
        attempts: Requests before a question is given up.
        parallel: Requests at a time.
        key_variable: Environment variable that holds the key, if the server wants one.
    """

    endpoint: str
    timeout: float = 120.0
    attempts: int = 6
    parallel: int = 8
    key_variable: str = "OPENAI_API_KEY"

    def __post_init__(self) -> None:
        """Check the settings."""
        if not self.endpoint.startswith(("http://", "https://")):
            raise UserError(
                f"expected an `endpoint` with http:// or https://, got `{self.endpoint}`"
            )
        for name in ("timeout", "attempts", "parallel"):
            if not getattr(self, name) > 0:
                raise UserError(f"expected `{name}` above 0, got {getattr(self, name)}")

    def post_all(
        self, path: str, bodies: Sequence[Mapping[str, Any]], read: Callable[[Any], T]
    ) -> list[T]:
        """Send requests, several at a time, and return what `read` makes of each reply, in order.

        After one that fails for good no further one is sent.

        Raises:
            UserError: See `post`.
        """
        with ThreadPoolExecutor(self.parallel) as pool:
            waiting = [pool.submit(self.post, path, body, read) for body in bodies]
            try:
                return [future.result() for future in waiting]
            except UserError:
                pool.shutdown(cancel_futures=True)
                raise

    def post(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """Send one request and return what `read` makes of the reply.

        Args:
            path: Follows the endpoint.
            body: What is sent as JSON; `model` is named in errors.
            read: From the reply's JSON to what is wanted; a `KeyError`, `IndexError` or `TypeError`
                in it means that the server speaks another protocol.

        Raises:
            UserError: The server refuses, speaks another protocol, or fails in every attempt.
        """
        attempt = retry(
            retry=retry_if_exception_type(_TransientError),
            stop=stop_after_attempt(self.attempts),
            wait=_wait,
            before_sleep=before_sleep_log(log, logging.WARNING),
            reraise=True,
        )(self._request)
        try:
            text: str = attempt(path, body)
        except _TransientError as error:
            raise UserError(
                f"the server at {self.endpoint} failed {self.attempts} times ({error}): start it "
                "or correct `endpoint`; the same command goes on where this one stopped"
            ) from error
        try:
            return read(json.loads(text))
        except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
            raise UserError(
                f"the server at {self.endpoint} does not speak the protocol of OpenAI's {path}; it "
                f"answered {text[:200]!r}"
            ) from error

    def _request(self, path: str, body: Mapping[str, Any]) -> str:
        """Send one request once and return the reply's text."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self.key_variable):
            headers["Authorization"] = f"Bearer {key}"
        url = f"{self.endpoint.rstrip('/')}/{path}"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                return str(response.read().decode("utf8"))
        except urllib.error.HTTPError as error:
            reason = error.read(500).decode("utf8", "replace")
            if error.code in _MAY_PASS or error.code >= 500:
                waiting = error.headers.get("Retry-After", "")
                seconds = float(waiting) if waiting.isdigit() else None
                raise _TransientError(f"HTTP {error.code}", seconds) from error
            raise UserError(
                f"the server at {self.endpoint} refuses the model `{body.get('model')}` (HTTP "
                f"{error.code}): {reason}; a key is read from ${self.key_variable}"
            ) from error
        except (OSError, http.client.HTTPException) as error:  # no, slow or broken connection
            raise _TransientError(str(error) or type(error).__name__) from error


def chat_text(reply: Any) -> str:  # noqa: ANN401  # JSON
    """Return the text of a reply from ``chat/completions``."""
    return str(reply["choices"][0]["message"]["content"] or "")


def _wait(state: RetryCallState) -> float:
    """Return how long to wait: as long as the server says, else about twice as long each time."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, _TransientError) and error.retry_after is not None:
        return min(error.retry_after, _LONGEST_WAIT)
    return wait_random_exponential(0.5, max=30)(state)
