"""The command: ``lightning``, ``llm-agents``, ``python -m llm_agents``.

Nothing heavy is imported before a recipe is known to be sound, so that help and refusals come at
once. Wiring only: each verb parses its options and hands them to the part that does the work.
"""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from llm_agents import __version__
from llm_agents.command_line import (
    PLAYER_OPTIONS,
    Parser,
    aggregate_parser,
    doctor_parser,
    env_parser,
    evaluate_parser,
    player_name,
    player_options,
    plot_parser,
    publish_parser,
    pull_parser,
    run_parser,
    split_options,
    watch_parser,
    zoo_parser,
)
from llm_agents.errors import UserError
from llm_agents.messages import show_messages

if TYPE_CHECKING:
    from llm_agents.config.reading import Document, Value
    from llm_agents.subjects import Subject

_OF_PLACES = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
    *(errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR),
)  # faults of a folder or disk that the user has chosen
EXIT_FAULT = 2  # what the user gave can't be used; nothing was started

OVERVIEW = """\
usage: lightning VERB …

  run RECIPE           train, evaluate, or whatever the recipe says
  evaluate NAME        test prompts or worlds → results.json and a table with intervals;
                       --policy SPEC: any language model, also behind a server, plays
  watch NAME           episodes in the terminal; --html, --gif, --mp4, --cast write a replay
  plot RUN…            curves of runs and bars of what they reached, seeds together
  aggregate RUN…       finished runs over seeds, algorithms and tasks as one table
  env [list|show|check NAME] worlds: which there are, what one shows, what spoils training
  zoo [list|show NAME] adapters, reward models and agents by name; check measures them again
  publish DIR          send what was trained to the Hub
  pull ID              copy it from the Hub
  doctor               what this machine has, and the cure for what is missing

`lightning VERB --help` shows a verb's options, `lightning run RECIPE --help` every key of a recipe.
The same program is called `llm-agents` and `python -m llm_agents`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Words after the program's name; those of this process by default.

    Returns:
        Exit status: 0; 2 for a fault of what was given; 128 and the signal's number when stopped.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    show_messages()
    try:
        return _dispatch(words)
    except UserError as error:
        number = getattr(error, "number", None)
        print(f"{'' if number else 'error: '}{error}", file=sys.stderr)
        if number:
            print(_how_to_resume(words), file=sys.stderr)
        return EXIT_FAULT if number is None else 128 + int(number)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is flushed at exit has a place to go
        return 0
    except OSError as error:
        if error.errno not in _OF_PLACES:
            raise
        print(f"error: can't use {error.filename}: {error.strerror}", file=sys.stderr)
        return EXIT_FAULT


def _dispatch(words: list[str]) -> int:
    """Call the verb."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(OVERVIEW)
        return 0
    if words[0] in ("-V", "--version"):
        print(f"llm-agents {__version__}")
        return 0
    verb, rest = words[0], words[1:]
    if verb not in VERBS:
        near = get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(VERBS)}"
        raise UserError(f"expected a verb, got `{verb}`; {hint}")
    return VERBS[verb](rest)


# --- run ------------------------------------------------------------------------------------------


def run(words: list[str]) -> int:
    """Run a recipe."""
    plain, options = split_options(words)
    parser = run_parser()
    given = parser.parse_args(plain)
    if given.recipe is None and given.help:  # `run --help RECIPE`
        given.recipe, given.help = given.help, ""
    if given.recipe is None:
        return _run_nothing(parser, given, options)
    sys.path.append(str(Path.cwd()))  # a recipe may name classes of the user's own
    from llm_agents.config.loading import load_recipe
    from llm_agents.config.reading import dump
    from llm_agents.config.recipe_files import recipe_name, recipe_path

    path = recipe_path(given.recipe)
    document = load_recipe(path, given.overlay, options)
    if given.help is not None:
        from llm_agents.config.describe import describe

        shown = describe(document, shutil.get_terminal_size().columns, given.help)
        print(shown if given.help else f"{parser.format_usage()}\n{shown}")
        return 0
    recipe = dump(document.values)
    if given.print_config:
        print(recipe, end="")
        return 0
    name = recipe_name(path)
    resume = _check_start(document, given.resume)
    _say_loading()
    if document.values.get("job") is not None:
        from llm_agents.training.jobs import run_job

        run_job(document.values, recipe, name, resume)
        return 0
    from llm_agents.config.chain import first_stage, started_from

    first = first_stage(document)
    if first is not None:
        from llm_agents.training.chain import run_chain

        later = partial(started_from, document.values)
        run_chain(first.values, later, dump, name, resume)  # type: ignore[arg-type]  # JSON
        return 0
    from llm_agents.training.session import run_recipe

    values = {key: value for key, value in document.values.items() if key != "reference"}
    run_recipe(values, recipe, name, resume)
    return 0


