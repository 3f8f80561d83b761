"""Lists of traps name the tests that watch them: are these there?"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path


def missing_tests(tests: Path, names: Iterable[str]) -> list[str]:
    """Return the names, ``FILE::FUNCTION``, that no file of the folder `tests` has."""
    split = [name.partition("::") for name in names]
    return [f"{path}::{name}" for path, _, name in split if name not in functions_of(tests / path)]


@cache
def functions_of(path: Path) -> set[str]:
    """Return the names of a file's test functions."""
    tree = ast.parse(path.read_text(encoding="utf8"))
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
