"""A login whose password lies in a file."""

from __future__ import annotations

from pathlib import Path

from redis.credentials import CredentialProvider

from outrider.config.files import Reloaded, read_bytes
from outrider.core.errors import ConfigError


class FileLogin(CredentialProvider):
    """Asked by redis-py at each new connection, so a password that was changed is used without a restart."""

    def __init__(self, username: str | None, path: Path, setting: str) -> None:
        """`setting` is what the URL is called in the configuration, for messages.

        Raises:
            ConfigError: the file cannot be read, is empty, or holds no text.
        """
        what = f"{setting}: password_file"
        self._username = username
        self._password = Reloaded([path], lambda: _password(path, what), what)

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """(password,) or (username, password)."""
        password = self._password.current()
        return (self._username, password) if self._username else (password,)


def _password(path: Path, what: str) -> str:
    try:
        text = read_bytes(path, what).decode("utf-8").strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{what}: {path} is not text in UTF-8") from None
    if not text:
        raise ConfigError(f"{what}: {path} is empty")
    return text
