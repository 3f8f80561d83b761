"""The inner side of the sandbox: a server that forks a confined process for every job.

Run as ``python -I -c SOURCE CONFIGURATION`` with a Unix socket; the standard
library alone is imported here, so that the text of this file is all that has to enter the sandbox.

A job's program, its files and its output travel through pipes that the outer side makes for that
job and passes over the socket: the server never reads them, so nothing of one job is left in the
memory from which the next one is forked.

Linux interfaces: landlock(7), seccomp(2), prctl(2), getrlimit(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import platform
import resource
import shutil
import signal
import socket
import stat
import struct
import sys
import traceback
from typing import NoReturn

LENGTH = struct.Struct("<Q")
PIECE = 1 << 16  # bytes read and written at a time
NO_NEW_PRIVILEGES, SET_SECCOMP, SET_DUMPABLE, SET_DEATH_SIGNAL = 38, 22, 4, 1
DROP_BOUNDING = 24
LAST_CAPABILITY = 63

_LIBRARY = ctypes.CDLL(None, use_errno=True)

# --- system calls that no job needs -----------------------------------------------------------
# Name → number on x86-64 and on 64-bit Arm (None: that machine has no such call).

DENIED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "syslog": (103, 116),
    "personality": (135, 92),
    "vhangup": (153, 58),
    "mq_open": (240, 180),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "kcmp": (312, 272),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "tkill": (200, 130),
}
# Where no namespace hides the host: what Landlock leaves open, new processes, signals to others.
DENIED_ON_HOST: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "chmod": (90, None),
    "chown": (92, None),
    "lchown": (94, None),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
SELF_ONLY_ON_HOST: dict[str, tuple[int, int]] = {"kill": (62, 129), "tgkill": (234, 131)}
CLONE, CLONE3, PRLIMIT = (56, 220), (435, 435), (302, 261)
NEW_NAMESPACES = 0x7E020080  # CLONE_NEWNS, -CGROUP, -UTS, -IPC, -USER, -PID, -NET and -TIME
THREAD = 0x00010000  # CLONE_THREAD
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
OTHER_ABI = 0x40000000  # x32's calls on x86-64

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_DENY, _NO_SUCH_CALL = 0x00050000 | 1, 0x00050000 | 38  # EPERM, ENOSYS
_NUMBER, _ARCHITECTURE, _FIRST = 0, 4, 16  # offsets in struct seccomp_data


Instruction = tuple[int, int, int, int]  # code, lines to jump if true, if false, operand


def seccomp_filter(*, on_host: bool, process: int) -> list[Instruction]:
    """Return the filter that denies what no job needs; all other calls are allowed.

    Args:
        on_host: No namespace hides the host: new processes, and signals to others, are denied too.
        process: The process that the filter is for.
    """
    column, architecture = MACHINES[platform.machine()]
    deny: list[Instruction] = [(_RETURN, 0, 0, _DENY)]
    allow: list[Instruction] = [(_RETURN, 0, 0, _ALLOW)]

    def case(number: int | None, then: list[Instruction]) -> list[Instruction]:
        """Return at this call; the number stays loaded for the next case."""
        return [] if number is None else [(_EQUAL, 0, len(then), number), *then]

    def among(arguments: tuple[int, ...]) -> list[Instruction]:
        """Allow with one of these first arguments, deny with another."""
        tests = [(_EQUAL, len(arguments) - i, 0, value) for i, value in enumerate(arguments)]
        return [(_LOAD, 0, 0, _FIRST), *tests, *deny, *allow]

    lines: list[Instruction] = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture)]
    lines += [(_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    if column == 0:
        lines += [(_AT_LEAST, 0, 1, OTHER_ABI), *deny]
    for numbers in {**DENIED, **(DENIED_ON_HOST if on_host else {})}.values():
        lines += case(numbers[column], deny)
    clone = [(_LOAD, 0, 0, _FIRST), (_ANY_BIT, 0, 1, NEW_NAMESPACES), *deny]
    clone += [(_ANY_BIT, 0, 1, THREAD), *allow, *deny] if on_host else allow
    lines += case(CLONE[column], clone)
    lines += case(CLONE3[column], [(_RETURN, 0, 0, _NO_SUCH_CALL)])
    lines += case(PRLIMIT[column], among((0, process)))
    if on_host:
        for pair in SELF_ONLY_ON_HOST.values():
            lines += case(pair[column], among((process,)))
    return [*lines, *allow]


class _Program(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def install_filter(lines: list[Instruction]) -> None:
    """Put a filter on this process and all that it starts; it can't be taken off."""
    text = b"".join(struct.pack("<HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(text, len(text))
    program = _Program(len(lines), ctypes.cast(buffer, ctypes.c_void_p).value)
    _control(NO_NEW_PRIVILEGES, 1)
    _control(SET_SECCOMP, 2, ctypes.addressof(program))


def _control(option: int, value: int, address: int = 0) -> None:
    """Call prctl."""
    arguments = [ctypes.c_ulong(value), ctypes.c_ulong(address), ctypes.c_ulong(0)]
    if _LIBRARY.prctl(ctypes.c_int(option), *arguments, ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


# --- files --------------------------------------------------------------------------------------

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
READ_FILE, READ_FOLDER, WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
RIGHTS_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # how many rights a version handles
TRUNCATION_HANDLED = 3  # the first version by which a file outside can't be emptied


def landlock_version() -> int:
    """Return the version of Landlock that this kernel has; 0 if none."""
    return max(0, int(_LIBRARY.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)))


def restrict_files(readable: list[str], writable: list[str]) -> None:
    """Leave this process these files alone; signals and sockets reach no process outside.

    Args:
        readable: Files, and folders with all below them; what is missing is left out.
        writable: Folders in which everything may be done but making devices.
    """
    version = landlock_version()
    rights = (1 << RIGHTS_BY_VERSION.get(version, 16)) - 1
    network = 3 if version >= 4 else 0  # binding and connecting
    scoped = 3 if version >= 6 else 0  # abstract sockets and signals
    attributes = struct.pack("<QQQ", rights, network, scoped)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _LIBRARY.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    device = (1 << 6) | (1 << 11)
    for path in readable:
        _allow_below(ruleset, path, READ_FILE | READ_FOLDER)
    for path in ("/dev/null", "/dev/zero", "/dev/urandom"):
        _allow_below(ruleset, path, READ_FILE | WRITE_FILE)
    for path in writable:
        _allow_below(ruleset, path, rights & ~device & ~1)  # nor is anything there executed
    _control(NO_NEW_PRIVILEGES, 1)
    if _LIBRARY.syscall(RESTRICT_SELF, ruleset, 0) != 0:
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    os.close(ruleset)


def _allow_below(ruleset: int, path: str, rights: int) -> None:
    """Add a rule; a file must not be given the rights of folders."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(os.fstat(place).st_mode):
        rights &= READ_FILE | WRITE_FILE
    rule = struct.pack("<Qi", rights, place)
    if _LIBRARY.syscall(ADD_RULE, ruleset, 1, rule, 0) != 0:
        raise OSError(ctypes.get_errno(), f"landlock_add_rule {path}")
    os.close(place)


def drop_privileges(user: int | None) -> None:
    """Become another user, if one is given, and give every capability up.

    Args:
        user: A user and group that nobody else has.
    """
    for capability in range(LAST_CAPABILITY + 1):
        with contextlib.suppress(OSError):  # there is no such capability, or it isn't ours to drop
            _control(DROP_BOUNDING, capability)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    _control(NO_NEW_PRIVILEGES, 1)
    number = (126, 91)[MACHINES[platform.machine()][0]]  # capset
    header, empty = struct.pack("<Ii", 0x20080522, 0), bytes(24)
    if _LIBRARY.syscall(number, header, empty) != 0:
        raise OSError(ctypes.get_errno(), "capset")


# --- a job --------------------------------------------------------------------------------------


def _read_all(source: int, count: int) -> bytes:
    """Read exactly so many bytes."""
    pieces = []
    while count:
        piece = os.read(source, min(count, PIECE))
        if not piece:
            raise EOFError("the job's program ended early")
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def _receive_job(source: int, folder: str) -> str:
    """Write the job's files into its folder; return its code."""
    (length,) = LENGTH.unpack(_read_all(source, LENGTH.size))
    job = json.loads(_read_all(source, length))
    for name, size in job["files"]:
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(_read_all(source, size))
    code: str = job["code"]
    return code


def _limit(limits: dict[str, int], *, on_host: bool) -> None:
    """Set the limits of resources; each holds for one process, the outer side adds them up."""
    wanted = {
        resource.RLIMIT_CPU: limits["cpu_seconds"],
        resource.RLIMIT_AS: limits["address_space"],
        resource.RLIMIT_FSIZE: limits["disk_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if not on_host:  # there it would count all processes of the user
        wanted[resource.RLIMIT_NPROC] = limits["processes"] + 1
    for kind, value in wanted.items():
        _, most = resource.getrlimit(kind)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        hard = value + 1 if kind == resource.RLIMIT_CPU and value != most else value
        resource.setrlimit(kind, (value, hard))


def _run_job(
    pipes: list[int], begun: int, limits: dict[str, int], setting: dict[str, object]
) -> NoReturn:
    """Confine this process, run the job's code in it, and end.

    A byte is written to `begun` once the process is confined, but for the filter of system calls.
    """
    program, output, errors, _ = pipes
    work, on_host = str(setting["work"]), bool(setting["on_host"])
    folder = os.path.join(work, "job")
    os.mkdir(folder, 0o700)
    os.chdir(folder)
    code = _receive_job(program, folder)
    nothing = os.open("/dev/null", os.O_RDONLY)
    for place, source in enumerate((nothing, output, errors)):
        os.dup2(source, place)
    os.dup2(begun, 3)
    os.closerange(4, 1 << 16)
    os.environ.update(HOME=folder, TMPDIR=folder)
    _control(SET_DEATH_SIGNAL, signal.SIGKILL)
    _limit(limits, on_host=on_host)
    if landlock_version():
        restrict_files(list(setting["readable"]), [folder])  # type: ignore[call-overload]  # JSON
    os.write(3, b"1")
    os.close(3)
    install_filter(seccomp_filter(on_host=on_host, process=os.getpid()))
    os._exit(_execute(code))


def _execute(code: str) -> int:
    """Execute a program as the interpreter would; return its exit status."""
    scope = {"__name__": "__main__", "__builtins__": __builtins__}
    sys.argv = ["<job>"]
    status = 0
    try:
        exec(compile(code, "<job>", "exec"), scope)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(end.code)
    except BaseException:
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return status & 0xFF


def _send_files(target: int, folder: str, names: list[str], most: int) -> None:
    """Send regular files that the job left, each after its length; −1 for one that is missing."""
    left = most
    for name in names:
        content = None
        with contextlib.suppress(OSError):
            place = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            if stat.S_ISREG(os.fstat(place).st_mode) and os.fstat(place).st_size <= left:
                content = _read_all(place, os.fstat(place).st_size)
                left -= len(content)
        whole = struct.pack("<q", -1 if content is None else len(content)) + (content or b"")
        while whole:
            whole = whole[os.write(target, whole[:PIECE]) :]


# --- the server -----------------------------------------------------------------------------------


def _in_child(action: object, *arguments: object) -> int:
    """Call a function in a fork of its own; return the fork's process."""
    child = os.fork()
    if child:
        return child
    try:
        action(*arguments)  # type: ignore[operator]  # a function of this file
    except BaseException:  # a fork never goes back into the server's loop
        with contextlib.suppress(OSError):
            os.write(2, traceback.format_exc().encode())
        os._exit(125)
    os._exit(0)


def _kill_others() -> None:
    """End all that a job left running; only where a namespace holds nothing else."""
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)


def _serve(control: socket.socket, setting: dict[str, object]) -> None:
    """Fork a process for each job that is asked for, and report how it ended."""
    folder = os.path.join(str(setting["work"]), "job")
    while True:
        request, pipes, _, _ = socket.recv_fds(control, PIECE, 4)
        if not request:
            return
        job = json.loads(request)
        confined, begun = os.pipe()
        child = _in_child(_run_job, pipes, begun, job["limits"], setting)
        for pipe in (*pipes[:3], begun):
            os.close(pipe)
        is_confined = bool(os.read(confined, 1))
        os.close(confined)
        _, status, usage = os.wait4(child, 0)
        if not setting["on_host"]:
            _kill_others()
        most = job["limits"]["disk_bytes"]
        sender = _in_child(_send_files, pipes[3], folder, job["outputs"], most)
        os.close(pipes[3])
        os.waitpid(sender, 0)
        try:
            shutil.rmtree(folder)
            spent = os.listdir(str(setting["work"])) != []
        except (OSError, RecursionError):
            spent = True  # the outer side starts another server
        ended = os.waitstatus_to_exitcode(status)
        report = {
            "status": ended,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "spent": spent,
            "is_confined": is_confined,
        }
        control.send(json.dumps(report).encode())


def main(setting: dict[str, object]) -> None:
    """Import what jobs will want, confine this process, and serve.

    Args:
        setting: `control` (file descriptor), `user` (or None), `on_host`, `work` (folder),
            `readable` (paths), `preload` (modules).
    """
    control = socket.socket(fileno=int(str(setting["control"])))
    _control(SET_DEATH_SIGNAL, signal.SIGKILL)
    user = setting["user"]
    drop_privileges(None if user is None else int(str(user)))
    os.umask(0o077)
    missing = []
    for name in list(setting["preload"]):  # type: ignore[call-overload]  # JSON
        try:
            importlib.import_module(name)
        except ImportError as error:
            missing.append(f"{name}: {error}")
    if setting["on_host"]:
        restrict_files(list(setting["readable"]), [str(setting["work"])])  # type: ignore[call-overload]  # JSON
    _control(SET_DUMPABLE, 0)  # no job looks into this process
    control.send(json.dumps({"missing": missing, "landlock": landlock_version()}).encode())
    _serve(control, setting)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
