"""Counts as clients see them: usage and statistics of speculation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from outrider.gateway.openai import responses as r
from outrider.gateway.openai.answers import Answer, total_speculation, total_usage


def usage_body(answers: Sequence[Answer]) -> r.UsageBody:
    """Counts of a whole request."""
    usage, stats = total_usage(answers), total_speculation(answers)
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": stats.accepted_tokens,
            "rejected_prediction_tokens": max(stats.draft_tokens - stats.accepted_tokens, 0),
        },
    }


def stats_body(answers: Sequence[Answer]) -> r.SpeculationStatsBody:
    """Our own statistics, of a whole request."""
    body: r.SpeculationStatsBody = asdict(total_speculation(answers))  # type: ignore[assignment]
    return body


def choice_stats_body(answer: Answer, most_drafted: int) -> r.ChoiceStatsBody | None:
    """vLLM's statistics of one choice, in its words; None: its speculation was off.

    `most_drafted`: most draft tokens that a round may have.
    """
    stats = answer.speculation
    if not stats.drafter:
        return None
    histogram = answer.accepted_by_round()
    fruitless = stats.drafts - sum(count for accepted, count in histogram.items() if accepted)
    counts = {accepted: count for accepted, count in histogram.items() if accepted}
    if fruitless > 0:
        counts[0] = fruitless
    steps, accepted = stats.drafts, stats.accepted_tokens
    return {
        "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        "draft_acceptance_rate": accepted / stats.draft_tokens if stats.draft_tokens else 0.0,
        "acceptance_histogram": {str(length): counts[length] for length in sorted(counts)},
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": stats.draft_tokens,
        "num_spec_tokens": most_drafted,
    }