def _run_nothing(parser: Parser, given: argparse.Namespace, options: Sequence[object]) -> int:
    """List the recipes, or say what a command line without one lacks."""
    if given.help is not None:
        print(parser.format_help())
        return 0
    if options or given.overlay or given.resume or given.print_config:
        parser.error("expected a RECIPE: `lightning run` lists those that come with the package")
    from llm_agents.config.recipe_files import listing

    wide = not sys.stdout.isatty()  # whoever reads it from a file wants whole lines
    print(listing(10_000 if wide else shutil.get_terminal_size().columns))
    return 0


def _check_start(document: Document, resume: str | None) -> str | None:
    """Refuse a run that can't begin, before anything heavy is imported; return what to resume."""
    from llm_agents.config.chain import first_stage, without_reference
    from llm_agents.config.inputs import check_inputs
    from llm_agents.config.worlds import check_own_worlds
    from llm_agents.training.past_runs import check_folder

    first = first_stage(document)
    check_inputs(without_reference(document))
    if first is not None:
        check_inputs(first)
    check_own_worlds(document.values)
    section = document.values.get("run")
    folder = section.get("folder") if isinstance(section, dict) else None
    return check_folder(folder if isinstance(folder, str) else None, resume)


def _say_loading() -> None:
    """Tell whoever waits at a terminal that the libraries come first."""
    if "torch" not in sys.modules and sys.stderr.isatty():
        print("loading torch, transformers and lightning …", file=sys.stderr, flush=True)


def _how_to_resume(words: list[str]) -> str:
    """Say how a stopped run is continued."""
    kept = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == "--resume":
            skip = True
        elif not word.startswith("--resume="):
            kept.append(word)
    return f"go on with: lightning {shlex.join(kept)} --resume auto"


# --- evaluate, zoo, publish, pull, doctor ---------------------------------------------------------


def evaluate(words: list[str]) -> int:
    """Evaluate an adapter, a reward model, an agent or a base model."""
    parser = evaluate_parser()
    given = parser.parse_args(words)
    if given.judge and not (given.against and given.judge_model):
        parser.error("--judge needs --judge-model and --against")
    if given.test and not given.suite:
        parser.error("--test names a test of a suite: add --suite")
    given.name = player_name(given, parser)
    sys.path.append(str(Path.cwd()))
    from llm_agents.subjects import check_answers, find_subject, plays_worlds

    subject = find_subject(given.name)
    given.name = subject.name
    recipe = _recipe_of(subject, given.recipe)
    if plays_worlds(given, subject, recipe):
        _say_loading()
        return _evaluate_agent(given, recipe)
    check_answers(given, subject, recipe)
    _say_loading()
    from llm_agents.judge import JudgeConfig
    from llm_agents.training.named import Request, default_folder, evaluate_named

    request = Request(
        name=given.name,
        recipe=recipe,
        data=tuple(given.data),
        reward=given.reward,
        num_prompts=given.num_prompts,
        max_new_tokens=given.max_new_tokens,
        against=tuple(given.against),
        out=Path(given.out) if given.out else default_folder(given.name),
        is_own_recipe=given.recipe is None,
    )
    judged = JudgeConfig(given.judge, given.judge_model) if given.judge else None
    evaluate_named(request, judged)
    print(f"results: {request.out / 'results.json'}", file=sys.stderr)
    return 0


