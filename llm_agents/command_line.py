"""Words of the command line: options that say what is near, and keys of a recipe among them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from llm_agents.errors import UserError
from llm_agents.served_models import ServedModel, is_served

SECTIONS = (
    "seed_everything",
    "reference",
    "model",
    "job",
    "data",
    "trainer",
    "run",
    "evaluation",
    "publish",
)


class Parser(argparse.ArgumentParser):
    """Names the nearest option when one is mistyped."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        known = [option for action in self._actions for option in action.option_strings]
        words = [word.rstrip(":,") for word in message.split() if word.startswith("--")]
        unknown = [word for word in words if word.partition("=")[0] not in known]
        near = get_close_matches(unknown[0], known, n=1, cutoff=0.6) if unknown else []
        hint = f"; did you mean {near[0]}?" if near else f"; see {self.prog} --help"
        raise UserError(f"{self.prog}: {message}{hint}")


def positive(text: str) -> int:
    """Return a whole number above 0, or say what was expected."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def split_options(words: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Part a command line into plain words and keys of a recipe with their values.

    Example:
        >>> split_options(["a.yaml", "--model.lr", "1e-4", "--run.name=b", "--resume", "auto"])
        (['a.yaml', '--resume', 'auto'], [('model.lr', '1e-4'), ('run.name', 'b')])
    """
    plain: list[str] = []
    options: list[tuple[str, str]] = []
    rest = iter(words)
    for word in rest:
        key, equals, value = word.removeprefix("--").partition("=")
        is_key = "." in key or key in SECTIONS or key == "reproduces"
        if not word.startswith("--") or not is_key:
            plain.append(word)
            continue
        if not equals:
            following = next(rest, None)
            if following is None or following.startswith("--"):
                cure = "" if following is None else f"; a text that begins so: {word}={following}"
                raise UserError(
                    f"expected a value after {word}, got {following or 'nothing'}{cure}"
                )
            value = following
        options.append((key, value))
    return plain, options


def run_parser() -> Parser:
    """Return the parser of ``lightning run``, whose other options are keys of the recipe."""
    parser = Parser(
        prog="lightning run",
        add_help=False,
        allow_abbrev=False,
        description="Run a recipe. Any of its keys is an option: --model.algorithm r_lol",
    )
    parser.add_argument(
        "recipe", nargs="?", metavar="RECIPE", help="its name, or a YAML file; none: a list of them"
    )
    parser.add_argument(
        "--overlay",
        action="append",
        default=[],
        metavar="NAME",
        help="settings laid over it: a name, as tiny, or a YAML file",
    )
    parser.add_argument(
        "--resume",
        metavar="auto|PATH",
        help="continue the newest run of this recipe, a run's folder (runs/RECIPE/NEWEST), or a "
        "checkpoint",
    )
    parser.add_argument(
        "--print_config", action="store_true", help="print the resolved recipe and stop"
    )
    parser.add_argument(
        "-h",
        "--help",
        nargs="?",
        const="",
        metavar="SECTION",
        help="with a RECIPE: its keys, meanings and defaults; of one section: --help model.ppo",
    )
    return parser


def evaluate_parser() -> Parser:
    """Return the parser of ``lightning evaluate``."""
    parser = Parser(
        prog="lightning evaluate",
        description="Answer test prompts and score the answers, or play worlds: results.json and a "
        "table.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="zoo name, folder, run (NEWEST), Hub id, base; random; bot",
    )
    _add_player(parser)
    parser.add_argument(
        "--recipe", help="recipe of data, reward and generation; by default the adapter's own"
    )
    parser.add_argument(
        "--data", action="append", default=[], metavar="SET", help="test set: file, Hub id, sample"
    )
    parser.add_argument("--reward", help="a judge: reward model, or package.module:function")
    parser.add_argument(
        "--env", action="append", default=[], metavar="WORLD", help="world that an agent plays"
    )
    parser.add_argument(
        "--episodes", type=positive, metavar="N", help="episodes of each world or test"
    )
    parser.add_argument(
        "--suite", choices=("generalisation",), help="GLAM's tests of what was not trained"
    )
    parser.add_argument(
        "--test", action="append", default=[], metavar="NAME", help="test of the suite (all)"
    )
    parser.add_argument(
        "--behaviour",
        choices=("decomposed", "trie", "list"),
        help="what a POAD agent draws its actions from",
    )
    parser.add_argument(
        "--num-prompts", type=positive, metavar="N", help="prompts of each test set"
    )
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="NAME",
        help="another policy, compared prompt by prompt; may be given several times",
    )
    parser.add_argument(
        "--judge", metavar="URL", help="OpenAI-compatible server that compares the answers"
    )
    parser.add_argument("--judge-model", metavar="MODEL", help="its name for the model")
    parser.add_argument("--out", metavar="DIR", help="where results go; by default NAME's folder")
    return parser


