"""Metrics and spans of what the worker did."""

from __future__ import annotations

import time

from outrider.core.rounds import Proposal
from outrider.drafting.session import DraftRequest
from outrider.drafting.worker import Turn
from outrider.telemetry import names
from outrider.telemetry.metrics import DrafterMetrics
from outrider.telemetry.tracing import Tracing, context_from


class DraftObserver:
    """Used in the event loop, after the answers have been handed to their streams."""

    def __init__(self, drafter: str, metrics: DrafterMetrics, tracing: Tracing) -> None:
        self._drafter = drafter
        self._metrics = metrics
        self._tracing = tracing

    def __call__(self, turn: Turn) -> None:
        """Count and trace one turn."""
        load = turn.load
        self._metrics.load(sessions=load.sessions, queued=load.queued, kv_usage=load.kv_usage)
        for sessions in turn.happened.batches:
            self._metrics.batch(sessions)
        for _ in range(turn.happened.evicted):
            self._metrics.evicted()
        for answer in turn.happened.answers:
            if not isinstance(answer.event, Proposal):
                self._metrics.stale(answer.event.reason.value)
                continue
            proposal = answer.event
            self._metrics.proposal(
                tokens=len(proposal.tree),
                seconds=proposal.draft_us / 1e6,
                run_ahead_hit=proposal.run_ahead_hit,
            )
            if answer.request is not None and self._tracing.enabled:
                self._span(proposal, answer.request)

    def _span(self, proposal: Proposal, request: DraftRequest) -> None:
        parent = context_from(request.traceparent)
        if parent is None:
            return
        # Commands are stamped by the monotonic clock; spans want the wall clock.
        start_ns = time.time_ns() - (time.perf_counter_ns() - request.arrived_ns)
        span = self._tracing.tracer.start_span(names.SPAN_DRAFT, context=parent, start_time=start_ns)
        span.set_attribute(names.ATTR_SESSION, proposal.session_id)
        span.set_attribute(names.ATTR_EPOCH, proposal.epoch)
        span.set_attribute(names.ATTR_DRAFTER, self._drafter)
        span.set_attribute(names.ATTR_BASE_LEN, proposal.base_len)
        span.set_attribute(names.ATTR_TREE_SIZE, len(proposal.tree))
        span.set_attribute(names.ATTR_RUN_AHEAD_HIT, proposal.run_ahead_hit)
        span.end(start_ns + proposal.draft_us * 1000)
