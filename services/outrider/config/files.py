"""Values from files that others write (certificates, tokens, keys), read again when these change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from outrider.core.errors import ConfigError

_LOG = logging.getLogger(__name__)

MAX_FILE_BYTES = 16 * 1024 * 1024

T = TypeVar("T")
Stamp = tuple[tuple[int, int, int] | None, ...]
"""What changes with the content of files: inode, time, size of each; None: it is not there."""


class Reloaded(Generic[T]):
    """What `read` makes of some files. May be used by several threads.

    Files that have become unreadable or wrong change nothing: what was in force stays, and an error is logged
    once. To look costs one `stat` for each file, links followed, so that a mounted secret is seen to change.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T], what: str) -> None:
        """Reads at once. `what` names it in log lines.

        Raises:
            ConfigError: what `read` raised.
        """
        self._paths = tuple(paths)
        self._read = read
        self._what = what
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._value = read()

    def current(self) -> T:
        """The value in force: the same object for as long as the files stay as they are."""
        with self._lock:
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp
                self._reload()
            return self._value

    def _reload(self) -> None:
        try:
            self._value = self._read()
        except ConfigError as error:
            _LOG.error("%s: what was in force stays, the new files are wrong: %s", self._what, error)
        else:
            _LOG.info("%s: read again", self._what)

    def _look(self) -> Stamp:
        return tuple(_stamp(path) for path in self._paths)


def read_bytes(path: Path, what: str) -> bytes:
    """All of a file.

    Raises:
        ConfigError: it cannot be read, is empty or absurdly long.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{what}: cannot read {path}: {error.strerror or error}") from None
    if not data:
        raise ConfigError(f"{what}: {path} is empty")
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{what}: {path} is longer than {MAX_FILE_BYTES} bytes")
    return data


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
