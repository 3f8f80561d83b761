"""What is said while something works, and what other libraries are kept from saying."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_agents import messages
from llm_agents.messages import Lines, is_verbose, quieten, quietly, say_once, show_by_default
from llm_agents.policies.base_model import BaseConfig, load_base

OURS = logging.getLogger("llm_agents")


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(messages, "_SPOKEN", set())
    monkeypatch.delenv(messages.VERBOSE, raising=False)
    level, handlers = OURS.level, list(OURS.handlers)
    with warnings.catch_warnings():
        yield
    OURS.setLevel(level)
    OURS.handlers[:] = handlers


@pytest.mark.parametrize(
    ("value", "expected"),
    [("1", True), ("yes", True), ("0", False), ("", False), ("False", False), ("no", False)],
)
def test_the_setting(value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(messages.VERBOSE, value)
    assert is_verbose() is expected


@pytest.mark.parametrize("asked", [False, True])
def test_making_and_loading_a_model_draws_bars_only_where_they_are_asked_for(
    asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLM_AGENTS_CACHE", str(tmp_path))  # the model is made anew
    monkeypatch.setenv(messages.VERBOSE, "1" if asked else "0")
    from transformers.utils import logging as bars

    bars.enable_progress_bar()  # type: ignore[no-untyped-call]
    load_base(BaseConfig("tiny-random-llama"), keep_dropout=False)
    said = capfd.readouterr().err
    assert ("Loading weights" in said) is asked
    assert ("Writing model shards" in said) is asked
    assert bars.is_progress_bar_enabled()  # as it was found


def test_bars_that_a_user_has_switched_off_stay_off() -> None:
    from transformers.utils import logging as bars

    bars.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with quietly():
            assert not bars.is_progress_bar_enabled()
        assert not bars.is_progress_bar_enabled()
    finally:
        bars.enable_progress_bar()  # type: ignore[no-untyped-call]


def test_downloads_keep_their_bars_and_data_sets_lose_theirs() -> None:
    import datasets
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging as bars

    bars.enable_progress_bar()  # type: ignore[no-untyped-call]
    datasets.enable_progress_bars()
    with quietly():
        assert not bars.is_progress_bar_enabled()
        assert datasets.are_progress_bars_disabled()
        assert not are_progress_bars_disabled()
    assert bars.is_progress_bar_enabled()
    assert not datasets.are_progress_bars_disabled()


@pytest.mark.parametrize("asked", [False, True])
def test_lightnings_adverts_are_held_back_but_not_its_warnings(
    asked: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quieten()
    monkeypatch.setenv(messages.VERBOSE, "1" if asked else "0")
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    with caplog.at_level(logging.INFO, logger.name):
        logger.propagate, before = True, logger.propagate
        logger.info("💡 Tip: For seamless cloud uploads, try installing something")
        logger.warning("the loss is odd")
        logger.propagate = before
    told = [record.getMessage() for record in caplog.records if record.name == logger.name]
    assert len(told) == (2 if asked else 1)
    assert told[-1] == "the loss is odd"


def test_a_users_own_filters_come_before_ours() -> None:
    with warnings.catch_warnings():
        warnings.resetwarnings()
        quieten()
        with warnings.catch_warnings(record=True) as seen:
            warnings.warn("The dataloader does not have many workers", UserWarning, stacklevel=1)
            assert not seen
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="many workers"):
            warnings.warn("The dataloader does not have many workers", UserWarning, stacklevel=1)


def test_a_program_without_logging_sees_our_messages_on_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    OURS.handlers[:] = []
    OURS.setLevel(logging.NOTSET)
    show_by_default()
    show_by_default()
    root = logging.getLogger()
    kept, root.handlers[:] = list(root.handlers), []
    try:
        say_once(logging.getLogger("llm_agents.policies"), "loading %s", "a model")
        say_once(logging.getLogger("llm_agents.policies"), "loading %s", "a model")
        assert capsys.readouterr().err == "loading a model\n"
        root.addHandler(logging.NullHandler())  # the program has set up logging: its own affair
        say_once(logging.getLogger("llm_agents.policies"), "loading %s", "another")
        assert capsys.readouterr().err == ""
    finally:
        root.handlers[:] = kept
    assert sum(isinstance(handler, Lines) for handler in OURS.handlers) == 1


def test_a_level_that_a_program_has_set_is_kept() -> None:
    OURS.setLevel(logging.ERROR)
    show_by_default()
    assert OURS.level == logging.ERROR
