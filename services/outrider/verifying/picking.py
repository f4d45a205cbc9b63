"""From a step's logits to settled rounds: edits, the target's picks, the walk, what is told of it.

What fails for one session is its `failure` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch

from outrider.core.editing import LogitRow, edit_logits, is_edited
from outrider.core.errors import InvalidRequestError, OutriderError
from outrider.core.history import TokenHistory
from outrider.core.params import Acceptance, SamplingParams
from outrider.core.rounds import Walk
from outrider.core.sampling import coupled_picks
from outrider.core.walk import walk
from outrider.verifying import acceptance, grammars
from outrider.verifying.logprobs import token_logprobs
from outrider.verifying.rounds import positions, settle
from outrider.verifying.work import Work

_NO_TOKEN = -1


@dataclass(slots=True)
class _Round:
    """A round of the step, with the logits after its root and after each node of its tree."""

    work: Work
    logits: torch.Tensor  # float32 [1 + nodes, V]: a part of the step's
    raw: torch.Tensor | None = None  # as they were before edits, if they are told

    @property
    def sampling(self) -> SamplingParams:
        return self.work.session.record.sampling

    @property
    def is_coupled(self) -> bool:
        return self.work.session.record.speculation.acceptance is Acceptance.COUPLED


def settle_rounds(logits: torch.Tensor, rows: Sequence[slice], works: Sequence[Work]) -> float:
    """Settle all rounds among `works`; returns the seconds that edits took.

    Args:
        logits: float32 [R, V] of one forward; edited in place.
        rows: of each work, in order; those of its root and its tree come last.
        works: of that forward.
    """
    logits, rounds = _rounds(logits, rows, works)
    began = perf_counter()
    _edit(logits, rounds)
    edited = perf_counter()
    _settle_coupled(logits, rounds)
    for one in rounds:
        if not one.is_coupled:
            _guarded(one, partial(_settle_judged, one))
    return edited - began


def _rounds(
    logits: torch.Tensor, rows: Sequence[slice], works: Sequence[Work]
) -> tuple[torch.Tensor, list[_Round]]:
    """The rounds among the works, and the logits of just these, in order."""
    wanted = [
        (work, range(own.stop - len(work.tree) - 1, own.stop))
        for work, own in zip(works, rows, strict=True)
        if work.last and work.failure is None
    ]
    index = [row for _, own in wanted for row in own]
    if len(index) < len(logits):
        logits = logits[torch.tensor(index, dtype=torch.int64, device=logits.device)]
    logits = logits.contiguous()
    rounds, start = [], 0
    for work, own in wanted:
        one = _Round(work, logits[start : start + len(own)])
        if work.session.record.logprobs.top is not None:
            one.raw = one.logits.clone() if is_edited(one.sampling) else one.logits
        rounds.append(one)
        start += len(own)
    return logits, rounds


def _guarded(one: _Round, action: Callable[[], None]) -> None:
    """Do something for one session, unless it has failed; if it fails, it alone does."""
    if one.work.failure is not None:
        return
    try:
        action()
    except OutriderError as error:
        one.work.failure = _explained(one, error)


def _explained(one: _Round, error: OutriderError) -> OutriderError:
    """The client's own fault if its edits left no token to draw."""
    if not is_edited(one.sampling) or bool((one.logits.amax(1) > float("-inf")).all()):
        return error
    return InvalidRequestError(
        f"no token is allowed after {one.work.session.generated} generated tokens: grammar, "
        "allowed_token_ids, bad_words and min_tokens together exclude all"
    )


def _edit(logits: torch.Tensor, rounds: Sequence[_Round]) -> None:
    """Edit the rows of the sessions that ask for it, all in one."""
    rows: list[LogitRow | None] = []
    for one in rounds:
        own: list[LogitRow | None] = [None] * len(one.logits)
        if is_edited(one.sampling):
            _guarded(one, partial(_fill_logit_rows, one.work, own))
        rows += own
    if any(rows):
        edit_logits(logits, rows)


def _fill_logit_rows(work: Work, rows: list[LogitRow | None]) -> None:
    """What the root's row and each node's row are edited by."""
    session, tree = work.session, work.tree
    if session.history is None:
        session.history = TokenHistory(len(session.record.prompt))
    session.history.keep_up(session.tokens)
    above: list[tuple[int, ...]] = [()]
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        above.append((*above[parent + 1], token_id))
    masks = grammars.node_masks(session, tree)
    for index, (own, mask) in enumerate(zip(above, masks, strict=True)):
        rows[index] = LogitRow(session.record.sampling, session.history, own, mask)


def _settle_coupled(logits: torch.Tensor, rounds: Sequence[_Round]) -> None:
    """Settle those that accept by coupled picks: all in one, or, if one fails, each by itself."""
    coupled = [one for one in rounds if one.is_coupled and one.work.failure is None]
    if coupled and len(coupled) < len(rounds):
        logits = torch.cat([one.logits for one in coupled])
    try:
        _settle_picked(logits, coupled)
    except OutriderError:  # whose fault it is shows now
        for one in coupled:
            _guarded(one, partial(_settle_alone, one))


def _settle_picked(logits: torch.Tensor, rounds: Sequence[_Round]) -> None:
    """Walk along the target's own token at every row."""
    rows = [row for one in rounds for row in _positions(one)]
    picks: list[int] = coupled_picks(logits, rows).tolist() if rows else []
    start = 0
    for one in rounds:
        stop = start + len(one.logits)
        _settle(one, walk(one.work.tree, picks[start:stop]))
        start = stop


def _settle_alone(one: _Round) -> None:
    """The same; rows that nothing can be drawn from matter only if the walk comes there."""
    picks: list[int] = []
    errors: dict[int, OutriderError] = {}
    for index, row in enumerate(_positions(one)):
        try:
            picks.append(int(coupled_picks(one.logits[index : index + 1], [row])))
        except OutriderError as error:
            errors[index] = error
            picks.append(_NO_TOKEN)
    path = walk(one.work.tree, picks)
    if path.token_ids[-1] == _NO_TOKEN:
        raise errors[path.nodes[-1] + 1 if path.nodes else 0]
    _settle(one, path)


def _positions(one: _Round) -> list[tuple[SamplingParams, int]]:
    """What each row of a round draws with, and for which position."""
    after = positions(one.work.tree, len(one.work.session.tokens))
    return [(one.sampling, position) for position in after]


def _settle_judged(one: _Round) -> None:
    _settle(one, acceptance.judge(one.work, one.logits))


def _settle(one: _Round, path: Walk) -> None:
    """Trim what the walk brought, and tell of what is left."""
    work, session = one.work, one.work.session
    work.settled = settle(path, session.remaining, session.record.stop.stop_token_ids)
    if one.raw is not None and work.settled.token_ids:
        nodes = [0, *(node + 1 for node in path.nodes)][: len(work.settled.token_ids)]
        top = session.record.logprobs.top or 0
        work.logprobs = tuple(token_logprobs(one.raw[nodes], work.settled.token_ids, top))
