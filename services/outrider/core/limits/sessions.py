"""Bounds of a session's name and of what a request says about speculation."""

from __future__ import annotations

import re

from outrider.core.errors import InvalidRequestError
from outrider.core.limits.values import encodable, integer
from outrider.core.params import SpeculationParams
from outrider.core.tenants import MARK

MAX_DRAFT_TOKENS = 1024
MAX_DRAFTER_NAME_CHARS = 128
MAX_SESSION_ID_CHARS = 128
MAX_CACHE_SALT_CHARS = 256
MAX_TENANT_CHARS = 64
MAX_PRESENTATION_BYTES = 65_536

_SESSION_ID = re.compile(r"[A-Za-z0-9._:-]+")
_TENANT = re.compile(r"[A-Za-z0-9._-]+")


def check_speculation(speculation: SpeculationParams) -> None:
    """Bounds of max_draft_tokens and of the drafter's name."""
    if speculation.max_draft_tokens is not None:
        integer("max_draft_tokens", speculation.max_draft_tokens, 0, MAX_DRAFT_TOKENS)
    if len(speculation.drafter) > MAX_DRAFTER_NAME_CHARS:
        raise InvalidRequestError(
            f"drafter must be a name of at most {MAX_DRAFTER_NAME_CHARS} characters, "
            f"got {len(speculation.drafter)}",
            field="drafter",
        )


def check_cache_salt(salt: str) -> None:
    """A salt is a text that is not too long; it is not repeated, since it may be a secret."""
    if len(salt) > MAX_CACHE_SALT_CHARS:
        raise InvalidRequestError(
            f"cache_salt must be at most {MAX_CACHE_SALT_CHARS} characters, got {len(salt)}",
            field="cache_salt",
        )
    if MARK in salt:
        raise InvalidRequestError("cache_salt must not hold the character U+001E", field="cache_salt")
    encodable("cache_salt", salt)


def check_tenant(tenant: str) -> None:
    """A tenant's name is short and safe to be part of a key, a log line and a metric's label; or empty."""
    if tenant and (len(tenant) > MAX_TENANT_CHARS or not _TENANT.fullmatch(tenant)):
        raise InvalidRequestError(
            f"tenant must be at most {MAX_TENANT_CHARS} characters out of A-Z a-z 0-9 . _ -", field="tenant"
        )


def check_session_id(session_id: str, field: str = "session_id") -> None:
    """A session id is short and safe to be part of a key, a log line and a header."""
    if len(session_id) > MAX_SESSION_ID_CHARS or not _SESSION_ID.fullmatch(session_id):
        raise InvalidRequestError(
            f"{field} must be 1 to {MAX_SESSION_ID_CHARS} characters out of A-Z a-z 0-9 . _ : -",
            field=field,
        )
