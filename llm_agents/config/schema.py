"""Parameters of a class, a class method or a function, read from its source."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from functools import cached_property

from llm_agents.config.docstrings import arguments, summary
from llm_agents.config.sources import OPAQUE, Definition, Reference, Source, ancestry, lookup

_PLAIN = {"bool", "int", "float", "str", "None"}
_LISTS = {"list", "List", "Sequence", "Iterable", "Collection", "set", "Set", "frozenset"}
_DICTS = {"dict", "Dict", "Mapping", "MutableMapping"}
_PATHS = {"Path", "PathLike", "PurePath"}


@dataclass(frozen=True)
class Annotation:
    """A type as it is written, and where: names in it are looked up there.

    Args:
        source: Module of the annotation.
        node: The expression; None accepts anything.
    """

    source: Source
    node: ast.expr | None

    def at(self, node: ast.expr) -> Annotation:
        """Return another expression of the same module."""
        return Annotation(self.source, node)

    @cached_property
    def name(self) -> str:
        """Return the last part of the name of a plain or subscripted type."""
        node = self.node.value if isinstance(self.node, ast.Subscript) else self.node
        if isinstance(node, ast.Constant):
            return "None" if node.value is None else ""
        return (
            ast.unparse(node).rpartition(".")[2]
            if isinstance(node, ast.Name | ast.Attribute)
            else ""
        )

    @property
    def items(self) -> list[Annotation]:
        """Return what stands in the brackets of a subscripted type."""
        if not isinstance(self.node, ast.Subscript):
            return []
        inner = self.node.slice
        nodes = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        return [self.at(node) for node in nodes]

    @cached_property
    def alternatives(self) -> list[Annotation]:
        """Return the members of a union, aliases opened; the type itself if it is none."""
        node = self.node
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self.at(ast.parse(node.value, mode="eval").body).alternatives
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return [*self.at(node.left).alternatives, *self.at(node.right).alternatives]
        if self.name == "Union":
            return [found for item in self.items for found in item.alternatives]
        if self.name == "Optional":
            none = self.at(ast.Constant(None))
            return [*self.items[0].alternatives, none]
        if self.name in ("Annotated", "Final", "Required", "NotRequired") and self.items:
            return self.items[0].alternatives
        alias = self.definition
        if alias is not None and isinstance(alias.node, ast.expr):
            if isinstance(alias.node, ast.Call):  # NewType, TypeVar: nothing to check
                return [Annotation(alias.source, None)]
            return Annotation(alias.source, alias.node).alternatives
        return [self]

    @cached_property
    def definition(self) -> Definition | None:
        """Return the class or alias that a named type stands for."""
        if not isinstance(self.node, ast.Name | ast.Attribute) or self.name in _PLAIN | _PATHS:
            return None
        name = ast.unparse(self.node)
        bound = self.source.symbols.get(name.partition(".")[0])
        if isinstance(bound, Reference) and bound.module.partition(".")[0] in OPAQUE:
            return None
        return lookup(self.source, name)

    @property
    def literals(self) -> list[object]:
        """Return the values that a ``Literal`` allows."""
        values = []
        for item in self.items:
            if item.node is not None:
                values.append(ast.literal_eval(item.node))
        return values

    def __str__(self) -> str:
        """Return the type in words of a recipe, fixed values first."""
        options = self.alternatives
        fixed = [v for option in options if option.name == "Literal" for v in option.literals]
        words = ["null" if v is None else str(v) for v in fixed]
        words += [_word(option) for option in options if option.name not in ("Literal", "None")]
        words += ["null"] * any(option.name == "None" for option in options)
        words = list(dict.fromkeys(words))
        return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _word(option: Annotation) -> str:
    """Return one alternative in words."""
    if option.node is None or option.name in ("Any", "object"):
        return "anything"
    words = {"bool": "true or false", "int": "a whole number", "float": "a number"}
    words |= {"str": "a text"} | dict.fromkeys(_PATHS, "a path")
    if option.name in words:
        return words[option.name]
    if option.name in _LISTS:
        return f"a list of ({option.items[0]})" if option.items else "a list"
    if option.name in ("tuple", "Tuple"):
        inner = [str(item) for item in option.items if not is_ellipsis(item)]
        if len(inner) == 1 and len(option.items) == 2:
            return f"a list of ({inner[0]})"
        return f"a list [{', '.join(inner)}]" if inner else "a list"
    if option.name in _DICTS:
        return "a mapping"
    definition = option.definition
    if definition is not None and is_dataclass(definition):
        return f"keys of {option.name}"
    return with_article(option.name) if option.name else ast.unparse(option.node)


def with_article(name: str) -> str:
    """Return a class's name after ``a`` or ``an``."""
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def is_ellipsis(annotation: Annotation) -> bool:
    """Return whether an annotation is the ``...`` of a tuple of any length."""
    return isinstance(annotation.node, ast.Constant) and annotation.node.value is ...


