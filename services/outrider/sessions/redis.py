"""Sessions in Redis (or Valkey).

Two keys a session, with one hash tag, so that they share a Cluster slot:

- `outrider:{<id>}:meta`   hash: epoch, owner, prompt, params, finish, bytes (length of tokens)
- `outrider:{<id>}:tokens` string: committed tokens, little-endian int32; absent while there are none

Every write is done by a Lua script that compares epoch and owner first, so it happens whole or not at all,
and gives both keys a new time to live.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from redis import exceptions

from outrider.core.errors import InternalError, OutriderError, ProtocolError, StoreUnavailableError
from outrider.core.sessions import Commit, FinishReason, SessionRecord
from outrider.redis_link import Argument, Script, address_of, connect
from outrider.redis_link.faults import outage
from outrider.sessions import outcomes
from outrider.sessions.codec import TOKEN_BYTES, pack_finish, pack_params, pack_tokens, unpack_record
from outrider.sessions.gathering import Gatherer
from outrider.sessions.scripts import Write, keys_of, runner

MAX_READS = 16
"""Reads and claims that are under way at once; more wait."""
MAX_WRITES = 1024
MAX_WRITE_BYTES = 4 * 2**20
"""Of one call: bounds how long a server is busy with it."""


class RedisStore:
    """The shared store: any verifier can reach it. Only one call that writes is under way at a time."""

    def __init__(self, url: str, *, ttl_s: int = 3600, timeout_s: float = 1.0) -> None:
        """Connects at the first call.

        Raises:
            ConfigError: `url` cannot be understood.
        """
        self.address = address_of(url)
        self._owner = uuid4().hex  # two who restored a session with one epoch are told apart by it
        self._ttl_ms = ttl_s * 1000
        self._timeout_s = timeout_s
        self._redis: Any = connect(url, timeout_s=timeout_s)
        self._runner = runner(self._redis)
        self._read, self._write = Script("outrider.sessions", "read"), Script("outrider.sessions", "write")
        self._reads = asyncio.Semaphore(MAX_READS)
        self._writes: Gatherer[Write, Any] = Gatherer(
            self._send, max_items=MAX_WRITES, max_weight=MAX_WRITE_BYTES, weigh=lambda write: write.weight
        )

    async def create(self, record: SessionRecord) -> None:
        """See SessionStore."""
        await self._write_one(Write(record.session_id, ("create", *_arguments(record))), record.epoch, 0)

    async def restore(self, record: SessionRecord) -> None:
        """See SessionStore."""
        await self._write_one(Write(record.session_id, ("restore", *_arguments(record))), record.epoch, 0)

    async def claim(self, session_id: str) -> SessionRecord:
        """See SessionStore."""
        return await self._read_one(session_id, self._owner)

    async def load(self, session_id: str) -> SessionRecord:
        """See SessionStore."""
        return await self._read_one(session_id, "")

    async def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        """See SessionStore."""
        packed = [_packed(commit) for commit in commits]
        replies = iter(await self._ask([write for write in packed if isinstance(write, Write)]))
        results: list[Exception | None] = [
            self._refusal(commit.session_id, commit.epoch, commit.base_len, next(replies))
            if isinstance(write, Write)
            else write
            for commit, write in zip(commits, packed, strict=True)
        ]
        if results and all(isinstance(result, StoreUnavailableError) for result in results):
            raise StoreUnavailableError(str(results[0]))
        return results

    async def truncate(self, session_id: str, epoch: int, length: int, reason: FinishReason) -> None:
        """See SessionStore."""
        arguments = ("truncate", epoch, length * TOKEN_BYTES, reason.value)
        await self._write_one(Write(session_id, arguments), epoch, length)

    async def delete(self, session_id: str) -> None:
        """See SessionStore."""
        async with self._call():
            await self._redis.execute_command("UNLINK", *keys_of(session_id))

    async def ping(self) -> None:
        """See SessionStore."""
        async with self._call():
            await self._redis.ping()

    async def close(self) -> None:
        """See SessionStore."""
        await self._writes.close()
        await self._redis.aclose()

    async def _read_one(self, session_id: str, owner: str) -> SessionRecord:
        async with self._call(), self._reads:
            reply = await self._runner.run(self._read, session_id, self._ttl_ms, owner)
        if not reply:
            raise outcomes.missing(session_id)
        epoch, prompt, params, tokens, finish = reply
        return unpack_record(
            session_id, epoch=int(epoch), prompt=prompt, params=params, tokens=tokens, finish=finish
        )

    async def _write_one(self, write: Write, epoch: int, length: int) -> None:
        (reply,) = await self._ask([write])
        refusal = self._refusal(write.session_id, epoch, length, reply)
        if refusal is not None:
            raise refusal

    async def _ask(self, writes: Sequence[Write]) -> list[Any]:
        """What write.lua, or redis-py, says to each."""
        async with self._call():
            return await self._writes.ask(writes)

    async def _send(self, writes: list[Write]) -> list[Any]:
        """One round trip."""
        try:
            async with self._call():
                return await self._runner.run_writes(self._write, writes, self._ttl_ms, self._owner)
        except OutriderError as error:
            return [error] * len(writes)

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """Bounds what is inside in time and turns redis-py's errors into ours."""
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except OutriderError:
            raise
        except Exception as error:
            ours = self._told(error)
            if ours is None:
                raise
            raise ours from error

    def _told(self, error: Exception) -> OutriderError | None:
        """What redis-py raised, as an error of ours; None: it is a defect."""
        text = outage(error, timeout_s=self._timeout_s)
        if text is not None:
            return StoreUnavailableError(f"session store {self.address} {text}")
        if isinstance(error, exceptions.ResponseError):
            return InternalError(f"session store {self.address} did not understand: {error}")
        return None

    def _refusal(self, session_id: str, epoch: int, length: int, reply: Any) -> Exception | None:
        """What a reply to a write with this epoch, which builds on `length` tokens, says."""
        if reply == 1:
            return None
        if isinstance(reply, OutriderError):
            return type(reply)(str(reply))
        if isinstance(reply, Exception):
            return self._told(reply) or reply
        status, *details = reply
        if status == b"error":
            text = details[0].decode(errors="replace")
            return InternalError(f"session store {self.address} did not understand: {text}")
        return _REFUSALS[status](session_id, epoch, length, details[0] if details else b"")


