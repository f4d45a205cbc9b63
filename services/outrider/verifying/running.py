"""Where a session begins to live here: stream and engine thread learn of it at once. Event loop only."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry import trace

from outrider.core.sessions import SessionRecord
from outrider.structured import GrammarMatcher
from outrider.telemetry.tracing import Tracing
from outrider.verifying.admission import Admission
from outrider.verifying.arrivals import Arrivals
from outrider.verifying.attachment import Attachment
from outrider.verifying.mailbox import Admit, Inward
from outrider.verifying.spans import RoundSpans
from outrider.verifying.streams import StreamTable


class Running:
    """Makes records run."""

    def __init__(
        self,
        streams: StreamTable,
        arrivals: Arrivals,
        admission: Admission,
        *,
        post: Callable[[Inward], None],
        tracing: Tracing,
    ) -> None:
        """Args:
        streams: sessions that live here.
        arrivals: whether any more are admitted.
        admission: what drafters a session uses.
        post: the engine thread's inbox.
        tracing: for round spans.
        """
        self._streams = streams
        self._arrivals = arrivals
        self._admission = admission
        self._post = post
        self._tracing = tracing

    def run(
        self,
        record: SessionRecord,
        span: trace.Span,
        grammar: GrammarMatcher | None,
        *,
        from_token: int = 0,
        stored: int | None = None,
    ) -> Attachment:
        """Nothing can come in between. `stored`: how many of its tokens the store has; None: all.

        Raises:
            UnavailableError: nobody is admitted any more.
        """
        self._arrivals.check_open()
        attachment = self._streams.add(record, from_token=from_token, stored=stored)
        drafters, nodes = self._admission.drafting(record.speculation)
        if record.finish_reason is not None:
            drafters, nodes = (), 0  # it is only told again
        spans = RoundSpans(self._tracing.tracer, span) if self._tracing.enabled else None
        self._post(Admit(record, drafters, nodes, spans, grammar, from_token))
        return attachment
