"""Secrets that a configuration may hold, for what is printed of it."""

from __future__ import annotations

import re

from outrider.config.schema import OutriderConfig

MASK = "***"
_LOGIN = re.compile(r"(://[^:@/?\s]*):.*@")
_OPTION = re.compile(r"([?&][^=&\s]*password(?!_file=)[^=&\s]*=)[^&\s'\"]*", re.IGNORECASE)


def hidden(text: str) -> str:
    """`text` with the passwords of URLs in it masked: rather too much of a URL than too little."""
    return _OPTION.sub(rf"\1{MASK}", _LOGIN.sub(rf"\1:{MASK}@", text))


def without_secrets(config: OutriderConfig) -> OutriderConfig:
    """`config` as it may be shown to others. Services cannot run with it, where it held a secret."""
    store, registry, telemetry = config.store, config.registry, config.telemetry
    return config.model_copy(
        update={
            "store": store.model_copy(update={"url": hidden(store.url)}),
            "registry": registry.model_copy(update={"url": hidden(registry.url)}),
            "telemetry": telemetry.model_copy(update={"otlp_endpoint": hidden(telemetry.otlp_endpoint)}),
        }
    )