def is_list(annotation: Annotation) -> bool:
    """Return whether a list of one kind of items is meant."""
    return annotation.name in _LISTS


def is_dict(annotation: Annotation) -> bool:
    """Return whether a mapping with free keys is meant."""
    return annotation.name in _DICTS


def is_path(annotation: Annotation) -> bool:
    """Return whether a path is meant."""
    return annotation.name in _PATHS


@dataclass(frozen=True)
class Parameter:
    """One argument that a recipe may give.

    Args:
        name: Its name.
        annotation: Its type.
        default: Its default as an expression; None if it is required.
        meaning: What the docstring says.
    """

    name: str
    annotation: Annotation
    default: ast.expr | None
    meaning: str

    @property
    def is_required(self) -> bool:
        """Return whether it has no default."""
        return self.default is None

    @property
    def default_text(self) -> str:
        """Return the default as a recipe would write it."""
        if self.default is None:
            return "required"
        if isinstance(self.default, ast.Call):
            return ""
        words = {"None": "null", "True": "true", "False": "false", "()": "[]"}
        text = ast.unparse(self.default)
        if isinstance(self.default, ast.Constant) and isinstance(self.default.value, str):
            return self.default.value or '""'
        if isinstance(self.default, ast.Tuple):
            return "[" + ", ".join(ast.unparse(item) for item in self.default.elts) + "]"
        return words.get(text, text)


@dataclass(frozen=True)
class Signature:
    """What can be called with a recipe's arguments.

    Args:
        name: Full name.
        label: Name without its module.
        parameters: In order.
        takes_any: Whether other arguments are accepted too.
        meaning: First line of the docstring.
    """

    name: str
    label: str
    parameters: tuple[Parameter, ...]
    takes_any: bool
    meaning: str

    def get(self, name: str) -> Parameter | None:
        """Return a parameter by its name."""
        return next((p for p in self.parameters if p.name == name), None)


def signature(definition: Definition) -> Signature | None:
    """Return how a class or a function is called; None for an alias of something else."""
    node = definition.node
    if isinstance(node, ast.FunctionDef):
        return _of_function(definition, definition)
    if not isinstance(node, ast.ClassDef):
        return None
    line = ancestry(definition)
    if is_dataclass(definition):
        return _of_dataclass(definition, line)
    documented: dict[str, str] = {}
    for owner in reversed(line):
        documented |= arguments(ast.get_docstring(_class(owner)))
    for owner in line:
        for item in _class(owner).body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                method = Definition(owner.source, item, item.name, owner)
                found = _of_function(definition, method, documented)
                return replace(found, meaning=summary(ast.get_docstring(node)))
    unread = any(lookup(o.source, ast.unparse(b)) is None for o in line for b in _class(o).bases)
    meaning = summary(ast.get_docstring(node))
    return Signature(definition.identity, definition.name, (), takes_any=unread, meaning=meaning)


def _class(definition: Definition) -> ast.ClassDef:
    assert isinstance(definition.node, ast.ClassDef)
    return definition.node


def is_dataclass(definition: Definition) -> bool:
    """Return whether a class is a dataclass, or a named tuple."""
    node = definition.node
    if not isinstance(node, ast.ClassDef):
        return False
    decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    return "NamedTuple" in bases or any(
        ast.unparse(d).rpartition(".")[2] == "dataclass" for d in decorators
    )


