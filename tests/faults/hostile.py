"""A drafter that breaks every rule, played by a test in the place of a real one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc import aio

from outrider.wire.v1 import common_pb2, drafter_pb2, drafter_pb2_grpc

VOCABULARY = 512
GREATEST = 2**32 - 1


def proposal(command: Any, base_len: int, ids: list[int], **change: Any) -> drafter_pb2.DraftEvent:
    """A chain proposal in answer to `command`; `change` overrides session_id, epoch or parents."""
    parents = change.pop("parents", list(range(-1, len(ids) - 1)))
    event = drafter_pb2.DraftEvent(session_id=command.session_id, epoch=command.epoch, **change)
    event.proposal.base_len = base_len
    event.proposal.tree.CopyFrom(common_pb2.TokenTree(token_ids=ids, parents=parents))
    return event


class Hostile(drafter_pb2_grpc.DrafterServicer):
    """Answers every command with one of its tricks, drawn from a seeded generator."""

    def __init__(self, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self.played: Counter[str] = Counter()
        self.streams = 0
        self.lengths: dict[str, int] = {}
        self.victims: set[str] = set()  # sessions of other drafters, if the test knows some
        self.tricks: dict[str, Callable[[Any, int], list[Any]]] = {
            "garbage": lambda command, length: [proposal(command, length, self._ids(3))],
            "stale base": lambda command, length: [proposal(command, max(0, length - 2), self._ids(3))],
            "future base": lambda command, length: [proposal(command, length + 5, self._ids(3))],
            "huge base": lambda command, length: [proposal(command, GREATEST, self._ids(3))],
            "old epoch": lambda command, length: [self._with_epoch(command, length, 0)],
            "new epoch": lambda command, length: [self._with_epoch(command, length, 2**63)],
            "twice": lambda command, length: [proposal(command, length, self._ids(2))] * 3,
            "oversized": lambda command, length: [proposal(command, length, self._ids(5000))],
            "unknown token": lambda command, length: [proposal(command, length, [7, GREATEST])],
            "past the vocabulary": lambda command, length: [proposal(command, length, [VOCABULARY])],
            "no parents": lambda command, length: [proposal(command, length, self._ids(3), parents=[])],
            "cycle": lambda command, length: [proposal(command, length, [1, 2, 3], parents=[2, 0, 1])],
            "far parent": lambda command, length: [proposal(command, length, [1, 2], parents=[-1, 99])],
            "far below": lambda command, length: [proposal(command, length, [1], parents=[-(2**31)])],
            "twins": lambda command, length: [proposal(command, length, [5, 5], parents=[-1, -1])],
            "empty tree": lambda command, length: [proposal(command, length, [])],
            "no event": lambda command, length: [drafter_pb2.DraftEvent(session_id=command.session_id)],
            "foreign": self._foreign,
            "nonsense id": lambda command, length: [self._renamed(command, length, "\u2603" * 2000)],
            "stale unknown": lambda command, length: [self._stale(command, 1)],
            "stale without reason": lambda command, length: [self._stale(command, 0)],
            "stale of the future": lambda command, length: [self._stale(command, 99)],
            "mad load": lambda command, length: [self._load()],
            "silence": lambda command, length: [],
            "hang up": lambda command, length: [],
            "abort": lambda command, length: [],
        }

    async def GetInfo(self, request: Any, context: Any) -> drafter_pb2.DrafterGetInfoResponse:
        """Looks like an honest prompt lookup."""
        return drafter_pb2.DrafterGetInfoResponse(
            protocol_version=1,
            model=common_pb2.ModelInfo(model_name="hostile"),
            method="prompt_lookup",
            max_draft_tokens=16,
            max_sessions=64,
            instance_id=f"hostile-{self.streams}",
        )

    async def Draft(self, request_iterator: Any, context: Any) -> AsyncIterator[drafter_pb2.DraftResponse]:
        """Plays a trick for each command that wants a proposal."""
        self.streams += 1
        async for request in request_iterator:
            events = []
            for command in request.commands:
                length = self._length_after(command)
                if length is None:
                    continue
                trick = self.random.choice(list(self.tricks))
                self.played[trick] += 1
                if trick == "hang up":
                    return
                if trick == "abort":
                    await context.abort(grpc.StatusCode.INTERNAL, "no more")
                events += self.tricks[trick](command, length)
            yield drafter_pb2.DraftResponse(events=events)

    def _length_after(self, command: Any) -> int | None:
        """Length that the session has after `command`; None if no proposal is wanted."""
        kind = command.WhichOneof("command")
        if kind == "close":
            return None
        if kind == "open":
            self.lengths[command.session_id] = len(command.open.token_ids)
            return self.lengths[command.session_id] if command.open.draft_length else None
        length = command.advance.base_len + len(command.advance.token_ids)
        self.lengths[command.session_id] = length
        return length if command.advance.draft_length else None

    def _ids(self, count: int) -> list[int]:
        return [self.random.randrange(VOCABULARY) for _ in range(count)]

    def _with_epoch(self, command: Any, length: int, epoch: int) -> drafter_pb2.DraftEvent:
        event = proposal(command, length, self._ids(3))
        event.epoch = epoch
        return event

    def _renamed(self, command: Any, length: int, name: str) -> drafter_pb2.DraftEvent:
        event = proposal(command, length, self._ids(3))
        event.session_id = name
        return event

    def _foreign(self, command: Any, length: int) -> list[drafter_pb2.DraftEvent]:
        """Speaks for all other sessions that it has heard of, at every length they may have."""
        others = (set(self.lengths) | self.victims) - {command.session_id}
        return [
            self._renamed(command, self.lengths.get(other, length) + shift, other)
            for other in sorted(others)[:8]
            for shift in (0, 1, 2)
        ]

    def _stale(self, command: Any, reason: int) -> drafter_pb2.DraftEvent:
        event = drafter_pb2.DraftEvent(session_id=command.session_id, epoch=command.epoch)
        event.stale.reason = reason
        event.stale.detail = "x" * 5000
        return event

    def _load(self) -> drafter_pb2.DraftEvent:
        event = drafter_pb2.DraftEvent()
        event.load.sessions, event.load.queued, event.load.kv_usage = GREATEST, GREATEST, float("nan")
        return event


@asynccontextmanager
async def serving(hostile: Hostile, address: str) -> AsyncIterator[Hostile]:
    """Serve it at `address`, where the stack expects a drafter."""
    server = aio.server()
    drafter_pb2_grpc.add_DrafterServicer_to_server(hostile, server)
    server.add_insecure_port(address)
    await server.start()
    try:
        yield hostile
    finally:
        await server.stop(None)
