"""``lightning zoo add`` and ``card``: what a run trained becomes an entry of ``checkpoints/``."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open

from llm_agents.errors import UserError
from llm_agents.evaluation.results import RESULTS_FILE
from llm_agents.training.publishing import attach_replay
from llm_agents.whole_files import write_tensors
from llm_agents.zoo.card import build_card, check_card
from llm_agents.zoo.facts import CardFacts, against_folders, gather_facts
from llm_agents.zoo.integrity import write_hashes
from llm_agents.zoo.layout import CARD_FILE, entry_folder, is_entry, replace_folder
from llm_agents.zoo.privacy import refuse_private
from llm_agents.zoo.provenance import Provenance
from llm_agents.zoo.publishing import map_base, refuse_unfit, stage
from llm_agents.zoo.registry import size_of

log = logging.getLogger(__name__)

MOST_BYTES = 5_000_000
"""Weights of an entry; larger ones go to the Hub, with a `hub.json` in their place."""


def add_entry(
    folder: Path,
    name: str | None = None,
    *,
    rounded: bool = False,
    replace: bool = False,
    selection: str | None = None,
    root: Path | None = None,
) -> Iterator[str]:
    """Copy what was trained to ``checkpoints/``, with digests, provenance, replay and card.

    Args:
        folder: Of what was trained, or of its run.
        name: Of the entry; by default made of method, task and base.
        rounded: Round the weights to bfloat16; results stay behind, the card waits for new ones.
        replace: Replace an entry of that name.
        selection: How it was chosen among several trainings, for the card.
        root: Folder of ``checkpoints/``; the working folder by default.

    Yields:
        What was done, in lines.

    Raises:
        UserError: The folder is no entry, is not measured, or its weights are too large.
    """
    source = entry_folder(folder)
    if not is_entry(source):
        raise UserError(f"expected the folder of an adapter, a reward or an agent, got `{folder}`")
    refuse_unfit(source)
    attach_replay(source)
    facts = facts_of(source, name or "")
    name = name or default_name(facts)
    target = (root or Path()) / "checkpoints" / name
    if target.exists() and not replace:
        raise UserError(f"there is an entry `{target}`: give `--replace`, or another `--name`")
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{name}.{os.getpid()}.unfinished")
    yield from _stage_entry(source, unfinished, target.parent, selection)
    if rounded:
        _round(unfinished)
        (unfinished / RESULTS_FILE).unlink()
    elif facts.kind == "policy" and size_of(unfinished) > MOST_BYTES:
        _round(unfinished, "value_head.safetensors")
        yield "its value head is rounded to bfloat16: answers do not depend on it"
    size = size_of(unfinished)
    if size > MOST_BYTES:
        shutil.rmtree(unfinished)
        raise UserError(
            f"the weights of `{source}` take {size:,} bytes, an entry may have {MOST_BYTES:,}: "
            f"{'' if rounded else 'round them with `--bf16`, '}train fewer layers, or publish them"
        )
    if not rounded:
        _keep_comparison(source, unfinished)
        _write_card(unfinished, name)
    refuse_private(unfinished)
    replace_folder(unfinished, target)
    yield f"{target}: {size / 1e6:.2f} MB of weights"
    if rounded:
        yield "the weights are rounded, so their results are to be measured anew:"
        yield f"lightning evaluate {target} && lightning zoo card {target}"


def _stage_entry(
    source: Path, unfinished: Path, checkpoints: Path, selection: str | None
) -> list[str]:
    """Copy what belongs into an entry; return a line for each path that got another name."""
    _, renamed = stage(source, unfinished, checkpoints=checkpoints)
    map_base(unfinished, None, [])
    if selection is not None:
        known = Provenance.read(unfinished) or Provenance()
        dataclasses.replace(known, selection=selection.strip().rstrip(".")).write(unfinished)
    return renamed


def write_card(folder: Path) -> Iterator[str]:
    """Write the card, digests and replay of an entry anew from its files.

    Raises:
        UserError: The folder is no entry, or not measured.
    """
    if not is_entry(folder):
        raise UserError(f"expected the folder of an entry, got `{folder}`")
    refuse_unfit(folder)
    attach_replay(folder)
    write_hashes(folder)
    _write_card(folder, folder.name)
    yield str(folder / CARD_FILE)


def facts_of(folder: Path, name: str) -> CardFacts:
    """Return what is known of a folder that is not on the Hub."""
    warnings: list[str] = []
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}.facts")
    stage(folder, scratch)
    try:
        base, revision = map_base(scratch, None, warnings)
        return gather_facts(folder, name, base, revision, staged=scratch)
    finally:
        shutil.rmtree(scratch)


def default_name(facts: CardFacts) -> str:
    """Return a name made of method, task and base."""
    base = (facts.base or "").rpartition("/")[2].lower()
    task = re.sub(r"-v\d+$", "", facts.task or "").lower()
    return "-".join(filter(None, (facts.method, task, base)))


def _write_card(folder: Path, name: str) -> None:
    """Write the card of an entry."""
    card = build_card(facts_of(folder, name))
    check_card(card)
    (folder / CARD_FILE).write_text(card, encoding="utf8")


def _keep_comparison(source: Path, target: Path) -> None:
    """Copy the numbers of the policies that the card compares with, if there are any."""
    for folder in against_folders(source):
        if (folder / RESULTS_FILE).is_file():
            (target / folder.name).mkdir()
            shutil.copyfile(folder / RESULTS_FILE, target / folder.name / RESULTS_FILE)


def _round(folder: Path, names: str = "*.safetensors") -> None:
    """Round the weights in a folder to bfloat16, and write their digests anew."""
    for path in sorted(folder.glob(names)):
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # no dict
        halved = {
            key: value.to(torch.bfloat16) if value.dtype == torch.float32 else value
            for key, value in weights.items()
        }
        write_tensors(path, halved, metadata=metadata)
    write_hashes(folder)
