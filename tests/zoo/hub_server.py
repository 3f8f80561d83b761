"""A small Hub on the loopback: what huggingface_hub needs to create, commit and download."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Commit:
    """One state of a repository."""

    sha: str
    message: str
    files: dict[str, bytes]


@dataclass
class Hub:
    """Repositories in memory, and what was asked for.

    `failures` holds status codes with which the next commits are answered; `write_token` is the
    only token that may write, if it is set.
    """

    endpoint: str = ""
    repos: dict[str, list[Commit]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    failures: list[int] = field(default_factory=list)
    write_token: str | None = None
    requests: list[str] = field(default_factory=list)

    def add(self, repo_id: str, files: dict[str, bytes], message: str = "added") -> str:
        """Commit files to a repository, made if need be, and return the commit's name."""
        history = self.repos.setdefault(repo_id, [])
        state = {**(history[-1].files if history else {}), **files}
        sha = hashlib.sha1(f"{repo_id}{len(history)}".encode()).hexdigest()
        history.append(Commit(sha, message, state))
        return sha

    def find(self, repo_id: str, revision: str) -> Commit | None:
        """Return the commit of a branch or commit name."""
        history = self.repos.get(repo_id, [])
        if revision == "main":
            return history[-1] if history else None
        return next((commit for commit in history if commit.sha == revision), None)


def blob_id(content: bytes) -> str:
    """Return git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on the terminal."""

    def answer(self, status: int, body: Any = None, headers: dict[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def missing(self, what: str) -> None:
        self.answer(404, {"error": what}, {"X-Error-Code": what, "X-Error-Message": what})

    def read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        if found := re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/([\w.-]+)/(.+)", path):
            return self.resolve(*found.groups())
        if found := re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)/tree/([\w.-]+)", path):
            return self.tree(*found.groups())
        if found := re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)(?:/revision/([\w.-]+))?", path):
            return self.info(found[1], found[2] or "main")
        return self.missing("EntryNotFound")

    def resolve(self, repo_id: str, revision: str, name: str) -> None:
        if repo_id not in self.hub.repos:
            return self.missing("RepoNotFound")
        commit = self.hub.find(repo_id, revision)
        if commit is None:
            return self.missing("RevisionNotFound")
        if name not in commit.files:
            return self.missing("EntryNotFound")
        content = commit.files[name]
        headers = {"X-Repo-Commit": commit.sha, "ETag": f'"{blob_id(content)}"'}
        return self.answer(200, content, headers)

    def info(self, repo_id: str, revision: str) -> None:
        if repo_id not in self.hub.repos:
            return self.missing("RepoNotFound")
        commit = self.hub.find(repo_id, revision)
        if commit is None:
            return self.missing("RevisionNotFound")
        siblings = [{"rfilename": name} for name in sorted(commit.files)]
        private = repo_id in self.hub.private
        return self.answer(
            200, {"id": repo_id, "sha": commit.sha, "private": private, "siblings": siblings}
        )

    def tree(self, repo_id: str, revision: str) -> None:
        commit = self.hub.find(repo_id, revision)
        if commit is None:
            return self.missing("RevisionNotFound")
        return self.answer(
            200,
            [
                {"type": "file", "path": name, "size": len(content), "oid": blob_id(content)}
                for name, content in sorted(commit.files.items())
            ],
        )

    def do_POST(self) -> None:
        self.hub.requests.append(f"POST {self.path}")
        body = self.read()
        path = self.path.partition("?")[0]
        if path == "/api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if self.hub.write_token is not None and token != self.hub.write_token:
            return self.answer(401, {"error": "a token that may write is needed"})
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if found := re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)/preupload/main", path):
            return self.preupload(found[1], json.loads(body))
        if found := re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)/commit/main", path):
            return self.commit(found[1], [json.loads(line) for line in body.splitlines() if line])
        return self.missing("EntryNotFound")

    def create(self, wanted: dict[str, Any]) -> None:
        owner = wanted.get("organization") or "me"
        repo_id = f"{owner}/{wanted['name'].rpartition('/')[2]}"
        url = {"url": f"{self.hub.endpoint}/{repo_id}"}
        if repo_id in self.hub.repos:
            return self.answer(409, {"error": "it is there already", **url})
        self.hub.add(repo_id, {".gitattributes": b""}, "initial commit")
        if wanted.get("private") or wanted.get("visibility") == "private":
            self.hub.private.add(repo_id)
        return self.answer(200, url)

    def preupload(self, repo_id: str, wanted: dict[str, Any]) -> None:
        commit = self.hub.find(repo_id, "main")
        files = commit.files if commit else {}
        answers = []
        for entry in wanted["files"]:
            answer = {"path": entry["path"], "uploadMode": "regular", "shouldIgnore": False}
            if entry["path"] in files:
                answer["oid"] = blob_id(files[entry["path"]])
            answers.append(answer)
        return self.answer(200, {"files": answers})

    def commit(self, repo_id: str, lines: list[dict[str, Any]]) -> None:
        if self.hub.failures:
            return self.answer(self.hub.failures.pop(0), {"error": "not now"})
        files = {
            line["value"]["path"]: base64.b64decode(line["value"]["content"])
            for line in lines
            if line["key"] == "file"
        }
        message = next(line["value"]["summary"] for line in lines if line["key"] == "header")
        sha = self.hub.add(repo_id, files, message)
        url = f"{self.hub.endpoint}/{repo_id}/commit/{sha}"
        return self.answer(200, {"success": True, "commitOid": sha, "commitUrl": url})


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Serve an empty Hub on a free port."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
