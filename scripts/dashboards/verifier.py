"""Where a verifier's time goes, and what its drafters give it."""

from __future__ import annotations

from dashboards.panels import Dashboard, Query, Row, Variable, lines
from dashboards.queries import Source
from outrider.telemetry import names as n

S = Source('model_name=~"$model", instance=~"$instance"')
FORWARD = 'part="forward"'
TOP_PARTS = 'part=~"commit|draft_wait|editing|forward|other|sampling"'

LOAD = Row(
    "Load",
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
            "KV pool",
            "Share in use.",
            "percentunit",
            Query(S.gauge(n.KV_USAGE, "instance"), "{{instance}}"),
            alerts=("OutriderKvFull",),
            maximum=1,
        ),
        lines(
            "Preempted and refused",
            "Sessions a second that gave their KV up, or found no place: `full`, `put_out`, `timeout`.",
            "ops",
            Query(S.rate(n.PREEMPTIONS, "instance"), "{{instance}} preempted"),
            Query(S.rate(n.SESSIONS_REFUSED, "instance, reason"), "{{instance}} {{reason}}"),
            alerts=("OutriderKvFull", "OutriderOverloaded"),
        ),
        lines(
            "Wait for a turn",
            "From arrival to admission.",
            "s",
            *(
                Query(S.quantile(q, n.QUEUE_TIME, "instance"), f"{{{{instance}}}} p{q * 100:g}")
                for q in (0.5, 0.95)
            ),
            alerts=("OutriderQueueGrows",),
        ),
        lines(
            "Prefix cache",
            "Share of prompt tokens whose KV was there already.",
            "percentunit",
            Query(S.ratio(n.PREFIX_HITS, n.PREFIX_QUERIES, "instance"), "{{instance}}"),
            maximum=1,
        ),
        lines(
            "Sessions that changed hands",
            "Claimed or restored here, parked, handed over by a drain, or fenced off, a second.",
            "ops",
            Query(S.rate(n.SESSION_MOVED, "kind"), "{{kind}}"),
            alerts=("OutriderSessionsFenced", "OutriderFailoverStorm"),
        ),
    ),
)

STEPS = Row(
    "Steps",
    (
        lines(
            "Where the time goes",
            "Seconds of each second. What is missing to 1 is idle. `draft_wait`: waiting for proposals.",
            "percentunit",
            Query(S.rate(n.ROUND_PART_TIME, "part", TOP_PARTS, "_sum"), "{{part}}"),
            alerts=("OutriderDraftWaitLong",),
            stacked=True,
        ),
        lines(
            "Forward",
            "Time of one step's forward of the target.",
            "s",
            *(Query(S.quantile(q, n.ROUND_PART_TIME, where=FORWARD), f"p{q * 100:g}") for q in (0.5, 0.95)),
            Query(S.mean(n.ROUND_PART_TIME, where=FORWARD), "mean"),
        ),
        lines(
            "Overhead of a round",
            "From the end of one forward to the start of the next, less the drafter's own forwards.",
            "s",
            *(Query(S.quantile(q, n.ROUND_OVERHEAD), f"p{q * 100:g}") for q in (0.5, 0.95)),
        ),
        lines(
            "Rounds",
            "Rounds a second with a proposal, and without one.",
            "ops",
            Query(S.rate(n.ROUNDS, "kind"), "{{kind}}"),
            stacked=True,
        ),
        lines(
            "Sessions per step",
            "How many rounds share a forward.",
            "short",
            Query(
                f"{S.rate(n.ROUNDS, 'instance')} / "
                f"{S.rate(n.ROUND_PART_TIME, 'instance', FORWARD, '_count')}",
                "{{instance}}",
            ),
        ),
        lines(
            "Store writes",
            "Time to store one batch of commits. Only the rules `token` and `block` wait for it.",
            "s",
            *(Query(S.quantile(q, n.STORE_WRITE_TIME), f"p{q * 100:g}") for q in (0.5, 0.95)),
            alerts=("OutriderStoreDegraded",),
        ),
    ),
)

DRAFTS = Row(
    "Drafts",
    (
        lines(
            "Acceptance by depth",
            "Draft tokens accepted at each depth (0: the first one), of the proposals verified.",
            "percentunit",
            Query(
                f"{S.rate(n.SPEC_ACCEPTED_PER_POS, 'position')} / ignoring(position) group_left() "
                f"{S.rate(n.SPEC_DRAFTS)}",
                "{{position}}",
            ),
            maximum=1,
        ),
        lines(
            "Acceptance by drafter",
            "Accepted of verified draft tokens; what several had proposed counts for each.",
            "percentunit",
            Query(S.ratio(n.DRAFTER_ACCEPTED, n.DRAFTER_VERIFIED, "drafter"), "{{drafter}}"),
            alerts=("OutriderAcceptanceLow", "OutriderDrafterUseless"),
            maximum=1,
        ),
        lines(
            "Length of drafts",
            "Draft tokens verified in a round that has a proposal.",
            "short",
            Query(S.ratio(n.SPEC_DRAFT_TOKENS, n.SPEC_DRAFTS, "instance"), "{{instance}}"),
        ),
        lines(
            "Drafters asked",
            "Share of rounds that asked; in others it was not worth it, away, full or resting.",
            "percentunit",
            Query(
                f"{S.rate(n.DRAFTER_ASKED, 'drafter')} / "
                f"({S.rate(n.DRAFTER_ASKED, 'drafter')} + {S.rate(n.DRAFTER_NOT_ASKED, 'drafter')})",
                "{{drafter}}",
            ),
            maximum=1,
        ),
        lines(
            "Proposals that were of no use",
            "Came too late (`missed`), or dropped, by why, a second.",
            "ops",
            Query(S.rate(n.PROPOSALS_MISSED, "drafter"), "{{drafter}} missed"),
            Query(S.rate(n.PROPOSALS_DROPPED, "drafter, reason"), "{{drafter}} {{reason}}"),
            alerts=("OutriderProposalsMissed",),
        ),
        lines(
            "Ready before they were asked for",
            "Share of a drafter's verified proposals that it had drafted ahead.",
            "percentunit",
            Query(S.ratio(n.RUN_AHEAD_HITS, n.DRAFTER_ASKED, "drafter"), "{{drafter}}"),
            maximum=1,
        ),
        lines(
            "Links",
            "Links to replicas of drafters by state.",
            "none",
            Query(f"{S.gauge(n.LINK_STATE, 'drafter, state')} > 0", "{{drafter}} {{state}}"),
            alerts=("OutriderDrafterDown", "OutriderDrafterRefused"),
            width=12,
        ),
        lines(
            "Hidden states sent",
            "What heads (EAGLE, Medusa) need of the target.",
            "Bps",
            Query(S.rate(n.FEATURE_BYTES, "drafter"), "{{drafter}}"),
            width=12,
        ),
    ),
)

DASHBOARD = Dashboard(
    "outrider-verifier",
    "Outrider: verifiers",
    "Where a verifier's time goes, and what its drafters give it.",
    (
        Variable("model", n.LABEL_MODEL, n.REQUESTS_RUNNING.name),
        Variable("instance", "instance", n.REQUESTS_RUNNING.name + '{model_name=~"$model"}'),
    ),
    (LOAD, STEPS, DRAFTS),
)
