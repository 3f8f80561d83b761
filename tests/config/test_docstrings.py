from __future__ import annotations

from llm_agents.config.docstrings import arguments, summary

TEXT = """Do a thing.

    Longer.

    Args:
        lr: Learning rate: small.
            And more.

        n (int, optional): Count.
        **kwargs: Rest.

    Returns:
        x: Not an argument.

    Attributes:
        name: A name.
    """


def test_arguments_are_read_with_their_continuations() -> None:
    assert arguments(TEXT) == {
        "lr": "Learning rate: small. And more.",
        "n": "Count.",
        "kwargs": "Rest.",
        "name": "A name.",
    }


def test_no_docstring_says_nothing() -> None:
    assert arguments(None) == {}
    assert summary(None) == ""
    assert summary(TEXT) == "Do a thing."
