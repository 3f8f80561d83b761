"""A language model's answers in a file of JSON lines, which several processes may share."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from filelock import FileLock

from llm_agents.errors import UserError

log = logging.getLogger(__name__)

Asked = tuple[str, ...]
Values = tuple[float, ...]


class AnswerMemory:
    """What a model answered to which texts.

    In memory alone until `open` names a file. A file is only ever appended to, whole lines under a
    lock; what a process that was killed left unfinished is cut off.
    """

    def __init__(self) -> None:
        self._known: dict[Asked, Values] = {}
        self._path: Path | None = None

    def __len__(self) -> int:
        """Return the number of answers."""
        return len(self._known)

    def open(self, path: Path) -> None:
        """Use the answers in `path`, and keep new ones there.

        Raises:
            UserError: A line holds something else.
        """
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock(path):
            cut_unfinished_line(path)
            text = path.read_text(encoding="utf8") if path.is_file() else ""
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                entry = json.loads(line)
                self._known[tuple(entry["asked"])] = tuple(map(float, entry["answer"]))
            except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
                raise UserError(
                    f"line {number} of `{path}` holds no answer: delete the file; its answers are "
                    "then asked for again"
                ) from error

    def get(self, asked: Asked) -> Values | None:
        """Return the answer to `asked`, or None."""
        return self._known.get(asked)

    def items(self) -> Iterator[tuple[Asked, Values]]:
        """Yield what was asked, with its answer."""
        yield from self._known.items()

    def put(self, answers: Mapping[Asked, Values]) -> None:
        """Keep answers, in the file too."""
        self._known.update(answers)
        if self._path is None or not answers:
            return
        lines = "".join(
            json.dumps({"asked": asked, "answer": answer}) + "\n"
            for asked, answer in answers.items()
        )
        with self._lock(self._path):
            cut_unfinished_line(self._path)
            with self._path.open("a", encoding="utf8") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())

    def _lock(self, path: Path) -> FileLock:
        """Return the lock that processes share."""
        return FileLock(path.with_name(f".{path.name}.lock"))


def cut_unfinished_line(path: Path) -> None:
    """Cut a last line without an end off a file."""
    if not path.is_file() or path.stat().st_size == 0:
        return
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        log.warning("cutting an unfinished last line off `%s`", path)
        file.truncate(whole)
