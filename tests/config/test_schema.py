from __future__ import annotations

from pathlib import Path

import pytest

from llm_agents.config.schema import Signature, is_subclass, produces, signature
from llm_agents.config.sources import locate

SOURCE = '''
from __future__ import annotations
from dataclasses import dataclass, field
from typing import Annotated, Literal, Optional, Self, Union

Mode = Literal["fast", "slow"]

@dataclass(frozen=True)
class Parent:
    """A parent.

    Args:
        a: First.
    """
    a: int
    hidden: int = field(init=False, default=0)

@dataclass
class Config(Parent):
    """A config.

    Args:
        b: Second.
    """
    b: tuple[float, ...] = ()
    c: list[str] = field(default_factory=list)
    mode: Mode | None = None

class Thing:
    """A thing.

    Args:
        x: Of the class.
    """
    def __init__(
        self, x: Optional[Union[int, str]], /, y: Annotated[float, "m"] = 1e-3, *, z=None, **rest
    ):
        """Make it.

        Args:
            y: Of the method.
        """

    @classmethod
    def load(cls, path: str, config: Config = Config(a=2, b=(1.0,))) -> Self:
        """Load a thing.

        Args:
            path: Where.
        """

    @staticmethod
    def build(n: int) -> Thing: ...

class Child(Thing): ...
'''


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = f"schema_module_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def signature_of(path: str) -> Signature:
    definition = locate(path)
    assert definition is not None
    found = signature(definition)
    assert found is not None
    return found


def test_fields_of_a_dataclass_and_its_bases(module: str) -> None:
    found = signature_of(f"{module}.Config")
    assert [p.name for p in found.parameters] == ["a", "b", "c", "mode"]
    assert [p.is_required for p in found.parameters] == [True, False, False, False]
    assert [p.meaning for p in found.parameters] == ["First.", "Second.", "", ""]
    assert found.meaning == "A config."
    assert not found.takes_any


def test_types_in_words(module: str) -> None:
    config, thing = signature_of(f"{module}.Config"), signature_of(f"{module}.Thing")
    words = {p.name: str(p.annotation) for p in (*config.parameters, *thing.parameters)}
    assert words == {
        "a": "a whole number",
        "b": "a list of (a number)",
        "c": "a list of (a text)",
        "mode": "fast, slow or null",
        "x": "a whole number, a text or null",
        "y": "a number",
        "z": "anything",
    }


@pytest.mark.parametrize("name", ["Thing", "Child"])
def test_constructor_arguments_are_documented_by_class_and_method(module: str, name: str) -> None:
    found = signature_of(f"{module}.{name}")
    assert [(p.name, p.meaning) for p in found.parameters] == [
        ("x", "Of the class."),
        ("y", "Of the method."),
        ("z", ""),
    ]
    assert found.takes_any
    assert found.parameters[1].default_text == "0.001"


def test_methods_lose_their_first_argument_and_static_ones_do_not(module: str) -> None:
    assert [p.name for p in signature_of(f"{module}.Thing.load").parameters] == ["path", "config"]
    assert [p.name for p in signature_of(f"{module}.Thing.build").parameters] == ["n"]


@pytest.mark.parametrize("path", ["Thing", "Thing.load", "Thing.build", "Child.load"])
def test_what_a_call_produces(module: str, path: str) -> None:
    definition, expected = locate(f"{module}.{path}"), locate(f"{module}.Thing")
    assert definition is not None
    assert expected is not None
    made = produces(definition)
    assert made is not None
    assert made.name == path.partition(".")[0]
    assert is_subclass(made, expected) is True


def test_unrelated_classes_are_told_apart(module: str) -> None:
    thing, other = locate(f"{module}.Thing"), locate("lightning.pytorch.LightningModule")
    assert thing is not None
    assert other is not None
    assert is_subclass(thing, other) is False


def test_our_methods_are_lightning_modules() -> None:
    found, expected = locate("llm_agents.methods.ALoL"), locate("lightning.pytorch.LightningModule")
    assert found is not None
    assert expected is not None
    assert is_subclass(found, expected) is True
    assert all(p.meaning for p in signature_of("llm_agents.methods.ALoL").parameters)
