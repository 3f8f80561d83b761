"""Numeric tests as other processors would compute them: a row and a verdict for each setting.

A library picks its kernels by what the processor can do, so that a narrower one can be asked for:

=====================  ==============================================================
``ATEN_CPU_CAPABILITY``  PyTorch's own loops: default (128 bits on x86, NEON on ARM), avx2, avx512
``ONEDNN_MAX_CPU_ISA``   oneDNN's products of matrices and convolutions
``MKL_…``                MKL's products: instructions and, by ``MKL_CBWR``, the order of sums
threads                  how a sum is split; OpenMP gives as many as are asked for
``--shuffle``            an order of the tests, drawn with the seed that is printed
=====================  ==============================================================

A setting that the processor lacks is skipped by name. Run as ``python -m tests.processors``, with
names of settings to run only those, and ``--seed`` to repeat an order; what follows ``--`` goes to
pytest. The status is 1 where any is red.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
NARROW = {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "MKL_CBWR": "COMPATIBLE"}
LEVELS = ("DEFAULT", "AVX2", "AVX512")  # of `get_cpu_capability`


@dataclass(frozen=True)
class Setting:
    """One way to compute.

    Args:
        name: Its row's name.
        capability: PyTorch's loops, which the processor must have.
        variables: Of the other libraries.
        threads: Of PyTorch.
    """

    name: str
    capability: str = "default"
    variables: dict[str, str] = field(default_factory=dict)
    threads: int = 1

    def is_there(self) -> bool:
        """Tell whether this processor has what is asked for."""
        found = torch.backends.cpu.get_cpu_capability()
        if self.capability == "default" or found == self.capability.upper():
            return True
        return found in LEVELS and LEVELS.index(self.capability.upper()) <= LEVELS.index(found)


def onednn(isa: str) -> dict[str, str]:
    return {"ONEDNN_MAX_CPU_ISA": isa, "DNNL_MAX_CPU_ISA": isa}


SETTINGS = (
    Setting("default", "default", {**onednn("SSE41"), **NARROW}),
    Setting("avx2", "avx2", {**onednn("AVX2"), "MKL_ENABLE_INSTRUCTIONS": "AVX2"}),
    Setting("avx512", "avx512"),
    Setting("avx2-mixed", "avx2", {**onednn("SSE41"), "MKL_CBWR": "AVX2"}),
    Setting("2-threads", "avx2", onednn("AVX2"), threads=2),
    Setting("4-threads", "default", threads=4),
)


def run(setting: Setting, seed: int, more: list[str]) -> tuple[int, str]:
    """Run the numeric tests under a setting; return pytest's status and its last line."""
    environment = {
        **os.environ,
        **setting.variables,
        "ATEN_CPU_CAPABILITY": setting.capability,
        "LLM_AGENTS_TEST_THREADS": str(setting.threads),
        "OMP_NUM_THREADS": str(setting.threads),
        "OMP_DYNAMIC": "false",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    words = ["-m", "numeric and not slow and not gpu and not hub", "--shuffle", str(seed)]
    workers = [] if "-n" in more else ["-n", "2"]
    command = [sys.executable, "-m", "pytest", *workers, "--dist", "loadfile", *words, *more]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    last = "no result"
    for line in process.stdout:
        print(line, end="", flush=True)
        if re.search(r"\d+ (passed|failed|error)", line):
            last = line.strip(" =\n")
    return process.wait(), last


def main() -> int:
    """Run the settings that were asked for, and print a row for each."""
    names = [setting.name for setting in SETTINGS]
    parser = argparse.ArgumentParser(description="numeric tests under other processors' settings")
    parser.add_argument(
        "settings", nargs="*", help=f"of {', '.join(names)}; all where none is given"
    )
    parser.add_argument("--seed", type=int, help="of the order of the tests; drawn where not given")
    words = sys.argv[1:]
    more = words[words.index("--") + 1 :] if "--" in words else []
    asked = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    if unknown := set(asked.settings) - set(names):
        parser.error(f"expected settings of {', '.join(names)}, got {', '.join(sorted(unknown))}")
    first = random.SystemRandom().randrange(10_000) if asked.seed is None else asked.seed
    rows, status = [], 0
    for index, setting in enumerate(SETTINGS):
        if asked.settings and setting.name not in asked.settings:
            continue
        if not setting.is_there():
            rows.append((setting, "-", "not run: this processor has no " + setting.capability))
            continue
        seed, began = first + index, time.monotonic()
        code, last = run(setting, seed, more)
        verdict = "green" if code == 0 else "RED"
        status |= code != 0
        rows.append((setting, str(seed), f"{verdict} · {last} · {time.monotonic() - began:.0f} s"))
    print(f"\n{'setting':<12}{'capability':<12}{'threads':<9}{'order':<8}result")
    for setting, order, result in rows:
        print(f"{setting.name:<12}{setting.capability:<12}{setting.threads:<9}{order:<8}{result}")
    return status


if __name__ == "__main__":
    sys.exit(main())
