"""Every span, attribute and metric name. Nothing else may spell one.

Spans and attributes `gen_ai.*` follow the OpenTelemetry semantic conventions for generative AI
(v0.1.0 of their own repository); speculation has none there, so it has our own namespace
`outrider.spec.*`. Metrics whose suffix vLLM also uses mean the same as there, so that dashboards
and autoscalers need another prefix only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# --- spans ----------------------------------------------------------------------------------

SPAN_VERIFY_REQUEST = "verify.request"
"""A session at the verifier, from admission to its end; child of the gateway's span."""
SPAN_ROUND = "round"
"""One verification step of one session; child of `verify.request`."""
SPAN_DRAFT = "draft"
"""Drafting for a round, at the drafter; child of `round`, across the link."""
SPAN_VERIFY = "verify"
"""The target's forward and the walk; child of `round`."""
SPAN_COMMIT = "commit"
"""Emitting, storing and advancing; child of `round`."""

EVENT_FAILOVER = "failover"
"""Event of the gateway's span: a session that lost its verifier went on at another one, or did not."""

OPERATION_CHAT = "chat"
OPERATION_COMPLETION = "text_completion"


def gateway_span(operation: str, model: str) -> str:
    """Name of the gateway's span of a request: `{gen_ai.operation.name} {gen_ai.request.model}`."""
    return f"{operation} {model}"


# --- attributes -----------------------------------------------------------------------------

PROVIDER = "outrider"
"""Value of gen_ai.provider.name."""

ATTR_OPERATION = "gen_ai.operation.name"
ATTR_PROVIDER = "gen_ai.provider.name"
ATTR_REQUEST_MODEL = "gen_ai.request.model"
ATTR_REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
ATTR_REQUEST_TEMPERATURE = "gen_ai.request.temperature"
ATTR_REQUEST_TOP_P = "gen_ai.request.top_p"
ATTR_REQUEST_TOP_K = "gen_ai.request.top_k"
ATTR_REQUEST_SEED = "gen_ai.request.seed"
ATTR_REQUEST_STREAM = "gen_ai.request.stream"
ATTR_RESPONSE_ID = "gen_ai.response.id"
ATTR_RESPONSE_MODEL = "gen_ai.response.model"
ATTR_FINISH_REASONS = "gen_ai.response.finish_reasons"
ATTR_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
ATTR_INPUT_TOKENS = "gen_ai.usage.input_tokens"
ATTR_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
ATTR_CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
ATTR_ERROR_TYPE = "error.type"

ATTR_SESSION = "outrider.session.id"
ATTR_EPOCH = "outrider.session.epoch"
ATTR_DRAFTER = "outrider.spec.drafter"
ATTR_DRAFTERS = "outrider.spec.drafters"  # names of the drafters that were asked; the next three go along
ATTR_DRAFTERS_PROPOSED = (
    "outrider.spec.drafters.proposed"  # nodes that each proposed; -1: nothing came in time
)
ATTR_DRAFTERS_DRAFTED = "outrider.spec.drafters.drafted"  # of these, verified
ATTR_DRAFTERS_ACCEPTED = "outrider.spec.drafters.accepted"  # of these, accepted
ATTR_DRAFTED = "outrider.spec.drafted"  # draft tokens verified in this round
ATTR_ACCEPTED = "outrider.spec.accepted"  # of these, accepted
ATTR_TREE_SIZE = "outrider.spec.tree_size"  # nodes of the proposal as it arrived
ATTR_RUN_AHEAD_HIT = "outrider.spec.run_ahead_hit"
ATTR_WAIT_US = "outrider.spec.wait_us"  # how long the round waited for the proposal
ATTR_BASE_LEN = "outrider.spec.base_len"  # tokens before the round, prompt included
ATTR_ROUNDS = "outrider.spec.rounds"  # rounds of the whole session
ATTR_ATTEMPTS = "outrider.failover.attempts"  # verifiers that were asked to go on with the session
ATTR_OUTCOME = "outrider.failover.outcome"  # "moved", "given_up" or "refused"
ATTR_REASON = "outrider.failover.reason"  # label of the error that ended the stream before
ATTR_MISSED = "outrider.spec.missed"  # the round went on without a proposal it had asked for

