"""The bundled pairs of NetHack messages with a language model's preferences: one small file.

Messages repeat, so that the file holds each distinct one once, and for every pair where its
messages are. Whoever asks for ``sample`` gets the folder that `MotifPairs` opens, made once in the
cache.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from llm_agents.data.motif_layout import MotifPairs, preference_path
from llm_agents.policies.bundled import build_once, cache_folder
from llm_agents.whole_files import sha256, write_whole

SAMPLE = "sample"
FILE = "motif_pairs.npz"


def sample_folder() -> Path:
    """Return the folder of the bundled pairs, unpacked the first time."""
    with as_file(files("llm_agents.data") / "samples" / FILE) as path:
        target = cache_folder() / "samples" / f"motif-{sha256(path)[:16]}"
        return build_once(target, lambda folder: unpack_pairs(path, folder))


def unpack_pairs(file: Path, folder: Path) -> None:
    """Write the pairs in a file as a data set of `MotifPairs`."""
    with np.load(file, allow_pickle=False) as packed:
        messages = packed["messages"][packed["places"].astype(np.int64)]
        MotifPairs.create(folder, {"message": messages}, {"score": packed["score"]})
        path = preference_path(folder, str(packed["annotator"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, packed["preferences"], allow_pickle=False)


def pack_pairs(folder: Path, annotator: str, file: Path) -> None:
    """Write what `unpack_pairs` reads: messages, scores of the episodes, preferences.

    Args:
        folder: A data set of `MotifPairs`, wholly annotated.
        annotator: Whose preferences.
        file: Written at once.
    """
    pairs = MotifPairs.open(folder, ("message", "score"), (annotator,))
    shown = np.asarray(pairs.data["message"])
    flat = shown.reshape(-1, shown.shape[-1])
    messages, places = np.unique(flat, axis=0, return_inverse=True)
    if len(messages) > np.iinfo(np.uint16).max:
        raise ValueError(f"expected at most 65,535 distinct messages, got {len(messages):,}")

    def write(path: Path) -> None:
        with path.open("wb") as stream:  # a name without an ending is kept
            np.savez_compressed(
                stream,
                messages=messages,
                places=places.reshape(shown.shape[:-1]).astype(np.uint16),
                score=np.asarray(pairs.info["score"]),
                preferences=np.asarray(pairs.preferences[annotator]),
                annotator=np.array(annotator),
            )

    write_whole(file, write)
