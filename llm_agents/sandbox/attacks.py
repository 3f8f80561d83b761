"""Attacks on the sandbox: what a job must not be able to do, as programs that try.

The quick ones are the self-test by which a back end is chosen; all of them are tests. A program
prints ESCAPED where it got what it wanted; the scene is looked at afterwards as well.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llm_agents.sandbox.limits import MIB, SandboxLimits, SandboxOutcome, Stopped

SECRET = "a-secret-that-no-job-may-see"
ESCAPED = "ESCAPED"
TRIED = "came to its end"


@dataclass(frozen=True)
class Attack:
    """A program that tries to get out.

    Args:
        name: What it tries.
        code: Its text; `{secret}`, `{outside}`, `{port}`, `{victim}` and `{parent}` stand for the
            scene's.
        stopped: The limits that may end it; ending by itself is always allowed.
        is_quick: Part of the self-test.
    """

    name: str
    code: str
    stopped: tuple[Stopped, ...] = ()
    is_quick: bool = False


@dataclass(frozen=True)
class Scene:
    """What the attacks are after.

    Args:
        folder: Folder of the scene; only the file `secret` lies there.
        port: Port on this machine at which somebody listens.
        listener: The socket that listens.
        victim: A process of the same user.
    """

    folder: Path
    port: int
    listener: socket.socket
    victim: subprocess.Popen[bytes]

    def fill(self, code: str) -> str:
        """Put the scene's names into a program, and let it say that it came to its end."""
        names = {
            "secret": str(self.folder / "secret"),
            "outside": str(self.folder),
            "port": str(self.port),
            "victim": str(self.victim.pid),
            "parent": str(os.getpid()),
        }
        for name, value in names.items():
            code = code.replace(f"{{{name}}}", value)
        return f"{code}\nprint({TRIED!r})\n"

    def damage(self) -> str:
        """Return what an attack has changed; nothing if all is as it was."""
        if sorted(os.listdir(self.folder)) != ["secret"]:
            return f"files outside: {sorted(os.listdir(self.folder))}"
        if (self.folder / "secret").read_text(encoding="utf8") != SECRET:
            return "a file outside was changed"
        if (self.folder / "secret").stat().st_mode & 0o777 != 0o644:
            return "the mode of a file outside was changed"
        if self.victim.poll() is not None:
            return "a process outside was ended"
        with contextlib.suppress(BlockingIOError):
            self.listener.accept()
            return "a connection came in"
        return ""


@contextlib.contextmanager
def scene() -> Iterator[Scene]:
    """Set a scene, and clear it away."""
    folder = Path(tempfile.mkdtemp(prefix="scene-"))
    folder.chmod(0o755)
    (folder / "secret").write_text(SECRET, encoding="utf8")
    (folder / "secret").chmod(0o644)
    victim = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    before = os.environ.get("SANDBOX_SECRET")
    os.environ["SANDBOX_SECRET"] = SECRET
    try:
        yield Scene(folder, listener.getsockname()[1], listener, victim)
    finally:
        if before is None:
            del os.environ["SANDBOX_SECRET"]
        else:
            os.environ["SANDBOX_SECRET"] = before
        listener.close()
        victim.kill()
        victim.wait()
        shutil.rmtree(folder)


def verdict(attack: Attack, outcome: SandboxOutcome, place: Scene) -> str:
    """Return how an attack got out; nothing if it was contained."""
    if ESCAPED in outcome.stdout or SECRET in outcome.stdout + outcome.stderr:
        return f"{attack.name}: {outcome.stdout.strip()[:200]}"
    if outcome.stopped is not None and outcome.stopped not in attack.stopped:
        return f"{attack.name}: stopped by {outcome.stopped}"
    no_memory = "memory" in attack.stopped and "MemoryError" in outcome.stderr
    if outcome.stopped is None and TRIED not in outcome.stdout and not no_memory:
        return f"{attack.name}: it did not run: {outcome.error}"
    damage = place.damage()
    return f"{attack.name}: {damage}" if damage else ""


# --- limits under which the attacks run -------------------------------------------------------

