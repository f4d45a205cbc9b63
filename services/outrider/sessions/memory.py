"""Sessions in this process: for one machine, and for tests."""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from outrider.core.errors import OutriderError
from outrider.core.sessions import Commit, FinishReason, SessionRecord
from outrider.sessions import outcomes
from outrider.sessions.codec import pack_finish, pack_tokens

MAX_TOKENS = 64 * 2**20
"""Tokens held, prompts included: 256 MiB."""
MAX_SESSIONS = 100_000


@dataclass(slots=True)
class _Entry:
    record: SessionRecord  # its tokens stay empty: they are in `tokens`
    tokens: array[int]
    expires: float

    @property
    def size(self) -> int:
        return len(self.record.prompt) + len(self.tokens)


class MemoryStore:
    """Sessions expire `ttl_s` after their last write; the oldest ones go when memory is short."""

    def __init__(
        self,
        *,
        ttl_s: float = 3600,
        max_tokens: int = MAX_TOKENS,
        max_sessions: int = MAX_SESSIONS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ttl_s = ttl_s
        self._max_tokens = max_tokens
        self._max_sessions = max_sessions
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # by last write: the first expires first
        self._tokens = 0

    def __len__(self) -> int:
        self._expire()
        return len(self._entries)

    async def create(self, record: SessionRecord) -> None:
        """See SessionStore."""
        self._expire()
        if record.session_id in self._entries:
            raise outcomes.exists(record.session_id)
        pack_tokens((*record.prompt, *record.tokens))  # the same ids are refused by every store
        entry = _Entry(replace(record, tokens=()), array("i", record.tokens), 0.0)
        self._entries[record.session_id] = entry
        self._tokens += entry.size
        self._written(record.session_id, entry)

    async def restore(self, record: SessionRecord) -> None:
        """See SessionStore."""
        self._expire()
        entry = self._entries.get(record.session_id)
        if entry is None:
            await self.create(record)
            return
        held = entry.record
        if _unended(held) != _unended(record):
            raise outcomes.other(record.session_id)
        if held.epoch >= record.epoch:
            raise outcomes.stale(record.session_id, record.epoch, held.epoch)
        pack_tokens(record.tokens)
        known = min(len(entry.tokens), len(record.tokens))
        if tuple(entry.tokens[:known]) != record.tokens[:known]:
            # An owner before went on otherwise: nobody has seen what it drew.
            self._tokens -= len(entry.tokens)
            del entry.tokens[:]
            known = 0
        elif held.finish_reason is not None:
            raise outcomes.finished(record.session_id, _finish(held))
        entry.tokens.extend(record.tokens[known:])
        self._tokens += len(record.tokens) - known
        entry.record = replace(record, tokens=())
        self._written(record.session_id, entry)

    async def claim(self, session_id: str) -> SessionRecord:
        """See SessionStore."""
        entry = self._entry(session_id)
        entry.record = replace(entry.record, epoch=entry.record.epoch + 1)
        self._written(session_id, entry)
        return _record(entry)

    async def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        """See SessionStore."""
        return [self._append(commit) for commit in commits]

    async def load(self, session_id: str) -> SessionRecord:
        """See SessionStore."""
        return _record(self._entry(session_id))

    async def truncate(self, session_id: str, epoch: int, length: int, reason: FinishReason) -> None:
        """See SessionStore."""
        entry = self._entry(session_id)
        if epoch < entry.record.epoch:
            raise outcomes.stale(session_id, epoch, entry.record.epoch)
        if length > len(entry.tokens):
            raise outcomes.gap(session_id, length, len(entry.tokens))
        self._tokens -= len(entry.tokens) - length
        del entry.tokens[length:]
        entry.record = replace(entry.record, epoch=epoch, finish_reason=reason, stop_token_id=None)
        self._written(session_id, entry)

    async def delete(self, session_id: str) -> None:
        """See SessionStore."""
        entry = self._entries.pop(session_id, None)
        self._tokens -= entry.size if entry else 0

    async def ping(self) -> None:
        """See SessionStore."""

    async def close(self) -> None:
        """See SessionStore."""

    def _append(self, commit: Commit) -> OutriderError | None:
        try:
            entry = self._entry(commit.session_id)
            pack_tokens(commit.token_ids)
            refusal = _refusal(entry, commit)
        except OutriderError as error:
            return error
        if refusal is not None:
            return refusal
        fresh = commit.token_ids[len(entry.tokens) - commit.base_len :]
        entry.tokens.extend(fresh)
        self._tokens += len(fresh)
        entry.record = replace(entry.record, epoch=commit.epoch)
        if commit.finish_reason is not None:
            entry.record = replace(
                entry.record, finish_reason=commit.finish_reason, stop_token_id=commit.stop_token_id
            )
        self._written(commit.session_id, entry)
        return None

    def _entry(self, session_id: str) -> _Entry:
        self._expire()
        entry = self._entries.get(session_id)
        if entry is None:
            raise outcomes.missing(session_id)
        return entry

    def _written(self, session_id: str, entry: _Entry) -> None:
        entry.expires = self._clock() + self._ttl_s
        self._entries.move_to_end(session_id)
        while len(self._entries) > 1 and (
            self._tokens > self._max_tokens or len(self._entries) > self._max_sessions
        ):
            self._drop_oldest()

    def _expire(self) -> None:
        now = self._clock()
        while self._entries and next(iter(self._entries.values())).expires <= now:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, entry = self._entries.popitem(last=False)
        self._tokens -= entry.size


def _unended(record: SessionRecord) -> SessionRecord:
    """What stays the same over a session's life."""
    return replace(record, epoch=0, tokens=(), finish_reason=None, stop_token_id=None)


def _finish(of: SessionRecord | Commit) -> str:
    return pack_finish(of.finish_reason, of.stop_token_id)


def _record(entry: _Entry) -> SessionRecord:
    return replace(entry.record, tokens=tuple(entry.tokens))


def _refusal(entry: _Entry, commit: Commit) -> OutriderError | None:
    """Why `commit` may not be written; the same rules, in the same order, as lua/write.lua."""
    held, current = len(entry.tokens), _finish(entry.record)
    if commit.epoch < entry.record.epoch:
        return outcomes.stale(commit.session_id, commit.epoch, entry.record.epoch)
    if commit.base_len > held:
        return outcomes.gap(commit.session_id, commit.base_len, held)
    known = min(held - commit.base_len, len(commit.token_ids))
    if tuple(entry.tokens[commit.base_len : commit.base_len + known]) != commit.token_ids[:known]:
        return outcomes.conflict(commit.session_id, commit.base_len)
    more, finish = len(commit.token_ids) > known, _finish(commit)
    if current and (more or finish not in ("", current)):
        return outcomes.finished(commit.session_id, current)
    if finish and not current and commit.base_len + len(commit.token_ids) < held:
        return outcomes.conflict(commit.session_id, commit.base_len)
    return None
