"""Parts of a long computation on disk: what is killed loses its last seconds, not all it did.

Parts are gathered in memory and written together, every few seconds, under a temporary name that is
then changed. Each file holds the key of the whole computation and a digest of its tensors; one that
is of something else, or damaged, is left out, and its parts are computed again.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from llm_agents.methods.content_cache import Key, digest_of, tensors_digest
from llm_agents.whole_files import write_tensors

_logger = logging.getLogger(__name__)

SECONDS = 10.0
"""Time between two files of parts: what a kill may cost."""

Part = Mapping[str, Tensor]


class Pieces:
    """Parts of one computation, by name.

    Args:
        folder: Theirs alone; made when the first file is written.
        key: What the computation depends on, the division into parts apart.
        seconds: Time between two files.

    Example:
        >>> from tempfile import mkdtemp
        >>> from torch import ones
        >>> folder = Path(mkdtemp())
        >>> with Pieces.opened(folder, {"of": "ones"}) as pieces:
        ...     pieces.keep("first", {"values": ones(2)})
        >>> with Pieces.opened(folder, {"of": "ones"}) as pieces:
        ...     pieces.find("first"), pieces.find("second")
        ({'values': tensor([1., 1.])}, None)
    """

    def __init__(self, folder: Path, key: Key, seconds: float | None = None) -> None:
        self.folder = folder
        self._key = json.dumps(dict(key), sort_keys=True)
        self._seconds = SECONDS if seconds is None else seconds
        self._files: dict[Path, set[str]] = {}
        self._known: dict[str, dict[str, Tensor]] = {}
        self._new: dict[str, dict[str, Tensor]] = {}
        self._written_at = time.monotonic()
        for path in sorted(folder.glob("*.safetensors")):
            self._read(path)
        if self._known:
            _logger.info("going on with %d parts that are in %s", len(self._known), folder)

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, key: Key) -> Iterator[Pieces]:
        """Give the parts of a computation; however the block ends, new ones are written."""
        pieces = cls(folder, key)
        try:
            yield pieces
        finally:
            pieces.write()

    def __len__(self) -> int:
        """Return the number of parts."""
        return len(self._known)

    def find(self, name: str) -> dict[str, Tensor] | None:
        """Return a part, or None if it is not here."""
        return self._known.get(name)

    def keep(self, name: str, part: Part) -> None:
        """Keep a part; one of the same name is replaced."""
        kept = {key: tensor.detach().cpu() for key, tensor in part.items()}
        self._known[name] = self._new[name] = kept
        if time.monotonic() - self._written_at >= self._seconds:
            self.write()

    def write(self) -> None:
        """Write the parts that no file holds yet, and remove files whose parts were replaced."""
        self._written_at = time.monotonic()
        if not self._new:
            return
        tensors = {
            f"{name}/{key}": tensor
            for name, part in self._new.items()
            for key, tensor in part.items()
        }
        path = self.folder / f"{time.time_ns()}-{os.getpid()}.safetensors"
        digest = tensors_digest(sorted(tensors.items()))
        write_tensors(path, tensors, metadata={"key": self._key, "digest": digest})
        written = set(self._new)
        for older, names in list(self._files.items()):
            names -= written
            if not names:
                older.unlink(missing_ok=True)
                del self._files[older]
        self._files[path] = written
        self._new = {}

    def discard(self) -> None:
        """Drop everything: the whole is there."""
        self._files, self._known, self._new = {}, {}, {}
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self, path: Path) -> None:
        """Take over the parts in a file, if it is whole and of this computation."""
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            metadata, tensors = {}, {}
            _logger.warning("parts in %s can't be read and are computed again: %s", path, error)
        is_ours = metadata.get("key") == self._key
        if is_ours and metadata.get("digest") != tensors_digest(sorted(tensors.items())):
            _logger.warning("damaged parts in %s are computed again", path)
            is_ours = False
        if not is_ours:
            path.unlink(missing_ok=True)
            return
        names = set()
        for name, tensor in tensors.items():
            part, _, key = name.rpartition("/")
            self._known.setdefault(part, {})[key] = tensor
            names.add(part)
        self._files[path] = names


def rows_name(rows: Tensor) -> str:
    """Return the name of the part that is about the rows of a table (``[B]`` int64)."""
    return digest_of({"rows": str(rows.tolist())})[:16]