PLAYER_OPTIONS = (
    "mode",
    "normalization",
    "template",
    "order",
    "temperature",
    "max_new_tokens",
    "key_variable",
    "parallel",
    "timeout",
)


def _add_player(parser: Parser) -> None:
    """Add who plays worlds without having been trained there, and how: see `PlayerOptions`."""
    parser.add_argument(
        "--policy",
        metavar="SPEC",
        help="who plays, in place of NAME: also any language model's Hub id, folder or GGUF file, "
        "and a model behind a server, openai:MODEL@URL",
    )
    group = parser.add_argument_group("a model that was not trained in a world")
    group.add_argument(
        "--mode",
        choices=("auto", "score", "choose", "write"),
        help="how it plays: by log-probs of the actions, by a number, by their words (auto: by "
        "log-probs where they can be had, else by a number)",
    )
    group.add_argument(
        "--normalization",
        choices=("sum", "token", "word"),
        help="what an action's log-prob is divided by (word)",
    )
    group.add_argument(
        "--template", choices=("plain", "chat"), help="how a scored prompt is written (plain)"
    )
    group.add_argument(
        "--order",
        choices=("shuffled", "listed", "both"),
        help="order of the actions in a question (shuffled)",
    )
    group.add_argument(
        "--temperature", type=_temperature, metavar="T|server", help="of replies (0)"
    )
    group.add_argument(
        "--max-new-tokens", type=positive, metavar="N", help="longest answer or reply"
    )
    group.add_argument(
        "--key-variable",
        metavar="NAME",
        help="environment variable that holds the server's key (OPENAI_API_KEY)",
    )
    group.add_argument("--parallel", type=positive, metavar="N", help="requests at a time (8)")
    group.add_argument(
        "--timeout", type=float, metavar="S", help="seconds until a request has failed (120)"
    )


def _temperature(text: str) -> float | str:
    """Return a temperature, or that the server has its own."""
    return text if text == "server" else float(text)


def player_name(given: argparse.Namespace, parser: Parser) -> str:
    """Return who was named, by NAME or by --policy.

    Raises:
        UserError: Nobody was, or two were, or the name of a served model can't be read.
    """
    if (given.name is None) == (given.policy is None):
        parser.error(
            "expected a NAME, or --policy SPEC"
            if given.name is None
            else f"expected one player, got `{given.name}` and --policy {given.policy}"
        )
    name = str(given.policy if given.name is None else given.name)
    if is_served(name):
        ServedModel.read(name)
    return name


