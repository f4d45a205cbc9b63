"""Under which addresses others reach a service and its page of metrics."""

from __future__ import annotations

import pytest

from outrider.config.schema import OutriderConfig
from outrider.core.errors import ConfigError
from outrider.discovery import advertised, advertised_page

REDIS = OutriderConfig.model_validate({"registry": {"kind": "redis"}})


@pytest.mark.parametrize(
    ("shown", "page", "reached"),
    [
        ("10.0.0.1:9100", "10.0.0.1:9101", "10.0.0.1:9101"),
        ("10.0.0.1:9100", "0.0.0.0:9101", "10.0.0.1:9101"),
        ("[fd00::1]:9100", "[::]:9101", "[fd00::1]:9101"),
        ("proxy:9100", "10.0.0.1:9101", "10.0.0.1:9101"),  # a proxy of one port knows no other
        ("10.0.0.1:9100", "", ""),
    ],
)
def test_a_page(shown: str, page: str, reached: str) -> None:
    assert advertised_page(shown, page) == reached


@pytest.mark.parametrize("listening", ["0.0.0.0:9100", "[::]:9100"])
def test_all_addresses_of_a_machine_are_none(listening: str) -> None:
    with pytest.raises(ConfigError, match=r"verifier\.advertise must be set"):
        advertised(REDIS, "", listening, "verifier.advertise")
    assert advertised(OutriderConfig(), "", listening, "verifier.advertise") == listening
    for config in (REDIS, OutriderConfig()):
        assert advertised(config, "pod:0", listening, "verifier.advertise") == "pod:9100"
