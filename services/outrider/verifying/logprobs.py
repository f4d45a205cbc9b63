"""Log-probabilities of the tokens that are told, from the model's raw logits: no edit, temperature 1.

A row's figures depend on that row alone, bit for bit, as its logits do: so they are the same with speculation
and without.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.core.errors import InternalError
from outrider.core.params import TokenLogprobs
from outrider.verifying.session import Session
from outrider.verifying.work import Work
from outrider.wire.messages import PromptLogprobs, SessionTokens

_ROWS_AT_ONCE = 64
"""Bounds the memory for the rows of a prompt: 13 MB for each 50,000 ids of a vocabulary."""


def prompt_rows(session: Session, start: int, count: int) -> range:
    """Of `count` positions from `start` on: those whose logits tell of a token of the prompt, not told yet.

    The row of the prompt's last token is none of them: it tells of the first generated token.
    """
    return range(max(start, session.prompt_told - 1), min(start + count, len(session.record.prompt) - 1))


def stored_rows(session: Session, start: int, count: int) -> range:
    """The same of the generated tokens that it was admitted with."""
    return range(max(start, session.stored_told - 1), min(start + count, session.stored - 1))


def tell_of_known(logits: torch.Tensor, rows: Sequence[slice], works: Sequence[Work]) -> None:
    """Set what is told by this step of tokens that were there before: of the prompt, and of those generated
    before the session came here. What cannot be told is that work's failure.

    Args:
        logits: float32 [R, V], as the model gave them.
        rows: of each work, in order: those of all its nodes if such a token is to be told of.
        works: of the same forward.
    """
    for work, own in zip(works, rows, strict=True):
        if work.failure is not None:
            continue
        try:
            _tell_of_known(logits, own, work)
        except InternalError as error:
            work.failure = error


def _tell_of_known(logits: torch.Tensor, own: slice, work: Work) -> None:
    session, start, count = work.session, work.item.sequence.kv_len, len(work.item.tree)

    def entries(told: range, top: int | None) -> tuple[TokenLogprobs, ...]:
        token_ids = session.tokens[told.start + 1 : told.stop + 1]
        first = own.start + told.start - start
        return tuple(token_logprobs(logits[first : first + len(told)], token_ids, top or 0))

    if told := prompt_rows(session, start, count):
        work.prompt_logprobs = PromptLogprobs(
            told.start + 1, entries(told, session.record.logprobs.prompt_top)
        )
    if told := stored_rows(session, start, count):
        logprobs = entries(told, session.record.logprobs.top)
        first = told.start + 1 - len(session.record.prompt)
        work.told_again = SessionTokens(first, tuple(entry.token_id for entry in logprobs), logprobs=logprobs)


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprobs]:
    """What is told of a token in each row of logits.

    Args:
        logits: float32 [R, V], as the model gave them; -inf is allowed.
        token_ids: of each row, the token to tell of.
        top: so many most probable tokens beside it; all if the vocabulary has fewer. Equals by id.

    Returns:
        R entries. A rank counts the tokens that are at least as probable, as vLLM counts: of several
        equals each has the rank of the last one.

    Raises:
        InternalError: a row holds NaN or +inf, or nothing but -inf.
    """
    told: list[TokenLogprobs] = []
    with torch.inference_mode():
        for start in range(0, len(token_ids), _ROWS_AT_ONCE):
            end = min(start + _ROWS_AT_ONCE, len(token_ids))
            told += _tell(logits[start:end], token_ids[start:end], min(top, logits.shape[1]))
    return told


def _tell(logits: torch.Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprobs]:
    logprobs = torch.log_softmax(logits, dim=1)
    if bool(logprobs[:, 0].isnan().any()):  # one bad logit makes the whole row NaN
        raise InternalError("logits that are not finite have no log-probabilities")
    own = logprobs.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])
    ranks = (logprobs >= own).sum(1)
    tops = _most_probable(logprobs, top) if top else [()] * len(token_ids)
    return [
        TokenLogprobs(*entry)
        for entry in zip(token_ids, own[:, 0].tolist(), ranks.tolist(), tops, strict=True)
    ]


def _most_probable(logprobs: torch.Tensor, count: int) -> list[tuple[tuple[int, float], ...]]:
    """The `count` most probable ids of each row, most probable first, equals by id (topk takes any)."""
    bounds = logprobs.topk(count, dim=1).values[:, -1:]
    rows, ids = (logprobs >= bounds).nonzero(as_tuple=True)
    values = logprobs[rows, ids]
    order = values.argsort(descending=True, stable=True)
    order = order[rows[order].argsort(stable=True)]
    firsts = torch.searchsorted(rows, torch.arange(len(logprobs), device=rows.device))
    chosen = order[firsts[:, None] + torch.arange(count, device=rows.device)]
    pairs = zip(ids[chosen].tolist(), values[chosen].tolist(), strict=True)
    return [tuple(zip(row_ids, row_values, strict=True)) for row_ids, row_values in pairs]
