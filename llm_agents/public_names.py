"""Public names of a package, imported on first use: importing one part costs that part only.

A package's ``__init__`` lists its names twice, as tools for types and for documentation want them:
imported under ``if TYPE_CHECKING``, and in ``__all__``. The first list says where each name lives,
so that it isn't written a third time. (The same idea as `attach_stub` of the package
``lazy_loader``, whose stub files would be a second file for each package.)
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def on_first_use(
    package: str, file: str
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``.

    Args:
        package: Its ``__name__``.
        file: Its ``__file__``, whose ``if TYPE_CHECKING`` says where each name lives.

    Returns:
        The two functions of PEP 562. What a name stands for is looked up again at each use, so that
        a test may put something else into its home.
    """
    homes = homes_of(Path(file).read_text(encoding="utf8"))

    def find(name: str) -> object:
        """Import `name` from its home."""
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, inside = homes[name]
        return getattr(import_module(module), inside)

    def names() -> list[str]:
        """List the public names."""
        return sorted(homes)

    return find, names


def homes_of(text: str) -> dict[str, tuple[str, str]]:
    r"""Return where the names live that a module imports for type checkers only.

    Args:
        text: The module's source.

    Returns:
        From each name to a module and the name there.

    Example:
        >>> homes_of("if TYPE_CHECKING:\n    from a.b import c as d, e\n")
        {'d': ('a.b', 'c'), 'e': ('a.b', 'e')}
    """
    homes: dict[str, tuple[str, str]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for inner in node.body:
                if isinstance(inner, ast.ImportFrom) and inner.module:
                    for alias in inner.names:
                        homes[alias.asname or alias.name] = (inner.module, alias.name)
    return homes
