"""Edits of logits before temperature and truncation, as vLLM defines and orders them.

Grammar mask, allowed ids, bad words, min_tokens, logit bias, repetition penalty, frequency penalty, presence
penalty. A row's history is the session's tokens and the draft tokens above the row's node, so that the row is
what it would be without speculation.

A row's result depends on that row alone, bit for bit: each logit is changed by single float32 operations,
each of which IEEE 754 rounds in one way, and nothing is summed over a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.nn.utils.rnn import pad_sequence

from outrider.core.edit_plan import EditPlan, plan_of
from outrider.core.errors import InternalError
from outrider.core.history import TokenHistory
from outrider.core.logit_table import IMPOSSIBLE, Columns, Entries, LogitTable
from outrider.core.params import LogitEdits, SamplingParams

_UNEDITED = LogitEdits()


@dataclass(frozen=True, slots=True)
class LogitRow:
    """What a row of logits is for: the token after a session's tokens and the draft tokens above it."""

    sampling: SamplingParams
    history: TokenHistory  # of the session, kept up to its committed tokens
    above: Sequence[int] = ()  # draft tokens down to the row's node, its own included; the root is not one
    mask: torch.Tensor | None = None  # int32 [ceil(V / 32)]: bit x % 32 of word x // 32 allows id x


@dataclass(slots=True)
class _Session:
    """The rows of one session, which share history and plan."""

    plan: EditPlan
    history: TokenHistory
    rows: list[int] = field(default_factory=list)
    above: list[Sequence[int]] = field(default_factory=list)


def is_edited(sampling: SamplingParams) -> bool:
    """Whether rows of such a session are edited at all, by a grammar or otherwise."""
    edits = sampling.edits
    if edits == _UNEDITED:
        return False
    return edits.min_tokens > 0 or replace(edits, end_token_ids=()) != _UNEDITED


def edit_logits(
    logits: torch.Tensor, rows: Sequence[LogitRow | None], columns: Columns | None = None
) -> None:
    """Edit rows of logits in place. What may not be drawn becomes -inf; that may be all of a row.

    Args:
        logits: float32 [R, V], contiguous.
        rows: what each row is for; None: it stays as it is, and costs nothing.
        columns: what the columns stand for, if these are not the ids 0 to V-1. Ids without a column, or
            past the last one, are passed over.

    Raises:
        InternalError: logits and rows do not fit.
    """
    if logits.dim() != 2 or len(logits) != len(rows) or not logits.is_contiguous():
        raise InternalError(f"logits of shape {tuple(logits.shape)} do not fit {len(rows)} rows to edit")
    sessions = _sessions(rows)
    if not sessions:
        return
    with torch.inference_mode():
        table = LogitTable(logits, columns)
        _mask(table, rows)
        for session in sessions:
            if session.plan.allowed is not None:
                table.allow(session.rows, session.plan.allowed)
        _ban(table, sessions)
        _bias(table, [session for session in sessions if len(session.plan.bias_ids)])
        _repetition(table, [session for session in sessions if session.plan.repetition != 1.0])
        _frequency_and_presence(table, [session for session in sessions if session.plan.counts])


def _sessions(rows: Sequence[LogitRow | None]) -> list[_Session]:
    sessions: dict[tuple[int, int], _Session] = {}
    for index, row in enumerate(rows):
        if row is None:
            continue
        key = id(row.history), id(row.sampling)
        session = sessions.get(key)
        if session is None:
            session = sessions[key] = _Session(plan_of(row.sampling.edits), row.history)
        session.rows.append(index)
        session.above.append(row.above)
    return list(sessions.values())


def _mask(table: LogitTable, rows: Sequence[LogitRow | None]) -> None:
    masked = [(index, row.mask) for index, row in enumerate(rows) if row is not None and row.mask is not None]
    if masked:
        masks = pad_sequence([mask for _, mask in masked], batch_first=True)  # what is filled up is forbidden
        table.forbid([index for index, _ in masked], masks)


def _ban(table: LogitTable, sessions: Sequence[_Session]) -> None:
    """Bad words and min_tokens."""
    parts, pairs = [], []
    for session in sessions:
        plan, history = session.plan, session.history
        if len(plan.banned):
            parts.append(Entries.outer(session.rows, plan.banned))
        for row, above in zip(session.rows, session.above, strict=True):
            pairs += [(row, token_id) for token_id in plan.banned_next(history, above)]
        if history.generated < plan.min_tokens:
            early = [
                row
                for row, above in zip(session.rows, session.above, strict=True)
                if history.generated + len(above) < plan.min_tokens
            ]
            parts.append(Entries.outer(early, plan.end_ids))
    if pairs:
        parts.append(Entries.listed(pairs))
    if parts:
        places, _ = table.places(parts)
        table.put(places, IMPOSSIBLE)


def _bias(table: LogitTable, sessions: Sequence[_Session]) -> None:
    if not sessions:
        return
    places, kept = table.places([Entries.outer(one.rows, one.plan.bias_ids) for one in sessions])
    bias = table.values([one.plan.bias.repeat(len(one.rows)) for one in sessions], kept)
    table.put(places, table.at(places) + bias)


def _repetition(table: LogitTable, sessions: Sequence[_Session]) -> None:
    """Divide positive logits of ids that prompt or output hold, multiply the others (arXiv 1909.05858)."""
    if not sessions:
        return
    parts, penalties = [], []
    for session in sessions:
        seen = session.history.seen
        fresh = [
            (row, token_id)
            for row, above in zip(session.rows, session.above, strict=True)
            for token_id in set(above)
            if token_id not in seen.places
        ]
        parts += [Entries.outer(session.rows, seen.ids), Entries.listed(fresh)]
        count = len(session.rows) * len(seen) + len(fresh)
        penalties.append(torch.full((count,), session.plan.repetition))
    places, kept = table.places(parts)
    penalty = table.values(penalties, kept)
    logits = table.at(places)
    table.put(places, torch.where(logits > 0, logits / penalty, logits * penalty))


def _frequency_and_presence(table: LogitTable, sessions: Sequence[_Session]) -> None:
    """Subtract the frequency penalty times the count of an id in the output, then the presence penalty."""
    if not sessions:
        return
    parts, counts, frequencies, presences = [], [], [], []
    for session in sessions:
        pairs, own = _counts(session)
        parts += [Entries.outer(session.rows, session.history.counted.ids), Entries.listed(pairs)]
        counts.append(own)
        frequencies.append(torch.full_like(own, session.plan.frequency))
        presences.append(torch.full_like(own, session.plan.presence))
    places, kept = table.places(parts)
    logits = table.at(places)
    logits = logits - table.values(frequencies, kept) * table.values(counts, kept)
    table.put(places, logits - table.values(presences, kept))


def _counts(session: _Session) -> tuple[list[tuple[int, int]], torch.Tensor]:
    """How often each id was generated before each row: float32, the history's ids for each row, then others.

    Returns:
        Row and id of the others, and all counts.
    """
    counted = session.history.counted
    known: list[int] = []
    fresh: Counter[tuple[int, int]] = Counter()
    for number, (row, above) in enumerate(zip(session.rows, session.above, strict=True)):
        for token_id in above:
            place = counted.places.get(token_id)
            if place is None:
                fresh[row, token_id] += 1
            else:
                known.append(number * len(counted) + place)
    counts = counted.counts.repeat(len(session.rows))
    if known:
        counts.index_add_(0, torch.tensor(known), torch.ones(len(known)))
    return list(fresh), torch.cat((counts, torch.tensor(list(fresh.values()), dtype=torch.float32)))
