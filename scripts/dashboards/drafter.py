"""What a drafter does, and whether it keeps up."""

from __future__ import annotations

from dashboards.panels import Dashboard, Query, Row, Variable, lines
from dashboards.queries import Source
from outrider.telemetry import names as n

S = Source('model_name=~"$model", instance=~"$instance"')

WORK = Row(
    "Work",
    (
        lines(
            "Proposals",
            "Proposals sent, a second.",
            "ops",
            Query(S.rate(n.DRAFTER_PROPOSALS, "name, instance"), "{{name}} {{instance}}"),
        ),
        lines(
            "Draft tokens in a proposal",
            "Mean of what was sent.",
            "short",
            Query(S.ratio(n.DRAFTER_TOKENS, n.DRAFTER_PROPOSALS, "name, instance"), "{{name}} {{instance}}"),
        ),
        lines(
            "From command to proposal",
            "Includes waiting for other sessions' drafts. A verifier waits for verifier.patience_ms at most.",
            "s",
            *(
                Query(
                    S.quantile(q, n.DRAFTER_TIME, "name, instance"),
                    f"{{{{name}}}} {{{{instance}}}} p{q * 100:g}",
                )
                for q in (0.5, 0.95)
            ),
            alerts=("OutriderProposalsMissed", "OutriderDraftWaitLong"),
        ),
        lines(
            "Ready before they were asked for",
            "Share of proposals that had been drafted ahead, while the verifier worked.",
            "percentunit",
            Query(
                S.ratio(n.DRAFTER_RUN_AHEAD_HITS, n.DRAFTER_PROPOSALS, "name, instance"),
                "{{name}} {{instance}}",
            ),
            maximum=1,
        ),
        lines(
            "Sessions drafted for at once",
            "Mean size of a batch.",
            "short",
            Query(S.mean(n.DRAFTER_BATCH, "name, instance"), "{{name}} {{instance}}"),
        ),
        lines(
            "Stale answers",
            "Commands that came too late or for a session that is not held, a second.",
            "ops",
            Query(S.rate(n.DRAFTER_STALE, "name, instance, reason"), "{{name}} {{instance}} {{reason}}"),
        ),
    ),
)

ROOM = Row(
    "Room",
    (
        lines(
            "Sessions",
            "Sessions held, and those that wait for a proposal.",
            "none",
            Query(S.gauge(n.DRAFTER_SESSIONS, "name, instance"), "{{name}} {{instance}} held"),
            Query(S.gauge(n.DRAFTER_QUEUED, "name, instance"), "{{name}} {{instance}} wait"),
            alerts=("OutriderDrafterQueue",),
        ),
        lines(
            "KV pool",
            "Share of the drafter's KV pool in use.",
            "percentunit",
            Query(S.gauge(n.DRAFTER_KV_USAGE, "name, instance"), "{{name}} {{instance}}"),
            maximum=1,
        ),
        lines(
            "Sessions dropped for others",
            "A second. They are opened anew, with a prefill: max_sessions or pool_tokens is too small.",
            "ops",
            Query(S.rate(n.DRAFTER_EVICTIONS, "name, instance"), "{{name}} {{instance}}"),
        ),
    ),
)

DASHBOARD = Dashboard(
    "outrider-drafter",
    "Outrider: drafters",
    "What drafters do, and whether they keep up. What their drafts are worth is on the verifiers' page.",
    (
        Variable("model", n.LABEL_MODEL, n.DRAFTER_SESSIONS.name),
        Variable("instance", "instance", n.DRAFTER_SESSIONS.name + '{model_name=~"$model"}'),
    ),
    (WORK, ROOM),
)
