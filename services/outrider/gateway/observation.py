"""What is measured of a request: its span and its metrics. Never its text."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, get_current_span

from outrider.core.errors import OutriderError, describe
from outrider.telemetry import names
from outrider.telemetry.metrics import GatewayMetrics
from outrider.telemetry.tracing import Tracing, context_from, traceparent_of
from outrider.wire.messages import GenerationFinished, GenerationRequest, GenerationStarted

_MAX_INT64 = 2**63 - 1
_MAX_REQUEST_ID = 128


@dataclass(frozen=True, slots=True)
class Caller:
    """What is known of a call besides the request."""

    operation: str  # names.OPERATION_*
    stream: bool = True
    request_id: str = ""
    traceparent: str = ""
    timeout_s: float | None = None  # the client's own deadline
    tenant: str = ""  # name of the API key; only the same tenant may resume
    arrived: float = field(default_factory=time.monotonic)


def safe_request_id(text: str) -> str:
    """The id that a client gave its request, if it can go into logs and metadata as it is; else empty."""
    return text if len(text) <= _MAX_REQUEST_ID and text.isascii() and text.isprintable() else ""


class Observer:
    """Begins an observation for each generation."""

    def __init__(self, metrics: GatewayMetrics, tracing: Tracing) -> None:
        self.metrics = metrics
        self._tracing = tracing

    def begin(self, request: GenerationRequest | None, caller: Caller, model: str) -> Observation:
        """Start the span of a generation; `request` is None if one is resumed."""
        span = self._tracing.tracer.start_span(
            names.gateway_span(caller.operation, model),
            context=context_from(caller.traceparent),
            kind=SpanKind.SERVER,
        )
        if span.is_recording():
            span.set_attributes(_caller_attributes(caller, model))
            if request is not None:
                span.set_attributes(_request_attributes(request))
        return Observation(self.metrics, span, caller, resumed=request is None)


class Observation:
    """One generation as it goes on; must be closed."""

    def __init__(self, metrics: GatewayMetrics, span: Span, caller: Caller, *, resumed: bool = False) -> None:
        self._metrics = metrics
        self._span = span
        self._caller = caller
        self.tokens = 0  # of the prompt, if it is new, and of the answer, so far
        self._resumed = resumed
        self._last_delivery: float | None = None
        self._admitted = False
        self._settled = False
        self._open = True

    @property
    def traceparent(self) -> str:
        """Trace context for the verifier; the caller's own, if it is valid, where tracing is off."""
        own = traceparent_of(self._span)
        context = None if own else context_from(self._caller.traceparent)
        return own or ("" if context is None else traceparent_of(get_current_span(context)))

    def admitted(self, started: GenerationStarted, prompt_tokens: int) -> None:
        """A verifier took it."""
        self._admitted = True
        if not self._resumed:
            self.tokens += prompt_tokens
        self._metrics.stream_opened(prompt_tokens)
        self._span.set_attribute(names.ATTR_SESSION, started.generation_id)
        self._span.set_attribute(names.ATTR_RESPONSE_ID, started.generation_id)
        self._span.set_attribute(names.ATTR_RESPONSE_MODEL, started.model)
        if started.seed <= _MAX_INT64:
            self._span.set_attribute(names.ATTR_REQUEST_SEED, started.seed)

    def delivered(self, tokens: int) -> None:
        """So many more tokens go to the client."""
        if not tokens:
            return
        self.tokens += tokens
        now = time.monotonic()
        if self._last_delivery is None:
            waited = now - self._caller.arrived
            self._metrics.first_token(waited)
            self._metrics.first_tokens(tokens)
            self._span.set_attribute(names.ATTR_TIME_TO_FIRST_CHUNK, waited)
        else:
            self._metrics.tokens(tokens, now - self._last_delivery)
        self._last_delivery = now

    def failed_over(self, reason: str, attempts: int, outcome: str) -> None:
        """The session lost its verifier, by an error with that label; see GatewayMetrics.failed_over."""
        self._metrics.failed_over(reason, outcome, attempts)
        self._span.add_event(
            names.EVENT_FAILOVER,
            {names.ATTR_REASON: reason, names.ATTR_ATTEMPTS: attempts, names.ATTR_OUTCOME: outcome},
        )

    def resumed(self, pause_s: float) -> None:
        """Tokens come again, so long after the last one before."""
        self._metrics.resumed(pause_s)

    def finished(self, event: GenerationFinished) -> None:
        """It ended well."""
        self._settled = True
        self._metrics.finished(event.reason.value, time.monotonic() - self._caller.arrived)
        self._span.set_attributes(
            {
                names.ATTR_FINISH_REASONS: (event.reason.value,),
                names.ATTR_INPUT_TOKENS: event.usage.prompt_tokens,
                names.ATTR_OUTPUT_TOKENS: event.usage.completion_tokens,
                names.ATTR_CACHED_TOKENS: event.usage.cached_prompt_tokens,
                names.ATTR_ROUNDS: event.speculation.rounds,
                names.ATTR_DRAFTED: event.speculation.draft_tokens,
                names.ATTR_ACCEPTED: event.speculation.accepted_tokens,
                names.ATTR_DRAFTER: event.speculation.drafter,
            }
        )

    def failed(self, error: OutriderError) -> None:
        """It ended with an error."""
        self._fail(describe(error).label)

    def close(self) -> None:
        """It is over; if nothing said how, the client went away. Idempotent."""
        if not self._open:
            return
        self._open = False
        if not self._settled:
            self._fail("cancelled")
        if self._admitted:
            self._metrics.stream_closed()
        self._span.end()

    def _fail(self, label: str) -> None:
        self._settled = True
        self._span.set_attribute(names.ATTR_ERROR_TYPE, label)
        self._span.set_status(Status(StatusCode.ERROR, label))


def _caller_attributes(caller: Caller, model: str) -> dict[str, str | bool]:
    return {
        names.ATTR_OPERATION: caller.operation,
        names.ATTR_PROVIDER: names.PROVIDER,
        names.ATTR_REQUEST_MODEL: model,
        names.ATTR_REQUEST_STREAM: caller.stream,
    }


def _request_attributes(request: GenerationRequest) -> dict[str, int | float]:
    sampling = request.sampling
    attributes: dict[str, int | float] = {
        names.ATTR_REQUEST_TEMPERATURE: sampling.temperature,
        names.ATTR_REQUEST_TOP_P: sampling.top_p,
        names.ATTR_REQUEST_TOP_K: sampling.top_k,
    }
    if request.stop.max_tokens:
        attributes[names.ATTR_REQUEST_MAX_TOKENS] = request.stop.max_tokens
    return attributes
