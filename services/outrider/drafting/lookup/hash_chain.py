"""Where keys occurred, most recent first: the hash chains of LZ77 match finders."""

from __future__ import annotations

from array import array
from collections.abc import Iterator


class HashChain:
    """One entry for each position of a text: which earlier position has the same key.

    About 4 bytes a position, and 100 for each key that is new. To enter a position, and to find the last
    one of a key, take the same time however long the text is.
    """

    __slots__ = ("_last", "_size", "_steps")

    def __init__(self, window: int = 0) -> None:
        """`window`: positions that are held, the last ones; 0: all."""
        self._last: dict[int, int] = {}
        self._steps = array("I")  # back to the position before; 0: there is none
        self._size = window

    def __len__(self) -> int:
        """Keys that are known."""
        return len(self._last)

    def enter(self, key: int, position: int) -> None:
        """Positions come one after the other, from 0 on: entered or skipped."""
        earlier = self._last.get(key)
        step = 0 if earlier is None else position - earlier
        self._last[key] = position
        self._put(position, step)

    def skip(self, position: int) -> None:
        """This position has no key."""
        self._put(position, 0)

    def forget(self, key: int, position: int) -> None:
        """The position leaves the window, and will be reused; `key` is what it was entered with."""
        if self._last.get(key) == position:
            del self._last[key]

    def positions(self, key: int) -> Iterator[int]:
        """Most recent first. With a window the caller stops at the first that is older than it."""
        position = self._last.get(key, -1)
        size = self._size
        while position >= 0:
            yield position
            step = self._steps[position % size if size else position]
            position = position - step if step else -1

    def _put(self, position: int, step: int) -> None:
        if self._size and position >= self._size:
            self._steps[position % self._size] = step
        else:
            self._steps.append(step)
