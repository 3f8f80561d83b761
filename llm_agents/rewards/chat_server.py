"""A client of OpenAI-compatible servers: bounded retries, several requests at a time."""

from __future__ import annotations

import http.client
import json
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

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
_SECONDS_FOR_A_HINT = 10.0


class ServerRefusalError(UserError):
    """A server's answer that asking again won't change.

    Args:
        message: What happened, and the cure.
        status: Of HTTP.
        reason: What the server says.
    """

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class ServerFailureError(UserError):
    """A server that can't be reached or fails, however often it is asked.

    Args:
        message: What happened, and the cure.
        status: Of HTTP; None if no answer came.
    """

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows nothing: a redirect would carry the key to another host."""

    def redirect_request(self, *args: Any) -> None:  # noqa: ANN401  (as urllib has it)
        """Make an error of it."""


class _TransientError(Exception):
    """A failure that may pass: no connection, an overloaded server, a limit on requests.

    Args:
        reason: What happened.
        status: Of HTTP; None if no answer came.
        retry_after: Seconds that the server asks to wait.
    """

    def __init__(
        self, reason: str, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.status, self.retry_after = status, retry_after


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
        parts = urlsplit(self.endpoint)
        if not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
            raise UserError(
                "expected an `endpoint` of a host and a path, such as http://127.0.0.1:8000/v1, "
                f"without user, password or query: a key belongs into ${self.key_variable}"
            )
        if not self.key_variable.isidentifier():
            raise UserError(
                "expected `key_variable` to be the name of an environment variable that holds the "
                "key, such as OPENAI_API_KEY; a key itself belongs into no command and no recipe"
            )
        for name in ("timeout", "attempts", "parallel"):
            if not getattr(self, name) > 0:
                raise UserError(f"expected `{name}` above 0, got {getattr(self, name)}")

    @property
    def host(self) -> str:
        """Return the host, with its port."""
        return urlsplit(self.endpoint).netloc

    def post_all(
        self,
        path: str,
        bodies: Sequence[Mapping[str, Any]],
        read: Callable[[Any], T],
        keep: Callable[[int, T], None] | None = None,
    ) -> list[T]:
        """Send requests, several at a time, and return what `read` makes of each reply, in order.

        After one that fails for good no further one is sent; those under way are waited for.

        Args:
            path: See `post`.
            bodies: See `post`.
            read: See `post`.
            keep: Told of each reply as soon as it comes, with its number, whatever fails later.

        Raises:
            UserError: See `post`.
        """
        kept: dict[int, T] = {}
        for replies in self.post_each(path, bodies, read):
            kept |= replies
            if keep is not None:
                for number, reply in replies.items():
                    keep(number, reply)
        return [kept[number] for number in range(len(bodies))]

    def post_each(
        self, path: str, bodies: Sequence[Mapping[str, Any]], read: Callable[[Any], T]
    ) -> Iterator[dict[int, T]]:
        """Send requests, several at a time, and yield the replies that have come, by their number.

        After one that fails for good no further one is sent; those under way are waited for, and
        every reply that came is yielded before the error is raised.

        Raises:
            UserError: See `post`.
        """
        pool = ThreadPoolExecutor(self.parallel)
        waiting = {pool.submit(self.post, path, body, read): i for i, body in enumerate(bodies)}
        failed: BaseException | None = None
        try:
            while waiting:
                try:
                    done = wait(waiting, return_when=FIRST_COMPLETED).done
                except BaseException as error:  # someone stops the program
                    failed = error
                    pool.shutdown(cancel_futures=True)
                    done = set(waiting)
                replies: dict[int, T] = {}
                for future in done:
                    number = waiting.pop(future)
                    if future.cancelled():
                        continue
                    if (fault := future.exception()) is not None:
                        failed = failed or fault
                    else:
                        replies[number] = future.result()
                if failed is not None:
                    waiting = {one: i for one, i in waiting.items() if not one.cancel()}
                if replies:
                    yield replies
            if failed is not None:
                raise failed
        finally:
            pool.shutdown(cancel_futures=True)

    def post(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """Send one request and return what `read` makes of the reply.

        Args:
            path: Follows the endpoint.
            body: What is sent as JSON; `model` is named in errors.
            read: From the reply's JSON to what is wanted; a `KeyError`, `IndexError`, `TypeError`
                or `ValueError` in it means that the server speaks another protocol.

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
            raise ServerFailureError(
                f"the server at {self.endpoint} failed {self.attempts} times ({error}): start it "
                "or correct its address; the same command goes on where this one stopped",
                error.status,
            ) from error
        try:
            return read(json.loads(text))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise UserError(
                f"the server at {self.endpoint} does not speak the protocol of OpenAI's {path}; it "
                f"answered {self._without_key(text)[:200]!r}"
            ) from error

    def models(self) -> tuple[str, ...]:
        """Return the names of the models that the server says it has; none if it doesn't say."""
        request = urllib.request.Request(self._address("models"), headers=self._headers())
        try:
            with self._open(request, min(self.timeout, _SECONDS_FOR_A_HINT)) as response:
                return tuple(str(entry["id"]) for entry in json.loads(response.read())["data"])
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            return ()

    def _request(self, path: str, body: Mapping[str, Any]) -> str:
        """Send one request once and return the reply's text."""
        content = json.dumps(body).encode()
        request = urllib.request.Request(self._address(path), content, self._headers())
        try:
            with self._open(request, self.timeout) as response:
                return str(response.read().decode("utf8", "replace"))
        except urllib.error.HTTPError as error:
            if error.code in _MAY_PASS or error.code >= 500:
                waiting = error.headers.get("Retry-After", "")
                seconds = float(waiting) if waiting.isdigit() else None
                raise _TransientError(f"HTTP {error.code}", error.code, seconds) from error
            raise self._refusal(error, body) from error
        except (OSError, http.client.HTTPException) as error:  # no, slow or broken connection
            raise _TransientError(str(error) or type(error).__name__) from error

    def _refusal(
        self, error: urllib.error.HTTPError, body: Mapping[str, Any]
    ) -> ServerRefusalError:
        """Return what a refused request raises; the key is in no part of it."""
        reason = self._without_key(error.read(5000).decode("utf8", "replace"))[:500]
        cure = f"a key is read from ${self.key_variable}"
        if 300 <= error.code < 400:
            cure = f"it has moved to {error.headers.get('Location', 'another address')}"
        elif error.code == 404 and (known := self.models()):
            cure = f"its models are {', '.join(known[:8])}"
        elif error.code == 404:
            cure = "the address ends in /v1 with most servers"
        return ServerRefusalError(
            f"the server at {self.endpoint} refuses the model `{body.get('model')}` (HTTP "
            f"{error.code}): {reason}; {cure}",
            error.code,
            reason,
        )

    def _address(self, path: str) -> str:
        return f"{self.endpoint.rstrip('/')}/{path}"

    def _key(self) -> str:
        """Return the key; blanks and line breaks around it, as files have them, are no part of it.

        Raises:
            UserError: It can't be sent.
        """
        key = os.environ.get(self.key_variable, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise UserError(
                f"expected a key of printable ASCII characters in ${self.key_variable}, got others "
                "among them: set it anew"
            )
        return key

    def _without_key(self, text: str) -> str:
        """Return a text that may be shown."""
        key = self._key()
        return text.replace(key, "…") if key else text

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if key := self._key():
            headers["Authorization"] = f"Bearer {key}"
        return headers

    def _open(self, request: urllib.request.Request, timeout: float) -> Any:  # noqa: ANN401  (as urllib)
        return urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout)


def chat_text(reply: Any) -> str:  # noqa: ANN401  # JSON
    """Return the text of a reply from ``chat/completions``; some servers send it in parts."""
    content = reply["choices"][0]["message"]["content"] or ""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content)
    return str(content)


def _wait(state: RetryCallState) -> float:
    """Return how long to wait: as long as the server says, else about twice as long each time."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, _TransientError) and error.retry_after is not None:
        return min(error.retry_after, _LONGEST_WAIT)
    return wait_random_exponential(0.5, max=30)(state)