def player_options(given: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `PlayerOptions` that were given."""
    options = {name: getattr(given, name) for name in PLAYER_OPTIONS}
    return {name: value for name, value in options.items() if value is not None}


def watch_parser() -> Parser:
    """Return the parser of ``lightning watch``."""
    parser = Parser(
        prog="lightning watch",
        description="Play episodes of an agent: in the terminal, and as files.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="zoo name, folder, run (NEWEST), Hub id; random; explorer",
    )
    _add_player(parser)
    parser.add_argument("--env", metavar="WORLD", help="what is played; the agent's own by default")
    parser.add_argument("--episodes", type=positive, default=1, metavar="N", help="how many (1)")
    parser.add_argument(
        "--max-steps", type=positive, metavar="N", help="leave an episode after so many"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of world and draws (0)")
    parser.add_argument("--fps", type=float, default=8.0, metavar="N", help="frames a second (8)")
    parser.add_argument("--reward", metavar="NAME", help="reward of messages shown beside the game")
    parser.add_argument(
        "--sort", choices=("reward", "total", "times"), default="reward", help="order of messages"
    )
    parser.add_argument(
        "--behaviour",
        choices=("decomposed", "trie", "list"),
        help="what a POAD agent draws its actions from",
    )
    for name, what in {
        "cast": "asciinema recording",
        "gif": "animated picture",
        "mp4": "video, where there is an encoder",
        "html": "page that needs no network",
        "json": "what came of the episodes",
    }.items():
        parser.add_argument(f"--{name}", metavar="FILE", type=Path, help=f"write: {what}")
    parser.add_argument("--no-screen", action="store_true", help="draw nothing in the terminal")
    return parser


def publish_parser() -> Parser:
    """Return the parser of ``lightning publish``."""
    parser = Parser(
        prog="lightning publish",
        description="Send an adapter, a reward model or an agent to the Hub, as one commit.",
    )
    parser.add_argument("folder", metavar="DIR", help="its folder, with results.json")
    parser.add_argument(
        "--repo", metavar="OWNER/NAME", help="repository; by default the recipe's publish.repo_id"
    )
    parser.add_argument("--dry-run", action="store_true", help="write what would be sent, only")
    parser.add_argument(
        "--base", metavar="ID", help="Hub id of the base, where only a path is known"
    )
    parser.add_argument("--license", metavar="ID", help="licence identifier of the Hub")
    parser.add_argument("--dataset", action="append", metavar="ID", help="Hub id of training data")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--revision", metavar="BRANCH", help="branch to commit to; made if new")
    parser.add_argument(
        "--allow-dirty", action="store_true", help="though no commit holds the code of its training"
    )
    parser.add_argument("--no-replay", action="store_true", help="record no episode of an agent")
    return parser


def plot_parser() -> Parser:
    """Return the parser of ``lightning plot``."""
    parser = Parser(
        prog="lightning plot",
        description="Learning curves of runs in worlds, and what runs reached as bars; runs of one "
        "recipe that differ in seed and folder only are one curve or bar, with an interval.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="[LABEL=]RUN",
        help="a run's folder, its recipe's name or NEWEST; equal labels are one curve",
    )
    parser.add_argument("--out", default="learning_curves.png", metavar="FILE", help="the picture")
    parser.add_argument(
        "--published", type=Path, metavar="FILE", help="Motif's curves, motif_results.pkl, below"
    )
    return parser


def aggregate_parser() -> Parser:
    """Return the parser of ``lightning aggregate``."""
    parser = Parser(
        prog="lightning aggregate",
        description="Finished runs as one table, over their seeds: a CSV with the columns of "
        "A-LoL's aggregation, one of each task and one of single runs beside it, Markdown, and a "
        "picture with intervals.",
    )
    parser.add_argument(
        "runs", nargs="+", metavar="[LABEL=]RUN", help="a run's folder, or one that holds some"
    )
    parser.add_argument("--out", default="aggregate.csv", metavar="FILE", help="the CSV")
    return parser


def doctor_parser() -> Parser:
    """Return the parser of ``lightning doctor``."""
    parser = Parser(
        prog="lightning doctor", description="What this machine has, and what it lacks."
    )
    parser.add_argument("--offline", action="store_true", help="don't try to reach the Hub")
    return parser


def pull_parser() -> Parser:
    """Return the parser of ``lightning pull``."""
    parser = Parser(
        prog="lightning pull", description="Copy an adapter, a reward or an agent from the Hub."
    )
    parser.add_argument("name", metavar="ID", help="Hub id OWNER/NAME, or a zoo name on the Hub")
    parser.add_argument("--to", metavar="DIR", help="folder; checkpoints/NAME by default")
    parser.add_argument("--revision", help="branch, tag or commit")
    return parser


def env_parser() -> Parser:
    """Return the parser of ``lightning env``."""
    parser = Parser(prog="lightning env", description="The worlds: which there are, and how sound.")
    verbs = parser.add_subparsers(dest="verb", metavar="list|show|check", parser_class=Parser)
    verbs.add_parser("list", help="all of them (the default)")
    for verb, what in (
        ("show", "what one shows and offers"),
        ("check", "play one, and say what would spoil training in it"),
    ):
        one = verbs.add_parser(verb, help=what, description=f"{what[0].upper()}{what[1:]}.")
        one.add_argument("name", metavar="NAME", help="a name, module:Class, gym:ID")
        one.add_argument(
            "--option",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="an option of the world, as in a recipe's `world_options`; may be repeated",
        )
        one.add_argument("--seed", type=int, default=0, metavar="N", help="of the world (0)")
        if verb == "check":
            one.add_argument("--episodes", type=int, default=8, metavar="N", help="played (8)")
            one.add_argument(
                "--max-steps", type=int, default=300, metavar="N", help="of an episode (300)"
            )
    return parser


def zoo_parser() -> Parser:
    """Return the parser of ``lightning zoo``."""
    parser = Parser(prog="lightning zoo", description="What was trained, by name.")
    verbs = parser.add_subparsers(
        dest="verb", metavar="list|show|check|add|card", parser_class=Parser
    )
    verbs.add_parser("list", help="all of them (the default)")
    one = verbs.add_parser("show", help="one of them, with its numbers")
    one.add_argument("name", metavar="NAME")
    check = verbs.add_parser("check", help="evaluate entries again, beside the numbers they keep")
    check.add_argument(
        "names", nargs="*", metavar="NAME", help="zoo names, folders, Hub ids; all that came along"
    )
    check.add_argument(
        "--data", action="append", default=[], metavar="FILE", help="test set that is not bundled"
    )
    check.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("evaluations/check"),
        help="where the new results go (evaluations/check)",
    )
    check.add_argument("--csv", metavar="FILE", type=Path, help="write the table too")
    add = verbs.add_parser("add", help="keep what a run trained in checkpoints/, with a card")
    add.add_argument("folder", metavar="DIR", help="folder of what was trained, or of its run")
    add.add_argument("--name", metavar="NAME", help="by default METHOD-TASK-BASE")
    rounding = "round the weights; then evaluate again"
    add.add_argument("--bf16", action="store_true", dest="rounded", help=rounding)
    add.add_argument("--replace", action="store_true", help="an entry of that name")
    add.add_argument(
        "--selection",
        metavar="TEXT",
        help="how it was chosen among several trainings, for the card",
    )
    card = verbs.add_parser("card", help="write an entry's card anew from its files")
    card.add_argument("folder", metavar="DIR")
    return parser
