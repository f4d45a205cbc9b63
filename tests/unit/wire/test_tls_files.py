"""What is said of certificates that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from outrider.config.schema import TlsConfig
from outrider.core.errors import ConfigError
from outrider.wire.tls import Tls


@pytest.mark.parametrize("absent", ["certificate", "key"])
def test_the_file_that_is_missing_is_named(tmp_path: Path, absent: str) -> None:
    pair = trustme.CA().issue_cert("outrider.internal")
    paths = {"certificate": tmp_path / "tls.crt", "key": tmp_path / "tls.key"}
    pair.private_key_and_cert_chain_pem.write_to_path(paths["certificate"])
    pair.private_key_pem.write_to_path(paths["key"])
    paths[absent].unlink()
    config = TlsConfig(certificate=str(paths["certificate"]), key=str(paths["key"]))
    with pytest.raises(ConfigError) as caught:
        Tls(config, "security.internal_tls")
    assert str(caught.value) == (
        f"security.internal_tls.{absent}: cannot read {paths[absent]}: No such file or directory"
    )
