"""Sessions in Redis (or Valkey).

Two keys a session, with one hash tag, so that they share a Cluster slot:

- `outrider:{<id>}:meta`   hash: epoch, prompt, params, finish, bytes (length of tokens)
- `outrider:{<id>}:tokens` string: committed tokens, little-endian int32; absent while there are none

Every write is a Lua script that compares the epoch first, so it happens whole or not at all, and
gives both keys a new time to live.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, cast

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from outrider.core.errors import (
    ConfigError,
    InternalError,
    OutriderError,
    ProtocolError,
    StoreUnavailableError,
)
from outrider.core.sessions import Commit, FinishReason, SessionRecord
from outrider.sessions import outcomes
from outrider.sessions.codec import TOKEN_BYTES, pack_params, pack_tokens, unpack_record

PREFIX = "outrider"
MAX_CONNECTIONS = 32

Keys = tuple[str, str]
Argument = str | bytes | int


class _Script:
    """One Lua script of this package."""

    def __init__(self, name: str) -> None:
        self.text = files("outrider.sessions").joinpath("lua", f"{name}.lua").read_text("utf-8")
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class RedisStore:
    """The shared store: any verifier can reach it."""

    def __init__(self, url: str, *, ttl_s: int = 3600, timeout_s: float = 1.0) -> None:
        """Connects at the first call.

        Raises:
            ConfigError: `url` is none that redis-py understands.
        """
        self.address = address_of(url)
        self._ttl_ms = ttl_s * 1000
        self._timeout_s = timeout_s
        self._create, self._read = _Script("create"), _Script("read")
        self._append, self._truncate = _Script("append"), _Script("truncate")
        self._restore = _Script("restore")
        pool = BlockingConnectionPool.from_url(
            url,
            protocol=2,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),  # retrying is the caller's: it knows what may be repeated
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_s,  # more calls than connections wait for one
            driver_info=None,
        )
        self._redis = Redis.from_pool(pool)

    async def create(self, record: SessionRecord) -> None:
        """See SessionStore."""
        if not await self._run(self._create, record.session_id, *_arguments(record)):
            raise outcomes.exists(record.session_id)

    async def restore(self, record: SessionRecord) -> None:
        """See SessionStore."""
        reply = await self._run(self._restore, record.session_id, *_arguments(record))
        if reply[0] == b"other":
            raise outcomes.other(record.session_id)
        commit = Commit(record.session_id, record.epoch, 0, record.tokens)
        refusal = _refusal(commit, reply)
        if refusal is not None:
            raise refusal

    async def claim(self, session_id: str) -> SessionRecord:
        """See SessionStore."""
        return _record(session_id, await self._run(self._read, session_id, "1"))

    async def load(self, session_id: str) -> SessionRecord:
        """See SessionStore."""
        return _record(session_id, await self._run(self._read, session_id, "0"))

    async def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        """See SessionStore."""
        packed: list[bytes | OutriderError] = [_packed(commit) for commit in commits]
        calls = [
            (
                keys_of(commit.session_id),
                (commit.epoch, commit.base_len * TOKEN_BYTES, tokens, _finish(commit.finish_reason)),
            )
            for commit, tokens in zip(commits, packed, strict=True)
            if isinstance(tokens, bytes)
        ]
        replies = iter(await self._run_all(self._append, calls) if calls else ())
        return [
            _refusal(commit, next(replies)) if isinstance(tokens, bytes) else tokens
            for commit, tokens in zip(commits, packed, strict=True)
        ]

    async def truncate(self, session_id: str, epoch: int, length: int, reason: FinishReason) -> None:
        """See SessionStore."""
        reply = await self._run(self._truncate, session_id, epoch, length * TOKEN_BYTES, reason.value)
        refusal = _refusal(Commit(session_id, epoch, length, ()), reply)
        if refusal is not None:
            raise refusal

    async def delete(self, session_id: str) -> None:
        """See SessionStore."""
        async with self._call():
            await self._redis.unlink(*keys_of(session_id))

    async def ping(self) -> None:
        """See SessionStore."""
        async with self._call():
            await self._redis.ping()

    async def close(self) -> None:
        """See SessionStore."""
        await self._redis.aclose()

    async def _run(self, script: _Script, session_id: str, *arguments: Argument) -> Any:
        reply = (await self._run_all(script, [(keys_of(session_id), arguments)]))[0]
        if isinstance(reply, InternalError):
            raise reply
        return reply

    async def _run_all(
        self, script: _Script, calls: Sequence[tuple[Keys, tuple[Argument, ...]]]
    ) -> list[Any]:
        """Run `script` once for each call, all in one round trip.

        A call that is refused for reasons of its own comes back as InternalError.
        A server that does not know the script (it was restarted or flushed) is told it, and the
        whole batch is run again: what of it was written already counts as a retry.
        """
        async with self._call():
            replies = await self._pipeline(script, calls)
            if any(isinstance(reply, exceptions.NoScriptError) for reply in replies):
                await self._redis.script_load(script.text)
                replies = await self._pipeline(script, calls)
        return [
            self._refused(reply) if isinstance(reply, exceptions.ResponseError) else reply
            for reply in replies
        ]

    async def _pipeline(
        self, script: _Script, calls: Sequence[tuple[Keys, tuple[Argument, ...]]]
    ) -> list[Any]:
        pipeline = self._redis.pipeline(transaction=False)
        for keys, arguments in calls:
            pipeline.evalsha(script.sha, len(keys), *keys, self._ttl_ms, *arguments)
        return await pipeline.execute(raise_on_error=False)

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """Bounds what is inside in time and turns redis-py's errors into ours."""
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except (TimeoutError, exceptions.TimeoutError) as error:
            text = f"session store {self.address} did not answer within {self._timeout_s:g} s"
            raise StoreUnavailableError(text) from error
        except exceptions.ResponseError as error:
            raise self._refused(error) from error
        except (exceptions.RedisError, OSError) as error:
            raise StoreUnavailableError(f"session store {self.address} is away: {error}") from error

    def _refused(self, error: exceptions.ResponseError) -> InternalError:
        """Raises StoreUnavailableError if the server would refuse any other call as well."""
        if isinstance(error, _NOT_NOW) or str(error).startswith(_NOT_NOW_CODES):
            raise StoreUnavailableError(f"session store {self.address} refuses: {error}") from error
        return InternalError(f"session store {self.address} did not understand: {error}")


