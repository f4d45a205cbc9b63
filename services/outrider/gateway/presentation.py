"""How the output of a session is delivered, as its record keeps it, so that any gateway can go on with it."""

from __future__ import annotations

import hashlib
import json
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from outrider.core import limits
from outrider.core.errors import InternalError, UnavailableError
from outrider.gateway.delivery import Delivery
from outrider.gateway.tokenizer import TextTokenizer

VERSION = 1
_MAX_TEXT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Call:
    """The call that a session was asked for in, as far as those that resume it need to know."""

    operation: str = ""  # names.OPERATION_*
    created: int = 0  # when it came, in seconds since 1970
    body_digest: bytes = b""  # of its body, if the same one must be sent again to resume it


@dataclass(frozen=True, slots=True)
class Presentation:
    """What `Delivery` is made with, and what the session was asked for by."""

    operation: str = ""
    created: int = 0
    digest: str = ""  # of body and prompt; empty: it is not resumed by its body
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    logprobs: bool = False

    def delivery(self, tokenizer: TextTokenizer, *, resumed_at: int = 0) -> Delivery:
        """For the session's tokens from the first one on; the client has `resumed_at` of them."""
        return Delivery(
            tokenizer.detokenizer(skip_special_tokens=self.skip_special_tokens),
            self.stop,
            include_stop=self.include_stop,
            min_tokens=self.min_tokens,
            logprobs=self.logprobs,
            resumed_at=resumed_at,
        )

    def encode(self) -> bytes:
        """As it is kept: JSON without what has its default, compressed if it is too long otherwise.

        In any case it has the digest in it, as `ResumeSession.mark` has to find it.
        """
        told = {name: value for name, value in asdict(self).items() if value != getattr(_PLAIN, name)}
        text = json.dumps({"v": VERSION, **told}, ensure_ascii=False, separators=(",", ":")).encode()
        if len(text) <= limits.MAX_PRESENTATION_BYTES // 2:
            return text
        return zlib.compress(text) + self.digest.encode()

    @classmethod
    def decode(cls, note: bytes) -> Presentation:
        """Read it back. No note at all is that of a session which no gateway started: all of it is text.

        Raises:
            UnavailableError: a newer gateway wrote it, and one like that must go on with it.
            InternalError: it is none.
        """
        if not note:
            return _PLAIN
        try:
            told = _object(note)
            if told.pop("v") > VERSION:
                raise UnavailableError("a newer gateway began this generation: resume it on one like that")
            told["stop"] = tuple(told.get("stop", ()))
            return cls(**told)
        except (ValueError, TypeError, KeyError, zlib.error) as error:
            raise InternalError(f"the note about the delivery of a session is broken: {error}") from error


_PLAIN = Presentation()


def digest_of(body_digest: bytes, prompt: Sequence[int]) -> str:
    """What tells a request and one of its prompts from all others; empty without a `body_digest`."""
    if not body_digest:
        return ""
    return hashlib.sha256(body_digest + array("I", prompt).tobytes()).hexdigest()


def _object(note: bytes) -> dict[str, Any]:
    if not note.startswith(b"{"):
        inflate = zlib.decompressobj()
        note = inflate.decompress(note, _MAX_TEXT_BYTES)
    value = json.loads(note)
    known = {"v", *(field.name for field in fields(Presentation))}
    if not isinstance(value, dict) or not value.keys() <= known:
        raise ValueError("it is not made of its fields")
    return value
