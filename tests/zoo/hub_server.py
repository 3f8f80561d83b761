"""A small Hub on the loopback: what huggingface_hub needs to create, commit and download."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
import time
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

    `failures` holds what the next commits are answered with: a status code, ``lost`` for a
    connection that breaks before the commit is taken, ``unheard`` for one that breaks after it.
    `write_token` is the only token that may write, if it is set; answers take `delay` seconds.
    `repos` holds the history of each main branch, `branches` those of the others.
    """

    endpoint: str = ""
    repos: dict[str, list[Commit]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    branches: dict[tuple[str, str], list[Commit]] = field(default_factory=dict)
    failures: list[int | str] = field(default_factory=list)
    delay: float = 0.0
    write_token: str | None = None
    requests: list[str] = field(default_factory=list)

    def add(
        self,
        repo_id: str,
        files: dict[str, bytes],
        message: str = "added",
        *,
        branch: str = "main",
        deleted: tuple[str, ...] = (),
    ) -> str:
        """Commit files to a repository, made if need be, and return the commit's name."""
        main = self.repos.setdefault(repo_id, [])
        history = main if branch == "main" else self.branches[repo_id, branch]
        state = {**(history[-1].files if history else {}), **files}
        kept = {name: content for name, content in state.items() if name not in deleted}
        sha = hashlib.sha1(f"{repo_id}{branch}{len(history)}".encode()).hexdigest()
        history.append(Commit(sha, message, kept))
        return sha

    def find(self, repo_id: str, revision: str) -> Commit | None:
        """Return the commit of a branch or commit name."""
        history = self.repos.get(repo_id, [])
        if revision == "main":
            return history[-1] if history else None
        if (repo_id, revision) in self.branches:
            return self.branches[repo_id, revision][-1]
        others = [c for (repo, _), found in self.branches.items() if repo == repo_id for c in found]
        return next((commit for commit in (*history, *others) if commit.sha == revision), None)


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
        time.sleep(self.hub.delay)
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
        time.sleep(self.hub.delay)
        path = self.path.partition("?")[0]
        if path == "/api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if self.hub.write_token is not None and token != self.hub.write_token:
            return self.answer(401, {"error": "a token that may write is needed"})
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        place = re.fullmatch(
            r"/api/models/([\w.-]+/[\w.-]+)/(preupload|commit|branch)/([\w.-]+)", path
        )
        if place is None:
            return self.missing("EntryNotFound")
        repo_id, verb, branch = place.groups()
        if repo_id not in self.hub.repos:
            return self.missing("RepoNotFound")
        if verb == "branch":
            return self.branch(repo_id, branch)
        if self.hub.find(repo_id, branch) is None:
            return self.missing("RevisionNotFound")
        if verb == "preupload":
            return self.preupload(repo_id, branch, json.loads(body))
        return self.commit(repo_id, branch, [json.loads(x) for x in body.splitlines() if x])

    def branch(self, repo_id: str, branch: str) -> None:
        if self.hub.find(repo_id, branch) is not None:
            return self.answer(409, {"error": "it is there already"})
        self.hub.branches[repo_id, branch] = list(self.hub.repos[repo_id])
        return self.answer(200)

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

    def preupload(self, repo_id: str, branch: str, wanted: dict[str, Any]) -> None:
        commit = self.hub.find(repo_id, branch)
        files = commit.files if commit else {}
        answers = []
        for entry in wanted["files"]:
            answer = {"path": entry["path"], "uploadMode": "regular", "shouldIgnore": False}
            if entry["path"] in files:
                answer["oid"] = blob_id(files[entry["path"]])
            answers.append(answer)
        return self.answer(200, {"files": answers})

    def commit(self, repo_id: str, branch: str, lines: list[dict[str, Any]]) -> None:
        fault = self.hub.failures.pop(0) if self.hub.failures else None
        if isinstance(fault, int):
            return self.answer(fault, {"error": "not now"})
        if fault == "lost":
            return self.hang_up()
        files = {
            line["value"]["path"]: base64.b64decode(line["value"]["content"])
            for line in lines
            if line["key"] == "file"
        }
        deleted = tuple(line["value"]["path"] for line in lines if line["key"] == "deletedFile")
        message = next(line["value"]["summary"] for line in lines if line["key"] == "header")
        sha = self.hub.add(repo_id, files, message, branch=branch, deleted=deleted)
        if fault == "unheard":
            return self.hang_up()
        url = f"{self.hub.endpoint}/{repo_id}/commit/{sha}"
        return self.answer(200, {"success": True, "commitOid": sha, "commitUrl": url})

    def hang_up(self) -> None:
        """Break the connection without an answer."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


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
