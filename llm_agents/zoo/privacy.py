"""What must not leave a machine: tokens, home folders, absolute paths."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from llm_agents.errors import UserError

TEXTS = {".json", ".jsonl", ".yaml", ".md", ".jinja", ".txt", ".html", ""}
SECRET = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bsk-[A-Za-z0-9_-]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bAKIA[0-9A-Z]{16}\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
HOME = re.compile(r"/(?:home|Users)/[\w.-]+|[A-Za-z]:\\+Users\\+[\w.-]+")
ABSOLUTE = re.compile(r"(?:file://)?(?:/[\w.@~+-]+){2,}/?|[A-Za-z]:[\\/][^\n]+|~/[^\n]+")


def refuse_private(staged: Path) -> None:
    """Raise if a text about to be sent holds a secret, a home folder or an absolute path."""
    faults = [
        f"{path.name}, line {line}: {what}"
        for path in sorted(staged.rglob("*"))
        if path.is_file() and path.suffix in TEXTS
        for line, what in private_lines(path)
    ]
    if faults:
        shown = "; ".join(faults[:8]) + (f" and {len(faults) - 8} more" if len(faults) > 8 else "")
        raise UserError(
            f"nothing was sent, since these would tell who and where you are: {shown}. Use paths "
            "relative to the working folder in the recipe"
        )


def without_here(recipe: str) -> str:
    """Return a recipe with its paths below the working folder as they are read from there."""
    here = rf"(?<![\w.~-]){re.escape(str(Path.cwd()))}/"
    return re.sub(here, "", recipe)


def private_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line numbers of a file with what is private about them."""
    # Dialogues may speak of any path: only this machine's own count in them.
    strict = path.suffix in {".json", ".yaml"} and not path.name.startswith("tokenizer")
    yield from private_places(path.read_text(encoding="utf8"), strict=strict)


def private_places(text: str, *, strict: bool) -> Iterator[tuple[int, str]]:
    """Yield line numbers of a text with what is private about them.

    Args:
        text: What is looked through.
        strict: Refuse every absolute path, not only those of this machine.
    """
    here = {str(Path.home()), str(Path.cwd()), os.environ.get("HF_HOME", "")} - {"", "/"}
    tokens = {os.environ.get(name, "") for name in ("HF_TOKEN", "OPENAI_API_KEY")} - {""}
    user = re.compile(rf"[/\\]{re.escape(Path.home().name)}(?=[/\\\"'\s]|$)")
    for number, line in enumerate(text.splitlines(), start=1):
        if SECRET.search(line) or any(token in line for token in tokens):
            yield number, "an access token"
        elif any(place in line for place in here) or user.search(line):
            yield number, "a folder of this machine"
        elif strict and (found := HOME.search(line) or absolute_value(line)):
            yield number, f"the path `{found if isinstance(found, str) else found[0]}`"


def absolute_value(line: str) -> str | None:
    """Return the absolute path among the values of a JSON or YAML line, if there is one."""
    quoted = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
    plain = re.sub(r"^\s*(-\s+|[\w.]+:\s+)+", "", line)
    for text in [*quoted, plain]:
        if ABSOLUTE.fullmatch(text.strip().strip("'\"")):
            return str(json.loads(f'"{text}"')) if "\\\\" in text else text.strip()
    return None
