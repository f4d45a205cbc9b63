"""The page to look at first: is everybody served well, and does speculation pay?"""

from __future__ import annotations

from dashboards.panels import Dashboard, Query, Row, Variable, lines, stat
from dashboards.queries import Source
from outrider.telemetry import names as n

S = Source('model_name=~"$model"')
OURS = (
    *("config", "internal", "model_mismatch", "session_moved", "session_parked"),
    *("store_unavailable", "unavailable", "unsupported_model"),
)
ERRORS = 'outcome=~"' + "|".join(OURS) + '"'
READY = 'state="ready"'
USABLE = 'state=~"ready|resting"'
TOKENS_PER_ROUND = f"1 + {S.ratio(n.SPEC_ACCEPTED, n.ROUNDS)}"

NOW = Row(
    "Now",
    (
        stat(
            "Verifiers",
            "Verifiers that take sessions, as gateways find them.",
            "none",
            f"max({S.gauge(n.VERIFIERS, 'instance', READY)})",
            alerts=("OutriderDown", "OutriderNoVerifier"),
        ),
        stat("Open streams", "Generations under way.", "none", S.gauge(n.OPEN_STREAMS)),
        stat("Requests", "Requests answered, a second.", "reqps", S.rate(n.REQUESTS)),
        stat("Tokens", "Tokens delivered, a second.", "short", S.rate(n.GENERATION_TOKENS)),
        stat(
            "Errors",
            "Share of requests answered with an error of ours.",
            "percentunit",
            f"({S.rate(n.REQUESTS, where=ERRORS)} or vector(0)) / {S.rate(n.REQUESTS)}",
            bounds=((0.01, "orange"), (0.05, "red")),
            alerts=("OutriderErrors",),
        ),
        stat(
            "First token, p95",
            "Of 20 requests 19 have their first token in this time.",
            "s",
            S.quantile(0.95, n.TIME_TO_FIRST_TOKEN),
            bounds=((5, "red"),),
            alerts=("OutriderFirstTokenSlow",),
        ),
        stat(
            "Tokens per round",
            "What one forward of the target gives: 1 without speculation.",
            "short",
            TOKENS_PER_ROUND,
        ),
        stat(
            "Alerts",
            "Alerts that are firing.",
            "none",
            'count(ALERTS{alertname=~"Outrider.*", alertstate="firing"}) or vector(0)',
            bounds=((1, "red"),),
        ),
    ),
)

TRAFFIC = Row(
    "Traffic",
    (
        lines(
            "Requests by outcome",
            "`ok`, `cancelled` (the client went away), or an error's label.",
            "reqps",
            Query(S.rate(n.REQUESTS, "outcome"), "{{outcome}}"),
            alerts=("OutriderErrors", "OutriderDefect", "OutriderOverloaded"),
            stacked=True,
            width=6,
        ),
        lines(
            "How generations ended",
            "Those that ended well, a second, by the reason that the client was told.",
            "ops",
            Query(S.rate(n.REQUEST_SUCCESS, "finished_reason"), "{{finished_reason}}"),
            stacked=True,
            width=6,
        ),
        lines(
            "Prompts and answers",
            "Prompt tokens of admitted requests, and tokens delivered, a second.",
            "short",
            Query(S.rate(n.GENERATION_TOKENS, "model_name"), "{{model_name}} delivered"),
            Query(S.rate(n.PROMPT_TOKENS, "model_name"), "{{model_name}} prompts"),
            width=6,
        ),
        lines(
            "Open streams by gateway",
            "Generations under way.",
            "none",
            Query(S.gauge(n.OPEN_STREAMS, "instance"), "{{instance}}"),
            stacked=True,
            width=6,
        ),
    ),
)

LATENCY = Row(
    "Latency",
    (
        lines(
            "Time to first token",
            "From a request's arrival: waiting for a turn, prefill, the first round.",
            "s",
            *(Query(S.quantile(q, n.TIME_TO_FIRST_TOKEN), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)),
            alerts=("OutriderFirstTokenSlow",),
        ),
        lines(
            "Time between tokens",
            "Tokens of one round share its time.",
            "s",
            *(Query(S.quantile(q, n.INTER_TOKEN_LATENCY), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)),
            alerts=("OutriderTokensSlow",),
        ),
        lines(
            "Whole requests, and their wait for a turn",
            "From arrival to the last token; and what of it was waiting for admission.",
            "s",
            *(Query(S.quantile(q, n.E2E_LATENCY), f"whole p{q * 100:g}") for q in (0.5, 0.95)),
            Query(S.quantile(0.95, n.QUEUE_TIME), "turn p95"),
            alerts=("OutriderQueueGrows",),
        ),
    ),
)

