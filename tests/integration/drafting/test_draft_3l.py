"""The demo's draft model, in bf16 as it is served: proposals do not depend on who else is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.core.params import SamplingParams
from outrider.drafting.picking.vocabulary import load_vocabulary
from outrider.wire.messages import AdvanceDraft, OpenDraft
from tests.integration.drafting.test_draft_model import Driver, load, tokens_of

SEEDED = SamplingParams(temperature=1.0, seed=3)
PROMPT = tuple(1000 + 37 * i % 5000 for i in range(150))


def rounds(driver: Driver, name: str, count: int) -> list[tuple[int, ...]]:
    """Drafts of some rounds in which half of each draft is accepted."""
    tokens = PROMPT
    drafts = [tokens_of(driver.ask(OpenDraft(name, 1, tokens, SEEDED, 4)))]
    for index in range(count):
        committed = (*drafts[-1][: index % 5], 500 + index)
        drafts.append(tokens_of(driver.ask(AdvanceDraft(name, 1, len(tokens), committed, 0, 4))))
        tokens += committed
    return drafts


@pytest.mark.model
def test_alone_in_company_and_in_other_chunks(draft_3l: Path) -> None:
    fields = {"dtype": "bfloat16", "block_size": 16, "pool_tokens": 4096}
    alone = Driver(load(draft_3l, prefill_chunk=256, **fields))
    expected = rounds(alone, "a", 6)
    ids = load_vocabulary(draft_3l)
    assert ids is not None
    assert {token for draft in expected for token in draft} <= set(ids.tolist())
    crowded = Driver(load(draft_3l, prefill_chunk=48, **fields), run_ahead=6)
    for index in range(5):
        crowded.put(OpenDraft(f"other{index}", 1, PROMPT[: 20 + 25 * index], SEEDED, 3 + index % 3))
    crowded.put(OpenDraft("a", 1, PROMPT, SEEDED, 4))
    first = {event.session_id: tokens_of(event) for event in crowded.rest()}
    assert first["a"] == expected[0]
    assert rounds(crowded, "a", 6) == expected
