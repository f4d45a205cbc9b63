"""Prometheus metrics of each service, as methods in the service's own terms.

Each class registers exactly its part of `names.METRICS`, so all may share one registry.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.exposition import choose_encoder

from outrider.core.errors import ConfigError
from outrider.telemetry import names


class _Metrics:
    """Makes metrics from their declarations, with the model's name bound."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry = registry
        self._model = model_name

    def _counter(self, spec: names.Metric) -> Counter:
        metric = Counter(spec.name, spec.help, (names.LABEL_MODEL, *spec.labels), registry=self._registry)
        return metric if spec.labels else metric.labels(self._model)

    def _gauge(self, spec: names.Metric) -> Gauge:
        metric = Gauge(spec.name, spec.help, (names.LABEL_MODEL, *spec.labels), registry=self._registry)
        return metric if spec.labels else metric.labels(self._model)

    def _histogram(self, spec: names.Metric) -> Histogram:
        labels = (names.LABEL_MODEL, *spec.labels)
        metric = Histogram(spec.name, spec.help, labels, registry=self._registry, buckets=spec.buckets)
        return metric if spec.labels else metric.labels(self._model)


class WatchedVerifiers(Protocol):
    """What a gateway can tell of its verifiers at any time, from any thread."""

    @property
    def states(self) -> Sequence[str]:
        """One of names.VERIFIER_STATES for each that is known."""

    @property
    def registry_degraded(self) -> bool:
        """Whether the list of them may be old."""


def _count(verifiers: WatchedVerifiers, state: str) -> float:
    return verifiers.states.count(state)


class GatewayMetrics(_Metrics):
    """What clients see."""

    def __init__(self, registry: CollectorRegistry, model_name: str = "") -> None:
        super().__init__(registry, model_name)
        self._first_token = self._histogram(names.TIME_TO_FIRST_TOKEN)
        self._inter_token = self._histogram(names.INTER_TOKEN_LATENCY)
        self._e2e = self._histogram(names.E2E_LATENCY)
        self._prompt_tokens = self._counter(names.PROMPT_TOKENS)
        self._generated = self._counter(names.GENERATION_TOKENS)
        self._success = self._counter(names.REQUEST_SUCCESS)
        self._requests = self._counter(names.REQUESTS)
        self._open_streams = self._gauge(names.OPEN_STREAMS)
        self._verifiers = self._gauge(names.VERIFIERS)
        self._registry_degraded = self._gauge(names.REGISTRY_DEGRADED)
        self._failovers = self._counter(names.FAILOVERS)
        self._failover_attempts = self._counter(names.FAILOVER_ATTEMPTS)
        self._failover_pause = self._histogram(names.FAILOVER_PAUSE)

    def watch(self, verifiers: WatchedVerifiers) -> None:
        """Ask `verifiers` whenever the page is read."""
        for state in names.VERIFIER_STATES:
            gauge = self._verifiers.labels(self._model, state)
            gauge.set_function(partial(_count, verifiers, state))
        self._registry_degraded.set_function(lambda: verifiers.registry_degraded)

    def stream_opened(self, prompt_tokens: int) -> None:
        """A generation was admitted."""
        self._open_streams.inc()
        self._prompt_tokens.inc(prompt_tokens)

    def stream_closed(self) -> None:
        """It is over, however it ended."""
        self._open_streams.dec()

    def first_token(self, seconds: float) -> None:
        """The first token was delivered, `seconds` after the request arrived."""
        self._first_token.observe(seconds)

    def tokens(self, count: int, seconds: float) -> None:
        """`count` more tokens were delivered, `seconds` after the ones before.

        A round delivers several tokens at once: each counts with its share of the time.
        """
        self._generated.inc(count)
        for _ in range(count if seconds > 0 else 0):
            self._inter_token.observe(seconds / count)

    def first_tokens(self, count: int) -> None:
        """`count` tokens came in the first delivery; there is no time between them."""
        self._generated.inc(count)

    def finished(self, reason: str, seconds: float) -> None:
        """A generation ended well, for the reason that the client is told."""
        self._success.labels(self._model, reason).inc()
        self._e2e.observe(seconds)

    def failed_over(self, reason: str, outcome: str, attempts: int) -> None:
        """A session lost its verifier, by an error with that label: "moved" on, "given_up" or "refused"."""
        self._failovers.labels(self._model, reason, outcome).inc()
        self._failover_attempts.inc(attempts)

    def resumed(self, pause_s: float) -> None:
        """Tokens come again, so long after the last one before."""
        self._failover_pause.observe(pause_s)

    def request(self, route: str, outcome: str) -> None:
        """A request was answered: `route` is a pattern, `outcome` "ok" or an error's label."""
        self._requests.labels(self._model, route, outcome).inc()