RESOURCE_SERVICE_NAME = "service.name"
RESOURCE_SERVICE_NAMESPACE = "service.namespace"
RESOURCE_SERVICE_VERSION = "service.version"
RESOURCE_SERVICE_INSTANCE = "service.instance.id"

# --- metrics --------------------------------------------------------------------------------

LABEL_MODEL = "model_name"
LABEL_DRAFTER = "drafter"
LABEL_REASON = "reason"
LABEL_FINISHED_REASON = "finished_reason"
LABEL_POSITION = "position"
LABEL_PART = "part"
LABEL_KIND = "kind"
LABEL_STATE = "state"
LABEL_LINK = "link"
LABEL_OUTCOME = "outcome"
LABEL_ROUTE = "route"
LABEL_DEPLOYMENT = "deployment"

VERIFIER_STATES = ("ready", "draining", "away", "refused")
"""How a gateway finds a verifier that it knows of."""
LINK_STATES = ("down", "connecting", "ready", "resting", "draining", "refused")
"""States of a verifier's link to a replica of a drafter; exactly one is 1 at a time."""
ROUND_PARTS = ("draft_wait", "draft", "draft_forward", "forward", "editing", "sampling", "commit", "other")
"""Where a round's time goes."""
MOVE_CLAIMED, MOVE_RESTORED = "claimed", "restored"
MOVE_PARKED, MOVE_HANDED_OVER, MOVE_FENCED = "parked", "handed_over", "fenced"
SESSION_MOVES = (MOVE_CLAIMED, MOVE_RESTORED, MOVE_PARKED, MOVE_HANDED_OVER, MOVE_FENCED)
"""How a session changes hands."""
REFUSED_FULL, REFUSED_PUT_OUT, REFUSED_TIMEOUT = "full", "put_out", "timeout"
"""Why a session is refused that nothing is wrong with."""
ROUND_KINDS = ("speculative", "plain")
"""Rounds with and without a proposal."""

_LATENCY = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0),
)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_PART = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_OVERHEAD = (
    *(quarter / 4000 for quarter in range(1, 33)),  # fine enough for a median: 0.25 ms each
    *(0.01, 0.0125, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 1.0),
)
_COUNT = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as it is exposed. Every metric also has the label `model_name`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


# The gateway's: what a client sees.
TIME_TO_FIRST_TOKEN = Metric(
    "outrider_time_to_first_token_seconds",
    "histogram",
    "Time from a request's arrival to its first token",
    (),
    _LATENCY,
)
INTER_TOKEN_LATENCY = Metric(
    "outrider_inter_token_latency_seconds", "histogram", "Time between two tokens", (), _PER_TOKEN
)
E2E_LATENCY = Metric(
    "outrider_e2e_request_latency_seconds", "histogram", "Time from arrival to the last token", (), _LATENCY
)
PROMPT_TOKENS = Metric("outrider_prompt_tokens_total", "counter", "Prompt tokens of admitted requests")
GENERATION_TOKENS = Metric("outrider_generation_tokens_total", "counter", "Tokens delivered")
REQUEST_SUCCESS = Metric(
    "outrider_request_success_total", "counter", "Generations that ended well", (LABEL_FINISHED_REASON,)
)
REQUESTS = Metric(
    "outrider_requests_total", "counter", "Requests by what came of them", (LABEL_ROUTE, LABEL_OUTCOME)
)
OPEN_STREAMS = Metric("outrider_open_streams", "gauge", "Generations under way at this gateway")
VERIFIERS = Metric(
    "outrider_verifiers",
    "gauge",
    "Verifiers that this gateway knows of, by how it finds them",
    (LABEL_STATE,),
)
REGISTRY_DEGRADED = Metric(
    "outrider_registry_degraded", "gauge", "1 while the registry cannot be read: the last list stays in force"
)
FAILOVERS = Metric(
    "outrider_failovers_total",
    "counter",
    "Sessions that lost their verifier: by what ended their stream, and whether they moved to another one",
    (LABEL_REASON, LABEL_OUTCOME),
)
FAILOVER_ATTEMPTS = Metric(
    "outrider_failover_attempts_total", "counter", "Verifiers asked to go on with a session that lost its own"
)
FAILOVER_PAUSE = Metric(
    "outrider_failover_pause_seconds",
    "histogram",
    "From the last token before a session lost its verifier to the first one after",
    (),
    _LATENCY,
)

