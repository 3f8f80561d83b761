"""Words of the command line: options that say what is near, and keys of a recipe among them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from llm_agents.errors import UserError

SECTIONS = ("seed_everything", "model", "job", "data", "trainer", "run", "evaluation", "publish")


class Parser(argparse.ArgumentParser):
    """Names the nearest option when one is mistyped."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        unknown = [word for word in message.split() if word.startswith("--")]
        known = [option for action in self._actions for option in action.option_strings]
        near = get_close_matches(unknown[0], known, n=1, cutoff=0.6) if unknown else []
        hint = f"; did you mean {near[0]}?" if near else f"; see {self.prog} --help"
        raise UserError(f"{self.prog}: {message}{hint}")


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
                raise UserError(f"expected a value after {word}, got {following or 'nothing'}")
            value = following
        options.append((key, value))
    return plain, options


def evaluate_parser() -> Parser:
    """Return the parser of ``lightning evaluate``."""
    parser = Parser(
        prog="lightning evaluate",
        description="Answer test prompts and score the answers, or play worlds: results.json and a "
        "table.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "name", metavar="NAME", help="zoo name, folder, Hub id, a base model; random; bot"
    )
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
    parser.add_argument("--episodes", type=int, metavar="N", help="episodes of each world or test")
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
    parser.add_argument("--num-prompts", type=int, metavar="N", help="prompts of each test set")
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="longest answer")
    parser.add_argument(
        "--against", metavar="NAME", help="another policy, compared prompt by prompt"
    )
    parser.add_argument(
        "--judge", metavar="URL", help="OpenAI-compatible server that compares the answers"
    )
    parser.add_argument("--judge-model", metavar="MODEL", help="its name for the model")
    parser.add_argument("--out", metavar="DIR", help="where results go; by default NAME's folder")
    return parser
