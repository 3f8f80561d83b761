"""What a job may do, and what it leaves: each back end that this machine has."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llm_agents.sandbox import Sandbox, SandboxLimits, SandboxUnavailableError
from llm_agents.sandbox.attacks import ATTACKS, LIMITS, Attack, scene, verdict
from llm_agents.sandbox.backends import BACKENDS, Backend, why_not
from llm_agents.sandbox.limits import MIB, SandboxOutcome

ROOT = Path(__file__).resolve().parents[2]
MUST_SHOW = {"read files of others", "write outside", "use the network", "read the environment"}


@pytest.fixture(params=BACKENDS, scope="module")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    backend: Backend = request.param
    reason = why_not(backend)
    if reason:
        pytest.skip(reason)
    with Sandbox(LIMITS, backend=backend, preload=("json", "numpy")) as made:
        yield made


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attacks_are_contained(sandbox: Sandbox, attack: Attack) -> None:
    limits = replace(LIMITS, wall_seconds=0.8) if "wall" in attack.stopped else None
    with scene() as place:
        outcome = sandbox.run(place.fill(attack.code), limits=limits)
        assert verdict(attack, outcome, place) == ""
    assert sandbox.run("print(6 * 7)").stdout == "42\n"  # and the next job runs


def test_an_attack_that_gets_what_it_wants_is_seen() -> None:
    names = {attack.name for attack in ATTACKS}
    assert names >= MUST_SHOW
    assert len(names) == len(ATTACKS) >= 30
    for attack in ATTACKS:
        if attack.name not in MUST_SHOW:
            continue
        with scene() as place:
            program = [sys.executable, "-I", "-c", place.fill(attack.code)]
            free = subprocess.run(program, capture_output=True, text=True, check=False)
            outcome = SandboxOutcome(free.stdout, free.stderr, free.returncode, None, 0.0, 0.0)
            assert verdict(attack, outcome, place) != "", "nothing closes this program in"


def test_a_program_prints_computes_and_hands_files_back(sandbox: Sandbox) -> None:
    code = (
        "import numpy as np, sys\n"
        "from pathlib import Path\n"
        "x = np.frombuffer(Path('in/x').read_bytes())\n"
        "Path('y').write_bytes((x * 2).tobytes())\n"
        "print('done', __name__); print('aside', file=sys.stderr)\n"
    )
    x = b"\x00\x00\x00\x00\x00\x00\xf0?" * 3  # three times 1.0
    outcome = sandbox.run(code, files={"in/x": x}, outputs=("y", "z"))
    assert (outcome.stdout, outcome.stderr) == ("done __main__\n", "aside\n")
    assert dict(outcome.files) == {"y": b"\x00\x00\x00\x00\x00\x00\x00@" * 3}
    assert outcome.is_success
    assert outcome.error == ""


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("def f(:", 1, "SyntaxError: invalid syntax"),
        ("import sys; sys.exit(7)", 7, "ended with status 7"),
        ("import sys; sys.exit('bad')", 1, "bad"),
        ("import os; os._exit(3)", 3, "ended with status 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11, "ended with status -11"),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt"),
        ("def f(): f()\nf()", 1, "RecursionError: maximum recursion depth exceeded"),
        ("\ud800", 1, "UnicodeEncodeError"),
    ],
)
def test_failures_are_outcomes(sandbox: Sandbox, code: str, status: int, error: str) -> None:
    outcome = sandbox.run(code)
    assert (outcome.status, outcome.stopped) == (status, None)
    assert error in outcome.error
    assert not outcome.is_success


def test_a_job_sees_nothing_of_the_one_before_it(sandbox: Sandbox) -> None:
    mark = "mark-of-the-first-job"
    planted = (
        f"import json, numpy, os, sys\nnumpy.mean = json.dumps = None\nsys.path.insert(0, '.')\n"
        f"open('left', 'w').write('{mark}')\nos.environ['LEFT'] = '{mark}'\n"
        "class Hook:\n    def find_spec(self, *a): raise RuntimeError\n"
        "sys.meta_path.insert(0, Hook())\n"
        "try:\n    open('/tmp/left', 'w').write('x')\nexcept OSError:\n    pass\n"
        "try:\n    open('/dev/shm/left', 'w').write('x')\nexcept OSError:\n    pass\n"
    )
    assert sandbox.run(planted, files={"given": b"x"}).is_success
    look = (
        "import json, numpy, os, fractions\n"
        "assert numpy.mean([1, 3]) == 2 and json.dumps(1) == '1'\n"
        "assert 'LEFT' not in os.environ and os.listdir('.') == [], os.listdir('.')\n"
        "for place in ('/tmp/left', '/dev/shm/left'): assert not os.path.exists(place)\n"
    )
    outcome = sandbox.run(look)
    assert outcome.is_success, outcome.stderr


def test_no_job_finds_anothers_text_in_its_memory(sandbox: Sandbox) -> None:
    secret = "words-of-the-first-job"
    sandbox.run(f"print('{secret}')", files={"f": secret.encode() * 1000}, outputs=("f",))
    hunt = (
        "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.malloc.restype = ctypes.c_void_p\n"
        f"half = '{secret[11:]}'.encode()\nhits = 0\n"
        "for size in [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10] * 200:\n"
        "    block = libc.malloc(ctypes.c_size_t(size))\n"  # as it was left
        f"    hits += b'{secret[:11]}' + half in ctypes.string_at(block, size)\n"
        "print(hits)\n"
    )
    assert sandbox.run(hunt).stdout == "0\n"


@pytest.mark.parametrize("left", ["fifo", "folder", "link", "big", "none"])
def test_what_is_no_regular_file_is_not_handed_back(sandbox: Sandbox, left: str) -> None:
    make = {
        "fifo": "import os; os.mkfifo('y')",
        "folder": "import os; os.mkdir('y')",
        "link": "import os; os.symlink('/usr/bin/env', 'y')",
        "big": "for name in 'xy': open(name, 'wb').truncate(5 << 20)",  # sparse
        "none": "pass",
    }[left]
    outcome = sandbox.run(make, outputs=("x", "y"))
    assert set(outcome.files) == ({"x"} if left == "big" else set())
    assert outcome.stopped is None


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "", ".", "a\0b"])
def test_names_that_lead_out_are_refused(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(ValueError, match="relative name of a file in the job's folder"):
        sandbox.run("", files={name: b""})
    with pytest.raises(ValueError, match="relative name"):
        sandbox.run("", outputs=(name,))


@pytest.mark.parametrize(
    ("code", "changed", "stopped"),
    [
        ("while True: pass", {"wall_seconds": 0.3}, "wall"),
        ("while True: pass", {"cpu_seconds": 1, "wall_seconds": 60.0}, "cpu"),
        ("x = bytearray(200 << 20)", {"memory_bytes": 32 * MIB}, "memory"),
        ("print('x' * 2000)", {"output_bytes": 1000}, "output"),
    ],
)
def test_limits_end_a_job_and_are_named(
    sandbox: Sandbox, code: str, changed: dict[str, float], stopped: str
) -> None:
    outcome = sandbox.run(code, limits=replace(LIMITS, **changed))  # type: ignore[arg-type]
    assert outcome.stopped == stopped
    assert outcome.error.startswith("stopped at the limit of")
    assert len(outcome.stdout) <= 1000
    assert outcome.status is None


def test_output_just_at_the_limit_is_whole(sandbox: Sandbox) -> None:
    limits = replace(LIMITS, output_bytes=1000)
    outcome = sandbox.run("import sys; sys.stdout.write('x' * 1000)", limits=limits)
    assert (outcome.stopped, outcome.stdout) == (None, "x" * 1000)


def test_a_program_that_is_not_read_does_not_block(sandbox: Sandbox) -> None:
    outcome = sandbox.run("import os; os._exit(0)", files={"large": bytes(4 * MIB)})
    assert outcome.status == 0


@pytest.mark.parametrize("field", ["wall_seconds", "memory_bytes", "processes"])
def test_limits_of_nothing_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"expected `{field}` above 0, got 0"):
        SandboxLimits(**{field: 0})  # type: ignore[arg-type]


def test_a_module_that_is_not_there_is_named(sandbox: Sandbox) -> None:
    with (
        Sandbox(LIMITS, backend=sandbox.backend, preload=("nosuchmodule",)) as other,
        pytest.raises(SandboxUnavailableError, match="nosuchmodule"),
    ):
        other.run("")


def test_readable_files_are_read_and_not_written(sandbox: Sandbox, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / "a.csv").write_text("1,2")
    for place in (given, *given.parents):
        if place.stat().st_uid == os.getuid() and place.stat().st_mode & 0o5 != 0o5:
            place.chmod(0o755)
    code = (
        f"print(open('{given}/a.csv').read())\n"
        f"try:\n    open('{given}/a.csv', 'w'); print('written')\nexcept OSError:\n    pass\n"
    )
    with Sandbox(LIMITS, backend=sandbox.backend, readable=[given]) as other:
        assert other.run(code).stdout == "1,2\n"
    assert (given / "a.csv").read_text() == "1,2"


def test_threads_may_share_a_sandbox(sandbox: Sandbox) -> None:
    seen: dict[int, str] = {}

    def ask(number: int) -> None:
        seen[number] = sandbox.run(f"print({number})").stdout

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {number: f"{number}\n" for number in range(6)}


def test_a_server_that_was_killed_is_replaced(sandbox: Sandbox) -> None:
    sandbox.run("")
    assert sandbox._server is not None
    os.kill(sandbox._server._process.pid, signal.SIGKILL)
    sandbox._server._process.wait()
    assert sandbox.run("print(1)").stdout == "1\n"


def test_closing_leaves_no_process(sandbox: Sandbox) -> None:
    with Sandbox(LIMITS, backend=sandbox.backend) as other:
        other.run("")
        assert other._server is not None
        server = other._server._process.pid
        assert Path(f"/proc/{server}").exists()
    assert not Path(f"/proc/{server}").exists()
    assert other._server is None


def test_a_cold_sandbox_takes_a_server_a_job(sandbox: Sandbox) -> None:
    with Sandbox(LIMITS, backend=sandbox.backend, warm=False) as cold:
        assert cold.run("print(1)").stdout == "1\n"
        assert cold._server is None


def test_a_warm_job_takes_no_start_of_the_interpreter(sandbox: Sandbox) -> None:
    sandbox.run("import numpy")
    times = [sandbox.run("import numpy").cpu_seconds for _ in range(5)]
    assert min(times) < 0.05, "numpy alone takes more to import"


OTHER_USER = 65534


def _python_of_everybody() -> str | None:
    """Return an interpreter that an ordinary user can start, root's own one included if it is."""
    for path in (sys.executable, "/usr/bin/python3"):
        program = "import sys; sys.exit(sys.version_info < (3, 11))"
        try:
            ended = subprocess.run(
                [path, "-c", program], user=OTHER_USER, group=OTHER_USER, cwd="/"
            )
        except OSError:
            continue
        if ended.returncode == 0 and os.access(ROOT, os.R_OK):
            return path
    return None


