"""Print the folder that holds `promtool` and `prometheus`; fetch them first, if there are none.

They come from Debian's package `prometheus`, downloaded by apt (which checks its signature) and unpacked into
Outrider's cache folder. That needs no root, and the network only once. Where both are on the PATH already,
these are taken. With --fresh they are fetched in any case.
"""

from __future__ import annotations

import argparse
import fcntl
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from outrider.catalogue.cache import cache_root

PACKAGE = "prometheus"
PROGRAMS = ("promtool", "prometheus")
TIMEOUT_S = 180
HELP = (
    "Put `promtool` and `prometheus` 2.42 or newer on the PATH, or run this where apt-get and dpkg are "
    "(Debian, Ubuntu) and reach a mirror."
)


class CannotFetchError(Exception):
    """The programs could not be had: why."""


def folder_with_programs(*, fresh: bool = False) -> Path:
    """The folder that holds both programs.

    Raises:
        CannotFetchError: they are not here and cannot be fetched.
    """
    places = {Path(found).parent for name in PROGRAMS if (found := shutil.which(name))}
    if len(places) == 1 and _runs(place := places.pop()) and not fresh:
        return place
    home = cache_root() / "tools"
    home.mkdir(parents=True, exist_ok=True)
    target = home / PACKAGE
    with (home / f"{PACKAGE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if fresh or not _runs(target):
            _fetch(target)
    return target


def _runs(folder: Path) -> bool:
    """Whether both are there and run on this machine."""
    try:
        return all(_run([str(folder / name), "--version"]).returncode == 0 for name in PROGRAMS)
    except OSError:
        return False


def _fetch(target: Path) -> None:
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise CannotFetchError(f"there is no {program} here")
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        package = _download(folder)
        unpacked, programs = folder / "unpacked", folder / "programs"
        _must(["dpkg-deb", "--extract", str(package), str(unpacked)])
        programs.mkdir()
        for program in PROGRAMS:
            shutil.move(unpacked / "usr" / "bin" / program, programs / program)
        if not _runs(programs):
            raise CannotFetchError(f"what {package.name} holds does not run here")
        if target.exists():
            shutil.rmtree(target)
        programs.rename(target)


def _download(folder: Path) -> Path:
    """The package's file: by the machine's lists of packages, else by fresh ones that nobody else sees."""
    said = _run(["apt-get", "download", PACKAGE], folder)
    if not list(folder.glob("*.deb")):
        options = _private_lists(folder)
        _must(["apt-get", *options, "update"])
        said = _run(["apt-get", *options, "download", PACKAGE], folder)
    packages = list(folder.glob("*.deb"))
    if len(packages) != 1:
        raise CannotFetchError(f"apt-get download {PACKAGE}: {_reason(said)}")
    return packages[0]


def _private_lists(folder: Path) -> list[str]:
    state, cache = folder / "state", folder / "cache"
    (state / "lists" / "partial").mkdir(parents=True)
    (cache / "archives" / "partial").mkdir(parents=True)
    # Folders of ours belong to nobody's sandbox user.
    settings = {"Dir::State": state, "Dir::Cache": cache, "APT::Sandbox::User": "root"}
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def _must(command: list[str]) -> None:
    said = _run(command)
    if said.returncode != 0:
        raise CannotFetchError(f"{command[0]} {command[-1]}: {_reason(said)}")


def _run(command: list[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise CannotFetchError(f"{command[0]} has not ended within {TIMEOUT_S} s") from error


def _reason(said: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (said.stderr + said.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E:")]
    return (errors or lines or [f"exit status {said.returncode}"])[-1]


def main() -> int:
    """The folder on stdout; 1 and a reason on stderr if there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="fetch them even if they are here")
    try:
        print(folder_with_programs(fresh=parser.parse_args().fresh))
    except CannotFetchError as error:
        print(f"cannot get {' and '.join(PROGRAMS)}: {error}. {HELP}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
