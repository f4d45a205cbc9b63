"""Round spans of one session: exactly one for each round, linked to the drafter's by traceparent."""

from __future__ import annotations

import time
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.util.types import AttributeValue

from outrider.telemetry import names
from outrider.telemetry.tracing import traceparent_of


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """`perf_counter` seconds of one round's parts."""

    verify_start: float
    verify_end: float
    commit_end: float


class RoundSpans:
    """Makes the round spans of a session; the engine thread calls it. Exists only while tracing is on.

    A round begins when its draft is asked for, or, if none was, when its step starts. A round
    that never comes (the session is cancelled) is never reported.
    """

    def __init__(self, tracer: trace.Tracer, parent: trace.Span) -> None:
        self._tracer = tracer
        self._context = trace.set_span_in_context(parent, Context())
        self._open: trace.Span | None = None

    def begin(self) -> str:
        """The next round begins: a draft is asked for. Returns its trace context for the drafter."""
        if self._open is None:
            self._open = self._tracer.start_span(names.SPAN_ROUND, self._context)
        return traceparent_of(self._open)

    def take(self, step_start: float) -> trace.Span:
        """The round that was just verified, for `finish`; the next `begin` starts another one."""
        span = self._open
        self._open = None
        if span is None:
            span = self._tracer.start_span(names.SPAN_ROUND, self._context, start_time=_epoch_ns(step_start))
        return span

    def finish(self, span: trace.Span, times: RoundTimes, attributes: dict[str, AttributeValue]) -> None:
        """Report a round with its children."""
        span.set_attributes(attributes)
        inside = trace.set_span_in_context(span, Context())
        bounds = {
            names.SPAN_VERIFY: (times.verify_start, times.verify_end),
            names.SPAN_COMMIT: (times.verify_end, times.commit_end),
        }
        for name, (start, end) in bounds.items():
            child = self._tracer.start_span(name, inside, start_time=_epoch_ns(start))
            child.end(_epoch_ns(end))
        span.end(_epoch_ns(times.commit_end))


def _epoch_ns(counter: float) -> int:
    """Nanoseconds since 1970 of a `perf_counter` reading."""
    return time.time_ns() - round((time.perf_counter() - counter) * 1e9)
