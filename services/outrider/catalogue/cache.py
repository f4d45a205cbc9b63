"""The folder where fetched models lie: complete or not at all, whoever fetches at the same time.

A model is made in a folder of its own and renamed into place when it is complete. `outrider.json`,
written last, says what it was made from and how big each file is, so that a damaged or outdated
copy is seen and made again. A file lock lets one process make a model while others wait for it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MANIFEST = "outrider.json"
FORMAT = 1
"""Raised when conversion changes, so that older copies are made again."""


def cache_root() -> Path:
    """`$OUTRIDER_CACHE`, or `~/.cache/outrider`."""
    given = os.environ.get("OUTRIDER_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "outrider"


def model_folder(name: str) -> Path:
    """Where the model `name` lies once it is fetched."""
    return cache_root() / "models" / name


def is_complete(name: str, sha256: str) -> bool:
    """True if the model is there, whole, and made from the source with this hash."""
    folder = model_folder(name)
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        if manifest["format"] != FORMAT or manifest["sha256"] != sha256:
            return False
        return all((folder / file).stat().st_size == size for file, size in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextmanager
def locked(name: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of model `name`; `waiting` is called if another holds it. Freed by process death."""
    folder = cache_root() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def building(name: str, sha256: str, source: str) -> Iterator[Path]:
    """A new folder that becomes the model when the block ends well and vanishes otherwise.

    The lock of `name` must be held.
    """
    final = model_folder(name)
    partial = cache_root() / "partial"
    partial.mkdir(parents=True, exist_ok=True)
    for left_by_a_killed_process in partial.glob(f"{name}.*"):
        shutil.rmtree(left_by_a_killed_process, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=partial))
    try:
        made = folder / "model"
        made.mkdir()
        yield made
        _write_manifest(made, sha256, source)
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():
            final.rename(folder / "old")
        made.rename(final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_manifest(folder: Path, sha256: str, source: str) -> None:
    files: dict[str, int] = {}
    for path in sorted(folder.iterdir()):
        path.chmod(0o644)  # safetensors are written for their owner only; a cache may be shared
        files[path.name] = path.stat().st_size
    manifest = {"format": FORMAT, "source": source, "sha256": sha256, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
