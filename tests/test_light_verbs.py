"""Light verbs and refusals: nothing heavy is imported, nothing is left, no traceback is shown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    *("torch", "transformers", "lightning", "datasets", "matplotlib", "torchrl", "tensordict"),
    *("peft", "safetensors", "jsonargparse", "pyarrow", "pandas", "huggingface_hub"),
)
ADAPTER, REWARD = "nll-hha-smollm2-135m-instruct", "reward-hha-smollm2-135m-instruct"
AGENT = "glam-babyai-go-to-red-ball-smollm2-135m-instruct"
NETHACK = "motif-nethack"
GYM = "mine:Cart"
ANSWERED = (
    "--help",
    *(f"{verb} --help" for verb in ("run", "evaluate", "watch", "plot")),
    *(f"{verb} --help" for verb in ("aggregate", "zoo", "publish", "pull", "doctor")),
    "--version",
    "run",
    "run a_lol_hha --help",
    "run a_lol_hha --help data",
    "run --help a_lol_hha",
    "run a_lol_hha --overlay tiny --print_config",
    "zoo",
    "zoo list",
    f"zoo show {ADAPTER}",
    f"zoo show {NETHACK}",
)
REFUSED = {
    "rnu": "did you mean `run`",
    "run nope.yaml": "there is none at nope.yaml: `lightning run` lists",
    "run recipes/a_lol_hah.yaml": "did you mean a_lol_hha",
    "run folder": "folder is a folder",
    "run bytes.yaml": "a text in UTF-8",
    "run a_lol_hha --overlay tinny": "did you mean tiny",
    "run a_lol_hha --help dta": "did you mean data?",
    "run a_lol_hha --model.algoritm r_lol": "did you mean algorithm?",
    "run a_lol_hha --trainer.max_steps many": "expected a whole number",
    "run a_lol_hha --data.train nope.jsonl": "expected data at `nope.jsonl`",
    "run a_lol_hha --data.test [sample,nope.parquet]": "expected data at `nope.parquet`",
    "run a_lol_hha --model.reward.path nope": "there is no folder or entry `nope`",
    "run a_lol_hha --model.policy.adapter runs/x/NEWEST": "expected a run in runs/x, found none",
    "run a_lol_hha --model.policy.base ./nothing": "there is no such file or folder",
    "run a_lol_hha --resume runs/nothing": "there is no runs/nothing",
    "run a_lol_hha --resume NEWEST": "expected a run in runs, found none",
    "run a_lol_hha --run.folder /proc/x": "can't write into /proc/x",
    "run a_lol_hha --run.folder bytes.yaml": "bytes.yaml is a file",
    "run a_lol_hha --model.lr": "expected a value after --model.lr",
    "run motif_annotate_nethack": "expected a folder at `runs/motif/pairs`",
    "run cloning_babyai_go_to_local": "expected a file at `runs/glam/trajectories.jsonl`",
    "run twosome_overcooked_tomato_salad --data.world overcoked": "do you mean `overcooked-",
    f"run twosome_overcooked_tomato_salad --data.world {GYM}": "a Gymnasium world",
    "run twosome_overcooked_tomato_salad --data.world mine:Nothing": "no attribute 'Nothing'",
    "evaluate folder": "found note.txt",
    "evaluate nowhere": "nothing in the zoo is called `nowhere`",
    "evaluate runs/nothing": "there is no folder `runs/nothing` here",
    "evaluate twosme": "did you mean `twosome-overcooked",
    f"evaluate {ADAPTER} --data nope.csv": "--data: expected data at `nope.csv`",
    f"evaluate {ADAPTER} --reward nope": "there is no folder or entry `nope`",
    f"evaluate {ADAPTER} --against nope": "nothing in the zoo is called `nope`",
    f"evaluate {ADAPTER} --episodes 3": "leave --episodes out",
    f"evaluate {ADAPTER} --num-prompts 0": "expected a whole number above 0, got '0'",
    f"evaluate {ADAPTER} --out bytes.yaml": "bytes.yaml is a file",
    f"evaluate {ADAPTER} --recipe nope": "there is none at nope",
    f"evaluate {AGENT} --env babyai-go": "do you mean `babyai-go-to-obj`",
    f"evaluate {AGENT} --data sample": "plays worlds: leave --data out",
    f"evaluate {NETHACK} --env toy-lamp": "expected a task of NetHack",
    "evaluate random": "nothing says in which world",
    f"evaluate random --env {GYM}": "a Gymnasium world",
    "evaluate smollm2-135m-instruct": "give `--reward`",
    "evaluate NEWEST": "expected a run in runs, found none",
    "watch runs/nothing": "there is no folder `runs/nothing` here",
    f"watch {ADAPTER}": f"`lightning evaluate {ADAPTER}` scores what it answers",
    f"watch {REWARD}": "judges texts and plays nothing",
    "watch smollm2-135m-instruct": "was not trained in a world",
    "watch bot": "`lightning evaluate bot --env WORLD`",
    "watch random --env nowhere": "by name there are\n  overcooked-…",
    f"watch random --env {GYM}": "a Gymnasium world",
    "watch random --env toy-lamp --html folder": "folder is a folder",
    "watch random --env toy-lamp --html bytes.yaml/x.html": "bytes.yaml is a file",
    "watch random --env toy-lamp --gif /proc/x/y.gif": "can't write into /proc/x (--gif)",
    "watch random --episodes 0": "expected a whole number above 0",
    "watch random --fsp 3": "did you mean --fps?",
    f"watch {AGENT} --reward nope": "has no messages that one is for",
    f"watch {NETHACK} --reward nope": "there is no folder or entry `nope`",
    "plot nowhere": "the name of its recipe, but there is none at `nowhere`",
    "plot folder": "`folder` holds no metrics.csv or results.json",
    f"plot {ADAPTER} --out folder": "folder is a folder",
    f"plot {ADAPTER} --published nope.pkl": "expected a file at `nope.pkl`",
    "aggregate a=nowhere": "there is none at `nowhere`",
    "aggregate folder": "`folder` holds no results.json",
    "zoo lst": "invalid choice: 'lst'",
    "zoo show twosme": "did you mean `twosome-overcooked",
    "zoo add nowhere": "there is none at `nowhere`",
    "zoo card folder": "`folder` holds note.txt",
    "publish nowhere": "expected --repo OWNER/NAME",
    "publish nowhere --repo a/b": "there is none at `nowhere`",
    "publish folder --repo a/b": "`folder` holds note.txt",
    "publish folder --repo a/b/c": "--repo: expected a Hub id OWNER/NAME, got `a/b/c`",
    "pull nowhere": "nothing in the zoo is called `nowhere`",
    "pull a/b/c": "expected a Hub id OWNER/NAME",
    f"pull {ADAPTER}": "a zoo name on the Hub",
    "doctor --ofline": "did you mean --offline?",
}
CODE = """
import contextlib, io, json, os, sys
from llm_agents.cli import main
for line in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    before = sorted(os.listdir())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(line.split())
        except SystemExit as end:
            code = end.code or 0
    heavy = [name for name in HEAVY if name in sys.modules]
    left = sorted(set(os.listdir()) - set(before) - {"__pycache__"})
    print(json.dumps([line, code, out.getvalue(), err.getvalue(), heavy, left]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Return status, output and messages of all command lines, asked of one process."""
    work = tmp_path_factory.mktemp("work")
    (work / "folder").mkdir()
    (work / "folder" / "note.txt").write_text("nothing")
    (work / "bytes.yaml").write_bytes(bytes(range(256)))
    (work / "gymnasium").mkdir()  # stands for the package, which not every machine has
    (work / "gymnasium" / "__init__.py").write_text("class Env:\n    pass\n")
    (work / "mine.py").write_text(
        "import gymnasium\n\n\nclass Cart(gymnasium.Env):\n"
        "    def reset(self, seed=None): pass\n\n    def step(self, action): pass\n\n"
        "    def render(self): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"HEAVY = {HEAVY!r}\n{CODE}"],
        input=json.dumps([*ANSWERED, *REFUSED]),
        capture_output=True,
        text=True,
        check=False,
        cwd=work,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(ANSWERED) + len(REFUSED)
    for line, _, _, _, heavy, left in found:
        assert heavy == [], line  # of the first line that imports something
        assert left == [], line
    return {line: (code, out, err) for line, code, out, err, _, _ in found}


@pytest.mark.parametrize("line", ANSWERED)
def test_a_light_verb_answers(line: str, answers: dict[str, tuple[int, str, str]]) -> None:
    code, out, err = answers[line]
    assert (code, err) == (0, "")
    assert out


@pytest.mark.parametrize("line", REFUSED)
def test_a_refusal_says_what_was_expected(
    line: str, answers: dict[str, tuple[int, str, str]]
) -> None:
    code, out, err = answers[line]
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert REFUSED[line] in err


def test_a_long_world_list_is_grouped(answers: dict[str, tuple[int, str, str]]) -> None:
    _, _, said = answers["watch random --env nowhere"]
    assert all(len(line) <= 110 for line in said.splitlines())
    assert [line.split()[0] for line in said.splitlines() if line.startswith("  o")] == [
        "overcooked-…"
    ]


def test_a_disk_that_refuses_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from llm_agents.cli import VERBS, main

    def full(words: list[str]) -> int:
        raise OSError(28, "No space left on device", str(tmp_path / words[0]))

    monkeypatch.setitem(VERBS, "pull", full)
    assert main(["pull", "x"]) == 2
    assert (
        capsys.readouterr().err == f"error: can't use {tmp_path / 'x'}: No space left on device\n"
    )
