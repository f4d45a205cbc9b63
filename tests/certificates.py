"""Certificates of the moment, as files, for tests of TLS."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import trustme

SERVER_NAME = "outrider.test"


class Authority:
    """A certificate authority and the folder that its files go to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA()
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca))

    def issue(self, name: str = "service", *, not_after: datetime | None = None) -> dict[str, str]:
        """A certificate and its key, as settings of a TlsConfig; other files' settings are left out."""
        leaf = self._ca.issue_cert(SERVER_NAME, "127.0.0.1", not_after=not_after)
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        replace(certificate, b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        replace(key, leaf.private_key_pem.bytes())
        return {"certificate": str(certificate), "key": str(key)}

    def tls(self, name: str = "service", *, not_after: datetime | None = None) -> dict[str, str]:
        """Settings of a service that has a certificate of this authority and asks peers for one."""
        return {**self.issue(name, not_after=not_after), "ca": str(self.ca), "server_name": SERVER_NAME}


def replace(path: Path, data: bytes) -> None:
    """Write a file as certificate managers do: whole, at once."""
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.replace(path)


def copy(settings: dict[str, str], onto: dict[str, str]) -> None:
    """Put the files of one set of settings in the place of another's."""
    for name in ("ca", "key", "certificate"):
        if name in settings and name in onto:
            replace(Path(onto[name]), Path(settings[name]).read_bytes())