def _evaluate_agent(given: argparse.Namespace, recipe: dict[str, Value]) -> int:
    """Let an agent play worlds."""
    from llm_agents.training.agents import AgentRequest, evaluate_agent_named
    from llm_agents.training.named import default_folder
    from llm_agents.training.outside_agents import PlayerOptions

    request = AgentRequest(
        name=given.name,
        recipe=recipe,
        worlds=tuple(given.env),
        episodes=given.episodes,
        behaviour=given.behaviour,
        out=Path(given.out) if given.out else default_folder(given.name),
        reward=given.reward,
        options=PlayerOptions(**player_options(given)),
        is_own_recipe=given.recipe is None,
    )
    if given.suite:
        from llm_agents.training.suites import SuiteRequest, evaluate_suite_named

        suite = SuiteRequest(request, given.suite, tuple(given.test))
        evaluate_suite_named(suite)
        print(f"results: {suite.folder / 'results.json'}", file=sys.stderr)
        return 0
    evaluate_agent_named(request)
    print(f"results: {request.out / 'results.json'}", file=sys.stderr)
    return 0


def _recipe_of(subject: Subject, recipe: str | None) -> dict[str, Value]:
    """Return the content of the recipe given, or of the one that the subject was trained with."""
    from llm_agents.config.loading import load_recipe
    from llm_agents.subjects import recipe_file

    path = recipe_file(subject) if recipe is None else recipe
    return {} if path is None else load_recipe(path).values


def watch(words: list[str]) -> int:
    """Play episodes and show them."""
    parser = watch_parser()
    given = parser.parse_args(words)
    given.name = player_name(given, parser)
    sys.path.append(str(Path.cwd()))
    from llm_agents.subjects import check_outputs, check_watched, find_subject

    subject = find_subject(given.name)
    check_watched(given.name, given.env, given.reward, subject)
    given.name = subject.name
    files = {f"--{name}": getattr(given, name) for name in ("cast", "gif", "mp4", "html", "json")}
    check_outputs(files, are_files=True)
    recipe = _recipe_of(subject, None)
    _say_loading()
    from llm_agents.training.outside_agents import PlayerOptions
    from llm_agents.training.watching import WatchRequest, watch_named

    others = ("no_screen", "policy", *PLAYER_OPTIONS)
    options = {name: value for name, value in vars(given).items() if name not in others}
    watch_named(
        WatchRequest(
            **options,
            recipe=recipe,
            screen=not given.no_screen,
            options=PlayerOptions(**player_options(given)),
        )
    )
    return 0


def plot(words: list[str]) -> int:
    """Draw learning curves, and bars of what was reached."""
    given = plot_parser().parse_args(words)
    from llm_agents.subjects import check_inputs, check_outputs, run_folders

    runs = run_folders(given.runs, ("metrics.csv", "results.json"), "plot")
    check_inputs([str(given.published)] if given.published else [], "file", "--published")
    check_outputs({"--out": given.out}, are_files=True)
    _say_loading()
    from llm_agents.training.plotting import plot_runs

    for path in plot_runs(runs, Path(given.out), given.published):
        print(path)
    return 0


def aggregate(words: list[str]) -> int:
    """Put finished runs into one table."""
    given = aggregate_parser().parse_args(words)
    from llm_agents.subjects import check_outputs, run_folders

    runs = run_folders(given.runs, ("results.json", "*/results.json"), "aggregate")
    check_outputs({"--out": given.out}, are_files=True)
    _say_loading()
    from llm_agents.training.aggregating import aggregate_runs

    for path in aggregate_runs(runs, Path(given.out)):
        print(path)
    return 0


