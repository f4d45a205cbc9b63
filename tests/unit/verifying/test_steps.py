"""What a session's part of a step is."""

from __future__ import annotations

from typing import cast

import pytest

from outrider.core.params import SamplingParams, StopParams
from outrider.core.sessions import SessionRecord
from outrider.core.trees import TokenTree
from outrider.engine.api import SequenceHandle
from outrider.verifying import steps
from outrider.verifying.scheduler import Share
from outrider.verifying.session import Drafting, Session
from tests.unit.verifying.fake_rows import FakeSequence


@pytest.mark.parametrize(
    ("kv_len", "share", "drafts", "decodes"),
    [
        (4, Share(0, 1, last=True), 0, True),
        (4, Share(0, 1, last=True), 3, True),
        (0, Share(0, 5, last=True), 0, False),  # a whole prompt, which ends with a round
        (3, Share(0, 2, last=True), 0, False),
        (0, Share(0, 1, last=False), 0, False),
    ],
)
def test_a_step_without_prompts_is_told_from_others(
    kv_len: int, share: Share, drafts: int, decodes: bool
) -> None:
    record = SessionRecord("s", (1, 2, 3, 4, 5), SamplingParams(), StopParams(9))
    session = Session.admitted(record, 1, Drafting())
    session.sequence = cast(SequenceHandle, FakeSequence(kv_len))
    work = steps.build(session, share, TokenTree.chain([7] * drafts), 0.0)
    assert work.is_decoding is decodes
