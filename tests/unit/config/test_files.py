"""Values that are read again when their files change."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from outrider.config.files import MAX_FILE_BYTES, Reloaded, read_bytes
from outrider.core.errors import ConfigError


def reloaded(path: Path) -> Reloaded[bytes]:
    return Reloaded([path], lambda: read_bytes(path, "thing"), "thing")


def write(path: Path, data: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.replace(path)


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, b"one")
    value = reloaded(path)
    first = value.current()
    assert first == b"one" and value.current() is first
    write(path, b"two")
    assert value.current() == b"two"


def test_a_file_that_is_a_link_is_followed_when_the_link_moves(tmp_path: Path) -> None:
    """As Kubernetes mounts secrets."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "a")
    value = reloaded(link)
    assert value.current() == b"a"
    (tmp_path / "new").symlink_to(tmp_path / "b")
    (tmp_path / "new").replace(link)
    assert value.current() == b"b"


def test_a_wrong_file_changes_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file"
    write(path, b"good")
    value = reloaded(path)
    with caplog.at_level(logging.ERROR, "outrider.config.files"):
        path.unlink()
        assert [value.current() for _ in range(3)] == [b"good"] * 3
    assert len(caplog.records) == 1
    assert "thing: what was in force stays" in caplog.records[0].getMessage()
    write(path, b"better")
    assert value.current() == b"better"


@pytest.mark.parametrize(
    ("data", "reason"),
    [(None, "cannot read"), (b"", "is empty"), (b"x" * (MAX_FILE_BYTES + 1), "is longer than")],
    ids=["absent", "empty", "endless"],
)
def test_a_file_that_cannot_be_used_is_named_at_start(
    tmp_path: Path, data: bytes | None, reason: str
) -> None:
    path = tmp_path / "file"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError, match=f"thing: .*{reason}") as caught:
        reloaded(path)
    assert str(path) in str(caught.value)
