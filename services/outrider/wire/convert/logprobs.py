"""TokenLogprobs and PromptLogprobs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from outrider.core import limits
from outrider.core.params import TokenLogprobs
from outrider.wire.convert import fields
from outrider.wire.messages import PromptLogprobs
from outrider.wire.v1 import common_pb2 as pb


def logprobs_to_proto(entries: Iterable[TokenLogprobs]) -> list[pb.TokenLogprobs]:
    return [
        pb.TokenLogprobs(
            token=pb.TokenLogprob(token_id=entry.token_id, logprob=entry.logprob),
            rank=entry.rank,
            top=[pb.TokenLogprob(token_id=token_id, logprob=logprob) for token_id, logprob in entry.top],
        )
        for entry in entries
    ]


def logprobs_from_proto(
    field: str, entries: Collection[pb.TokenLogprobs], *, expected: int | None = None
) -> tuple[TokenLogprobs, ...]:
    """Entries of `expected` tokens (None: any number), or none at all.

    Raises:
        InvalidRequestError: another number of them, no token, a NaN, an id out of range.
    """
    if expected is not None and entries and len(entries) != expected:
        raise fields.fail(field, f"has {len(entries)} entries for {expected} tokens")
    fields.at_most(field, len(entries), fields.MAX_TOKENS)
    return tuple(_entry(f"{field}[{index}]", entry) for index, entry in enumerate(entries))


def prompt_logprobs_to_proto(event: PromptLogprobs) -> pb.PromptLogprobs:
    return pb.PromptLogprobs(first_position=event.first_position, entries=logprobs_to_proto(event.entries))


def prompt_logprobs_from_proto(
    message: pb.PromptLogprobs, *, field: str = "prompt_logprobs"
) -> PromptLogprobs:
    """Raises InvalidRequestError: which field, and what was wrong."""
    return PromptLogprobs(
        fields.at_most(f"{field}.first_position", message.first_position, fields.MAX_TOKENS),
        logprobs_from_proto(f"{field}.entries", message.entries),
    )


def _entry(field: str, entry: pb.TokenLogprobs) -> TokenLogprobs:
    if not entry.HasField("token"):
        raise fields.fail(f"{field}.token", "is not set")
    fields.at_most(f"{field}.top", len(entry.top), limits.MAX_LOGPROBS)
    token_id, logprob = _pair(f"{field}.token", entry.token)
    return TokenLogprobs(
        token_id,
        logprob,
        fields.at_most(f"{field}.rank", entry.rank, limits.MAX_TOKEN_ID + 1, least=1),
        tuple(_pair(f"{field}.top", pair) for pair in entry.top),
    )


def _pair(field: str, pair: pb.TokenLogprob) -> tuple[int, float]:
    if math.isnan(pair.logprob):
        raise fields.fail(f"{field}.logprob", "is nan, it must be a number")
    return fields.at_most(f"{field}.token_id", pair.token_id, limits.MAX_TOKEN_ID), pair.logprob
