"""Keys in a file: who is let in, and what happens when the file changes."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider.core.errors import ConfigError, UnauthenticatedError
from outrider.gateway.auth import Authenticator, KeyLimits
from outrider.gateway.auth.authenticator import bearer
from outrider.gateway.auth.entries import PREFIX, hash_of, new_key
from outrider.gateway.auth.key_file import read_keys
from tests.certificates import replace

KEY, OTHER = new_key(), new_key()
NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)


def entry(name: str, key: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "hash": hash_of(key), **more}


def keys(path: Path, *entries: dict[str, Any]) -> Path:
    replace(path, "".join(f"- {json.dumps(one)}\n" for one in entries).encode())
    return path


def test_a_key_is_its_names() -> None:
    assert len({new_key() for _ in range(100)}) == 100
    assert KEY.startswith(PREFIX) and len(KEY) == len(PREFIX) + 43


def test_each_key_belongs_to_its_tenant(tmp_path: Path) -> None:
    file = keys(tmp_path / "keys", entry("a", KEY, limits={"max_concurrent": 3}), entry("b", OTHER))
    authenticator = Authenticator(file)
    assert (authenticator.tenant(KEY), authenticator.tenant(OTHER)) == ("a", "b")
    assert authenticator.limits("a") == KeyLimits(max_concurrent=3)
    assert authenticator.limits("b") == authenticator.limits("nobody") == KeyLimits()


@pytest.mark.parametrize(
    "shown", ["", "nonsense", KEY[:-1], KEY + "x", KEY.upper(), hash_of(KEY), "x" * 10_000, "\udcff"]
)
def test_anything_else_is_refused(tmp_path: Path, shown: str) -> None:
    authenticator = Authenticator(keys(tmp_path / "keys", entry("a", KEY)))
    with pytest.raises(UnauthenticatedError) as caught:
        authenticator.tenant(shown)
    assert not shown or shown not in str(caught.value)


def test_without_a_file_nobody_is_asked() -> None:
    authenticator = Authenticator.of("")
    assert authenticator.tenant("") == authenticator.tenant("anything") == ""
    assert not authenticator.asks


def test_an_empty_list_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("[]")
    with pytest.raises(UnauthenticatedError):
        Authenticator(tmp_path / "keys").tenant(KEY)


@pytest.mark.parametrize(
    ("expires", "is_valid"),
    [
        ("2027-01-01T12:00:01Z", True),
        ("2027-01-01T12:00:00Z", False),
        ("2027-01-01T12:30:00+01:00", False),
        ("2027-01-01T12:00:01", True),  # UTC
        ("2027-01-02", True),
        ("2027-01-01", False),
    ],
)
def test_a_key_is_refused_from_its_expiry_on(tmp_path: Path, expires: str, is_valid: bool) -> None:
    for text in (f'"{expires}"', expires):  # as text, and as YAML's own dates
        (tmp_path / "keys").write_text(f"- {{name: a, hash: {hash_of(KEY)}, expires: {text}}}\n")
        authenticator = Authenticator(tmp_path / "keys", now=lambda: NOON)
        if is_valid:
            assert authenticator.tenant(KEY) == "a"
        else:
            with pytest.raises(UnauthenticatedError, match="expired"):
                authenticator.tenant(KEY)


def test_a_changed_file_holds_at_once(tmp_path: Path) -> None:
    file = keys(tmp_path / "keys", entry("a", KEY))
    authenticator = Authenticator(file)
    assert authenticator.tenant(KEY) == "a"
    keys(file, entry("b", OTHER))
    assert authenticator.tenant(OTHER) == "b"
    with pytest.raises(UnauthenticatedError):
        authenticator.tenant(KEY)


def test_a_wrong_new_file_changes_nothing_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = keys(tmp_path / "keys", entry("a", KEY))
    authenticator = Authenticator(file)
    with caplog.at_level(logging.ERROR, "outrider.config.files"):
        replace(file, b"- {name: a, hash: " + KEY.encode() + b"}\n")
        assert authenticator.tenant(KEY) == "a"
        file.unlink()
        assert authenticator.tenant(KEY) == "a"
    assert len(caplog.records) == 2
    assert "security.api_keys_file" in caplog.text and KEY not in caplog.text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("name: a", "valid list"),
        ("- {name: a}", "entry 1 hash: Field required"),
        (f"- {{name: a, hash: {KEY}}}", "entry 1 hash"),
        (f"- {{name: 'a b', hash: {hash_of(KEY)}}}", "entry 1 name"),
        (f"- {{name: '', hash: {hash_of(KEY)}}}", "entry 1 name"),
        (f"- {{name: a, hash: {hash_of(KEY)}, limit: {{}}}}", "entry 1 limit"),
        (
            f"- {{name: a, hash: {hash_of(KEY)}, limits: {{max_concurrent: 0}}}}",
            "entry 1 limits max_concurrent",
        ),
        (f"- {{name: a, hash: {hash_of(KEY)}, expires: soon}}", "entry 1 expires"),
        (f"- {{name: a, hash: {hash_of(KEY)}}}\n" * 2, "one key stands there twice"),
        (
            f"- {{name: a, hash: {hash_of(KEY)}}}\n"
            f"- {{name: a, hash: {hash_of(OTHER)}, limits: {{max_concurrent: 1}}}}",
            "all keys of a must have the same limits",
        ),
        ("- {name: [", "not valid YAML at line 1"),
    ],
)
def test_a_wrong_file_is_refused_at_start_without_its_values(
    tmp_path: Path, content: str, reason: str
) -> None:
    (tmp_path / "keys").write_text(content)
    with pytest.raises(ConfigError) as caught:
        Authenticator(tmp_path / "keys")
    assert reason in str(caught.value) and str(tmp_path / "keys") in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "key"),
    [("Bearer k", "k"), ("bearer  k ", "k"), ("Basic k", ""), ("k", ""), ("", ""), ("Bearer", "")],
)
def test_the_key_in_a_header(header: str, key: str) -> None:
    assert bearer(header) == key


@pytest.mark.parametrize("lines", ["- {}\n", "  # a note\n- {}\n", "-   {}\n", "[{}]\n", "- {} # a note\n"])
def test_other_forms_of_the_list_say_the_same(tmp_path: Path, lines: str) -> None:
    file = tmp_path / "keys"
    file.write_text(lines.replace("{}", json.dumps(entry("a", KEY))))
    assert Authenticator(file).tenant(KEY) == "a"


def test_many_keys_are_read_without_holding_the_gateway_up(tmp_path: Path) -> None:
    some = [{"name": f"t{n}", "hash": hash_of(str(n))} for n in range(3000)]
    file = keys(tmp_path / "keys", *some, entry("a", KEY))

    def took(read: Callable[[], object]) -> float:
        start = time.process_time()
        read()
        return time.process_time() - start

    assert Authenticator(file).tenant(KEY) == "a"
    as_yaml = took(lambda: yaml.safe_load(file.read_bytes()))
    assert min(took(lambda: read_keys(file)) for _ in range(3)) < as_yaml / 3
