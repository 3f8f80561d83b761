"""The shape of the package: import arrows, sizes, names, docstrings, what importing costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "llm_agents"
FILES = sorted(PACKAGE.rglob("*.py"))
LEVELS = {
    "errors": -2,
    "public_names": -2,
    "entries": -1,
    "types": 0,
    "functional": 0,
    "job_progress": 0,
    "messages": 0,
    "served_models": 0,
    "whole_files": 0,
    "sandbox": 1,
    "policies": 1,
    "envs": 1,
    "rewards": 2,
    "data": 3,
    "rollouts": 3,
    "methods": 3,
    "evaluation": 4,
    "judge": 4,
    "training": 4,
    "zoo": 4,
    "command_line": 5,
    "config": 5,
    "doctor": 5,
    "measurements": 5,
    "learning_tables": 5,
    "subjects": 5,
    "tables": 5,
    "cli": 5,
    "__main__": 6,
    "__init__": 6,
}
FORBIDDEN_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py"}


def part_of(path: Path) -> str:
    """Return the top-level part of the package that a file belongs to."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported_parts(path: Path) -> set[str]:
    """Return the parts of our package that a file imports when it runs, lazily or not."""
    parts: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf8"))
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if node.module == "llm_agents":
                names = [f"llm_agents.{alias.name}" for alias in node.names]
        parts |= {name.split(".")[1] for name in names if name.startswith("llm_agents.")}
    return parts


def functions_of(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_the_package_is_found() -> None:
    assert len(FILES) > 30


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    here = part_of(path)
    if here == "__init__":
        return
    for other in imported_parts(path) - {here, "__version__"}:
        assert LEVELS[other] < LEVELS[here] or (LEVELS[other] == LEVELS[here] >= 4), (
            f"{path.relative_to(ROOT)} (level {LEVELS[here]}) imports {other} ({LEVELS[other]})"
        )


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "methods").glob("*.py")), ids=lambda path: path.name
)
def test_methods_import_only_functional_and_policies(path: Path) -> None:
    below = {part for part, level in LEVELS.items() if level <= 0}
    assert imported_parts(path) <= {*below, "policies", "methods"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_sizes_and_docstrings(path: Path) -> None:
    text = path.read_text(encoding="utf8")
    tree = ast.parse(text)
    assert path.name not in FORBIDDEN_NAMES
    assert len(path.relative_to(PACKAGE).parts) <= 2, "depth"
    assert text.count("\n") <= 500, "lines in the file"
    assert ast.get_docstring(tree), "module docstring"
    for function in functions_of(tree):
        length = (function.end_lineno or 0) - function.lineno + 1
        limit = 40 if function.name == "training_step" else 60
        assert length <= limit, f"{function.name} has {length} lines"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_unfinished_work_and_no_private_path(path: Path) -> None:
    text = path.read_text(encoding="utf8")
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b(?! #\d)", text)
    assert not re.search(r"(?<![\w.])/(work|root|tmp)/", text)
    assert "except Exception" not in text
    assert "except:" not in text


def run_time_imports(path: Path) -> set[str]:
    """Return the top-level packages that a file imports, those for type checkers left out."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
        waiting += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("package", ["peft", "bitsandbytes"])
def test_an_optional_package_is_imported_in_one_file(package: str) -> None:
    users = {str(p.relative_to(PACKAGE)) for p in FILES if package in run_time_imports(p)}
    assert users == {"policies/backbone.py"}


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = run_python(
        "import sys, llm_agents, llm_agents.cli\n"
        "print([m for m in ('torch', 'transformers', 'lightning', 'jsonargparse', 'matplotlib')"
        " if m in sys.modules])"
    )
    assert loaded.strip() == "[]"


def test_every_module_imports_and_public_names_exist_with_the_core_dependencies_alone() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in FILES
        if path.name != "__main__.py"
    ]
    run_python(
        "import sys, importlib\n"
        "for name in ('bitsandbytes', 'nle', 'minihack', 'minigrid', 'vllm'):\n"
        "    sys.modules[name] = None\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        "import llm_agents\n"
        "for name in llm_agents.__all__:\n"
        "    getattr(llm_agents, name)\n"
    )
