from __future__ import annotations

from typing import Self

import pytest
from jsonargparse import ArgumentParser

from llm_agents.errors import UserError
from llm_agents.training.building import plain_faults, resolve_self


class Thing:
    def __init__(self, n: int = 1) -> None:
        self.n = n

    @classmethod
    def make(cls, n: int = 1) -> Self:
        if n < 0:
            raise UserError("expected n from 0")
        if n == 0:
            raise ValueError("n is zero")
        if n > 9:
            raise RuntimeError("a bug")
        return cls(n)


def build(n: object) -> Thing:
    spec = {"class_path": f"{__name__}.Thing.make", "init_args": {"n": n}}
    resolve_self([spec])
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--thing", type=Thing | None)
    with plain_faults("the recipe"):
        return parser.instantiate(parser.parse_object({"thing": spec}))["thing"]


def test_a_class_method_that_returns_self_is_a_constructor() -> None:
    assert build(3).n == 3


@pytest.mark.parametrize(
    ("n", "kind", "message"),
    [
        (-1, UserError, "^expected n from 0$"),
        (0, UserError, "^the recipe: n is zero$"),
        (10, RuntimeError, "^a bug$"),
        ("x", UserError, "the recipe: "),
    ],
)
def test_what_a_constructor_raises_comes_out_plainly(
    n: object, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        build(n)
