"""Finding what a dotted name stands for by reading source files: no module is imported.

Imports are followed through re-exports, those under ``if TYPE_CHECKING`` included, so that a
package whose names are loaded on first use is read like any other.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

_MAX_HOPS = 20


class Reference(NamedTuple):
    """A name that an import binds: `name` of `module`, or the module itself."""

    module: str
    name: str | None


@dataclass(frozen=True, eq=False)
class Source:
    """A module's text, parsed.

    Args:
        module: Dotted name.
        path: Its file.
        is_package: Whether it is an ``__init__``.
        tree: Its syntax tree.
        symbols: What its top-level names are bound to.
        stars: Modules whose names it imports with a star.
        is_dynamic: Whether names may come from a ``__getattr__`` or a replaced module.
    """

    module: str
    path: Path
    is_package: bool
    tree: ast.Module
    symbols: dict[str, ast.ClassDef | ast.FunctionDef | ast.expr | Reference]
    stars: tuple[str, ...]
    is_dynamic: bool

    def public_names(self) -> list[str]:
        """Return the names that a recipe could mean."""
        return [name for name in self.symbols if not name.startswith("_")]


@dataclass(frozen=True, eq=False)
class Definition:
    """What a dotted name stands for.

    Args:
        source: Module of the definition.
        node: A class, a function or method, or the value of an alias.
        name: Qualified name in that module.
        owner: Class of a method.
    """

    source: Source
    node: ast.ClassDef | ast.FunctionDef | ast.expr
    name: str
    owner: Definition | None = None

    @property
    def identity(self) -> str:
        """Return where it is defined, which is one for all its names."""
        return f"{self.source.module}.{self.name}"


class NotFound(LookupError):  # noqa: N818  (a look-up's outcome, turned into a fault)
    """A dotted name stands for nothing.

    Args:
        message: Which part of it is missing.
        candidates: Full names that could be meant.
    """

    def __init__(self, message: str, candidates: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.candidates = list(candidates)


@cache
def find_source(module: str) -> Source | None:
    """Return a module's source; None if there is no such module or no text of it.

    Raises:
        NotFound: The text can't be parsed.
    """
    origin = _origin(module)
    if origin is None or origin.suffix != ".py":
        return None
    text = origin.read_text(encoding="utf8")
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise NotFound(f"{origin}, line {error.lineno} is no Python: {error.msg}") from error
    is_package = origin.name == "__init__.py"
    symbols: dict[str, ast.ClassDef | ast.FunctionDef | ast.expr | Reference] = {}
    stars: list[str] = []
    package = module if is_package else module.rpartition(".")[0]
    for name, bound in _bindings(tree.body, package):
        if name == "*" and isinstance(bound, Reference):
            stars.append(bound.module)
        else:
            symbols.setdefault(name, bound)
    is_dynamic = "__getattr__" in symbols or "sys.modules[__name__]" in text
    return Source(module, origin, is_package, tree, symbols, tuple(stars), is_dynamic)


def module_exists(module: str) -> bool:
    """Return whether a module can be found, in whatever form."""
    return bool(_locations(module)) or _origin(module) is not None


@cache
def _spec(module: str) -> importlib.machinery.ModuleSpec | None:
    """Return a module's spec without importing its parents."""
    parent, _, name = module.rpartition(".")
    if not name:
        return None
    try:
        if not parent:
            return importlib.util.find_spec(name)
        return PathFinder.find_spec(module, _locations(parent)) if _locations(parent) else None
    except (ValueError, ImportError):  # a name that no module can have, or `__main__`
        return None


def _locations(module: str) -> list[str]:
    """Return the folders of a package."""
    spec = _spec(module)
    return list(spec.submodule_search_locations or ()) if spec else []


def _origin(module: str) -> Path | None:
    """Return a module's file."""
    spec = _spec(module)
    if spec is None or not spec.origin or not spec.has_location:
        return None
    return Path(spec.origin)


def _bindings(
    body: list[ast.stmt], package: str
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.expr | Reference]]:
    """Yield the names that statements bind, branches included."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Import):
            for alias in node.names:
                target = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or target, Reference(target, None)
        elif isinstance(node, ast.ImportFrom):
            origin = _absolute(node, package)
            for alias in node.names:
                yield alias.asname or alias.name, Reference(origin, alias.name)
        elif isinstance(node, ast.Assign):
            for target_node in node.targets:
                if isinstance(target_node, ast.Name):
                    yield target_node.id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value
        elif isinstance(node, ast.If):
            yield from _bindings([*node.body, *node.orelse], package)
        elif isinstance(node, ast.Try):
            handlers = [statement for handler in node.handlers for statement in handler.body]
            yield from _bindings([*node.body, *handlers, *node.orelse], package)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """Return the absolute name of the module that ``from … import`` names."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def locate(path: str) -> Definition | None:
    """Return what the full dotted name `path` stands for; None if only importing could tell.

    Raises:
        NotFound: It stands for nothing.
    """
    parts = path.split(".")
    if not all(part.isidentifier() for part in parts):
        raise NotFound("is no dotted name of a class, such as `llm_agents.methods.ALoL`")
    if not module_exists(parts[0]):
        raise NotFound(f"no package `{parts[0]}` is installed", _like_top_level(path))
    module = parts[0]
    for index, part in enumerate(parts[1:], start=1):
        source = find_source(module)
        if source is not None and (part in source.symbols or source.stars):
            found = _in_module(source, parts[index:], _MAX_HOPS)
            if found is not None:
                return found
        deeper = f"{module}.{part}"
        if not module_exists(deeper):
            _refuse_absent(source, module, part)
            return None
        module = deeper
    raise NotFound(f"`{path}` is a module, a class in it is needed", _members(find_source(module)))


