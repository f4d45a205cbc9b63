"""The thread that owns method and scheduler. Torch runs here and nowhere else."""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from outrider.drafting.scheduler import DraftScheduler, Happened
from outrider.wire.messages import DraftCommand, DrafterLoad

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Malformed:
    """A command that could not be read."""

    session_id: str
    epoch: int
    detail: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """Commands that came in together."""

    stream: int
    commands: Sequence[DraftCommand | Malformed]
    at_ns: int  # time.perf_counter_ns
    weight: int  # what they count in Turn.applied


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """A stream is gone."""

    stream: int


_MOST_UNTOLD = 256
"""Commands taken in after which the event loop is told, so that it lets more come."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the worker did since it last told."""

    happened: Happened
    applied: Mapping[int, int]  # stream -> weight of the commands taken in
    load: DrafterLoad


class DraftWorker:
    """Runs a scheduler in a thread of its own. Commands go in through `put`, from any thread."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Arrival | StreamEnd | None] = queue.SimpleQueue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drafter")

    def start(self, build: Callable[[], T]) -> Future[T]:
        """Run `build` (load the model) in the worker's thread; the future has what it returned or raised."""
        return self._thread.submit(build)

    def run(self, scheduler: DraftScheduler, deliver: Callable[[Turn], object]) -> Future[None]:
        """Begin to work: take all commands in, do one step, again.

        Calls `deliver` (in the worker's thread) when there are answers or nothing is left to do. Not
        after each step: to wake the event loop, and to share the interpreter with it, costs a
        short step a good part of its time.

        The future ends after `stop`, or with the defect that ended the thread.
        """
        return self._thread.submit(self._run, scheduler, deliver)

    def put(self, item: Arrival | StreamEnd) -> None:
        """Hand something to the scheduler. Never blocks."""
        self._inbox.put(item)

    def stop(self) -> None:
        """End after what is in the inbox. Does not wait. Idempotent."""
        self._inbox.put(None)
        self._thread.shutdown(wait=False)

    def _run(self, scheduler: DraftScheduler, deliver: Callable[[Turn], object]) -> None:
        applied: Counter[int] = Counter()
        while self._take_in(scheduler, applied):
            scheduler.step()
            if scheduler.has_answers or not scheduler.has_work or applied.total() > _MOST_UNTOLD:
                deliver(Turn(scheduler.take(), applied, scheduler.load))
                applied = Counter()

    def _take_in(self, scheduler: DraftScheduler, applied: Counter[int]) -> bool:
        """Apply all that has come in; waits for something if there is no work. False: stop."""
        wait = not scheduler.has_work
        while True:
            try:
                item = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if item is None:
                return False
            if isinstance(item, StreamEnd):
                scheduler.drop_stream(item.stream)
                applied[item.stream] += 0
                continue
            for command in item.commands:
                if isinstance(command, Malformed):
                    scheduler.reject(item.stream, command.session_id, command.epoch, command.detail)
                else:
                    scheduler.apply(item.stream, command, item.at_ns)
            applied[item.stream] += item.weight
