"""API keys as they are stored.

A key is 256 random bits, so a plain SHA-256 of it keeps it secret: nobody can try that many. Slow hashes are
for what people think up.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Annotated, Any

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import ErrorDetails

from outrider.core.errors import ConfigError

PREFIX = "ork_"
"""By which scanners for leaked secrets can tell a key."""
_KEY_BYTES = 32
MAX_KEYS = 100_000
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class KeyLimits(BaseModel):
    """What one name may use of each gateway. None: as much as there is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_concurrent: int | None = Field(None, ge=1, description="generations at once")
    requests_per_minute: int | None = Field(None, ge=1)
    tokens_per_minute: int | None = Field(None, ge=1, description="of prompts and answers together")


def _as_moment(value: Any) -> Any:
    """A day is its first moment; what names no zone is UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return value
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, datetime) and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return value


class KeyEntry(BaseModel):
    """One key. Several may bear the same name: it is the name that owns sessions and that is limited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=NAME_PATTERN, description="whose key it is: the tenant")
    hash: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the key, in hex")
    limits: KeyLimits = KeyLimits()
    expires: Annotated[AwareDatetime | None, BeforeValidator(_as_moment)] = Field(
        None, description="refused from then on"
    )

    def has_expired(self, now: datetime) -> bool:
        """Whether it is refused at `now`."""
        return self.expires is not None and now >= self.expires


_RULES = {
    "name": "must be 1 to 64 of letters, digits and . _ -, with a letter or digit first",
    "hash": "must be 64 hex digits in lower case, as `outrider keys new` writes them",
}

_ENTRIES = TypeAdapter(list[KeyEntry])


def new_key() -> str:
    """A key that nobody else has."""
    return PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def hash_of(key: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def check_entries(value: Any, source: str) -> tuple[KeyEntry, ...]:
    """What a file of keys holds, as entries. Messages quote no values: somebody may have put keys there.

    Raises:
        ConfigError: an entry is wrong, stands there twice, or contradicts another one of its name.
    """
    try:
        entries = tuple(_ENTRIES.validate_python([] if value is None else value))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ConfigError(f"{source}: {_place(first['loc'])}: {_said(first)}") from None
    _check_together(entries, source)
    return entries


def _place(path: Sequence[int | str]) -> str:
    """Where it is wrong, counted as people do."""
    words = [f"entry {part + 1}" if isinstance(part, int) else part for part in path]
    return " ".join(words) or "the whole"


def _said(error: ErrorDetails) -> str:
    """What is wrong with it; patterns say little to people."""
    if error["type"] == "string_pattern_mismatch" and error["loc"]:
        return _RULES.get(str(error["loc"][-1]), error["msg"])
    return error["msg"]


def _check_together(entries: Sequence[KeyEntry], source: str) -> None:
    if len(entries) > MAX_KEYS:
        raise ConfigError(f"{source}: at most {MAX_KEYS} keys, got {len(entries)}")
    if len({entry.hash for entry in entries}) < len(entries):
        raise ConfigError(f"{source}: one key stands there twice")
    limits: dict[str, KeyLimits] = {}
    for entry in entries:
        if limits.setdefault(entry.name, entry.limits) != entry.limits:
            raise ConfigError(f"{source}: all keys of {entry.name} must have the same limits")