_REFUSALS: dict[bytes, Callable[[str, int, int, Any], OutriderError]] = {
    b"exists": lambda name, epoch, length, detail: outcomes.exists(name),
    b"missing": lambda name, epoch, length, detail: outcomes.missing(name),
    b"stale": lambda name, epoch, length, detail: outcomes.stale(name, epoch, int(detail)),
    b"rival": lambda name, epoch, length, detail: outcomes.rival(name, epoch),
    b"other": lambda name, epoch, length, detail: outcomes.other(name),
    b"gap": lambda name, epoch, length, detail: outcomes.gap(name, length, int(detail) // TOKEN_BYTES),
    b"conflict": lambda name, epoch, length, detail: outcomes.conflict(name, length),
    b"finished": lambda name, epoch, length, detail: outcomes.finished(name, detail.decode()),
}


def _arguments(record: SessionRecord) -> tuple[Argument, ...]:
    """A whole session, as write.lua creates and restores it."""
    return (
        record.epoch,
        pack_tokens(record.prompt),
        pack_params(record),
        pack_tokens(record.tokens),
        pack_finish(record.finish_reason, record.stop_token_id),
    )


def _packed(commit: Commit) -> Write | OutriderError:
    try:
        tokens = pack_tokens(commit.token_ids)
    except ProtocolError as error:
        return error
    finish = pack_finish(commit.finish_reason, commit.stop_token_id)
    return Write(commit.session_id, ("append", commit.epoch, commit.base_len * TOKEN_BYTES, tokens, finish))
