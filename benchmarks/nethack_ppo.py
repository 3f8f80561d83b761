"""Frames a second with learning: ours, a plain PyTorch PPO and Sample Factory, side by side.

Each contender is a process of its own that plays, learns and prints its frames. Only one runs at a
time: the others are stopped, and the turn changes every few seconds, so that what else the machine
does touches all alike. Ratios are of frames a second of its own turns, and of CPU time a frame (all
its processes together), which a loaded machine disturbs less; above 1 ours is better. All have the
same number of games, steps, minibatches and one thread a process. Linux only.

    python benchmarks/nethack_ppo.py --quick
    python benchmarks/nethack_ppo.py --sample-factory        # makes its environment: a minute
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import venv
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SAMPLE_FACTORY = ("sample-factory==2.1.1", "numpy==1.26.4", "nle==1.3.0", "gymnasium==1.2.0")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Contender:
    """A process group that prints its frames, and how far it came in its turns.

    Args:
        name: For the table.
        command: Starts it.
        marks: Frames, seconds of its turns and CPU seconds, whenever it printed.
    """

    name: str
    command: list[str]
    marks: list[tuple[int, float, float]] = field(default_factory=list)
    turns: float = 0.0
    since: float | None = None

    def start(self) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            "PYTHONPATH": os.pathsep.join((str(HERE.parent), str(HERE))),
        }
        self.log = Path(tempfile.gettempdir(), f"{self.name}.log").open("w")  # noqa: SIM115  (it stays open)
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment,
            start_new_session=True,
        )  # fmt: skip
        self.since = time.monotonic()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"frames"'):
                now = self.turns + (0 if self.since is None else time.monotonic() - self.since)
                self.marks.append((json.loads(line)["frames"], now, self.cpu()))

    def cpu(self) -> float:
        """Return the CPU seconds of its processes, those that have ended included."""
        total = 0
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == self.process.pid:  # its session
                total += sum(int(fields[place]) for place in (11, 12, 13, 14))
        return total / TICKS

    def resume(self) -> None:
        self.since = time.monotonic()
        os.killpg(self.process.pid, signal.SIGCONT)

    def pause(self) -> None:
        os.killpg(self.process.pid, signal.SIGSTOP)
        if self.since is not None:
            self.turns += time.monotonic() - self.since
        self.since = None

    def end(self) -> None:
        """End the first process; its workers follow and clean up, or are killed."""
        os.killpg(self.process.pid, signal.SIGCONT)
        self.process.terminate()
        deadline = time.monotonic() + 15
        while self.cpu() and time.monotonic() < deadline:
            self.process.poll()
            time.sleep(0.2)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()

    def rates(self, skip: int) -> tuple[float, float]:
        """Return frames a second and CPU microseconds a frame, after the first `skip` marks."""
        marks = self.marks[skip:]
        if len(marks) < 2 or marks[-1][0] == marks[0][0]:
            raise SystemExit(f"{self.name} did not get far enough: give it more --seconds")
        (frames, turns, cpu), (last, end, spent) = marks[0], marks[-1]
        return (last - frames) / (end - turns), (spent - cpu) / (last - frames) * 1e6


def sample_factory_python(folder: Path) -> Path:
    """Return the interpreter of Sample Factory's environment, made if it isn't there."""
    python = folder / "bin" / "python"
    if not (folder / "ready").is_file():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        # PyTorch of the same build as ours, whatever index it came from.
        subprocess.run([*pip, f"torch=={version('torch')}", *SAMPLE_FACTORY[:2]], check=True)
        # nle wants a gymnasium that Sample Factory's own metadata forbids; it runs all the same.
        subprocess.run([*pip, *SAMPLE_FACTORY[1:]], check=True)
        (folder / "ready").touch()
    return python


def play_ours(network: str, games: int, workers: int, overlap: bool) -> None:
    """Train, and print the frames after each rollout."""
    import warnings

    import torch
    from lightning.pytorch import Callback, LightningModule, Trainer

    from llm_agents.methods import MotifAgent, MotifPPOConfig
    from llm_agents.policies import ReleaseNetwork, SmallNetwork
    from llm_agents.rollouts import NetHackRollouts

    class Printer(Callback):
        def on_train_batch_end(
            self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: Any, *_: Any
        ) -> None:
            print(json.dumps({"frames": (batch.number + 1) * batch.num_steps}), flush=True)

    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    ppo = MotifPPOConfig(num_minibatches=max(1, games * 32 // 1024), intrinsic_coef=0.0)
    agent = MotifAgent(ReleaseNetwork() if network == "release" else SmallNetwork(), ppo)
    data = NetHackRollouts(
        num_games=games, num_workers=workers, total_frames=10**9, overlap=overlap, seed=0
    )
    Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Printer()],
    ).fit(agent, data)  # fmt: skip


def contenders(network: str, options: argparse.Namespace) -> list[Contender]:
    sizes = ["--network", network, "--games", str(options.games)]
    this = [sys.executable, str(Path(__file__).resolve()), "--play-ours", *sizes]
    plain = [sys.executable, str(HERE / "nethack_plain_ppo.py"), *sizes]
    found = [Contender(f"ours-{network}", this), Contender(f"plain-{network}", plain)]
    if options.sample_factory:
        python = sample_factory_python(options.venv)
        script = str(HERE / "nethack_sample_factory.py")
        for mode in options.modes:
            command = [str(python), script, *sizes, "--mode", mode]
            found.append(Contender(f"sample-factory-{mode}-{network}", command))
    return found


def measure(found: list[Contender], seconds: float, turn: float) -> None:
    """Let every contender warm up, then give each its turns."""
    try:
        for one in found:
            one.start()
            deadline = time.monotonic() + 300
            while len(one.marks) < 3:
                if one.process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{one.name} did not start, see {one.log.name}")
                time.sleep(0.1)
            one.pause()
            one.marks = one.marks[-1:]
        for _ in range(max(1, round(seconds / turn))):
            for one in found:
                one.resume()
                time.sleep(turn)
                one.pause()
    finally:
        for one in found:
            if hasattr(one, "process"):
                one.end()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short turns, results not kept")
    parser.add_argument("--sample-factory", action="store_true")
    parser.add_argument("--modes", nargs="+", default=["async"], help="async, sync, serial")
    parser.add_argument(
        "--venv", type=Path, default=Path.home() / ".cache/llm_agents/sample-factory-2.1"
    )
    parser.add_argument("--networks", nargs="+", default=["release", "small"])
    parser.add_argument("--network", default="release", help=argparse.SUPPRESS)
    parser.add_argument("--games", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--no-overlap", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each contender")
    parser.add_argument("--turn", type=float, default=10.0, help="seconds until the next one's")
    parser.add_argument("--play-ours", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play_ours:
        play_ours(options.network, options.games, options.workers, not options.no_overlap)
        return
    seconds, turn = (20.0, 10.0) if options.quick else (options.seconds, options.turn)
    rates: dict[str, dict[str, float]] = {}
    ratios: dict[str, float] = {}
    for network in options.networks:
        found = contenders(network, options)
        measure(found, seconds, turn)
        for one in found:
            speed, cost = one.rates(0)
            rates[one.name] = {"frames_per_second": round(speed, 1), "cpu_us": round(cost, 1)}
            print(f"{one.name:32s} {speed:8.0f} frames/s {cost:8.0f} us CPU a frame", flush=True)
        ours = rates[found[0].name]
        for one in found[1:]:
            theirs = rates[one.name]
            name = one.name.replace("-", "_")
            ratios[f"speed_vs_{name}"] = round(
                ours["frames_per_second"] / theirs["frames_per_second"], 2
            )
            ratios[f"cpu_vs_{name}"] = round(theirs["cpu_us"] / ours["cpu_us"], 2)
    if not options.quick:
        from keeping import keep

        keep("nethack_ppo", ("torch", "nle", "lightning"), rates=rates, ratios=ratios)
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
