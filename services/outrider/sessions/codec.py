"""How a session is written: tokens packed little-endian int32, parameters as JSON."""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any

from outrider.core.errors import ProtocolError
from outrider.core.sessions import FinishReason, SessionRecord
from outrider.sessions import parameters

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
    return json.dumps(
        {
            "format": FORMAT,
            "sampling": parameters.pack_sampling(record.sampling),
            "stop": parameters.pack_stop(record.stop),
            "speculation": parameters.pack_speculation(record.speculation),
            "logprobs": parameters.pack_logprobs(record.logprobs),
            "model": record.model,
            **({"cache_salt": record.cache_salt} if record.cache_salt else {}),
            **({"tenant": record.tenant} if record.tenant else {}),
            **({"presentation": b64encode(record.presentation).decode()} if record.presentation else {}),
        },
        separators=(",", ":"),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is stored as something else")
    return value


def pack_finish(reason: FinishReason | None, stop_token_id: int | None = None) -> str:
    """Empty if it is not finished; with the stop token that ended it, if one did, behind a colon."""
    if reason is None:
        return ""
    return reason.value if stop_token_id is None else f"{reason.value}:{stop_token_id}"


def _unpack_finish(finish: bytes) -> tuple[FinishReason | None, int | None]:
    reason, _, stop_token_id = finish.decode().partition(":")
    return FinishReason(reason) if reason else None, int(stop_token_id) if stop_token_id else None


def unpack_record(
    session_id: str, *, epoch: int, prompt: bytes, params: bytes, tokens: bytes, finish: bytes
) -> SessionRecord:
    """Raises ProtocolError: what is stored was not written by this version of Outrider or an older one."""
    try:
        data: dict[str, Any] = json.loads(params)
        if data["format"] != FORMAT:
            raise ProtocolError(f"session {session_id} is stored in format {data['format']}, not {FORMAT}")
        finish_reason, stop_token_id = _unpack_finish(finish)
        return SessionRecord(
            session_id=session_id,
            prompt=unpack_tokens(prompt),
            sampling=parameters.unpack_sampling(data["sampling"]),
            stop=parameters.unpack_stop(data["stop"]),
            speculation=parameters.unpack_speculation(data["speculation"]),
            epoch=epoch,
            tokens=unpack_tokens(tokens),
            finish_reason=finish_reason,
            stop_token_id=stop_token_id,
            logprobs=parameters.unpack_logprobs(data.get("logprobs", {})),  # younger than the format
            model=data.get("model", ""),  # younger than the format
            cache_salt=_text(data.get("cache_salt", "")),  # younger than the format
            tenant=_text(data.get("tenant", "")),  # younger than the format
            presentation=b64decode(_text(data.get("presentation", "")), validate=True),  # so is this
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(
            f"session {session_id} is stored in a form that cannot be read: {error}"
        ) from error