SPECULATION = Row(
    "Speculation",
    (
        lines(
            "Acceptance",
            "Accepted of verified draft tokens, all together and by the drafter that proposed them.",
            "percentunit",
            Query(S.ratio(n.SPEC_ACCEPTED, n.SPEC_DRAFT_TOKENS), "all"),
            Query(S.ratio(n.DRAFTER_ACCEPTED, n.DRAFTER_VERIFIED, "drafter"), "{{drafter}}"),
            alerts=("OutriderAcceptanceLow", "OutriderDrafterUseless"),
            maximum=1,
        ),
        lines(
            "Tokens per round, by model",
            "What one forward of the target gives to a session: 1 without speculation.",
            "short",
            Query(f"1 + {S.ratio(n.SPEC_ACCEPTED, n.ROUNDS, 'model_name')}", "{{model_name}}"),
        ),
        lines(
            "Proposals that came too late",
            "Share of the rounds that asked a drafter and went on without its proposal.",
            "percentunit",
            Query(S.ratio(n.PROPOSALS_MISSED, n.DRAFTER_ASKED, "drafter"), "{{drafter}}"),
            alerts=("OutriderProposalsMissed",),
        ),
    ),
)

PLACES = Row(
    "Verifiers and drafters",
    (
        lines(
            "Sessions",
            "Sessions that take part in steps, and that wait for admission.",
            "none",
            Query(S.gauge(n.REQUESTS_RUNNING, "instance"), "{{instance}} running"),
            Query(S.gauge(n.REQUESTS_WAITING, "instance"), "{{instance}} waiting"),
            alerts=("OutriderQueueGrows",),
        ),
        lines(
            "KV pools",
            "Share of the KV pool in use.",
            "percentunit",
            Query(S.gauge(n.KV_USAGE, "instance"), "{{instance}}"),
            alerts=("OutriderKvFull",),
            maximum=1,
        ),
        lines(
            "Drafter links",
            "Replicas that verifiers use (`ready`), or do not wait for after misses (`resting`).",
            "none",
            Query(S.gauge(n.LINK_STATE, "drafter, state", USABLE), "{{drafter}} {{state}}"),
            alerts=("OutriderDrafterDown", "OutriderDrafterRefused"),
        ),
    ),
)

FAILURES = Row(
    "Store, registry, failures",
    (
        lines(
            "Commits that wait for the store",
            "Small and short-lived while the store is well.",
            "none",
            Query(S.gauge(n.STORE_PENDING, "instance"), "{{instance}}"),
            alerts=("OutriderStoreDegraded", "OutriderCommitsPending", "OutriderCommitsLost"),
            width=6,
        ),
        lines(
            "Store errors",
            "Writes that failed, a second, by why.",
            "ops",
            Query(S.rate(n.STORE_ERRORS, "reason"), "{{reason}}"),
            alerts=("OutriderStoreDegraded",),
            width=6,
        ),
        lines(
            "Verifiers and registry as gateways find them",
            "Known verifiers by state, and gateways that cannot read the registry.",
            "none",
            Query(S.gauge(n.VERIFIERS, "instance, state"), "{{instance}} {{state}}"),
            Query(S.gauge(n.REGISTRY_DEGRADED, "instance"), "{{instance}} registry away"),
            alerts=("OutriderVerifierAway", "OutriderRegistryAway"),
            width=6,
        ),
        lines(
            "Sessions that lost their verifier",
            "By what ended their stream; any outcome but `moved` was an error for a client.",
            "ops",
            Query(S.rate(n.FAILOVERS, "reason, outcome"), "{{reason}}: {{outcome}}"),
            alerts=("OutriderSessionsLost", "OutriderFailoverStorm"),
            width=6,
        ),
        lines(
            "Pause of a moved session",
            "From its last token before to its first one after.",
            "s",
            Query(S.quantile(0.95, n.FAILOVER_PAUSE), "p95"),
            width=6,
        ),
        lines(
            "Verifiers asked to go on",
            "Attempts a second. More than sessions that moved: the first one asked was no good.",
            "ops",
            Query(S.rate(n.FAILOVER_ATTEMPTS), "attempts"),
            alerts=("OutriderFailoverStorm",),
            width=6,
        ),
        lines(
            "Store degraded, commits given up",
            "1 while commits of a verifier are delayed or were lost; and those that it gave up, a second.",
            "none",
            Query(S.gauge(n.STORE_DEGRADED, "instance"), "{{instance}} degraded"),
            Query(S.rate(n.STORE_DROPPED, "instance"), "{{instance}} given up"),
            alerts=("OutriderStoreDegraded", "OutriderCommitsLost"),
            width=6,
        ),
        lines(
            "Drafters in vain",
            "Replicas of whose last 256 draft tokens not one was accepted, by any verifier.",
            "none",
            Query(S.gauge(n.DRAFTER_USELESS, "drafter, link", how="max"), "{{link}}"),
            alerts=("OutriderDrafterUseless",),
            width=6,
        ),
    ),
)


SPANS = Row(
    "Traces",
    (
        lines(
            "Time by kind of span, p95",
            "From the collector. A diamond is an example: it leads to its trace in Jaeger.",
            "s",
            Query(
                "histogram_quantile(0.95, sum by (service_name, span_name, le) "
                "(rate(traces_span_metrics_duration_seconds_bucket[$__rate_interval])))",
                "{{service_name}} {{span_name}}",
                exemplars=True,
            ),
            width=24,
        ),
    ),
)

DASHBOARD = Dashboard(
    "outrider-overview",
    "Outrider: overview",
    "Whether clients are served well, and whether speculation pays. docs/operations.md explains the metrics.",
    (Variable("model", n.LABEL_MODEL, n.OPEN_STREAMS.name),),
    (NOW, TRAFFIC, LATENCY, SPECULATION, PLACES, FAILURES, SPANS),
)