# The verifier's.
REQUESTS_RUNNING = Metric("outrider_num_requests_running", "gauge", "Sessions that take part in steps")
REQUESTS_WAITING = Metric("outrider_num_requests_waiting", "gauge", "Sessions that wait for admission")
KV_USAGE = Metric("outrider_kv_cache_usage_perc", "gauge", "Share of the KV pool in use, 0 to 1")
PREEMPTIONS = Metric(
    "outrider_num_preemptions_total", "counter", "Sessions whose KV was given up to make room"
)
SESSIONS_REFUSED = Metric(
    "outrider_sessions_refused_total",
    "counter",
    "Sessions that found no place, were put out of the queue for a tenant with fewer, or waited too long",
    (LABEL_REASON,),
)
SESSION_MOVED = Metric(
    "outrider_sessions_moved_total",
    "counter",
    "Sessions that changed hands: claimed from the store, restored to it, parked in it, handed over by a "
    "drain, or stopped because another verifier has them (fenced)",
    (LABEL_KIND,),
)
PREFIX_QUERIES = Metric(
    "outrider_prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache"
)
PREFIX_HITS = Metric("outrider_prefix_cache_hits_total", "counter", "Prompt tokens found there")
QUEUE_TIME = Metric(
    "outrider_request_queue_time_seconds", "histogram", "Time a session waited for admission", (), _LATENCY
)
SPEC_DRAFTS = Metric("outrider_spec_decode_num_drafts_total", "counter", "Proposals verified")
SPEC_DRAFT_TOKENS = Metric("outrider_spec_decode_num_draft_tokens_total", "counter", "Draft tokens verified")
SPEC_ACCEPTED = Metric("outrider_spec_decode_num_accepted_tokens_total", "counter", "Draft tokens accepted")
SPEC_ACCEPTED_PER_POS = Metric(
    "outrider_spec_decode_num_accepted_tokens_per_pos_total",
    "counter",
    "Draft tokens accepted, by depth in the proposal (0: the first)",
    (LABEL_POSITION,),
)
ROUNDS = Metric("outrider_rounds_total", "counter", "Rounds: verification steps of a session", (LABEL_KIND,))
ROUND_PART_TIME = Metric(
    "outrider_round_part_seconds", "histogram", "Time of a step by part", (LABEL_PART,), _PART
)
ROUND_OVERHEAD = Metric(
    "outrider_round_overhead_seconds",
    "histogram",
    "From the end of the target's forward to the start of the next one, less the drafter's forwards; rounds "
    "that follow on one of the same sessions and have a proposal",
    buckets=_OVERHEAD,
)
PROPOSALS_MISSED = Metric(
    "outrider_proposals_missed_total",
    "counter",
    "Rounds that went on without the proposal they had asked for",
    (LABEL_DRAFTER,),
)
PROPOSALS_DROPPED = Metric(
    "outrider_proposals_dropped_total",
    "counter",
    "Proposals that were not verified, by why",
    (LABEL_DRAFTER, LABEL_REASON),
)
DRAFTER_ASKED = Metric(
    "outrider_drafter_rounds_asked_total",
    "counter",
    "Rounds that asked a drafter of the session",
    (LABEL_DRAFTER,),
)
DRAFTER_NOT_ASKED = Metric(
    "outrider_drafter_rounds_not_asked_total",
    "counter",
    "Rounds that did not: it was not worth it, away, full or resting",
    (LABEL_DRAFTER,),
)
DRAFTER_VERIFIED = Metric(
    "outrider_drafter_tokens_verified_total",
    "counter",
    "Draft tokens verified that a drafter had proposed; what several had proposed counts for each",
    (LABEL_DRAFTER,),
)
DRAFTER_ACCEPTED = Metric(
    "outrider_drafter_tokens_accepted_total",
    "counter",
    "Of these, accepted",
    (LABEL_DRAFTER,),
)
RUN_AHEAD_HITS = Metric(
    "outrider_run_ahead_hits_total",
    "counter",
    "Proposals verified that were ready before they were asked for",
    (LABEL_DRAFTER,),
)
FEATURE_BYTES = Metric(
    "outrider_drafter_feature_bytes_total",
    "counter",
    "Bytes of the target's hidden states sent to drafters",
    (LABEL_DRAFTER,),
)
LINK_STATE = Metric(
    "outrider_drafter_link_state",
    "gauge",
    "1 for the state that the link to a replica of a drafter is in",
    (LABEL_DRAFTER, LABEL_LINK, LABEL_STATE),
)
DRAFTER_USELESS = Metric(
    "outrider_drafter_useless",
    "gauge",
    "1 while not one of the last 256 or more draft tokens of a replica of a drafter was accepted",
    (LABEL_DRAFTER, LABEL_LINK),
)
STORE_PENDING = Metric("outrider_store_pending_commits", "gauge", "Commits that wait to be stored")
STORE_DEGRADED = Metric(
    "outrider_store_degraded", "gauge", "1 while commits are delayed or were lost to the store"
)
STORE_ERRORS = Metric("outrider_store_errors_total", "counter", "Writes that failed, by why", (LABEL_REASON,))
STORE_DROPPED = Metric(
    "outrider_store_dropped_commits_total",
    "counter",
    "Commits given up: too much waited, or the store refused the session",
)
STORE_WRITE_TIME = Metric(
    "outrider_store_write_seconds", "histogram", "Time to store one batch of commits", (), _PART
)