def _environment() -> dict[str, str]:
    places = [str(ROOT), *(place for place in sys.path if place.endswith("site-packages"))]
    return {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(places)}


CHOICE = "from llm_agents.sandbox import Sandbox; print(Sandbox().backend)"


@pytest.mark.slow
def test_attacks_by_an_ordinary_user_are_contained() -> None:
    if os.geteuid() != 0:
        pytest.skip("the whole file runs as an ordinary user already")
    python = _python_of_everybody()
    if python is None:
        pytest.skip("no interpreter here that an ordinary user may start")
    done = subprocess.run(
        [python, "-m", "llm_agents.sandbox.selection"],
        user=OTHER_USER,
        group=OTHER_USER,
        extra_groups=[],
        env=_environment(),
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("contained") >= 60, done.stdout


def test_a_host_without_user_namespaces_takes_landlock() -> None:
    from llm_agents.sandbox.backends import bubblewrap

    for backend in BACKENDS:
        if why_not(backend):
            pytest.skip(str(why_not(backend)))
    outer = [str(bubblewrap()), "--unshare-user", "--uid", "1000", "--disable-userns"]
    outer += ["--dev-bind", "/", "/", "--", sys.executable, "-c", CHOICE]
    done = subprocess.run(outer, env=_environment(), capture_output=True, text=True)
    assert done.stdout == "landlock\n", done.stderr


def test_a_host_with_neither_is_refused_with_reasons() -> None:
    code = (
        "import struct\nfrom llm_agents.sandbox import confinement as c\n"
        "numbers = [444, (165, 40)[c.MACHINES[c.platform.machine()][0]]]\n"  # Landlock, mount
        "tests = [(0x15, 0, 1, n) for n in numbers]\n"
        "deny = (0x06, 0, 0, 0x00050000 | 38)\n"
        "lines = [(0x20, 0, 0, 0)]\n"
        "for test in tests: lines += [test, deny]\n"
        "c.install_filter([*lines, (0x06, 0, 0, 0x7FFF0000)])\n" + CHOICE
    )
    if sys.platform != "linux":
        pytest.skip("a filter of system calls makes the host")
    program = [sys.executable, "-c", code]
    done = subprocess.run(program, env=_environment(), capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "code can't be run safely on this machine: bubblewrap: " in last
    assert "landlock: this kernel has Landlock 0, 3 is needed" in last


def test_a_job_ends_with_the_process_that_asked_for_it(sandbox: Sandbox) -> None:
    code = (
        "import os, signal, threading, time\n"
        "from llm_agents.sandbox import Sandbox\n"
        f"box = Sandbox(backend='{sandbox.backend}')\nbox.run('')\n"
        "print(box._server._process.pid, flush=True)\n"
        "threading.Thread(target=box.run, args=('import time; time.sleep(60)',)).start()\n"
        "time.sleep(0.3)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    program = [sys.executable, "-c", code]
    done = subprocess.run(program, env=_environment(), capture_output=True, text=True)
    server = Path(f"/proc/{int(done.stdout)}/stat")
    for _ in range(100):
        if not server.exists() or ") Z" in server.read_text():
            break
        time.sleep(0.05)
    else:
        pytest.fail("the server outlived the process that started it")


def test_the_pages_example_runs() -> None:
    if all(why_not(backend) for backend in BACKENDS):
        pytest.skip("no back end on this system")
    page = (ROOT / "docs" / "sandbox.md").read_text(encoding="utf8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "sandbox.md", "exec"), {})
