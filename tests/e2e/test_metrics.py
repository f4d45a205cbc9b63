"""What a scrape says is the sum of what the requests said."""

from __future__ import annotations

from tests.stack import Stack, total
from tests.traffic import ask, connected, generate_all

SPEC = "outrider_spec_decode_num_"


async def test_a_scrape_is_the_sum_of_the_requests(tiny: Stack) -> None:
    before = {name: tiny.metrics(name) for name in ("verifier", "gateway")}
    async with connected(tiny.grpc) as stub:
        answers = await generate_all(
            stub,
            [
                ask(drafter=drafter, temperature=temperature, max_tokens=40, seed=9)
                for drafter in (None, "twin", "other", "lookup")
                for temperature in (0.0, 1.0)
            ],
        )
    after = {name: tiny.metrics(name) for name in ("verifier", "gateway")}

    def grown(service: str, name: str) -> float:
        return total(after[service], name) - total(before[service], name)

    def said(field: str) -> int:
        return sum(getattr(answer.stats, field) for answer in answers)

    assert grown("verifier", "outrider_rounds_total") == said("rounds")
    assert grown("verifier", f"{SPEC}drafts_total") == said("drafts")
    assert grown("verifier", f"{SPEC}draft_tokens_total") == said("draft_tokens")
    assert grown("verifier", f"{SPEC}accepted_tokens_total") == said("accepted_tokens")
    assert grown("verifier", f"{SPEC}accepted_tokens_per_pos_total") == said("accepted_tokens")
    assert grown("verifier", "outrider_run_ahead_hits_total") == said("run_ahead_hits")
    assert grown("verifier", "outrider_proposals_missed_total") == said("missed")
    assert grown("gateway", "outrider_generation_tokens_total") == sum(
        len(answer.token_ids) for answer in answers
    )
    assert sum(answer.accepted for answer in answers) == said("accepted_tokens")
    for answer in answers:
        # Every round gives the draft tokens it accepted and one of its own.
        assert len(answer.token_ids) == answer.stats.rounds + answer.stats.accepted_tokens


async def test_a_request_without_speculation_sends_drafters_nothing(tiny: Stack) -> None:
    before = {name: tiny.metrics(name) for name in ("twin", "other", "lookup")}
    async with connected(tiny.grpc) as stub:
        await generate_all(stub, [ask(drafter=None, seed=seed, temperature=1.0) for seed in range(4)])
    for name, values in before.items():
        after = tiny.metrics(name)
        for metric in ("outrider_drafter_proposals_total", "outrider_drafter_draft_seconds_count"):
            assert total(after, metric) == total(values, metric)
