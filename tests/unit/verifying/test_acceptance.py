"""Rounds that are judged: rows that nothing can be drawn from matter only if the walk comes there."""

from __future__ import annotations

import math

import pytest
import torch

from outrider.core.errors import InternalError
from outrider.core.params import Acceptance, SamplingParams, SpeculationParams, StopParams
from outrider.core.sessions import SessionRecord
from outrider.core.trees import SparseProbs, TokenTree
from outrider.engine.api import StepItem
from outrider.verifying.acceptance import judge
from outrider.verifying.session import Drafting, Session
from outrider.verifying.work import Work

RULES = [Acceptance.TOKEN, Acceptance.BLOCK]
NOTHING = [-math.inf] * 3
SURE = SparseProbs((1,), (1.0,))


def work(acceptance: Acceptance, stop: frozenset[int] = frozenset()) -> Work:
    """Two draft tokens, each drawn with certainty."""
    record = SessionRecord(
        "s", (1, 2), SamplingParams(seed=5), StopParams(9, stop), SpeculationParams(acceptance=acceptance)
    )
    session = Session.admitted(record, 1, Drafting())
    tree = TokenTree((1, 1), (-1, 0), (SURE, SURE))
    return Work(session, StepItem(None, tree), tree, True, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("acceptance", RULES)
@pytest.mark.parametrize("dead", [0, 1])
def test_behind_what_is_accepted_nothing_fails(acceptance: Acceptance, dead: int) -> None:
    rows = [[0.0, -30.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    rows[dead + 1] = NOTHING
    walk = judge(work(acceptance), torch.tensor(rows))
    assert walk.nodes == () and walk.token_ids[0] in (0, 2)


@pytest.mark.parametrize("acceptance", RULES)
@pytest.mark.parametrize("dead", [-1, 0, 1])
def test_on_the_way_it_does(acceptance: Acceptance, dead: int) -> None:
    rows = [[-math.inf, 0.0, -math.inf]] * 3
    rows[dead + 1] = NOTHING
    one = work(acceptance)
    if dead < 1:  # what follows must not matter either
        rows[2] = [0.0, 0.0, 0.0]
    with pytest.raises(InternalError):
        judge(one, torch.tensor(rows))


@pytest.mark.parametrize("acceptance", RULES)
def test_a_stop_token_may_have_nothing_behind_it(acceptance: Acceptance) -> None:
    rows = [[-math.inf, 0.0, -math.inf], NOTHING, NOTHING]
    assert judge(work(acceptance, frozenset({1})), torch.tensor(rows)).token_ids[0] == 1
