"""Players from outside: models behind a real server on the loopback, and bare models in process."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_agents import load_player
from llm_agents.cli import main
from llm_agents.envs.registry import make_world
from llm_agents.errors import UserError
from llm_agents.evaluation.episodes import EpisodeResults, read_episode_results
from llm_agents.evaluation.outside_players import AskedPlayer, ScoringPlayer, _of_actions
from llm_agents.evaluation.player_replies import Echo, PolicySpeaker, ReplySettings, ServerSpeaker
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.tiny import write_tiny
from llm_agents.rewards.chat_server import ChatServer
from llm_agents.rollouts import PromptedWorld
from llm_agents.types import Choice
from tests.training.model_server import ModelServer, Say, serving

KEY = "sk-very-secret-key"
Serve = Callable[..., ModelServer]


@pytest.fixture(scope="module")
def policies() -> dict[str, LanguagePolicy]:
    """Return tiny models: one whose tokenizer begins texts with a token of its own, one without."""
    names = ("tiny-random-llama", "tiny-random-qwen2")
    return {n: LanguagePolicy.from_pretrained(n, trainable=False) for n in names}


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Return a function that starts a server, in an empty folder, without waiting for retries."""
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        yield lambda **state: stack.enter_context(serving(ModelServer(**state)))


def listed(messages: list[dict[str, str]]) -> list[str]:
    """Return the actions that a question lists, with their numbers or dashes."""
    return re.findall(r"^(?:\d+\.|-) .+$", messages[0]["content"], re.MULTILINE)


def reads_the_lamp(messages: list[dict[str, str]]) -> str:
    """Press the button of the lamp's color: its number, or its words."""
    found = re.search(r"shines (\w+)", messages[0]["content"])
    if found is None:  # a greeting
        return "1"
    (line,) = [entry for entry in listed(messages) if found[1] in entry]
    return line.partition(".")[0] if line[0].isdigit() else line.removeprefix("- ").upper() + "."


def situations(count: int = 4) -> list[Choice]:
    """Return choices of several worlds, of unlike lengths."""
    found = []
    for name in ("toy-chest", "toy-lamp", "overcooked-tomato-salad", "toy-corridor"):
        world = PromptedWorld(make_world(name), seed=3)
        choice = world.reset()
        for step in range(count):
            found.append(choice)
            choice, _ = world.step(step % len(choice.actions))
            if world.has_ended:
                choice = world.reset()
    return found


def evaluate(spec: str, *words: str, env: str = "toy-lamp", out: str = "out") -> EpisodeResults:
    base = ["evaluate", "--policy", spec, "--env", env, "--out", out]
    assert main([*base, "--episodes", "6", *words]) == 0
    return read_episode_results(out)


def own_episodes(results: EpisodeResults) -> list[Any]:
    return [entry.episode for entry in results.episodes if entry.agent == "zero-shot"]


# --- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny-random-llama", "tiny-random-qwen2"])
@pytest.mark.parametrize("normalization", ["sum", "token", "word"])
def test_scores_through_a_server_are_those_in_process(
    serve: Serve, policies: dict[str, LanguagePolicy], name: str, normalization: Any
) -> None:
    server = serve(policy=policies[name])
    speaker = ServerSpeaker(ChatServer(server.endpoint), "tiny", ReplySettings())
    choices = situations()
    found = ScoringPlayer(speaker, normalization).action_log_probs(choices)
    expected = policies[name].score_actions(choices, normalization).log_probs()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert float(expected[0].max() - expected[0].min()) > 1e-2  # something to tell apart


