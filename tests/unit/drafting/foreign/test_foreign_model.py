"""Sessions whose text gives a foreign draft model nothing to do."""

from __future__ import annotations

import time
from typing import cast

from outrider.core.models import ModelInfo
from outrider.core.params import SamplingParams
from outrider.core.rounds import Proposal
from outrider.drafting.foreign.foreign_model import ForeignModel
from outrider.drafting.foreign.shared_ids import shared_ids
from outrider.drafting.foreign.token_texts import TokenTexts
from outrider.drafting.scheduler import DraftScheduler
from outrider.engine.api import EngineApi
from outrider.wire.messages import AdvanceDraft, OpenDraft
from tests.foreign_tokenizers import byte_level, content


class _NothingRuns:
    """An engine of which only the sizes are known."""

    info = ModelInfo("draft", vocab_size=400, context_length=64)


def test_half_a_character_alone_does_not_keep_the_drafter_busy() -> None:
    target, draft = TokenTexts(content(byte_level(259))), TokenTexts(content(byte_level(400)))
    shared = shared_ids(target, draft, target_size=259, draft_size=400)
    engine = cast(EngineApi, _NothingRuns())
    method = ForeignModel(engine, ModelInfo("target"), target, draft, shared, prefill_chunk=64)
    scheduler = DraftScheduler(method, max_sessions=2, max_draft_tokens=4)
    (first, *_), _ = target.encode("€")
    now_ns = time.perf_counter_ns()
    scheduler.apply(1, OpenDraft("a", 1, (first,), SamplingParams(temperature=0.0), 4), now_ns)
    scheduler.step()
    scheduler.step()
    answers = scheduler.take().answers
    assert [isinstance(own.event, Proposal) and len(own.event.tree) for own in answers] == [0]
    assert not scheduler.has_work
    scheduler.apply(1, AdvanceDraft("a", 1, 1, (first,), 0, 0), now_ns)
    scheduler.step()
    assert not scheduler.has_work