class StoreMetrics(_Metrics):
    """What the verifier's commits to the session store meet (sessions.writer calls these)."""

    def __init__(self, registry: CollectorRegistry, model_name: str = "") -> None:
        super().__init__(registry, model_name)
        self._pending = self._gauge(names.STORE_PENDING)
        self._degraded = self._gauge(names.STORE_DEGRADED)
        self._errors = self._counter(names.STORE_ERRORS)
        self._dropped = self._counter(names.STORE_DROPPED)
        self._write_time = self._histogram(names.STORE_WRITE_TIME)

    def pending(self, commits: int) -> None:
        """So many commits wait."""
        self._pending.set(commits)

    def degraded(self, degraded: bool) -> None:
        """Whether commits are delayed or were lost."""
        self._degraded.set(degraded)

    def error(self, reason: str) -> None:
        """A write failed: an error's label."""
        self._errors.labels(self._model, reason).inc()

    def dropped(self, commits: int) -> None:
        """So many commits were given up."""
        self._dropped.inc(commits)

    def written(self, commits: int, seconds: float) -> None:
        """A batch was stored."""
        self._write_time.observe(seconds)


class VerifierMetrics(_Metrics):
    """Sessions, rounds, links. `store` is for the commit writer."""

    def __init__(self, registry: CollectorRegistry, model_name: str = "") -> None:
        super().__init__(registry, model_name)
        self.store = StoreMetrics(registry, model_name)
        self._running = self._gauge(names.REQUESTS_RUNNING)
        self._waiting = self._gauge(names.REQUESTS_WAITING)
        self._kv_usage = self._gauge(names.KV_USAGE)
        self._preemptions = self._counter(names.PREEMPTIONS)
        self._moved = self._counter(names.SESSION_MOVED)
        self._refused = self._counter(names.SESSIONS_REFUSED)
        self._prefix_queries = self._counter(names.PREFIX_QUERIES)
        self._prefix_hits = self._counter(names.PREFIX_HITS)
        self._queue_time = self._histogram(names.QUEUE_TIME)
        self._drafts = self._counter(names.SPEC_DRAFTS)
        self._draft_tokens = self._counter(names.SPEC_DRAFT_TOKENS)
        self._accepted = self._counter(names.SPEC_ACCEPTED)
        self._per_position = self._counter(names.SPEC_ACCEPTED_PER_POS)
        self._missed = self._counter(names.PROPOSALS_MISSED)
        self._dropped = self._counter(names.PROPOSALS_DROPPED)
        self._run_ahead = self._counter(names.RUN_AHEAD_HITS)
        self._asked = self._counter(names.DRAFTER_ASKED)
        self._not_asked = self._counter(names.DRAFTER_NOT_ASKED)
        self._drafter_verified = self._counter(names.DRAFTER_VERIFIED)
        self._drafter_accepted = self._counter(names.DRAFTER_ACCEPTED)
        self._feature_bytes = self._counter(names.FEATURE_BYTES)
        self._link_state = self._gauge(names.LINK_STATE)
        self._useless = self._gauge(names.DRAFTER_USELESS)
        rounds = self._counter(names.ROUNDS)
        self._rounds = {kind: rounds.labels(model_name, kind) for kind in names.ROUND_KINDS}
        times = self._histogram(names.ROUND_PART_TIME)
        self._parts = {part: times.labels(model_name, part) for part in names.ROUND_PARTS}
        self._overhead = self._histogram(names.ROUND_OVERHEAD)
        self._positions: list[Counter] = []

    def load(self, *, running: int, waiting: int, kv_usage: float) -> None:
        """How busy the verifier is."""
        self._running.set(running)
        self._waiting.set(waiting)
        self._kv_usage.set(kv_usage)

    def admitted(self, *, waited_s: float, prompt_tokens: int, cached_tokens: int) -> None:
        """A session was admitted."""
        self._queue_time.observe(waited_s)
        self._prefix_queries.inc(prompt_tokens)
        self._prefix_hits.inc(cached_tokens)

    def session_refused(self, reason: str) -> None:
        """There is too much load for a session: one of names.REFUSED_*."""
        self._refused.labels(self._model, reason).inc()

    def session_moved(self, how: str) -> None:
        """A session changed hands: one of names.SESSION_MOVES."""
        self._moved.labels(self._model, how).inc()

    def preempted(self) -> None:
        """A session lost its KV to make room."""
        self._preemptions.inc()

    def round(self, *, drafted: int, accepted: int, drafter: str = "", run_ahead_hit: bool = False) -> None:
        """A session's round: `drafted` draft tokens were verified (0: a plain step)."""
        self._rounds["speculative" if drafted else "plain"].inc()
        if not drafted:
            return
        self._drafts.inc()
        self._draft_tokens.inc(drafted)
        self._accepted.inc(accepted)
        while len(self._positions) < accepted:
            self._positions.append(self._per_position.labels(self._model, str(len(self._positions))))
        for counter in self._positions[:accepted]:
            counter.inc()
        if run_ahead_hit:
            self._run_ahead.labels(self._model, drafter).inc()

    def step_time(self, part: str, seconds: float) -> None:
        """Time of one step's part, one of `names.ROUND_PARTS`."""
        self._parts[part].observe(seconds)

    def round_overhead(self, seconds: float) -> None:
        """Time between two forwards of the target that was not spent in the drafter's forwards."""
        self._overhead.observe(seconds)

    def missed(self, drafter: str) -> None:
        """A round went on without the proposal it had asked for."""
        self._missed.labels(self._model, drafter).inc()

    def drafter_round(self, drafter: str, *, asked: bool, drafted: int = 0, accepted: int = 0) -> None:
        """A round of a session that has this drafter: whether it was asked, and what came of it."""
        (self._asked if asked else self._not_asked).labels(self._model, drafter).inc()
        if drafted:
            self._drafter_verified.labels(self._model, drafter).inc(drafted)
            self._drafter_accepted.labels(self._model, drafter).inc(accepted)

    def dropped(self, drafter: str, reason: str) -> None:
        """A proposal was not verified: "epoch", "base_len", "invalid", ..."""
        self._dropped.labels(self._model, drafter, reason).inc()

    def features_sent(self, drafter: str, size: int) -> None:
        """So many bytes of hidden states go to a drafter."""
        self._feature_bytes.labels(self._model, drafter).inc(size)

    def link_state(self, drafter: str, link: str, state: str) -> None:
        """The link to a replica of `drafter` is in `state`, one of `names.LINK_STATES`."""
        for known in names.LINK_STATES:
            self._link_state.labels(self._model, drafter, link, known).set(known == state)

    def useless(self, drafter: str, link: str, useless: bool) -> None:
        """Whether the drafts of a replica are all refused."""
        self._useless.labels(self._model, drafter, link).set(useless)

    def link_gone(self, drafter: str, link: str) -> None:
        """There is no such link any more."""
        with contextlib.suppress(KeyError):  # nobody ever said so
            self._useless.remove(self._model, drafter, link)
        for known in names.LINK_STATES:
            with contextlib.suppress(KeyError):  # it never had a state
                self._link_state.remove(self._model, drafter, link, known)


