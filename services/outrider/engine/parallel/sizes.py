"""How many ranks a model can be shared by."""

from __future__ import annotations

from typing import Any

from outrider.core.errors import ConfigError, UnsupportedModelError
from outrider.engine.lean import LEAN_TYPES, is_lean

_DIVIDED = {
    "num_attention_heads": "attention heads",
    "num_key_value_heads": "key-value heads",
    "intermediate_size": "intermediate columns",
    "vocab_size": "tokens in its vocabulary",
}
"""Fields of a transformers config that ranks take equal parts of."""


def check_sizes(config: Any, count: int) -> None:
    """See that a model can be shared by `count` ranks. Needs no weights.

    Raises:
        UnsupportedModelError: not this architecture.
        ConfigError: something does not divide; says what, and which sizes are valid.
    """
    if not is_lean(config):
        raise UnsupportedModelError(
            f"verifier.tensor_parallel is {count}, but models of type {config.model_type!r} run on one rank "
            f"only; several can share {', '.join(sorted(LEAN_TYPES))} (with hidden_act silu)"
        )
    odd = [
        f"{getattr(config, name)} {what}" for name, what in _DIVIDED.items() if getattr(config, name) % count
    ]
    if odd:
        valid = ", ".join(map(str, valid_sizes(config)))
        raise ConfigError(
            f"verifier.tensor_parallel is {count}, which does not divide the model's {' and '.join(odd)}; "
            f"valid: {valid}"
        )


def valid_sizes(config: Any) -> list[int]:
    """All numbers of ranks that a model can be shared by."""
    most = int(config.num_attention_heads)
    return [n for n in range(1, most + 1) if not any(getattr(config, name) % n for name in _DIVIDED)]
