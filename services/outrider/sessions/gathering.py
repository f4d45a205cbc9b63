"""Many callers, one call at a time: what is asked for while a call is under way goes with the next one.

So a step costs one round trip however many sessions begin, go on and end in it, and a server that is slow
is not asked by ever more calls at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

CANCEL_AGAIN_S = 0.05

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Asked(Generic[Item, Answer]):
    item: Item
    answer: asyncio.Future[Answer]


class Gatherer(Generic[Item, Answer]):
    """Event loop only.

    Args:
        send: makes one call for many items and returns an answer for each.
        max_items: most items of a call.
        max_weight: most weight of a call; a single item may weigh more.
        weigh: of one item.
    """

    def __init__(
        self,
        send: Callable[[list[Item]], Awaitable[Sequence[Answer]]],
        *,
        max_items: int,
        max_weight: int,
        weigh: Callable[[Item], int],
    ) -> None:
        self._send = send
        self._max_items, self._max_weight, self._weigh = max_items, max_weight, weigh
        self._waiting: deque[_Asked[Item, Answer]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def ask(self, items: Sequence[Item]) -> list[Answer]:
        """An answer for each item; they are sent in this order. An item whose caller has gone is not sent.

        Raises:
            whatever `send` raises.
        """
        loop = asyncio.get_running_loop()
        asked = [_Asked[Item, Answer](item, loop.create_future()) for item in items]
        self._waiting.extend(asked)
        if self._waiting and (self._task is None or self._task.done()):
            self._task = loop.create_task(self._run(), name="store-writes")
        try:
            return [await each.answer for each in asked]
        finally:
            for each in asked:
                each.answer.cancel()  # no effect on one that was given
                if each.answer.done() and not each.answer.cancelled():
                    each.answer.exception()  # seen: the first one was raised

    async def close(self) -> None:
        """Break off what is under way and refuse what waits: with ConnectionError. Idempotent."""
        while self._task is not None and not self._task.done():
            self._task.cancel()  # again and again: Python 3.11's wait_for may swallow one
            await asyncio.wait([self._task], timeout=CANCEL_AGAIN_S)
        _fail(self._waiting, ConnectionError("it was closed"))
        self._waiting.clear()

    async def _run(self) -> None:
        while batch := self._batch():
            try:
                answers = await self._send([each.item for each in batch])
            except asyncio.CancelledError:
                _fail(batch, ConnectionError("it was closed"))
                raise
            except Exception as error:  # noqa: BLE001 - it is of those who asked
                _fail(batch, error)
            else:
                for each, answer in zip(batch, answers, strict=True):
                    if not each.answer.done():
                        each.answer.set_result(answer)

    def _batch(self) -> list[_Asked[Item, Answer]]:
        batch: list[_Asked[Item, Answer]] = []
        weight = 0
        while self._waiting and len(batch) < self._max_items:
            if self._waiting[0].answer.done():  # its caller has gone
                self._waiting.popleft()
                continue
            weight += self._weigh(self._waiting[0].item)
            if batch and weight > self._max_weight:
                break
            batch.append(self._waiting.popleft())
        return batch


def _fail(asked: Iterable[_Asked[Item, Answer]], error: Exception) -> None:
    for each in asked:
        if not each.answer.done():
            each.answer.set_exception(error)
