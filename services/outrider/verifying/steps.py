"""One step of the engine: build it from a plan, run it, sample, settle each session's round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from opentelemetry import trace

from outrider.core.errors import OutriderError
from outrider.core.params import SamplingParams
from outrider.core.rounds import Proposal
from outrider.core.sampling import coupled_picks
from outrider.core.trees import TokenTree
from outrider.core.walk import walk
from outrider.engine.api import EngineApi, StepItem, StepOutput
from outrider.verifying.rounds import Settled, clip, positions, settle
from outrider.verifying.scheduler import Share
from outrider.verifying.session import Session

_EMPTY = TokenTree()


@dataclass(slots=True)
class Work:
    """One session's part of a step, and what came of it."""

    session: Session
    item: StepItem
    tree: TokenTree  # draft tokens verified, without the root
    last: bool  # a round: its logits are wanted
    base_len: int  # tokens before the round
    proposal: Proposal | None = None  # as it came
    waited_s: float = 0.0  # from asking for the proposal to now
    missed: bool = False  # it waited in vain
    settled: Settled | None = None  # of a round, once run
    failure: OutriderError | None = None  # why it brought nothing
    span: trace.Span | None = None  # of a round, if tracing is on

    @property
    def kept_nodes(self) -> list[int]:
        """Nodes of the item's tree whose KV stays."""
        if self.failure is not None:
            return []
        if self.settled is None or not self.tree:
            return list(range(len(self.item.tree)))
        return [0, *(node + 1 for node in self.settled.nodes)]


@dataclass(slots=True)
class StepTimes:
    """When the parts of a step were over, `perf_counter` seconds."""

    start: float
    forward: float = 0.0
    sample: float = 0.0


def draft_for(session: Session, max_nodes: int) -> TokenTree:
    """The part of the session's proposal that may still count; empty if there is none."""
    proposal = session.drafting.proposal
    if proposal is None:
        return _EMPTY
    return clip(proposal.tree, nodes=min(max_nodes, session.drafting.limit), depth=session.remaining - 1)


def build(session: Session, share: Share, tree: TokenTree, now: float) -> Work:
    """A session's share as the engine takes it."""
    assert session.sequence is not None
    start, length, drafting = session.sequence.kv_len, len(session.tokens), session.drafting
    if share.tokens > 1 or not share.last:
        chunk = TokenTree.chain(session.tokens[start : start + share.tokens])
        item = StepItem(session.sequence, chunk, "last" if share.last else "none")
        return Work(session, item, _EMPTY, share.last, length)
    item = StepItem(session.sequence, tree.under(session.tokens[-1]), "all")
    return Work(
        session,
        item,
        tree,
        last=True,
        base_len=length,
        proposal=drafting.proposal,
        waited_s=now - drafting.asked_at if drafting.wanted else 0.0,
        missed=drafting.wait_until is not None,
    )


def run(engine: EngineApi, works: Sequence[Work]) -> StepTimes:
    """Run one forward over all, and settle the rounds among them. Commits nothing yet.

    What fails for one session (logits that are not numbers) is that session's `failure` alone.
    """
    times = StepTimes(perf_counter())
    outputs = _forward(engine, works)
    times.forward = perf_counter()
    for output, group in outputs:
        _sample(output.logits, output.rows, group)
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


def _sample(logits: torch.Tensor, rows: Sequence[slice], works: Sequence[Work]) -> None:
    """Settle all rounds; if no token can be drawn for one, settle each by itself."""
    try:
        picks = _pick(logits, works)
    except OutriderError as error:
        if len(works) == 1:
            works[0].failure = error
            return
        for work, own in zip(works, rows, strict=True):
            _sample(logits[own], [slice(0, own.stop - own.start)], [work])
        return
    for work, own in zip(works, rows, strict=True):
        if work.last:
            session = work.session
            path = walk(work.tree, picks[own.start : own.stop])
            work.settled = settle(path, session.remaining, session.record.stop.stop_token_ids)


def _pick(logits: torch.Tensor, works: Sequence[Work]) -> list[int]:
    """The target's own token at every row of logits."""
    rows: list[tuple[SamplingParams, int]] = []
    for work in works:
        if work.last:
            length = len(work.session.tokens)
            sampling = work.session.record.sampling
            rows.extend((sampling, position) for position in positions(work.tree, length))
    if not rows:
        return []
    picks: list[int] = coupled_picks(logits, rows).tolist()
    return picks
