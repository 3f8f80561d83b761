"""A reward that is any Python function of the user's."""

from __future__ import annotations

import hashlib
import inspect
import io
import math
import pickle
import types
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.rewards.scores import check_pairs, check_scores
from llm_agents.types import Prompt, Reward

RewardFunction = Callable[[Sequence[Prompt], Sequence[str]], Sequence[float] | Tensor]


class CallableReward(Reward):
    """A reward computed by a function ``(prompts, responses) -> one number a response``.

    Args:
        function: ``"package.module:function"``, or the function itself. A prompt is a tuple of
            turns with `role` and `text`.
        low: Lowest score that the function can return.
        high: Highest score that the function can return.
        name: Name in logs and tables; the function's own by default.
        version: Changes whenever the scores may change; by default a digest of the source of the
            function's module (in a notebook, of the function's code and all that it refers to) and
            of what the function carries: defaults, values that it closes over, an object's
            attributes.

    Example:
        >>> reward = CallableReward(lambda prompts, responses: [len(r) / 10 for r in responses],
        ...                         low=0.0, high=1.0, name="length", version="1")
        >>> reward([()], ["four"])
        tensor([0.4000])
    """

    def __init__(
        self,
        function: str | RewardFunction,
        low: float = -math.inf,
        high: float = math.inf,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        self.function = import_function(function) if isinstance(function, str) else function
        own_name = getattr(self.function, "__name__", type(self.function).__name__)
        self.name = name or str(own_name)
        self.version = version or source_digest(self.function)
        self.low, self.high = float(low), float(high)

    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        """Return ``[B]`` scores."""
        check_pairs(prompts, responses)
        return check_scores(
            self.function(prompts, responses),
            count=len(responses),
            name=self.name,
            low=self.low,
            high=self.high,
        )


def import_function(path: str) -> RewardFunction:
    """Return the function that ``"package.module:function"`` names."""
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        raise UserError(f"expected `package.module:function`, got `{path}`")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"cannot import `{module_name}` of the reward `{path}`: {error}; run from the folder "
            "that holds it, or install it"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UserError(f"`{module_name}` has no function `{attribute}`")
    return function  # type: ignore[no-any-return]  # known to be callable; its result is checked


def source_digest(function: RewardFunction) -> str:
    """Return a digest of the source of the function's module, and of all that it carries."""
    bare: Any = function
    while isinstance(bare, partial):
        bare = bare.func
    if not (inspect.isroutine(bare) or inspect.isclass(bare)):
        bare = type(bare)  # an object with `__call__`
    text = _source(bare)
    written = io.BytesIO()
    try:
        _Writer(written, follows_names=text is None).dump(function)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise UserError(
            f"the reward function {function!r} carries what can't be compared between runs "
            f"({error}): give `version`, to be changed whenever its scores may change"
        ) from error
    return hashlib.sha256((text or "").encode() + written.getvalue()).hexdigest()[:12]


def _source(found: Any) -> str | None:  # noqa: ANN401  (a function or a class)
    """Return the source of its module; None for a function of a notebook, which is in no file."""
    module = inspect.getmodule(found)
    code = getattr(inspect.unwrap(found), "__code__", None)
    try:
        file = inspect.getsourcefile(module) if module else None
        # In a notebook `__main__` is the file of the kernel, and a cell's code is not of it.
        if module and file and (code is None or Path(code.co_filename).name == Path(file).name):
            return inspect.getsource(module)
    except (OSError, TypeError):
        pass
    if code is not None:
        return None
    raise UserError(
        f"cannot read the source of the reward function {found!r}: give `version`, to be changed "
        "whenever its scores may change"
    )


class _Writer(pickle.Pickler):
    """Writes values so that equal ones give equal bytes; functions by their code, not their name.

    Two functions of one module, or of one line, differ in their constants, defaults and cells.

    Args:
        file: Where to.
        follows_names: Write what functions refer to by name, too: there is no source that says it.
    """

    def __init__(self, file: io.BytesIO, *, follows_names: bool) -> None:
        super().__init__(file, protocol=4)
        self.follows_names = follows_names
        self._seen: set[int] = set()

    def reducer_override(self, value: Any) -> Any:  # noqa: ANN401  (pickle's own)
        """Return what stands for a function, its code, a class or a module."""
        if inspect.isfunction(value):
            if id(value) in self._seen:  # functions may call each other
                return str, (value.__qualname__,)
            self._seen.add(id(value))
            if self.follows_names and (source := _source(value)) is not None:
                return str, (f"{value.__qualname__} {hashlib.sha256(source.encode()).hexdigest()}",)
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            parts = [value.__qualname__, value.__code__, value.__defaults__, value.__kwdefaults__]
            return tuple, (_ordered([*parts, cells, self._around(value)]),)
        if inspect.iscode(value):
            return tuple, (_ordered([value.co_code, value.co_consts, value.co_names]),)
        if inspect.ismodule(value):
            return str, (value.__name__,)
        if inspect.isclass(value) and value.__module__ != "builtins":
            name = f"{value.__module__}.{value.__qualname__}"
            if not self.follows_names or _has_file(value):
                return str, (name,)
            own = {key: item for key, item in vars(value).items() if inspect.isfunction(item)}
            return tuple, ([name, own],)
        return NotImplemented

    def _around(self, function: types.FunctionType) -> list[tuple[str, Any]]:
        """Return by name what a function's code refers to around it, if that is asked for."""
        if not self.follows_names:
            return []
        names: set[str] = set()
        codes = [function.__code__]
        for code in codes:
            names |= set(code.co_names)
            codes += [part for part in code.co_consts if inspect.iscode(part)]
        around = function.__globals__
        return [(name, around[name]) for name in sorted(names) if name in around]


def _ordered(value: Any) -> Any:  # noqa: ANN401  (any value)
    """Return a value with its sets in one order: that of text differs from process to process."""
    if isinstance(value, set | frozenset):
        return type(value).__name__, sorted(map(repr, value))
    if type(value) in (list, tuple):
        return type(value)(map(_ordered, value))
    if type(value) is dict:
        return {key: _ordered(item) for key, item in value.items()}
    return value


def _has_file(value: type) -> bool:
    """Return whether a class is of a module with a file, whose name and version stand for it."""
    module = inspect.getmodule(value)
    return module is not None and module.__name__ != "__main__"