class DrafterMetrics(_Metrics):
    """Proposals and sessions of one drafter."""

    def __init__(self, registry: CollectorRegistry, model_name: str = "") -> None:
        super().__init__(registry, model_name)
        self._proposals = self._counter(names.DRAFTER_PROPOSALS)
        self._tokens = self._counter(names.DRAFTER_TOKENS)
        self._run_ahead = self._counter(names.DRAFTER_RUN_AHEAD_HITS)
        self._stale = self._counter(names.DRAFTER_STALE)
        self._sessions = self._gauge(names.DRAFTER_SESSIONS)
        self._queued = self._gauge(names.DRAFTER_QUEUED)
        self._kv_usage = self._gauge(names.DRAFTER_KV_USAGE)
        self._evictions = self._counter(names.DRAFTER_EVICTIONS)
        self._time = self._histogram(names.DRAFTER_TIME)
        self._batch = self._histogram(names.DRAFTER_BATCH)

    def proposal(self, *, tokens: int, seconds: float, run_ahead_hit: bool) -> None:
        """A proposal was sent, `seconds` after its command."""
        self._proposals.inc()
        self._tokens.inc(tokens)
        self._time.observe(seconds)
        if run_ahead_hit:
            self._run_ahead.inc()

    def stale(self, reason: str) -> None:
        """A command was answered with Stale."""
        self._stale.labels(self._model, reason).inc()

    def load(self, *, sessions: int, queued: int, kv_usage: float) -> None:
        """How busy the drafter is."""
        self._sessions.set(sessions)
        self._queued.set(queued)
        self._kv_usage.set(kv_usage)

    def evicted(self) -> None:
        """A session was dropped to make room."""
        self._evictions.inc()

    def batch(self, sessions: int) -> None:
        """One step drafted for so many sessions."""
        self._batch.observe(sessions)


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """A /metrics page that is being served."""

    address: str  # host:port
    _server: WSGIServer
    _thread: threading.Thread

    def close(self) -> None:
        """Stop and give the port back."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> MetricsServer:
    """Serve `registry` on http://host:port/metrics from a thread of its own (port 0: any free one).

    Raises:
        ConfigError: the address cannot be bound.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(
            f"cannot serve metrics on {host}:{port}: {error.strerror or error} (metrics_port)"
        ) from error
    name = f"[{host}]" if ":" in host else host
    return MetricsServer(f"{name}:{server.server_port}", server, thread)


def exposition(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """The page as bytes and its content type, in the format that the Accept header asks for."""
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