_NOT_NOW = (
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.NoPermissionError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.NoScriptError,  # flushed again in mid-call
)
_NOT_NOW_CODES = ("OOM", "MISCONF", "NOREPLICAS", "BUSY", "NOAUTH", "LOADING")


def keys_of(session_id: str) -> Keys:
    """Meta and tokens. Braces in an id would move the hash tag; the wire layer refuses them."""
    return f"{PREFIX}:{{{session_id}}}:meta", f"{PREFIX}:{{{session_id}}}:tokens"


def address_of(url: str) -> str:
    """`url` without user and password, for logs and messages.

    Raises:
        ConfigError: it cannot be understood. The text does not repeat it: it may hold a password.
    """
    try:
        parts = cast(dict[str, Any], parse_url(url))
    except ValueError as error:
        text = "store.url must be redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///PATH"
        raise ConfigError(text) from error
    if "path" in parts:
        return f"unix://{parts['path']}"
    scheme = url.split("://", 1)[0]
    return f"{scheme}://{parts.get('host', 'localhost')}:{parts.get('port', 6379)}/{parts.get('db', 0)}"


def _arguments(record: SessionRecord) -> tuple[Argument, ...]:
    """A whole session, as create.lua and restore.lua take it."""
    return (
        record.epoch,
        pack_tokens(record.prompt),
        pack_params(record),
        pack_tokens(record.tokens),
        _finish(record.finish_reason),
    )


def _packed(commit: Commit) -> bytes | OutriderError:
    try:
        return pack_tokens(commit.token_ids)
    except ProtocolError as error:
        return error


def _finish(reason: FinishReason | None) -> str:
    return "" if reason is None else reason.value


def _record(session_id: str, reply: list[Any]) -> SessionRecord:
    if not reply:
        raise outcomes.missing(session_id)
    epoch, prompt, params, tokens, finish = reply
    return unpack_record(
        session_id, epoch=int(epoch), prompt=prompt, params=params, tokens=tokens, finish=finish
    )


def _refusal(commit: Commit, reply: list[bytes] | InternalError) -> OutriderError | None:
    if isinstance(reply, InternalError):
        return reply
    status, session_id = reply[0], commit.session_id
    if status == b"ok":
        return None
    if status == b"missing":
        return outcomes.missing(session_id)
    if status == b"stale":
        return outcomes.stale(session_id, commit.epoch, int(reply[1]))
    if status == b"gap":
        return outcomes.gap(session_id, commit.base_len, int(reply[1]) // TOKEN_BYTES)
    if status == b"finished":
        return outcomes.finished(session_id, reply[1].decode())
    return outcomes.conflict(session_id, commit.base_len)
