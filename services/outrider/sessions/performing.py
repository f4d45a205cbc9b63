"""Writes of the commit writer, brought to a store: all of them at once, each with an outcome of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from outrider.core.errors import (
    OutriderError,
    SessionExistsError,
    SessionNotFoundError,
    StaleEpochError,
    StoreUnavailableError,
)
from outrider.core.sessions import Commit, SessionRecord
from outrider.sessions.pending import Create, Restore, Truncate, Write
from outrider.sessions.store import SessionStore


async def perform(store: SessionStore, writes: Sequence[Write]) -> list[Exception | None]:
    """One entry a write, at most one write a session: None, or why it was not done.

    Of StoreUnavailableError nobody knows whether it was done; it may be repeated.
    """
    commits = [index for index, write in enumerate(writes) if isinstance(write, Commit)]
    others = [index for index, write in enumerate(writes) if not isinstance(write, Commit)]
    # All begin before any of them is sent, so a store that gathers calls sends them in one round trip.
    appending = asyncio.create_task(_append(store, [w for w in writes if isinstance(w, Commit)]))
    doing = [asyncio.create_task(_outcome(store, writes[index])) for index in others]
    await asyncio.gather(appending, *doing)
    results: list[Exception | None] = [None] * len(writes)
    for index, result in zip(commits, appending.result(), strict=True):
        results[index] = result
    for index, task in zip(others, doing, strict=True):
        results[index] = task.result()
    return results


async def _append(store: SessionStore, commits: Sequence[Commit]) -> list[Exception | None]:
    if not commits:
        return []
    try:
        return await store.append(commits)
    except OutriderError as error:
        return [error] * len(commits)


async def _outcome(store: SessionStore, write: Write) -> Exception | None:
    try:
        if isinstance(write, Truncate):
            await store.truncate(write.session_id, write.epoch, write.length, write.reason)
        elif isinstance(write, Create):
            await _put(store, write.record)
        elif isinstance(write, Restore):
            await _restore(store, write.record)
    except SessionNotFoundError as error:
        return None if isinstance(write, Truncate) else error  # it is over, and there is nothing to cut
    except OutriderError as error:
        return error
    return None


async def _put(store: SessionStore, record: SessionRecord) -> None:
    try:
        await store.create(record)
    except SessionExistsError:
        await _restore(store, record)


async def _restore(store: SessionStore, record: SessionRecord) -> None:
    try:
        await store.restore(record)
    except StaleEpochError as error:
        await _adopt(store, record, error)


async def _adopt(store: SessionStore, record: SessionRecord, refusal: StaleEpochError) -> None:
    """A session that is there already may be our own work, whose answer was lost: then go on with it."""
    try:
        found = await store.load(record.session_id)
    except SessionNotFoundError as error:
        raise StoreUnavailableError("the session store forgot a session in mid-call") from error
    if _begun(found) != _begun(record):
        raise refusal
    # The store compares the owners: if it was not our own work after all, this is refused.
    commit = Commit(
        record.session_id, record.epoch, 0, record.tokens, record.finish_reason, record.stop_token_id
    )
    (result,) = await store.append([commit])
    if isinstance(result, SessionNotFoundError):
        raise StoreUnavailableError("the session store forgot a session in mid-call") from result
    if result is not None:
        raise result


def _begun(record: SessionRecord) -> SessionRecord:
    """What its owner never changes."""
    return replace(record, tokens=(), finish_reason=None, stop_token_id=None)
