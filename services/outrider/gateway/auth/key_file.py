"""The file of API keys: YAML (so JSON too), a list with one key a line."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from outrider.config.files import read_bytes
from outrider.core.errors import ConfigError
from outrider.gateway.auth.entries import KeyEntry, check_entries

_HEAD = "# API keys: names, hashes, limits. Written by `outrider keys`, which keeps no other comments.\n"
_MODE = 0o600

Entries = tuple[KeyEntry, ...]


def read_keys(path: Path) -> Entries:
    """All keys in a file.

    Raises:
        ConfigError: it cannot be read, or an entry is wrong.
    """
    source = f"API keys in {path}"
    try:
        value = yaml.safe_load(read_bytes(path, source))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        place = getattr(error, "problem_mark", None)
        where = f" at line {place.line + 1}" if place is not None else ""
        raise ConfigError(f"{source}: not valid YAML{where}") from None
    return check_entries(value, source)


def change_keys(path: Path, change: Callable[[Entries], Sequence[KeyEntry]]) -> None:
    """Replace the keys in a file by what `change` makes of them; it need not exist.

    The new file takes the old one's place at once, so that no gateway reads half of it. Two that change the
    same file wait for each other.

    Raises:
        ConfigError: the file cannot be read or written, or would be wrong.
    """
    try:
        with _locked(path.parent):
            before = read_keys(path) if path.exists() else ()
            entries = check_entries([entry.model_dump() for entry in change(before)], f"API keys in {path}")
            _write(path, _HEAD + "".join(f"- {_line(entry)}\n" for entry in entries))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def _line(entry: KeyEntry) -> str:
    """One entry as JSON, without what is as it would be anyway."""
    return json.dumps(entry.model_dump(mode="json", exclude_defaults=True))


def _write(path: Path, text: str) -> None:
    mode = path.stat().st_mode & 0o777 if path.exists() else _MODE
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone among those that change files in `folder`: a file that is replaced cannot be locked."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