def _of_dataclass(definition: Definition, line: list[Definition]) -> Signature:
    """Read a dataclass's fields, those of its bases first."""
    documented: dict[str, str] = {}
    parameters: dict[str, Parameter] = {}
    for owner in reversed(line):
        documented |= arguments(ast.get_docstring(_class(owner)))
        if not is_dataclass(owner):
            continue
        for item in _class(owner).body:
            if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
                continue
            annotation = Annotation(owner.source, item.annotation)
            name = item.target.id
            if annotation.name == "ClassVar" or not _is_init(item.value):
                parameters.pop(name, None)  # a base may have taken it
                continue
            parameters[name] = Parameter(name, annotation, _field_default(item.value), "")
    named = tuple(replace(p, meaning=documented.get(p.name, "")) for p in parameters.values())
    meaning = summary(ast.get_docstring(_class(definition)))
    return Signature(definition.identity, definition.name, named, takes_any=False, meaning=meaning)


def _is_init(value: ast.expr | None) -> bool:
    """Return whether a field is an argument of the constructor."""
    return not (isinstance(value, ast.Call) and _is_field(value)) or not any(
        k.arg == "init" and isinstance(k.value, ast.Constant) and k.value.value is False
        for k in value.keywords
    )


def _is_field(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] == "field"


def _field_default(value: ast.expr | None) -> ast.expr | None:
    """Return the default of a field, whichever way it is given."""
    if not isinstance(value, ast.Call) or not _is_field(value):
        return value
    given = {keyword.arg: keyword.value for keyword in value.keywords}
    if "default_factory" in given:
        return ast.Call(given["default_factory"], [], [])
    return given.get("default")


def _of_function(
    named: Definition, definition: Definition, documented: dict[str, str] | None = None
) -> Signature:
    """Read a function's parameters for what is called `named`; `self` and `cls` are left out."""
    node = definition.node
    assert isinstance(node, ast.FunctionDef)
    documented = {**(documented or {}), **arguments(ast.get_docstring(node))}
    spec = node.args
    positional = [*spec.posonlyargs, *spec.args]
    padding: list[ast.expr | None] = [None] * (len(positional) - len(spec.defaults))
    pairs = list(zip(positional, [*padding, *spec.defaults], strict=True))
    is_static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
    if definition.owner is not None and not is_static:
        pairs = pairs[1:]
    pairs += zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    parameters = tuple(
        Parameter(
            arg.arg,
            Annotation(definition.source, arg.annotation),
            default,
            documented.get(arg.arg, ""),
        )
        for arg, default in pairs
    )
    return Signature(
        named.identity,
        named.name,
        parameters,
        takes_any=spec.kwarg is not None,
        meaning=summary(ast.get_docstring(node)),
    )


def produces(definition: Definition) -> Definition | None:
    """Return the class of what is made: a class itself, or what a method or function returns."""
    node = definition.node
    if isinstance(node, ast.ClassDef):
        return definition
    if not isinstance(node, ast.FunctionDef) or node.returns is None:
        return None
    returned = Annotation(definition.source, node.returns)
    if returned.name == "Self":
        return definition.owner
    found = returned.definition
    return found if found is not None and isinstance(found.node, ast.ClassDef) else None


def is_subclass(found: Definition, expected: Definition) -> bool | None:
    """Return whether a class descends from another; None if the source does not tell."""
    line = ancestry(found)
    if any(owner.identity == expected.identity for owner in line):
        return True
    bases = {ast.unparse(base).rpartition(".")[2] for base in _class(expected).bases}
    if "Protocol" in bases:  # any class with the right methods will do
        return None
    for owner in line:
        for base in _class(owner).bases:
            name = base.value if isinstance(base, ast.Subscript) else base
            if lookup(owner.source, ast.unparse(name)) is None and not _is_plain_base(owner, name):
                return None
    return False


def _is_plain_base(owner: Definition, base: ast.expr) -> bool:
    """Return whether an unread base can't descend from a class of Lightning or of ours."""
    first = ast.unparse(base).partition(".")[0]
    bound = owner.source.symbols.get(first)
    return bound is None or (
        isinstance(bound, Reference) and bound.module.partition(".")[0] in OPAQUE
    )