def zoo(words: list[str]) -> int:
    """Show what there is by name."""
    given = zoo_parser().parse_args(words)
    from llm_agents.zoo import list_entries, print_entries, show

    if given.verb == "show":
        from llm_agents.training.past_runs import run_called
        from llm_agents.zoo.registry import describe_entry

        print(describe_entry(show(run_called(given.name))))
        return 0
    if given.verb == "check":
        from llm_agents.subjects import find_subject
        from llm_agents.training.entry_checks import check_entries

        sys.path.append(str(Path.cwd()))  # a recipe may name classes of the user's own
        own = lambda name: _recipe_of(find_subject(name), None)  # noqa: E731  (one expression)
        return check_entries(given.names, own, data=given.data, out=given.out, table=given.csv)
    if given.verb in ("add", "card"):
        from llm_agents.subjects import trained_folder

        folder = trained_folder(given.folder, needs_results=True)
        _say_loading()
        from llm_agents.training.keeping import add_entry, write_card

        keep = add_entry if given.verb == "add" else write_card
        options = {k: value for k, value in vars(given).items() if k not in ("verb", "folder")}
        made = keep(folder, **options)
        for line in made:
            print(line)
        return 0
    print_entries(list_entries())
    return 0


def env(words: list[str]) -> int:
    """Show worlds, or look for what spoils training in one."""
    given = env_parser().parse_args(words)
    sys.path.append(str(Path.cwd()))
    from llm_agents.envs.catalog import answer

    text, is_sound = answer(**vars(given))
    print(text)
    return int(not is_sound)


def publish(words: list[str]) -> int:
    """Send what was trained to the Hub."""
    parser = publish_parser()
    given = parser.parse_args(words)
    from llm_agents.entries import entry_folder
    from llm_agents.subjects import check_repository, trained_folder

    settings = _publish_section(Path(given.folder))
    repo = given.repo or settings.get("repo_id")
    if not isinstance(repo, str):
        parser.error("expected --repo OWNER/NAME: the recipe names no `publish.repo_id`")
    check_repository(repo, "--repo" if given.repo else "publish.repo_id")
    folder = trained_folder(given.folder, needs_results=True)
    _say_loading()
    from llm_agents.zoo import publish as send

    if not given.no_replay:
        from llm_agents.training.publishing import attach_replay

        sys.path.append(str(Path.cwd()))
        attach_replay(entry_folder(folder))
    report = send(
        folder,
        repo,
        dry_run=given.dry_run,
        base_model=given.base,
        license=given.license,
        datasets=tuple(given.dataset) if given.dataset else None,
        private=given.private or settings.get("private") is True,
        revision=given.revision,
        allow_dirty=given.allow_dirty,
    )
    print(f"{'would send' if given.dry_run else 'sent'} {len(report.files)} files to {repo}")
    print(f"  {', '.join(report.files)}")
    if report.left_out:
        print(f"left out: {', '.join(report.left_out)}")
    print(report.commit or f"staged in {report.staged}")
    return 0


def _publish_section(folder: Path) -> dict[str, Value]:
    """Return the section `publish` of the recipe in an adapter's folder."""
    from llm_agents.config.reading import read_document

    path = folder / "recipe.yaml"
    section = read_document(path).values.get("publish") if path.is_file() else None
    return section if isinstance(section, dict) else {}


def pull(words: list[str]) -> int:
    """Copy what somebody trained from the Hub."""
    given = pull_parser().parse_args(words)
    from llm_agents.subjects import check_pulled

    check_pulled(given.name, given.to)
    from llm_agents.zoo import pull as fetch

    print(fetch(given.name, given.to, revision=given.revision))
    return 0


def doctor(words: list[str]) -> int:
    """Say what this machine has."""
    given = doctor_parser().parse_args(words)
    from llm_agents.doctor import examine

    findings = examine(offline=given.offline)
    for finding in findings:
        print(finding)
    return int(any(finding.is_fault for finding in findings))


VERBS: dict[str, Callable[[list[str]], int]] = {
    "run": run,
    "evaluate": evaluate,
    "watch": watch,
    "plot": plot,
    "aggregate": aggregate,
    "env": env,
    "zoo": zoo,
    "publish": publish,
    "pull": pull,
    "doctor": doctor,
}
