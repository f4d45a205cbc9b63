"""How a session is written: tokens packed little-endian int32, parameters as JSON."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any

from outrider.core.errors import ProtocolError
from outrider.core.params import SamplingParams, SpeculationParams, StopParams
from outrider.core.sessions import FinishReason, SessionRecord

FORMAT = 1
"""Version of what is stored; a reader refuses any other."""
TOKEN_BYTES = 4


def pack_tokens(token_ids: Iterable[int]) -> bytes:
    """Little-endian int32, back to back.

    Raises:
        ProtocolError: an id that does not fit.
    """
    ids = tuple(token_ids)
    try:
        return struct.pack(f"<{len(ids)}i", *ids)
    except struct.error as error:
        raise ProtocolError(f"a token id does not fit 32 bits: {error}") from error


def unpack_tokens(data: bytes) -> tuple[int, ...]:
    """Raises ProtocolError: not a whole number of tokens."""
    count, rest = divmod(len(data), TOKEN_BYTES)
    if rest:
        raise ProtocolError(f"{len(data)} bytes are no whole number of {TOKEN_BYTES}-byte tokens")
    return struct.unpack(f"<{count}i", data)


def pack_params(record: SessionRecord) -> str:
    """Everything that fixes the output beside prompt and tokens, as JSON. Floats survive exactly."""
    sampling, stop, speculation = record.sampling, record.stop, record.speculation
    return json.dumps(
        {
            "format": FORMAT,
            "sampling": {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "seed": sampling.seed,
            },
            "stop": {"max_tokens": stop.max_tokens, "stop_token_ids": sorted(stop.stop_token_ids)},
            "speculation": {
                "enabled": speculation.enabled,
                "max_draft_tokens": speculation.max_draft_tokens,
                "drafter": speculation.drafter,
            },
            "model": record.model,
        },
        separators=(",", ":"),
    )


def unpack_record(
    session_id: str, *, epoch: int, prompt: bytes, params: bytes, tokens: bytes, finish: bytes
) -> SessionRecord:
    """Raises ProtocolError: what is stored was not written by this version of Outrider."""
    try:
        data: dict[str, Any] = json.loads(params)
        if data["format"] != FORMAT:
            raise ProtocolError(f"session {session_id} is stored in format {data['format']}, not {FORMAT}")
        stop = data["stop"]
        return SessionRecord(
            session_id=session_id,
            prompt=unpack_tokens(prompt),
            sampling=SamplingParams(**data["sampling"]),
            stop=StopParams(stop["max_tokens"], frozenset(stop["stop_token_ids"])),
            speculation=SpeculationParams(**data["speculation"]),
            epoch=epoch,
            tokens=unpack_tokens(tokens),
            finish_reason=FinishReason(finish.decode()) if finish else None,
            model=data.get("model", ""),  # younger than the format
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(
            f"session {session_id} is stored in a form that cannot be read: {error}"
        ) from error
