"""Commands on a configuration with secrets: what they print, and how they reach what they start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cli.main import app
from outrider.client import Connection
from tests.certificates import SERVER_NAME, Authority

URL = "redis://user:secret@host:1/0"


def test_the_configuration_is_shown_without_passwords_unless_asked_for() -> None:
    words = ["config", "show", "--set", f"store.url={URL}"]
    masked, whole = (CliRunner().invoke(app, [*words, *more]).stdout for more in ([], ["--secrets"]))
    assert "secret" not in masked and "redis://user:***@host:1/0" in masked
    assert URL in whole


@pytest.mark.parametrize("secured", [False, True])
def test_the_demo_encrypts_and_shows_its_key_as_its_gateway_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secured: bool
) -> None:
    reached: list[Connection] = []

    def run_demo(config: object, demo: object, connection: Callable[[str], Connection]) -> bool:
        reached.append(connection("127.0.0.1:1"))
        return True

    monkeypatch.setattr("outrider.cli.demo.run_demo", run_demo)
    authority = Authority(tmp_path)
    settings = authority.issue()
    words = ["demo", "--api-key", "ork_x"]
    if secured:
        tls = (
            f"{{certificate: {settings['certificate']}, key: {settings['key']}, server_name: {SERVER_NAME}}}"
        )
        words += ["--set", f"security.public_tls={tls}", "--ca", str(authority.ca)]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (connection,) = reached
    assert connection.api_key == "ork_x"
    assert (connection.credentials is not None) is secured
    assert connection.server_name == (SERVER_NAME if secured else "")
