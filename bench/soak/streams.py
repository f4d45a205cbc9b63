"""Streams that are kept open, and what each of them must end with."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.soak.journal import Journal
from bench.soak.workload import GRPC, HTTP, Answer, Question
from tests import sse, traffic
from tests.stack import Service

IDLE_S = 6.0
"""A client that has heard nothing for so long asks another gateway."""
PATIENCE_S = 120.0
LEAVING = 0.15
"""Share of streams whose client goes away by itself, once, and comes back to another gateway."""
_LATEST_LEAVE = 12  # deltas

Seen = traffic.Generated | sse.Streamed


@dataclass(frozen=True)
class Outcome:
    """One stream that is over."""

    api: str
    question: Question
    began: float  # monotonic
    ended: float
    times: list[float]  # when tokens came
    tokens: int
    resumes: int


@dataclass
class Traffic:
    """So many open streams until told to stop."""

    gateways: list[Service]
    pool: list[Question]
    answers: dict[Question, Answer]
    journal: Journal
    dice: random.Random
    on_end: Callable[[], None]
    may_leave: bool = True  # clients may go away and come back
    outcomes: list[Outcome] = field(default_factory=list)
    _live: list[Seen] = field(default_factory=list)

    @property
    def open(self) -> int:
        """Streams that are open."""
        return len(self._live)

    async def keep_open(self, streams: int, until: float, *, enough: asyncio.Event | None = None) -> None:
        """Keep `streams` of them open until the moment `until`, or until `enough`; then wait for the last."""
        enough = enough or asyncio.Event()
        await asyncio.gather(*(self._one_after_the_other(until, enough) for _ in range(streams)))

    def all_heard_since(self, moment: float) -> bool:
        """Every open stream that had begun to speak has said something since, so none is parked."""
        return all(not seen.times or seen.times[-1] > moment for seen in self._live)

    async def _one_after_the_other(self, until: float, enough: asyncio.Event) -> None:
        while time.monotonic() < until and not enough.is_set():
            question, api = self.dice.choice(self.pool), self.dice.choice((GRPC, HTTP))
            seen: Seen = traffic.Generated() if api == GRPC else sse.Streamed()
            self._live.append(seen)
            began = time.monotonic()
            try:
                await self._read(question, seen)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is a finding
                self._broken(question, seen, f"{type(error).__name__}: {error}")
            else:
                self._check(question, seen)
                self.outcomes.append(
                    Outcome(
                        *(api, question, began, time.monotonic()),
                        *(seen.times, len(seen.token_ids), seen.resumes),
                    )
                )
            finally:
                self._live = [other for other in self._live if other is not seen]
                self.on_end()

    async def _read(self, question: Question, seen: Seen) -> None:
        gateways = self.dice.sample(self.gateways, len(self.gateways))
        leave = self._leaves_once()
        if isinstance(seen, traffic.Generated):
            await traffic.persist(
                [one.reached for one in gateways],
                question.grpc(drafter=question.drafter),
                on_delta=leave,
                idle_s=IDLE_S,
                patience_s=PATIENCE_S,
                seen=seen,
            )
        else:
            await sse.persist(
                [one.http for one in gateways],
                question.http(drafter=question.drafter),
                on_event=leave,
                idle_s=IDLE_S,
                patience_s=PATIENCE_S,
                seen=seen,
            )

    def _leaves_once(self) -> Callable[[Seen], None]:
        """Some clients go away by themselves, after a few deltas."""
        left = self.dice.random() >= LEAVING
        leave_at = self.dice.randrange(2, _LATEST_LEAVE)

        def watch(seen: Seen) -> None:
            nonlocal left
            if not left and self.may_leave and len(seen.times) >= leave_at:
                left = True
                raise traffic.LeaveError

        return watch

    def _check(self, question: Question, seen: Seen) -> None:
        """Places of tokens were checked as they came."""
        if not question.determined:
            if len(seen.token_ids) != question.max_tokens:
                self._broken(question, seen, f"{len(seen.token_ids)} tokens, not {question.max_tokens}")
            return
        wanted = self.answers[question]
        if seen.token_ids != wanted.token_ids:
            pairs = enumerate(zip(seen.token_ids, wanted.token_ids, strict=False))
            first = next((place for place, (got, right) in pairs if got != right), None)
            where = f"another token at {first}" if first is not None else "another length"
            self._broken(question, seen, f"{where} ({len(seen.token_ids)} of {len(wanted.token_ids)})")
        elif seen.text != wanted.text:
            self._broken(question, seen, "the same tokens, another text")

    def _broken(self, question: Question, seen: Seen, what: str) -> None:
        api, name = (
            (GRPC, seen.generation_id) if isinstance(seen, traffic.Generated) else (HTTP, seen.response_id)
        )
        self.journal.violation(
            f"{api} {question.kind} {name} after {len(seen.token_ids)} tokens, {seen.resumes} resumes: {what}"
        )
