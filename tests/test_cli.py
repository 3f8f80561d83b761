from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from llm_agents.cli import main, split_options
from llm_agents.config.loading import load_recipe
from llm_agents.errors import UserError
from tests import fresh

pytestmark = pytest.mark.usefixtures("sketches")
ROOT = Path(__file__).resolve().parents[1]
RECIPE = str(ROOT / "recipes" / "a_lol_hha.yaml")
REWARD = str(ROOT / "recipes" / "reward_hha.yaml")
OVERLAY = str(ROOT / "recipes" / "overlays" / "tiny.yaml")
HEAVY = ("torch", "lightning", "transformers", "jsonargparse", "rich", "numpy")


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llm_agents", *words], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("run", "--help"),
        ("run", RECIPE, "--help"),
        ("run", RECIPE, "--overlay", OVERLAY, "--print_config"),
        ("run", RECIPE, "--model.algoritm", "r_lol"),
        ("evaluate", "--help"),
        ("zoo", "--help"),
        ("publish", "--help"),
        ("pull", "--help"),
        ("doctor", "--help"),
        ("rnu",),
    ],
)
def test_help_and_refusals_import_nothing_heavy(words: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom llm_agents.cli import main\n"
        f"try: main({list(words)!r})\nexcept SystemExit: pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "words", [("--help",), ("run", RECIPE, "--help"), ("run", RECIPE, "--model.algoritm", "r_lol")]
)
def test_help_and_refusals_take_under_a_second(words: tuple[str, ...]) -> None:
    used = []
    for _ in range(3):
        before = os.times()
        command(*words)
        after = os.times()
        used.append(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
    assert min(used) < 1.0  # processor time: the clock counts other programs of this machine too


def test_a_mistyped_key_is_refused_with_status_2_and_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("run", RECIPE, "--model.algoritm", "r_lol", "--trainer.max_steps", "many")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: 2 faults in the recipe, nothing was started",
        "--model.algoritm: expected a key of ALoL, got `algoritm`; did you mean algorithm?",
        "--trainer.max_steps: expected a whole number, got 'many'",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnu"], "expected a verb, got `rnu`; did you mean `run`?"),
        (["run", "--model.lr", "1"], "expected a RECIPE: `lightning run` lists"),
        (["run", RECIPE, "--overlai", "x"], "did you mean --overlay?"),
        (["run", RECIPE, "--model.algorithm"], "expected a value after --model.algorithm"),
        (["run", RECIPE, "--model.algorithm", "--x.y"], "expected a value after --model.algorithm"),
        (["run", "none.yaml"], "there is none at none.yaml"),
        (["evaluate", "x", "--judge", "http://x"], "--judge needs --judge-model and --against"),
        (["zoo", "show", "no-such-adapter"], "nothing in the zoo is called"),
        (["publish", "nowhere"], "expected --repo OWNER/NAME"),
        (["publish", "nowhere", "--repo", "a/b"], "expected a folder with an adapter"),
    ],
)
def test_a_wrong_command_line_says_what_was_expected(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message in said


def test_options_may_stand_anywhere_and_have_negative_values() -> None:
    words = ["--trainer.max_steps", "-1", "r.yaml", "--model.a=b=c", "--overlay", "o.yaml"]
    plain, options = split_options(words)
    assert plain == ["r.yaml", "--overlay", "o.yaml"]
    assert options == [("trainer.max_steps", "-1"), ("model.a", "b=c")]
    with pytest.raises(UserError, match="got nothing"):
        split_options(["--model.a"])


def test_the_printed_recipe_can_be_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", RECIPE, "--overlay", OVERLAY, "--model.algorithm", "r_lol"]
    assert main([*words, "--print_config"]) == 0
    path = tmp_path / "again.yaml"
    path.write_text(capsys.readouterr().out)
    expected = load_recipe(RECIPE, [OVERLAY], [("model.algorithm", "r_lol")]).values
    assert load_recipe(path).values == expected
    assert yaml.safe_load(path.read_text())["model"]["init_args"]["algorithm"] == "r_lol"


def test_help_of_a_recipe_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", RECIPE, "--help"]) == 0
    said = capsys.readouterr().out
    steps = yaml.safe_load(Path(RECIPE).read_text(encoding="utf8"))["trainer"]["max_steps"]
    for key in (
        "model.algorithm a_lol_seq",
        "model.policy.lora",
        f"trainer.max_steps {steps}",
        "run.folder",
    ):
        assert f"--{key}" in said.replace("'", "")


def test_the_reader_of_help_may_leave() -> None:
    done = subprocess.run(
        f"{sys.executable} -m llm_agents run {RECIPE} --help | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_the_version_and_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert main([]) == 0
    said = capsys.readouterr().out
    assert said.startswith("llm-agents ")
    assert "lightning run RECIPE --help" in said


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, cache_root: Path) -> Path:
    """Return a folder in which a reward model and a policy were trained by the command."""
    del cache_root
    folder = tmp_path_factory.mktemp("cli")
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    assert main(["run", REWARD, "--overlay", OVERLAY, "--run.folder", "runs/reward/1"]) == 0
    trained = ["--run.folder", "runs/policy/1", "--evaluation.num_prompts", "3"]
    assert main(["run", RECIPE, "--overlay", OVERLAY, *trained]) == 0
    patch.undo()
    return folder


def test_a_run_ends_with_adapter_and_results(home: Path) -> None:
    run = home / "runs/policy/1"
    results = json.loads((run / "results.json").read_text())
    assert results["tests"][0]["name"] == "sample"
    assert len(results["answers"]) == 3
    names = {path.name for path in (run / "adapter").iterdir()}
    assert names >= {"adapter_model.safetensors", "recipe.yaml", "results.json", "llm_agents.json"}
    assert (run / "results.png").is_file()
    reward = json.loads((home / "runs/reward/1/results.json").read_text())
    assert reward["kind"] == "reward"


def test_a_finished_run_is_not_run_again(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    words = ["--run.folder", "runs/policy/1", "--evaluation.num_prompts", "3"]
    before = time.time_ns()
    assert main(["run", RECIPE, "--overlay", OVERLAY, *words, "--resume", "auto"]) == 0
    assert "is finished" in capsys.readouterr().err
    assert (home / "runs/policy/1/results.json").stat().st_mtime_ns < before


def test_evaluate_gives_the_runs_numbers_in_a_fresh_process(home: Path) -> None:
    words = ("evaluate", "runs/policy/1/adapter", "--out", "again")
    done = fresh.run("-m", "llm_agents", *words, cwd=home)
    assert done.returncode == 0, done.stderr
    first = json.loads((home / "runs/policy/1/results.json").read_text())
    second = json.loads((home / "again/results.json").read_text())
    assert second["answers"] == first["answers"]
    assert "sample" in done.stdout


def test_what_load_pretrained_gives_earns_the_runs_rewards_in_a_fresh_process(home: Path) -> None:
    code = (
        "import json, sys\n"
        "from llm_agents import load_pretrained\n"
        "from llm_agents.training.tiny import letters\n"
        "from llm_agents.types import GenerationConfig, Turn\n"
        "policy = load_pretrained(sys.argv[1], device='cpu')\n"
        "config = GenerationConfig(max_new_tokens=8)\n"
        "for line in open(sys.argv[2], encoding='utf8'):\n"
        "    turns = tuple(Turn(**turn) for turn in json.loads(line)['turns'])\n"
        "    prompt = policy.encode_prompt(turns, template='alol', max_tokens=64)\n"
        "    text = policy.decode(policy.generate([prompt], config)[0])\n"
        "    print(json.dumps([text, *letters([turns], [text])]))\n"
    )
    run = home / "runs/policy/1"
    words = (str(run / "adapter"), str(run / "sample_eval_results.jsonl"))
    done = fresh.run("-c", code, *words)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    lines = (run / "sample_eval_results.jsonl").read_text(encoding="utf8").splitlines()
    answers = [json.loads(line) for line in lines]
    assert [text for text, _ in found] == [answer["suffix"] for answer in answers]
    assert [score for _, score in found] == pytest.approx([a["reward"] for a in answers], abs=1e-6)
    assert len(found) == 3


def test_evaluate_compares_two_policies_by_a_trained_reward(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    words = ["--reward", "runs/reward/1/adapter", "--num-prompts", "2", "--max-new-tokens", "4"]
    against = ["--against", "tiny-random-llama", "--out", "compared"]
    assert main(["evaluate", "runs/policy/1/adapter", *words, *against]) == 0
    said = capsys.readouterr().out
    assert "win" in said
    for folder in ("compared", "compared/against"):
        results = json.loads((home / folder / "results.json").read_text())
        assert results["reward"]["name"] == "hha"
        assert len(results["answers"]) == 2


def test_evaluate_judges_a_reward_model(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    assert main(["evaluate", "runs/reward/1/adapter", "--num-prompts", "3", "--out", "judged"]) == 0
    assert json.loads((home / "judged/results.json").read_text())["tests"][0]["num_prompts"] == 3
    assert main(["evaluate", "runs/reward/1/adapter", "--against", "x"]) == 2
    assert "leave `--against` and `--reward` out" in capsys.readouterr().err


def test_evaluate_without_a_recipe_asks_for_a_reward(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    assert main(["evaluate", "tiny-random-llama"]) == 2
    assert "give `--reward`" in capsys.readouterr().err


def test_the_zoo_lists_and_shows_what_was_trained(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["zoo"]) == 0
    assert "runs/policy/1" in capsys.readouterr().out
    assert main(["zoo", "show", "runs/policy/1"]) == 0
    said = capsys.readouterr().out
    assert "a_lol_seq" in said
    assert "load_pretrained" in said


def test_a_dry_run_of_publish_writes_what_would_be_sent(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    assert main(["publish", "runs/policy/1/adapter", "--repo", "me/adapter", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "would send" in said
    assert "README.md" in said


def test_a_stage_may_be_left_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    words = ["--run.stages", "[evaluate]", "--run.folder", "reference"]
    assert main(["run", RECIPE, "--overlay", OVERLAY, *words]) == 0
    assert (home / "reference/results.json").is_file()
    assert not (home / "reference/adapter").exists()


def test_a_fault_that_only_building_shows_has_no_traceback(home: Path) -> None:
    words = ("--model.policy.base", "no/such/base", "--run.folder", "none")
    recipe = ("run", RECIPE, "--overlay", OVERLAY)
    done = fresh.run("-m", "llm_agents", *recipe, *words, cwd=home)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "error: base model 'no/such/base'" in done.stderr
    assert not (home / "none").exists()


GOOD_ROW = {"prompt": "Why?", "responses": ["Because it is so.", "No."], "rewards": [0.9, 0.1]}


def rows_with(change: dict[str, object] | str) -> str:
    """Return four lines of data of which the third is changed, or is another text."""
    third = change if isinstance(change, str) else json.dumps({**GOOD_ROW, **change})
    lines = [json.dumps({**GOOD_ROW, "prompt": f"Why {number}?"}) for number in range(4)]
    return "\n".join([*lines[:2], third, lines[3]]) + "\n"


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (rows_with('{"prompt": "Why?"'), (), "rows.jsonl:3: expected one JSON object a line"),
        (rows_with({"rewards": [float("nan"), 0]}), (), "rows.jsonl:3: expected a finite number"),
        (
            "".join(json.dumps({**GOOD_ROW, "rewards": [0.0, 0.0]}) + "\n" for _ in range(4)),
            ("--data.reward_transform", "none"),
            "no training response is better than what the reference is expected to get",
        ),
        (
            rows_with({}),
            ("--model.reward.function", "broken_reward:score"),
            "returned nan for response 0",
        ),
        (
            rows_with({}),
            ("--data.max_response_tokens", "5000"),
            "expected a model window of at least 5008 tokens",
        ),
    ],
    ids=["malformed", "nan stored", "nothing better", "nan scored", "no room for a prompt"],
)
def test_bad_data_stop_a_run_with_one_clear_line(
    lines: str,
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "rows.jsonl").write_text(lines)
    (tmp_path / "broken_reward.py").write_text(
        "def score(prompts, responses):\n    return [float('nan') for _ in responses]\n"
    )
    words = ("--data.train", "rows.jsonl", "--run.folder", "run", *options)
    assert main(["run", RECIPE, "--overlay", OVERLAY, *words]) == 2
    said = capsys.readouterr().err
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert message in line
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (json.dumps(GOOD_ROW) + "\n", {}),
        (rows_with({"responses": ["", "No."]}), {"responses empty": 1}),
        (
            rows_with({"responses": ["so " * 2000, "No."]}),
            {"responses truncated (no end token)": 1},
        ),
        (rows_with({"prompt": "why " * 2000}), {"prompts truncated": 1}),
    ],
    ids=["one row", "empty answer", "long answer", "long prompt"],
)
def test_unusual_data_train_and_what_was_changed_is_counted(
    lines: str, expected: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(lines)
    words = ("--data.train", "rows.jsonl", "--data.reward_transform", "none")
    whole = ("--data.max_prompt_tokens", "null", "--run.folder", "run")
    assert main(["run", RECIPE, "--overlay", OVERLAY, *words, *whole]) == 0
    report = json.loads((tmp_path / "run/data.json").read_text())["train"]
    assert report["changed"] == expected
    assert json.loads((tmp_path / "run/results.json").read_text())["answers"]
