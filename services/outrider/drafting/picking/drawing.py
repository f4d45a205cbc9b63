"""From edited draft logits to draft tokens, by the rule that they are accepted by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.core.acceptance import draft_uniforms, draw, ranked_law
from outrider.core.errors import InternalError
from outrider.core.ranking import NO_TOKEN, ranked_picks
from outrider.core.sampling import target_probs
from outrider.core.trees import SparseProbs
from outrider.drafting.growth.planting import is_drawn
from outrider.drafting.picking.rows import DraftRow
from outrider.drafting.session import DraftSession

MOST_PROBS = 32
"""Tokens that a drawn draft token may be one of. They travel with it (256 bytes), and rarer ones are hardly
ever accepted: on language models 32 tokens hold nearly all of what p and q have in common."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may follow a row, the likeliest first (or, if they are drawn, in the order of the draws)."""

    token_ids: tuple[int, ...]
    confidences: tuple[float, ...]  # that the target picks it
    laws: tuple[SparseProbs, ...] = ()  # of tokens that were drawn: each one's, given those before it


def draw_candidates(
    logits: torch.Tensor, rows: Sequence[DraftRow], vocabulary: torch.Tensor | None = None
) -> list[Candidates]:
    """The tokens to propose after each row.

    By the rule "coupled": the first of the race that the target runs too. By "token" and "block": drawn from
    the session's own processed distribution, truncated, siblings without replacement; or, where a row names
    no random number, the likeliest ones, which are chosen rather than drawn and so carry no laws.

    Args:
        logits: float32 [R, V], edited.
        rows: what the R rows come after; `count` is 1 at least.
        vocabulary: int64 [V], the ids of the columns of a reduced draft vocabulary; None: column x is id x.

    A row that nothing can be drawn from (NaN, +inf, nothing but -inf) counts as one that knows nothing, all
    zeros: the text of one session must not cost the others their drafts.

    Returns:
        For each row at most `count` different tokens, and one at least.
    """
    try:
        return _draw_all(logits, rows, vocabulary)
    except InternalError:
        lost = ~torch.isfinite(logits.amax(1, keepdim=True))
        if not bool(lost.any()):
            raise
        return _draw_all(logits.masked_fill(lost, 0.0), rows, vocabulary)


def _draw_all(
    logits: torch.Tensor, rows: Sequence[DraftRow], vocabulary: torch.Tensor | None
) -> list[Candidates]:
    """Raises InternalError: a row holds NaN, +inf, or nothing but -inf."""
    answers: dict[int, Candidates] = {}
    judged = [index for index, row in enumerate(rows) if is_drawn(row.session)]
    by_count: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        if not is_drawn(row.session):
            by_count.setdefault(row.count, []).append(index)
    for count, which in by_count.items():
        part = _part(logits, which, len(rows))
        ranked = _ranked(part, [rows[index] for index in which], count, vocabulary)
        answers.update(zip(which, ranked, strict=True))
    if judged:
        own = [rows[index] for index in judged]
        probs = target_probs(_part(logits, judged, len(rows)), [row.session.sampling for row in own]).cpu()
        for index, row, law in zip(judged, own, probs, strict=True):
            chosen = _likeliest(law, row.count) if row.number is None else _drawn(law, row)
            answers[index] = chosen if vocabulary is None else _renamed(chosen, vocabulary)
    return [answers[index] for index in range(len(rows))]


def append(session: DraftSession, candidates: Candidates) -> None:
    """Append the first candidate to what the session has drafted ahead."""
    session.ahead.append(candidates.token_ids[0])
    session.confidences.append(candidates.confidences[0])
    session.laws += candidates.laws[:1]


def _part(logits: torch.Tensor, which: Sequence[int], count: int) -> torch.Tensor:
    return logits if len(which) == count else logits[torch.tensor(which, device=logits.device)]


def _ranked(
    logits: torch.Tensor, rows: Sequence[DraftRow], count: int, vocabulary: torch.Tensor | None
) -> list[Candidates]:
    """By the noise that the target picks by too."""
    ids, confidences = ranked_picks(
        logits, [(row.session.sampling, row.position) for row in rows], count, vocabulary
    )
    answers = []
    for own, how_likely in zip(ids.tolist(), confidences.tolist(), strict=True):
        found = own.index(NO_TOKEN) if NO_TOKEN in own else count
        answers.append(Candidates(tuple(own[:found]), tuple(how_likely[:found])))
    return answers


def _likeliest(probs: torch.Tensor, count: int) -> Candidates:
    values, ids = probs.topk(min(count, len(probs)))
    found = int((values > 0.0).sum())
    return Candidates(tuple(ids[:found].tolist()), tuple(values[:found].tolist()))


def _drawn(probs: torch.Tensor, row: DraftRow) -> Candidates:
    """One after another, each from what its elder siblings left."""
    session, number = row.session, row.number or 0
    names = [(session.sampling.seed, session.since, number + index) for index in range(row.count)]
    first = law = ranked_law(probs, MOST_PROBS)
    how_likely = dict(zip(first.token_ids, first.probs, strict=True))
    laws: list[SparseProbs] = []
    drawn: list[int] = []
    for uniform in draft_uniforms(names):
        place = draw(torch.tensor(law.probs, dtype=torch.float64), uniform)
        laws.append(law)
        drawn.append(law.token_ids[place])
        rest = _without(law, place)
        if rest is None:
            break
        law = rest
    return Candidates(tuple(drawn), tuple(how_likely[token_id] for token_id in drawn), tuple(laws))


def _without(law: SparseProbs, place: int) -> SparseProbs | None:
    """What is left of a law without one of its tokens; None: nothing."""
    ids = law.token_ids[:place] + law.token_ids[place + 1 :]
    probs = torch.tensor(law.probs[:place] + law.probs[place + 1 :], dtype=torch.float64)
    if not ids:
        return None
    rest = ranked_law(probs, len(ids))
    return SparseProbs(tuple(ids[own] for own in rest.token_ids), rest.probs)


def _renamed(candidates: Candidates, vocabulary: torch.Tensor) -> Candidates:
    """Columns of a reduced vocabulary by their ids."""

    def ids_of(columns: Sequence[int]) -> tuple[int, ...]:
        ids: list[int] = vocabulary[list(columns)].tolist()
        return tuple(ids)

    laws = tuple(SparseProbs(ids_of(law.token_ids), law.probs) for law in candidates.laws)
    return Candidates(ids_of(candidates.token_ids), candidates.confidences, laws)
