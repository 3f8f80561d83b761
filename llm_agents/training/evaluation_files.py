"""Test sets of an evaluation: those of a recipe that are here, or others in their place.

A recipe may name files that are on the machine of its training alone. What is bundled is always
here; a file that isn't is left out aloud, and one that holds something else under its name is
refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_agents.data.reading import source_name
from llm_agents.errors import UserError
from llm_agents.zoo.outside_files import OutsideFile, digest_of

log = logging.getLogger(__name__)

HELD_OUT = "held_out"


@dataclass(frozen=True)
class EvaluationFiles:
    """Files outside an entry, as far as an evaluation needs them.

    Args:
        name: What is evaluated.
        files: What is recorded of them; nothing for a recipe of one's own.
        source: Where they come from, in the publisher's words.
    """

    name: str
    files: tuple[OutsideFile, ...] = ()
    source: str | None = None

    def tests(self, arguments: Mapping[str, Any], given: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of a data module with the test sets that are evaluated.

        Args:
            arguments: Those of the recipe.
            given: Test sets in place of the recipe's.

        Raises:
            UserError: None of them is here, or one is not what its name says.
        """
        found = dict(arguments)
        if given:
            for one in given:
                self._refuse_another(one)
            found["test"] = list(given)
        elif "test" in found:
            found["test"] = self._here(_listed(found["test"]))
        if HELD_OUT not in _listed(found.get("test")):
            self._without_training(found)
        return found

    def folder(self, place: str) -> str:
        """Return the place of the pairs by which a reward of messages is judged.

        Raises:
            UserError: They are not here, or are others.
        """
        known = self._record("data.folder", place)
        if known is None:
            return place
        path = Path(place).expanduser()
        if not path.exists():
            raise UserError(f"{self._missing(known)}: give the folder with `--data`")
        known.check(path)
        return place

    def _here(self, tests: list[str]) -> list[str]:
        """Return the recipe's test sets without the files that are not here, which are named."""
        found, missing = [], []
        for test in tests:
            known = self._record("data.test", test)
            path = Path(test).expanduser()
            if known is None or path.exists():
                found.append(test)
                if known is not None:
                    known.check(path)
            else:
                missing.append(known)
        if missing and not found:
            raise UserError(
                f"{self._missing(missing[0])}: give the file with `--data FILE`, or the bundled "
                "dialogues with `--data sample`"
            )
        for known in missing:
            log.warning("%s: left out; give the file with `--data FILE`", self._missing(known))
        return found

    def _refuse_another(self, given: str) -> None:
        """Raise if a file has the name of one that is recorded and holds something else."""
        path = Path(given).expanduser()
        for known in self.files:
            if known.key == "data.test" and path.is_file() and path.name == Path(known.name).name:
                known.check(path)

    def _without_training(self, arguments: dict[str, Any]) -> None:
        """Leave out training and validation data that are not here: no evaluation reads them."""
        instead = {"train": "sample", "validation": None}
        for key, replacement in instead.items():
            sources = _listed(arguments.get(key))
            known = [self._record(f"data.{key}", source) for source in sources]
            if any(k is not None and not Path(k.name).expanduser().exists() for k in known):
                arguments[key] = replacement

    def _record(self, key: str, name: str) -> OutsideFile | None:
        """Return what is recorded of a file that the recipe names."""
        found = (file for file in self.files if (file.key, file.name) == (key, name))
        return next(found, None)

    def _missing(self, known: OutsideFile) -> str:
        """Say that a file is not here."""
        source = f" ({self.source})" if self.source else ""
        return (
            f"`{self.name}` was measured on `{known.name}`, SHA-256 {known.sha256[:16]}…, "
            f"{known.num_bytes:,} bytes, which is not here{source}"
        )

    def names(self, given: Sequence[str]) -> dict[str, str]:
        """Return by which name each given test set stands in the entry's own results."""
        digests = {file.sha256: file.name for file in self.files if file.key == "data.test"}
        found = {}
        for one in given:
            path = Path(one).expanduser()
            same = digests.get(digest_of(path)[0]) if path.is_file() else None
            found[source_name(one)] = source_name(same or one)
        return found


def bundled_tests(recipe: Mapping[str, Any]) -> list[str]:
    """Return the test sets of a recipe that come with the package."""
    data = recipe.get("data")
    arguments = (data.get("init_args") if isinstance(data, Mapping) else None) or {}
    return [test for test in _listed(arguments.get("test")) if is_bundled(test)]


def is_bundled(source: str) -> bool:
    """Return whether a source of data comes with the package."""
    return source.partition(":")[0] == "sample"


def _listed(value: object) -> list[str]:
    """Return a text or a list of texts as a list."""
    if isinstance(value, str):
        return [value]
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
