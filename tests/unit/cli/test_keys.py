"""`outrider keys`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cli.keys import app
from outrider.core.errors import ConfigError, InvalidRequestError, UnauthenticatedError
from outrider.gateway.auth import Authenticator, KeyLimits
from outrider.gateway.auth.key_file import read_keys


def run(*words: str) -> str:
    """What the command writes to stdout."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "keys.yaml")


def test_a_new_key_is_printed_once_and_only_its_hash_is_kept(file: str) -> None:
    key = run("new", "alice", "--file", file).strip()
    assert key.startswith("ork_")
    assert Authenticator.of(file).tenant(key) == "alice"
    assert key not in Path(file).read_text() and key not in run("list", "--file", file)
    assert Path(file).stat().st_mode & 0o777 == 0o600


def test_limits_and_expiry_are_kept_and_a_further_key_takes_the_limits_over(file: str) -> None:
    limits = ["--max-concurrent", "2", "--requests-per-minute", "30", "--tokens-per-minute", "9000"]
    run("new", "alice", "--file", file, *limits, "--expires", "2099-01-31")
    run("new", "alice", "--file", file)
    run("new", "bob", "--file", file)
    first, second, third = read_keys(Path(file))
    assert first.limits == second.limits
    assert first.limits == KeyLimits(max_concurrent=2, requests_per_minute=30, tokens_per_minute=9000)
    assert third.limits == KeyLimits()
    assert first.expires is not None and first.expires.isoformat() == "2099-01-31T00:00:00+00:00"
    shown = run("list", "--file", file)
    assert all(text in shown for text in ("alice", "bob", "9000", "2099-01-31", first.hash[:12]))


def test_other_limits_for_a_name_that_has_some_are_refused_and_the_file_stays(file: str) -> None:
    run("new", "alice", "--file", file)
    before = Path(file).read_bytes()
    with pytest.raises(ConfigError, match="all keys of alice must have the same limits"):
        run("new", "alice", "--file", file, "--max-concurrent", "2")
    with pytest.raises(ConfigError, match=r"^name: must be 1 to 64 of letters"):
        run("new", "no spaces please", "--file", file)
    assert Path(file).read_bytes() == before


def test_a_revoked_key_is_refused_by_a_gateway_that_runs(file: str) -> None:
    kept, gone = (run("new", name, "--file", file).strip() for name in ("alice", "bob"))
    authenticator = Authenticator.of(file)
    assert authenticator.tenant(gone) == "bob"
    run("revoke", "bob", "--file", file)
    with pytest.raises(UnauthenticatedError):
        authenticator.tenant(gone)
    assert authenticator.tenant(kept) == "alice"


def test_one_of_several_keys_is_revoked_by_its_hash(file: str) -> None:
    old, new = (run("new", "alice", "--file", file).strip() for _ in range(2))
    run("revoke", "alice", "--file", file, "--hash", read_keys(Path(file))[0].hash[:12])
    authenticator = Authenticator.of(file)
    assert authenticator.tenant(new) == "alice"
    with pytest.raises(UnauthenticatedError):
        authenticator.tenant(old)


def test_revoking_what_is_not_there_is_an_error(file: str) -> None:
    run("new", "alice", "--file", file)
    with pytest.raises(InvalidRequestError, match="no such key"):
        run("revoke", "bob", "--file", file)
    with pytest.raises(ConfigError, match=r"there is no .*absent; `outrider keys new NAME --file"):
        run("revoke", "bob", "--file", file + ".absent")


def test_keys_made_at_the_same_time_are_all_kept(file: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        from outrider.cli.keys import new

        list(pool.map(lambda number: new(f"name-{number}", Path(file)), range(16)))
    assert {entry.name for entry in read_keys(Path(file))} == {f"name-{number}" for number in range(16)}


def test_the_file_may_be_named_by_the_configuration(tmp_path: Path, file: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"model: m\nsecurity: {{api_keys_file: {file}}}\n")
    key = run("new", "alice", "--config", str(config)).strip()
    assert Authenticator.of(file).tenant(key) == "alice"
    with pytest.raises(ConfigError, match="--file"):
        run("list")


def test_a_file_that_is_rewritten_stays_its_owners(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run("new", "alice", "--file", file)
    owner = Path(file).stat()
    monkeypatch.setattr("os.geteuid", lambda: owner.st_uid + 1)
    given: list[tuple[int, int]] = []
    monkeypatch.setattr("os.chown", lambda path, user, group: given.append((user, group)))
    run("new", "bob", "--file", file)
    assert given == [(owner.st_uid, owner.st_gid)]
