"""Messages while something works: our own are shown, the chatter of other libraries is not.

One setting shows everything again, bars and warnings of all libraries: ``LLM_AGENTS_VERBOSE=1``.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from typing_extensions import override

VERBOSE = "LLM_AGENTS_VERBOSE"

# What other libraries say of every run, and what is meant to be so.
_EXPECTED_WARNINGS = (
    r".*does not have many workers.*",
    r"Total length of `list` across ranks is zero.*",  # no validation, as was asked for
    r".*in eval mode at the start of training.*",
    r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",
    r".*`torch\.jit\.script_method` is deprecated.*",
    r"(?s).*was deprecated in v4\.49.*",
)
_ADVERTS = ("💡 Tip:",)
_SPOKEN: set[str] = set()


def is_verbose() -> bool:
    """Return whether the chatter of other libraries is asked for.

    Example:
        >>> is_verbose()
        False
    """
    return os.environ.get(VERBOSE, "").lower() not in ("", "0", "false", "no")


class Lines(logging.Handler):
    """Writes to what is standard error now: a progress bar may have put itself in its place.

    Args:
        is_fallback: Be silent where the program has handlers of its own.
    """

    def __init__(self, *, is_fallback: bool = False) -> None:
        super().__init__()
        self.is_fallback = is_fallback

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        if not (self.is_fallback and logging.getLogger().handlers):
            sys.stderr.write(f"{self.format(record)}\n")


class _NoAdverts(logging.Filter):
    """Holds back what Lightning advertises at every start."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be shown."""
        return is_verbose() or not record.getMessage().startswith(_ADVERTS)


def show_messages() -> None:
    """Write what is logged to standard error: all of ours, warnings of others."""
    root = logging.getLogger()
    if not any(isinstance(handler, Lines) for handler in root.handlers):
        root.addHandler(Lines())
    _set_level()


def show_by_default() -> None:
    """Write what is logged by us to standard error in programs that set up no logging."""
    ours = logging.getLogger("llm_agents")
    if not any(isinstance(handler, Lines) for handler in ours.handlers):
        ours.addHandler(Lines(is_fallback=True))
    if ours.level == logging.NOTSET:
        _set_level()


def _set_level() -> None:
    """Show our messages, of the first process only."""
    rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
    logging.getLogger("llm_agents").setLevel(logging.INFO if rank == "0" else logging.WARNING)


def quieten() -> None:
    """Hold back what Lightning and torch say of every run; a user's own filters come first."""
    if is_verbose():
        return
    for message in _EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message, append=True)
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero"):
        logger = logging.getLogger(name)
        if not any(isinstance(each, _NoAdverts) for each in logger.filters):
            logger.addFilter(_NoAdverts())


def say_once(logger: logging.Logger, message: str, *values: object) -> None:
    """Log what takes a while, the first time that it is said in this process."""
    text = message % values
    if text not in _SPOKEN:
        _SPOKEN.add(text)
        logger.info("%s", text)


@contextmanager
def quietly(*, is_checked: bool = False) -> Iterator[None]:
    """Hold back the bars of transformers and datasets; those of downloads are shown.

    Args:
        is_checked: Hold warnings of transformers back, too: we look at its report ourselves.
    """
    if is_verbose():
        yield
        return
    with ExitStack() as undo:
        _without_model_bars(undo)
        _without_data_bars(undo)
        if is_checked:
            said = logging.getLogger("transformers")
            undo.callback(said.setLevel, said.level)
            said.setLevel(logging.ERROR)
        yield


def _without_model_bars(undo: ExitStack) -> None:
    """Switch the bars of transformers off until `undo`, but not those of the Hub's client."""
    from huggingface_hub import utils
    from transformers.utils import logging as transformers_logging

    bars: Any = transformers_logging
    downloads: Any = utils
    if not bars.is_progress_bar_enabled():
        return
    downloads_are_shown = not downloads.are_progress_bars_disabled()
    bars.disable_progress_bar()
    undo.callback(bars.enable_progress_bar)
    if downloads_are_shown:
        downloads.enable_progress_bars()


def _without_data_bars(undo: ExitStack) -> None:
    """Switch the bars of datasets off until `undo`, if it has been imported."""
    datasets: Any = sys.modules.get("datasets")
    if datasets is None or datasets.are_progress_bars_disabled():
        return
    datasets.disable_progress_bars()
    undo.callback(datasets.enable_progress_bars)
