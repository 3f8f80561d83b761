"""What was computed once and is asked for again, up to a bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memory(Generic[K, V]):
    """Values by key; those that were asked for longest ago are forgotten first.

    Args:
        limit: Sum of the values' sizes that is kept, in whatever unit `put` is told.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        """Tell whether there is a value; it counts as not asked for."""
        return key in self._values

    def __iter__(self) -> Iterator[K]:
        """Yield the keys, longest unused first."""
        return iter(self._values)

    def get(self, key: K) -> V | None:
        """Return the value of `key`, or None."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value; one that is larger than everything that may be kept is not."""
        if key in self._values:
            self.size -= self._values.pop(key)[1]
        if size > self.limit:
            return
        self._values[key] = (value, size)
        self.size += size
        while self.size > self.limit:
            _, (_, freed) = self._values.popitem(last=False)
            self.size -= freed

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self.size = 0