# A drafter's.
DRAFTER_PROPOSALS = Metric("outrider_drafter_proposals_total", "counter", "Proposals sent")
DRAFTER_TOKENS = Metric("outrider_drafter_draft_tokens_total", "counter", "Draft tokens sent")
DRAFTER_RUN_AHEAD_HITS = Metric(
    "outrider_drafter_run_ahead_hits_total", "counter", "Proposals that were ready before they were asked for"
)
DRAFTER_STALE = Metric(
    "outrider_drafter_stale_answers_total", "counter", "Commands answered with Stale", (LABEL_REASON,)
)
DRAFTER_SESSIONS = Metric("outrider_drafter_sessions", "gauge", "Sessions held")
DRAFTER_QUEUED = Metric("outrider_drafter_queued", "gauge", "Sessions that wait for a proposal")
DRAFTER_KV_USAGE = Metric(
    "outrider_drafter_kv_cache_usage_perc", "gauge", "Share of the drafter's KV pool in use, 0 to 1"
)
DRAFTER_EVICTIONS = Metric(
    "outrider_drafter_evictions_total", "counter", "Sessions dropped to make room for others"
)
DRAFTER_TIME = Metric(
    "outrider_drafter_draft_seconds", "histogram", "Time from command to proposal", (), _PART
)
DRAFTER_BATCH = Metric(
    "outrider_drafter_batch_sessions", "histogram", "Sessions drafted for at once", (), _COUNT
)

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All that services serve."""

# The scaling policy's, in Ray Serve's controller. Ray serves them, with `ray_` before the name.
SCALING_REPLICAS = Metric(
    "outrider_scaling_replicas", "gauge", "Replicas that a deployment shall have", (LABEL_DEPLOYMENT,)
)
SCALING_WANTED = Metric(
    "outrider_scaling_wanted_replicas",
    "gauge",
    "Replicas wanted by what is known now, before bounds and delays",
    (LABEL_DEPLOYMENT,),
)
SCALING_DECISIONS = Metric(
    "outrider_scaling_decisions_total",
    "counter",
    "Changes of the number of replicas, by why",
    (LABEL_DEPLOYMENT, LABEL_REASON),
)
SCALING_METRICS: tuple[Metric, ...] = (SCALING_REPLICAS, SCALING_WANTED, SCALING_DECISIONS)
"""All that the policy has."""

ATTRIBUTES: frozenset[str] = frozenset(
    value for key, value in list(globals().items()) if key.startswith("ATTR_")
)
"""All attributes that spans may carry."""
SPANS: frozenset[str] = frozenset(value for key, value in list(globals().items()) if key.startswith("SPAN_"))
"""All fixed span names; the gateway's span is named after operation and model."""