def test_a_scored_model_plays_the_same_episodes_as_in_process(
    serve: Serve, policies: dict[str, LanguagePolicy], capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(policy=policies["tiny-random-llama"])
    there = evaluate(f"openai:tiny@{server.endpoint}", env="toy-chest", out="there")
    here = evaluate("tiny-random-llama", env="toy-chest", out="here")
    assert there.episodes == here.episodes
    assert [(e.agent, e.success, e.decisions) for e in there.worlds] == [
        (e.agent, e.success, e.decisions) for e in here.worlds
    ]
    player = there.details["player"]
    decisions = sum(e.num_decisions for e in own_episodes(there))
    assert player["decisions"] == player["worlds"]["toy-chest"]["decisions"] == decisions
    assert player["requests"] == len({body["prompt"] for body in server.questions()})
    assert (there.details["mode"], there.details["normalization"]) == ("score", "word")
    assert there.details["host"] == server.endpoint.split("/")[2]
    assert not list(Path("there").glob("*replies*"))
    assert "plays by `--mode score`" in capsys.readouterr().out


def test_other_normalizations_play_alike_too(
    serve: Serve, policies: dict[str, LanguagePolicy]
) -> None:
    server = serve(policy=policies["tiny-random-llama"])
    words = ("--normalization", "sum")
    there = evaluate(f"openai:tiny@{server.endpoint}", *words, env="toy-chest", out="there")
    here = evaluate("tiny-random-llama", *words, env="toy-chest", out="here")
    assert there.episodes == here.episodes
    assert there.details["normalization"] == here.details["normalization"] == "sum"


def test_a_chat_template_for_scores(policies: dict[str, LanguagePolicy]) -> None:
    policy = policies["tiny-random-llama"]
    choice = Choice("You should", ("sit", "go away"))
    framed = Choice("<user>\nYou should</s>\n<assistant>\n", choice.actions)
    expected = policy.score_actions([framed], "word").log_probs()
    player = load_player("tiny-random-llama", template="chat")
    decisions = player.act([choice], torch.Generator().manual_seed(0))
    taken = expected[0, decisions.index[0]]
    torch.testing.assert_close(decisions.log_probs[0, 0], taken, rtol=0, atol=1e-5)
    assert player.details["template"] == "chat"


# --- replies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "temperature"), [("choose", "0"), ("write", "1")])
def test_a_model_says_the_same_through_a_server_as_in_process(
    serve: Serve, policies: dict[str, LanguagePolicy], mode: str, temperature: str
) -> None:
    server = serve(policy=policies["tiny-random-llama"], echo="ignored")
    words = ("--mode", mode, "--temperature", temperature, "--max-new-tokens", "4")
    words = (*words, "--episodes", "2")
    there = evaluate(f"openai:tiny@{server.endpoint}", *words, env="toy-chest", out="there")
    here = evaluate("tiny-random-llama", *words, env="toy-chest", out="here")
    assert there.episodes == here.episodes
    counts = [{**r.details["player"], "seconds": 0} for r in (there, here)]
    assert counts[0] == counts[1]
    said = [
        [json.loads(line)["text"] for line in Path(out, "replies.jsonl").read_text().splitlines()]
        for out in ("there", "here")
    ]
    assert sorted(said[0]) == sorted(said[1])
    assert counts[0]["new_tokens"] > 0


@pytest.mark.parametrize("mode", ["choose", "write"])
@pytest.mark.parametrize("order", ["shuffled", "listed", "both"])
def test_a_model_that_reads_solves_what_asks_to_read(
    serve: Serve, mode: str, order: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(say=reads_the_lamp, echo="refused")
    results = evaluate(f"openai:tiny@{server.endpoint}", "--mode", mode, "--order", order)
    assert results.overall.success.mean == 1.0
    player = results.details["player"]
    assert player["decisions"] == 6
    assert player["questions"] == (12 if order == "both" else 6)
    assert (player["asked_again"], player["drawn_at_random"], player["disagreed"]) == (0, 0, 0)
    first = [listed(body["messages"])[0].split()[3] for body in server.questions()]
    if order == "listed":
        assert set(first) == {"red"}
    else:
        assert len(set(first)) > 1
    assert f"{order} lists, temperature 0 ·" in " ".join(capsys.readouterr().out.split())


def test_a_liking_for_a_place_on_the_list_shows_in_both_orders(serve: Serve) -> None:
    server = serve(say=lambda messages: "1", echo="refused")
    results = evaluate(f"openai:tiny@{server.endpoint}", "--order", "both")
    player = results.details["player"]
    assert results.details["mode"] == "choose"
    assert player["disagreed"] == player["decisions"] == 6
    assert player["drawn_at_random"] == 0


@pytest.mark.parametrize("nothing", ["I would rather not.", "", None, "0", "press"])
def test_what_cannot_be_read_is_asked_again_then_drawn_and_counted(
    serve: Serve, nothing: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(say=lambda messages: nothing, echo="refused")
    results = evaluate(f"openai:tiny@{server.endpoint}")
    player = results.details["player"]
    assert (player["questions"], player["asked_again"]) == (12, 6)
    assert (player["drawn_at_random"], player["invalid_share"]) == (6, 1.0)
    again = [body for body in server.questions() if len(body["messages"]) == 3]
    assert all(body["messages"][1]["content"] for body in again)
    assert "100.0% drawn at random" in " ".join(capsys.readouterr().out.split())
    indices = [episode.success for episode in own_episodes(results)]
    same = evaluate(f"openai:tiny@{server.endpoint}", out="again")
    assert [episode.success for episode in own_episodes(same)] == indices  # drawn by the seed


def test_a_second_chance_is_taken(serve: Serve) -> None:
    def at_second(messages: list[dict[str, str]]) -> str:
        return reads_the_lamp(messages) if len(messages) == 3 else "Let me think."

    server = serve(say=at_second, echo="refused")
    results = evaluate(f"openai:tiny@{server.endpoint}")
    player = results.details["player"]
    assert results.overall.success.mean == 1.0
    assert (player["asked_again"], player["drawn_at_random"]) == (6, 0)


def test_equal_questions_are_asked_once(serve: Serve) -> None:
    server = serve(say=reads_the_lamp, echo="refused")
    results = evaluate(f"openai:tiny@{server.endpoint}", "--order", "listed")
    assert results.details["player"]["questions"] == 6
    assert results.details["player"]["requests"] == len(server.questions()) <= 3  # colors


def test_equal_questions_are_drawn_anew_where_replies_are_drawn(serve: Serve) -> None:
    server = serve(say=reads_the_lamp, echo="refused")
    words = ("--order", "listed", "--temperature", "1")
    results = evaluate(f"openai:tiny@{server.endpoint}", *words)
    assert results.details["player"]["requests"] == len(server.questions()) == 6
    assert len({body["seed"] for body in server.questions()}) == 6
    evaluate(f"openai:tiny@{server.endpoint}", *words, out="again")
    first, again = (server.questions()[:6], server.questions()[6:])
    assert sorted(body["seed"] for body in first) == sorted(body["seed"] for body in again)


def test_tokens_that_reach_over_the_end_of_a_prompt_count_as_the_actions() -> None:
    choice = Choice("You should", ("go", "sit"))
    alone = Echo(("You", " should"), (None, -1.0))
    merged = Echo(("You", " shouldgo"), (None, -2.0))
    apart = Echo(("You", " should", " sit"), (None, -1.0, -3.0))
    assert _of_actions(choice, alone, [merged, apart]) == [[-2.0], [-1.0, -3.0]]
    assert _of_actions(choice, alone, [apart]) == [[-3.0]]
    other = Echo(("Yo", "u should", " sit"), (None, -1.0, -3.0))
    with pytest.raises(UserError, match="can't be parted"):
        _of_actions(choice, alone, [other])


def test_requests_go_out_side_by_side(serve: Serve) -> None:
    server = serve(say=reads_the_lamp, echo="refused")
    alone = evaluate(f"openai:tiny@{server.endpoint}", "--parallel", "1", out="alone")
    many = evaluate(f"openai:tiny@{server.endpoint}", "--parallel", "8", out="many")
    assert own_episodes(alone) == own_episodes(many)


# --- what fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "words", "said"),
    [
        ({"key": KEY}, (), r"\(HTTP 401\).*a key is read from \$OPENAI_API_KEY"),
        ({"known": ("small", "large")}, (), r"model `tiny`.*its models are small, large"),
        ({"failures": [(500, {})] * 20}, (), r"failed 6 times \(HTTP 500\).*goes on where"),
        ({"failures": [b"<html>"] * 20}, (), "does not speak the protocol.*<html>"),
        ({"failures": [b'{"choices": []}'] * 20}, (), "does not speak the protocol"),
        ({"failures": [b""] * 20}, (), "does not speak the protocol"),
        ({"failures": ["hang"] * 9}, ("--timeout", "0.05"), r"failed 2 times \(.*timed out"),
        ({"takes_temperature": False}, (), "--temperature server"),
        ({}, ("--mode", "score"), "`--mode choose` or `--mode write`"),
    ],
)
def test_a_server_that_fails_is_named_with_the_cure(
    serve: Serve,
    state: dict[str, Any],
    words: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = serve(**{"say": reads_the_lamp, "echo": "refused", **state})
    words = ("--env", "toy-lamp", "--out", "out", *words)
    if state or "--mode" not in words:
        words = (*words, "--episodes", "2")
    assert main(["evaluate", "--policy", f"openai:tiny@{server.endpoint}", *words]) == 2
    error = capsys.readouterr().err
    assert re.search(said, error)
    assert server.endpoint in error
    assert not Path("out").exists()


def test_an_overloaded_server_changes_nothing(serve: Serve) -> None:
    calm = serve(say=reads_the_lamp, echo="refused")
    whole = evaluate(f"openai:tiny@{calm.endpoint}", out="calm")
    busy = serve(say=reads_the_lamp, echo="refused")
    busy.failures += [(429, {"Retry-After": "3"}), (503, {}), (500, {})]
    found = evaluate(f"openai:tiny@{busy.endpoint}", "--mode", "choose", out="busy")
    assert own_episodes(found) == own_episodes(whole)


@pytest.mark.parametrize("echo", ["yes", "refused", "fails", "ignored"])
def test_a_server_that_dies_in_the_middle_is_gone_on_with(
    serve: Serve, policies: dict[str, LanguagePolicy], echo: Any
) -> None:
    policy = policies["tiny-random-llama"] if echo in ("yes", "ignored") else None
    say: Say | None = reads_the_lamp if policy is None else None
    words = ["--env", "toy-chest", "--episodes", "3"] if policy else ["--env", "toy-lamp"]
    words += ["--episodes", "12"] if policy is None else []
    words += ["--max-new-tokens", "3"] if echo == "ignored" else []
    whole = serve(policy=policy, say=say, echo=echo)
    base = ["evaluate", "--policy", f"openai:tiny@{whole.endpoint}", *words]
    assert main([*base, "--out", "whole"]) == 0
    expected = read_episode_results("whole")

    state = ModelServer(policy=policy, say=say, echo=echo, dies_after=5)
    with serving(state):
        base = ["evaluate", "--policy", f"openai:tiny@{state.endpoint}", *words, "--out", "out"]
        assert main(base) == 2
    assert not Path("out/results.json").exists()
    kept = Path("out/.unfinished_replies.jsonl")
    with kept.open("a") as file:
        file.write('{"key": "cut in the mi')
    before = len(state.questions())
    state.dies_after = None
    state.asked.clear()
    with serving(state):
        assert main(base) == 0
    found = read_episode_results("out")
    assert found.episodes == expected.episodes
    keys = set(expected.details["player"]) - {"seconds"}
    assert {k: found.details["player"][k] for k in keys} == {
        k: expected.details["player"][k] for k in keys
    }
    asked = before + len(state.questions())
    assert asked == expected.details["player"]["requests"]  # nothing was asked twice
    assert before > 0
    assert not kept.exists()


def test_the_key_is_kept_nowhere(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(say=reads_the_lamp, echo="refused", key=KEY)
    monkeypatch.setenv("MY_KEY", KEY)
    evaluate(f"openai:tiny@{server.endpoint}", "--key-variable", "MY_KEY")
    server.dies_after = 0
    assert (
        main(["evaluate", "--policy", f"openai:tiny@{server.endpoint}", "--env", "toy-lamp"]) == 2
    )
    said = capsys.readouterr()
    files = [path for path in Path().rglob("*") if path.is_file()]
    assert len(files) >= 2
    assert all(KEY not in path.read_text() for path in files)
    assert KEY not in said.out + said.err


def test_a_server_of_openais_newer_names(serve: Serve) -> None:
    server = serve(say=reads_the_lamp, limit_name="max_completion_tokens", takes_temperature=False)
    words = ("--temperature", "server", "--mode", "choose", "--max-new-tokens", "99")
    results = evaluate(f"openai:tiny@{server.endpoint}", *words)
    assert results.overall.success.mean == 1.0
    assert results.details["temperature"] == "server"
    assert all(body["max_completion_tokens"] == 99 for body in server.questions())
    assert all("max_tokens" not in body and "seed" in body for body in server.questions())


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "openai:x"], "expected openai:MODEL@URL"),
        (["--policy", "openai:@http://127.0.0.1:9"], "got no model"),
        (["--policy", "openai:x@http://"], "the address after the last `@` can't be read"),
        (["--policy", "openai:x@http://a:b/v1"], "can't be read"),
        (["--policy", "openai:x@http://me:word@127.0.0.1/v1"], "without user, password or query"),
        (["--policy", "openai:x@http://127.0.0.1/v1?key=word"], "without user, password or query"),
        (["random", "--policy", "bot"], "expected one player, got `random` and --policy bot"),
        ([], "expected a NAME, or --policy SPEC"),
        (["--policy", "random", "--mode", "choose"], "no --mode: `random` has one way to play"),
        (["--policy", "openai:x@http://127.0.0.1:9", "--data", "sample"], "leave --data out"),
        (["--policy", "openai:x@http://127.0.0.1:9", "--env", "toy-lump"], "toy-lamp"),
        (["--policy", "openai:x@http://127.0.0.1:9", "--template", "chat"], "no --template"),
        (["--policy", "openai:x@http://127.0.0.1:9", "--temperature", "hot"], "--temperature"),
        (["--policy", "openai:x@http://127.0.0.1:9", "--temperature", "7"], "from 0 to 2"),
        (["--policy", "openai:x@http://127.0.0.1:9", "--parallel", "0"], "above 0, got '0'"),
        (["--policy", "openai:x@http://127.0.0.1:9", "--max-new-tokens", "0"], "above 0, got '0'"),
        (["--policy", "openai:x@http://127.0.0.1:9", "--suite", "generalisation"], "--suite"),
        (
            ["--policy", "openai:x@http://127.0.0.1:9", "--key-variable", "NO_SUCH_KEY"],
            "expected a key in $NO_SUCH_KEY, which is not set",
        ),
        (
            ["--policy", "openai:x@http://127.0.0.1:9", "--key-variable", "sk-word@"],
            "the name of an environment variable",
        ),
        (["--policy", "tiny-random-llama", "--timeout", "3"], "runs in this process"),
        (["--policy", "tiny-random-llama", "--order", "both"], "drawn from their scores"),
        (
            ["--policy", "tiny-random-llama", "--mode", "write", "--normalization", "sum"],
            "nothing is scored",
        ),
        (["--policy", "tiny-random-llama", "--mode", "choose", "--temperature", "server"], "a num"),
        (["tiny-random-llama", "--mode", "choose", "--no-env"], "--no-env"),
    ],
)
def test_what_has_no_effect_or_no_meaning_is_refused(
    serve: Serve, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    env = [] if "--env" in words or "--no-env" in words else ["--env", "toy-lamp"]
    assert main(["evaluate", *words, *env, "--episodes", "2"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "word@" not in error
    assert "key=word" not in error
    assert not list(Path().iterdir())


def test_ways_to_play_mean_nothing_without_a_world(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "tiny-random-llama", "--mode", "choose"]) == 2
    assert (
        "answers prompts, unless --env names a world: leave --mode out" in capsys.readouterr().err
    )
    assert main(["evaluate", "--policy", "tiny-random-llama"]) == 2
    assert "give `--env`" in capsys.readouterr().err


# --- elsewhere ------------------------------------------------------------------------------------


def test_a_player_is_used_in_a_loop_of_ones_own(
    serve: Serve, policies: dict[str, LanguagePolicy]
) -> None:
    server = serve(say=reads_the_lamp, echo="refused")
    player = load_player(f"openai:tiny@{server.endpoint}", mode="write")
    world = PromptedWorld(make_world("toy-lamp"), seed=1)
    for _ in range(3):
        choice = world.reset()
        action = player.pick(choice.prompt, choice.actions)
        _, step = world.step(choice.actions.index(action))
        assert step.reward == 1.0
    assert player.details["mode"] == "write"
    assert isinstance(player.agent, AskedPlayer)
    assert player.agent.counts["decisions"] == 3
    assert load_player("random").pick("You should", ["go"]) == "go"
    with pytest.raises(UserError, match="reads no text"):
        load_player("bot").pick("You should", ["go"])
    with pytest.raises(ValueError, match="at least one action"):
        player.act([Choice("You should", ())], torch.Generator())


def test_the_pages_lines_run(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(say=reads_the_lamp, echo="refused")
    page = (Path(__file__).parents[2] / "docs" / "players.md").read_text(encoding="utf8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = code.replace("MODEL@http://127.0.0.1:8000/v1", f"tiny@{server.endpoint}")
    exec(compile(code, "players.md", "exec"), {})
    assert capsys.readouterr().out == "1.0 1\n"


def test_a_player_is_watched(serve: Serve, policies: dict[str, LanguagePolicy]) -> None:
    server = serve(policy=policies["tiny-random-llama"])
    words = ["--env", "toy-chest", "--max-steps", "3", "--html", "a.html", "--json", "a.json"]
    assert main(["watch", "--policy", f"openai:tiny@{server.endpoint}", *words]) == 0
    served = json.loads(Path("a.json").read_text())["episodes"]
    page = Path("a.html").read_text()
    assert f"openai:tiny@{server.endpoint.split('/')[2]} in toy-chest" in page
    assert main(["watch", "--policy", "tiny-random-llama", *words]) == 0
    assert json.loads(Path("a.json").read_text())["episodes"] == served
    asked = ["watch", "tiny-random-llama", "--mode", "choose", *words]
    assert main(asked) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "bot", "--env", "toy-lamp"], "plays whole episodes at once"),
        (["--policy", "random", "--env", "toy-lamp", "--order", "both"], "no --order"),
        (["--policy", "tiny-random-llama"], "with `--env WORLD` it plays"),
        (["tiny-random-llama", "--env", "toy-lump"], "toy-lamp"),
        ([], "expected a NAME, or --policy SPEC"),
    ],
)
def test_what_cannot_be_watched_is_refused(
    serve: Serve, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_model_without_a_chat_template_is_not_asked(make_policy: Any) -> None:
    policy = make_policy("gpt2", trainable=False)
    policy.tokenizer.chat_template = None
    with pytest.raises(UserError, match=r"no chat template.*--mode score"):
        PolicySpeaker(policy, ReplySettings())


def test_replies_in_process_do_not_depend_on_the_batch(
    policies: dict[str, LanguagePolicy],
) -> None:
    speaker = PolicySpeaker(policies["tiny-random-llama"], ReplySettings(1.0, 6))
    choices = situations(2)
    alone = [
        AskedPlayer(speaker).act([choice], torch.Generator().manual_seed(5)).index.tolist()[0]
        for choice in choices
    ]
    again = [
        AskedPlayer(speaker).act([choice, choice], torch.Generator().manual_seed(5)).index[0]
        for choice in choices
    ]
    assert alone == [int(index) for index in again]


@pytest.fixture
def transformers_serve(serve: Serve, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Start `transformers serve` on a tiny model; return its folder and its address."""
    for package in ("fastapi", "uvicorn", "openai"):
        pytest.importorskip(package, reason="needs the extra transformers[serving]")
    folder = tmp_path / "tiny"
    write_tiny("qwen2", folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = "from transformers.cli.transformers import main; main()"
    words = ["serve", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    words += ["--dtype", "float32", "--device", "cpu"]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-c", start, *words], stdout=log, stderr=log)
        try:
            for _ in range(240):
                assert process.poll() is None, (tmp_path / "server.log").read_text()
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                    break
                threading.Event().wait(1)  # `time.sleep` returns at once here
            yield str(folder), f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.slow
def test_transformers_serve_says_what_the_model_says_in_process(
    transformers_serve: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, address = transformers_serve
    spec = f"openai:{folder}@{address}"
    for mode, expected in (("auto", "choose"), ("write", "write")):
        words = ("--episodes", "2", "--max-new-tokens", "5", "--mode")
        there = evaluate(spec, *words, mode, env="toy-chest", out=f"there-{mode}")
        here = evaluate(folder, *words, expected, env="toy-chest", out=f"here-{mode}")
        assert there.details["mode"] == expected
        assert there.episodes == here.episodes
        said = [
            {(str(r["asked"]), r["text"]) for r in map(json.loads, file.open())}
            for file in (Path(f"{who}-{mode}", "replies.jsonl") for who in ("there", "here"))
        ]
        assert said[0] == said[1]
    words = ["--env", "toy-chest", "--mode", "score"]
    assert main(["evaluate", "--policy", spec, *words]) == 2
    assert "gives no log-probs of a text's own tokens" in capsys.readouterr().err