LIMITS = SandboxLimits(
    wall_seconds=10.0,
    cpu_seconds=5,
    memory_bytes=96 * MIB,
    processes=16,
    output_bytes=64 * 1024,
    disk_bytes=8 * MIB,
)

_NUMBER = "import platform; NR = 0 if platform.machine() == 'x86_64' else 1\n"
_CALL = _NUMBER + "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
_KEPT = """
import os
paths = {paths}
for path in paths:
    try:
        print('ESCAPED', path, len(open(path, 'rb').read(100)))
    except OSError:
        pass
"""
_SENSITIVE = (
    "['/etc/shadow', '/etc/passwd', '/proc/1/environ', '/proc/{parent}/environ',"
    " '/proc/{parent}/mem', '/proc/self/environ', '/proc/kcore', '/dev/mem', '{secret}']"
)

ATTACKS: tuple[Attack, ...] = (
    Attack("read files of others", _KEPT.replace("{paths}", _SENSITIVE), is_quick=True),
    Attack(
        "list folders of others",
        "import os\nfor path in ('{outside}', '/home', '/root', '/proc/{parent}/fd'):\n"
        "    try:\n        names = os.listdir(path)\n    except OSError:\n        continue\n"
        "    if names and path == '{outside}': print('ESCAPED', names)\n"
        "    if path.startswith('/proc') : print('ESCAPED', names)\n",
        is_quick=True,
    ),
    Attack(
        "write outside",
        "import os\nfor path in ('{outside}/new', '{secret}'):\n"
        "    try:\n        open(path, 'w').write('x'); print('ESCAPED', path)\n"
        "    except OSError:\n        pass\n",
        is_quick=True,
    ),
    Attack(
        "change a file outside without opening it",
        "import os\nfor act in (lambda p: os.chmod(p, 0o777), lambda p: os.truncate(p, 0),\n"
        "            os.unlink, lambda p: os.rename(p, p + 'x'), lambda p: os.link(p, 'mine'),\n"
        "            lambda p: os.utime(p, (0, 0)), lambda p: os.chown(p, 1, 1)):\n"
        "    try:\n        act('{secret}'); print('ESCAPED')\n    except OSError:\n        pass\n",
        is_quick=True,
    ),
    Attack(
        "go through a symbolic link",
        "import os\nos.symlink('{secret}', 'link'); os.symlink('/', 'root')\n"
        "for path in ('link', 'root/etc/shadow', 'root{secret}', '../../..{secret}'):\n"
        "    try:\n        print('ESCAPED', open(path).read()[:9])\n    except OSError:\n"
        "        pass\n",
    ),
    Attack(
        "use the network",
        "import socket\nfor family, kind in ((2, 1), (2, 2), (10, 1), (16, 3), (1, 1), (40, 1)):\n"
        "    try:\n        one = socket.socket(family, kind)\n"
        "        if family == 2 and kind == 1:\n"
        "            one.connect(('127.0.0.1', {port})); print('ESCAPED')\n"
        "        if family == 2 and kind == 2:\n"
        "            one.sendto(b'x', ('127.0.0.1', {port})); print('ESCAPED')\n"
        "    except OSError:\n        pass\n",
        is_quick=True,
    ),
    Attack(
        "read the environment",
        "import os\nif 'SANDBOX_SECRET' in os.environ or 'PYTEST_CURRENT_TEST' in os.environ:\n"
        "    print('ESCAPED', sorted(os.environ))\n",
        is_quick=True,
    ),
    Attack(
        "signal other processes",
        "import os, signal\nfor process in ({victim}, {parent}):\n"
        "    try:\n        os.kill(process, 0); print('ESCAPED', process)\n"
        "        os.kill(process, signal.SIGKILL)\n    except OSError:\n        pass\n",
        is_quick=True,
    ),
    Attack(
        "see other processes",
        "import os\ntry:\n    names = [n for n in os.listdir('/proc') if n.isdigit()]\n"
        "except OSError:\n    names = []\n"
        "if '{victim}' in names: print('ESCAPED', len(names))\n",
        is_quick=True,
    ),
    Attack(
        "end the process that watches",
        "import os, signal\n"
        "try:\n    os.kill(os.getppid(), signal.SIGKILL)\nexcept OSError:\n    pass\n",
        stopped=("lost",),
    ),
    Attack(
        "end all processes",
        "import os, signal\ntry:\n    os.kill(-1, signal.SIGKILL)\nexcept OSError:\n    pass\n",
        stopped=("lost",),
    ),
    Attack(
        "trace a process",
        _CALL + "import os\nfor process in ({victim}, os.getppid(), 1):\n"
        "    if libc.ptrace(16, process, 0, 0) == 0: print('ESCAPED', process)\n",
    ),
    Attack(
        "read another process's memory",
        _CALL + "import os\nbuffer = ctypes.create_string_buffer(8)\n"
        "P, N = ctypes.c_void_p, ctypes.c_size_t\n"
        "class V(ctypes.Structure): _fields_ = [('b', P), ('n', N)]\n"
        "mine = V(ctypes.addressof(buffer), 8)\nfor process in ({victim}, os.getppid()):\n"
        "    at = ctypes.byref(mine)\n"
        "    got = libc.process_vm_readv(process, at, 1, at, 1, 0)\n"
        "    if got > 0: print('ESCAPED', process)\n",
    ),
    Attack(
        "enter new namespaces",
        _CALL + "for flag in (0x10000000, 0x00020000, 0x40000000, 0x20000000):\n"
        "    if libc.unshare(flag) == 0: print('ESCAPED', hex(flag))\n"
        "    got = libc.syscall((56, 220)[NR], flag | 17, 0, 0, 0, 0)\n"
        "    if got == 0:\n        import os; os._exit(0)\n"
        "    if got > 0: print('ESCAPED clone', hex(flag))\n",
        is_quick=True,
    ),
    Attack(
        "mount, change root, load code into the kernel",
        _CALL + "tries = [libc.mount(b'x', b'/tmp', b'tmpfs', 0, None), libc.chroot(b'/tmp'),\n"
        "  libc.umount2(b'/tmp', 2), libc.syscall((321, 280)[NR], 0, 0, 0),\n"
        "  libc.syscall((425, 425)[NR], 8, 0), libc.syscall((250, 219)[NR], 0, 0, 0)]\n"
        "if any(one >= 0 for one in tries): print('ESCAPED', tries)\n",
    ),
    Attack(
        "become root",
        "import os\ntries = 0\nfor act in (lambda: os.setuid(0), lambda: os.setgroups([0]),\n"
        "            lambda: os.setresuid(0, 0, 0)):\n"
        "    try:\n        act(); tries += 1\n    except OSError:\n        pass\n"
        "if os.geteuid() == 0:\n"
        "    try:\n        open('/etc/shadow').read(); print('ESCAPED')\n"
        "    except OSError:\n        pass\n",
    ),
    Attack(
        "take much memory",
        "blocks = []\nwhile len(blocks) < 3072: blocks.append(bytearray(1 << 20))\n"
        "print('ESCAPED')\n",
        stopped=("memory",),
        is_quick=True,
    ),
    Attack(
        "take much shared memory",
        "import mmap\nblocks = []\nwhile len(blocks) < 3072:\n"
        "    one = mmap.mmap(-1, 1 << 20); one[:] = b'x' * (1 << 20); blocks.append(one)\n"
        "print('ESCAPED')\n",
        stopped=("memory",),
    ),
    Attack(
        "take much memory in many processes",
        "import os, time\nfor _ in range(8):\n    try:\n        child = os.fork()\n"
        "    except OSError:\n        break\n    if child == 0:\n"
        "        hold = bytearray(32 << 20)\n"
        "        for at in range(0, len(hold), 4096): hold[at] = 1\n"
        "        time.sleep(3); os._exit(0)\nelse:\n    time.sleep(1); print('ESCAPED')\n",
        stopped=("memory",),
    ),
    Attack(
        "fork without end",
        "import os, time\ncount = 0\nfor _ in range(200):\n    try:\n        child = os.fork()\n"
        "    except OSError:\n        break\n"
        "    if child == 0:\n        time.sleep(5); os._exit(0)\n"
        "    count += 1\nif count > 60: print('ESCAPED', count)\n",
        is_quick=True,
    ),
    Attack(
        "fork bomb",  # of a thousand processes at most, should nothing hold it back
        "import mmap, os, time\ncount = mmap.mmap(-1, 1024)\nnumber = 0\n"
        "for bit in range(10):\n    try:\n        child = os.fork()\n"
        "    except OSError:\n        continue\n"
        "    if child == 0:\n        number |= 1 << bit; count[number] = 1\n"
        "if number:\n    time.sleep(3); os._exit(0)\n"
        "time.sleep(0.5)\nif sum(count[:]) > 60: print('ESCAPED', sum(count[:]))\n",
        stopped=("wall", "cpu", "memory"),
    ),
    Attack(
        "outlive the job",
        "import os, time\ntry:\n    if os.fork() == 0:\n        os.setsid()\n"
        "        if os.fork() == 0:\n            time.sleep(300)\n        os._exit(0)\n"
        "except OSError:\n    pass\n",
    ),
    Attack(
        "write without end",
        "import os\nblock = b'x' * 65536\nwhile True: os.write(1, block)\n",
        stopped=("output",),
    ),
    Attack(
        "fill the disk",
        "try:\n    with open('big', 'wb') as file:\n"
        "        for _ in range(200): file.write(bytes(1 << 20)); file.flush()\n"
        "    print('ESCAPED')\nexcept OSError:\n    pass\n",
        stopped=("disk",),
    ),
    Attack(
        "fill the disk with many files",
        "try:\n    for number in range(200):\n"
        "        with open(f'{number}', 'wb') as file: file.write(bytes(1 << 20))\n"
        "    print('ESCAPED')\nexcept OSError:\n    pass\n",
        stopped=("disk",),
    ),
    Attack(
        "unpack a bomb",
        "import io, zipfile\nbuffer = io.BytesIO()\n"
        "with zipfile.ZipFile(buffer, 'w', zipfile.ZIP_DEFLATED) as bomb:\n"
        "    bomb.writestr('zeros', bytes(30 << 20))\n"
        "try:\n    zipfile.ZipFile(buffer).extractall(); print('ESCAPED')\n"
        "except (OSError, MemoryError):\n    pass\n",
        stopped=("disk", "memory"),
    ),
    Attack("sleep for ever", "import time\nwhile True: time.sleep(60)\n", stopped=("wall",)),
    Attack(
        "ignore signals and work for ever",
        "import signal\nfor number in range(1, 65):\n    try:\n"
        "        signal.signal(number, signal.SIG_IGN)\n    except (OSError, ValueError):\n"
        "        pass\nwhile True: pass\n",
        stopped=("cpu", "wall"),
    ),
    Attack(
        "raise its own limits",
        "import resource\nfor kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS, 6):\n"
        "    try:\n        resource.setrlimit(kind, (-1, -1)); print('ESCAPED', kind)\n"
        "    except (OSError, ValueError):\n        pass\n"
        "try:\n    resource.prlimit({victim}, resource.RLIMIT_CPU, (1, 1)); print('ESCAPED')\n"
        "except (OSError, ValueError):\n    pass\n",
    ),
    Attack(
        "write to file descriptors that were left open",
        "import os\nfor number in range(3, 1024):\n    try:\n"
        "        os.write(number, b'x'); print('ESCAPED', number)\n    except OSError:\n"
        "        pass\n",
    ),
    Attack(
        "make a device",
        "import os, stat\nfor device in ((1, 1), (8, 0), (254, 0)):\n    try:\n"
        "        os.mknod('device', stat.S_IFBLK | 0o666, os.makedev(*device))\n"
        "        open('device', 'rb').read(1); print('ESCAPED')\n    except OSError:\n"
        "        pass\n",
    ),
    Attack(
        "change the interpreter's packages",
        "import os, sys\nfor place in sys.path:\n    try:\n"
        "        open(os.path.join(place, 'planted.py'), 'w').write('x'); \n"
        "        if not place.startswith(os.getcwd()) and place: print('ESCAPED', place)\n"
        "    except OSError:\n        pass\n",
    ),
)
QUICK = tuple(attack for attack in ATTACKS if attack.is_quick)
