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
    data = read_bytes(path, source)
    try:
        value = _written_here(data)
        if value is None:
            value = yaml.safe_load(data)
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


def _written_here(data: bytes) -> list[object] | None:
    """What a file of lines as `change_keys` writes them holds; None: it is of another form.

    Read so, as many keys as there may be hold a gateway up for a tenth of the time.
    """
    lines = [line for line in data.splitlines() if line.strip() and not line.startswith(b"#")]
    if not all(line.startswith(b"- {") for line in lines):
        return None
    try:
        return [json.loads(line[2:], object_pairs_hook=_once) for line in lines]
    except ValueError:
        return None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name stands there twice")
    return dict(pairs)


def _line(entry: KeyEntry) -> str:
    """One entry as JSON, without what is as it would be anyway."""
    return json.dumps(entry.model_dump(mode="json", exclude_defaults=True))


def _write(path: Path, text: str) -> None:
    before = path.stat() if path.exists() else None
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if before is not None and (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(name, before.st_uid, before.st_gid)  # its gateway has to read it
        Path(name).chmod(before.st_mode & 0o777 if before is not None else _MODE)
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