def _refuse_absent(source: Source | None, module: str, part: str) -> None:
    """Raise for a name that a module does not have, unless it may make names at run time."""
    if source is None or (source.is_dynamic and not _is_listed(source)):
        return
    raise NotFound(f"the module `{module}` has no `{part}`", _members(source))


def _is_listed(source: Source) -> bool:
    """Return whether a module with ``__getattr__`` lists its names in ``__all__``."""
    listed = source.symbols.get("__all__")
    return isinstance(listed, ast.List) and source.module.partition(".")[0] == "llm_agents"


def _members(source: Source | None) -> list[str]:
    """Return the full names of a module's members and submodules' members next to it."""
    return [f"{source.module}.{name}" for name in source.public_names()] if source else []


def _like_top_level(path: str) -> list[str]:
    """Return full names of this package's classes: `path` names no package at all."""
    names = []
    for part in ("methods", "data", "policies", "rewards"):
        names += _members(find_source(f"llm_agents.{part}"))
    last = path.rpartition(".")[2]
    return [name for name in names if name.rpartition(".")[2] == last] or names


def _in_module(source: Source, parts: list[str], hops: int) -> Definition | None:
    """Return what the names `parts` stand for in a module, or None if the first is not in it."""
    name, rest = parts[0], parts[1:]
    bound = source.symbols.get(name)
    if bound is None:
        for star in source.stars:
            other = find_source(star)
            found = _in_module(other, parts, hops - 1) if other and hops else None
            if found is not None:
                return found
        return None
    if isinstance(bound, Reference):
        return _follow(bound, rest, hops - 1) if hops else None
    definition = Definition(source, bound, name)
    return _member(definition, rest) if rest else definition


def _follow(reference: Reference, rest: list[str], hops: int) -> Definition | None:
    """Return what an import leads to."""
    parts = rest if reference.name is None else [reference.name, *rest]
    module = reference.module
    while parts:
        source = find_source(module)
        if source is not None:
            found = _in_module(source, parts, hops)
            if found is not None:
                return found
        if not module_exists(f"{module}.{parts[0]}"):
            return None
        module, parts = f"{module}.{parts[0]}", parts[1:]
    return None


def _member(definition: Definition, rest: list[str]) -> Definition:
    """Return a method of a class, its bases' included."""
    if len(rest) == 1 and isinstance(definition.node, ast.ClassDef):
        for owner in ancestry(definition):
            for node in owner.node.body if isinstance(owner.node, ast.ClassDef) else ():
                if isinstance(node, ast.FunctionDef) and node.name == rest[0]:
                    return Definition(owner.source, node, f"{owner.name}.{rest[0]}", definition)
    names = [
        f"{definition.identity}.{node.name}"
        for node in getattr(definition.node, "body", ())
        if isinstance(node, ast.FunctionDef) and is_classmethod(node)
    ]
    raise NotFound(f"`{definition.identity}` has no method `{'.'.join(rest)}`", names)


def lookup(source: Source, name: str) -> Definition | None:
    """Return what a dotted `name` used in `source` stands for; None if that is not clear."""
    try:
        return _in_module(source, name.split("."), _MAX_HOPS)
    except NotFound:
        return None


def is_classmethod(node: ast.FunctionDef) -> bool:
    """Return whether a method is called on its class."""
    return any(isinstance(d, ast.Name) and d.id == "classmethod" for d in node.decorator_list)


def ancestry(definition: Definition) -> list[Definition]:
    """Return a class and its bases, as far as their source can be read, nearest first."""
    found: dict[str, Definition] = {}
    waiting = [definition]
    while waiting:
        current = waiting.pop(0)
        if current.identity in found or not isinstance(current.node, ast.ClassDef):
            continue
        found[current.identity] = current
        for base in current.node.bases:
            name = base.value if isinstance(base, ast.Subscript) else base  # Generic[T]
            other = (
                lookup(current.source, ast.unparse(name)) if not _is_opaque(current, name) else None
            )
            if other is not None:
                waiting.append(other)
    return list(found.values())


# Large packages whose classes are known by name only: reading them would take too long.
OPAQUE = {"torch", "transformers", "numpy", "tensordict", "torchrl", "typing", "abc", "collections"}


def _is_opaque(definition: Definition, name: ast.expr) -> bool:
    """Return whether a base class comes from a package that is not read."""
    first = ast.unparse(name).partition(".")[0]
    bound = definition.source.symbols.get(first)
    return isinstance(bound, Reference) and bound.module.partition(".")[0] in OPAQUE
