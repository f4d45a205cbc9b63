"""One step of the engine: build it from a plan, run it, settle each session's round."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from outrider.core.errors import OutriderError
from outrider.core.trees import TokenTree
from outrider.engine.api import EngineApi, StepItem, StepOutput
from outrider.verifying.logprobs import prompt_rows, stored_rows, tell_of_known
from outrider.verifying.picking import settle_rounds
from outrider.verifying.scheduler import Share
from outrider.verifying.session import Session
from outrider.verifying.work import StepTimes, Work

_EMPTY = TokenTree()


def build(session: Session, share: Share, tree: TokenTree, now: float) -> Work:
    """A session's share as the engine takes it."""
    assert session.sequence is not None
    start, length, drafting = session.sequence.kv_len, len(session.tokens), session.drafting
    draws = share.last and session.ending is None
    if share.tokens > 1 or not draws:
        chunk = TokenTree.chain(session.tokens[start : start + share.tokens])
        told = prompt_rows(session, start, share.tokens) or stored_rows(session, start, share.tokens)
        item = StepItem(session.sequence, chunk, "all" if told else "last" if draws else "none")
        return Work(session, item, _EMPTY, draws, length)
    item = StepItem(session.sequence, tree.under(session.tokens[-1]), "all")
    return Work(
        session,
        item,
        tree,
        last=True,
        base_len=length,
        proposals=drafting.proposals,
        asked=tuple(own.name for own in drafting.links.values() if own.wanted),
        waited_s=0.0 if drafting.asked_at is None else now - drafting.asked_at,
        missed=tuple(own.name for own in drafting.waiting),
    )


def run(engine: EngineApi, works: Sequence[Work]) -> StepTimes:
    """Run one forward over all, and settle the rounds among them. Commits nothing yet.

    What fails for one session (logits that are not numbers) is that session's `failure` alone.
    """
    times = StepTimes(perf_counter())
    outputs = _forward(engine, works)
    times.forward = perf_counter()
    for output, group in outputs:
        tell_of_known(output.logits, output.rows, group)
        times.editing_s += settle_rounds(output.logits, output.rows, group)
    times.sample = perf_counter()
    return times


def _forward(engine: EngineApi, works: Sequence[Work]) -> list[tuple[StepOutput, Sequence[Work]]]:
    """One forward; if the engine refuses it, one for each session, to find the guilty ones."""
    try:
        return [(engine.step([work.item for work in works]), works)]
    except OutriderError as error:
        if len(works) == 1:
            works[0].failure = error
            return []
    return [part for work in works for part in _forward(engine, [work])]
