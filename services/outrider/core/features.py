"""Names of the hidden states that a verifier can send to drafters."""

from __future__ import annotations

from outrider.core.errors import ProtocolError

LAST_HIDDEN = "last_hidden"
"""What the output head sees: after the final norm, [tokens, hidden_size]."""
_HIDDEN = "hidden_"


def hidden_after(layers: int) -> str:
    """Name of the residual stream after so many decoder layers; 0: the embeddings.

    transformers calls it `hidden_states[layers]` (but for the last one, which it norms). EAGLE-3 takes those
    after 2, half and all but 3 of the layers.
    """
    return f"{_HIDDEN}{layers}"


def layers_of(name: str) -> int | None:
    """After how many decoder layers the feature is taken; None: `LAST_HIDDEN`.

    Raises:
        ProtocolError: no such name.
    """
    if name == LAST_HIDDEN:
        return None
    digits = name.removeprefix(_HIDDEN)
    if digits == name or not digits.isascii() or not digits.isdigit():
        raise ProtocolError(f"feature {name[:40]!r} is not known: there are {LAST_HIDDEN} and {_HIDDEN}N")
    return int(digits[:6])


def offered(num_layers: int) -> frozenset[str]:
    """All features of a target with so many decoder layers."""
    return frozenset({LAST_HIDDEN, *map(hidden_after, range(num_layers + 1))})
