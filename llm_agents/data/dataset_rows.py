"""Rows of tables that `datasets` and pyarrow read: parquet, arrow, saved folders, Hub ids.

A Hub id may name more than the repository: ``owner/name/FOLDER@REVISION:SPLIT``; FOLDER may also be
the name of a configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from llm_agents.errors import UserError
from llm_agents.policies.bundled import cache_folder

Role = Literal["train", "validation", "test"]

FILE_SUFFIXES = (".json", ".jsonl", ".gz", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow")
_HUB_ID = re.compile(
    r"(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:/(?P<folder>[\w./-]+))?(?:@(?P<revision>[\w./-]+))?(?::(?P<split>[\w.-]+))?"
)


def parquet_rows(path: Path) -> Iterator[tuple[str, object]]:
    """Yield the rows of a parquet file."""
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1000):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}[{number}]", row
    except (pyarrow.ArrowException, OSError) as fault:
        raise UserError(
            f"{path}: expected a parquet file, got damaged data ({fault}): download or write it "
            "again"
        ) from None


def arrow_rows(path: Path) -> Iterator[tuple[str, object]]:
    """Yield the rows of one of the files that a saved data set consists of."""
    import pyarrow
    from datasets import Dataset

    try:
        found = Dataset.from_file(str(path))
    except (pyarrow.ArrowException, OSError, ValueError) as fault:
        raise UserError(f"{path}: expected an arrow file, got damaged data ({fault})") from None
    return _numbered(found, str(path))


def dataset_rows(source: str, role: Role) -> Iterator[tuple[str, object]]:
    """Yield where each row of a folder or a Hub data set is, and its content.

    Raises:
        UserError: There is no such data set, or it has no such split.
    """
    folder_name, _, folder_split = source.rpartition(":")
    local = next((c for c in (source, folder_name) if c and Path(c).expanduser().is_dir()), None)
    match = _HUB_ID.fullmatch(source)
    if local is None and (match is None or source.endswith(FILE_SUFFIXES)):
        raise UserError(
            f"expected {role} data at {source!r}: no such file, and it is no Hub data set id; "
            "give a file (JSON, CSV, TSV or parquet), a folder, owner/name, or sample (looked in "
            f"{Path.cwd()})"
        )
    if local is not None:
        folder = Path(local).expanduser()
        named = folder_split if local == folder_name else None
        if _is_saved(folder):
            return _saved(source, folder, role, named)
        return _split(source, _loaded(source, str(folder)), named or role)
    assert match is not None  # told above
    splits = _loaded(source, match["name"], match["folder"], match["revision"])
    return _split(source, splits, match["split"] or role)


def _is_saved(folder: Path) -> bool:
    """Return whether ``save_to_disk`` wrote a folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _saved(
    source: str, folder: Path, role: Role, named: str | None
) -> Iterator[tuple[str, object]]:
    """Yield the rows of a folder that ``save_to_disk`` wrote, with splits or without."""
    import pyarrow
    from datasets import load_from_disk

    try:
        found = load_from_disk(str(folder))
    except (pyarrow.ArrowException, OSError, ValueError, KeyError) as fault:
        raise UserError(
            f"expected a data set that `save_to_disk` wrote in {source!r}, got "
            f"{type(fault).__name__}: {fault}"
        ) from None
    if isinstance(found, Mapping):
        return _split(source, found, named or role)
    if named is not None:
        raise UserError(
            f"expected the split {named!r} in {source!r}, got a data set without splits: name "
            f"{folder} alone"
        )
    return _numbered(found, source)


def _loaded(
    source: str, path: str, folder: str | None = None, revision: str | None = None
) -> Mapping[str, Any]:
    """Return a data set by splits; `folder` is one of the repository, else a configuration."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    where = {"revision": revision, "cache_dir": str(cache_folder() / "datasets")}
    try:
        try:
            splits = load_dataset(path, data_dir=folder, **where)
        except (DatasetsError, OSError, ValueError) as fault:
            if folder is None or isinstance(fault, DatasetNotFoundError):
                raise
            try:
                splits = load_dataset(path, folder, **where)
            except (DatasetsError, OSError, ValueError):
                raise fault from None
    except DatasetNotFoundError as fault:
        raise UserError(
            f"expected the data set {source!r} as a file, a folder or on the Hub, found none of "
            f"them ({fault}); if it is private or gated, log in with `hf auth login`"
        ) from None
    except (DatasetsError, OSError, ValueError) as fault:
        cure = "download it and give its files if the Hub can't be reached"
        if "Config name is missing" in str(fault):
            cure = f"name one as {path}/NAME"
        raise UserError(
            f"expected to read the data set {source!r}, got {type(fault).__name__}: {fault}; {cure}"
        ) from None
    assert isinstance(splits, Mapping)  # no split was asked for
    return splits


def _split(source: str, splits: Mapping[str, Any], split: str) -> Iterator[tuple[str, object]]:
    """Return the rows of one split."""
    if split not in splits:
        raise UserError(
            f"expected the split {split!r} in {source!r}, got {', '.join(splits)}: name one of "
            f"these as {source.removesuffix(':' + split)}:SPLIT"
        )
    return _numbered(splits[split], f"{source}[{split}]")


def _numbered(rows: Any, name: str) -> Iterator[tuple[str, object]]:  # noqa: ANN401
    """Yield rows and where they are."""
    for number, row in enumerate(rows, start=1):
        yield f"{name}:{number}", dict(row)
