"""FinishReason, Usage and SpeculationStats."""

from __future__ import annotations

from outrider.core.errors import InvalidRequestError
from outrider.core.sessions import DrafterStats, FinishReason, SpeculationStats, Usage
from outrider.wire.convert import fields
from outrider.wire.v1 import common_pb2 as pb

_FINISH = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
}
_FINISH_BACK = {int(value): key for key, value in _FINISH.items()}


def finish_to_proto(reason: FinishReason | None) -> pb.FinishReason:
    return pb.FINISH_REASON_UNSPECIFIED if reason is None else _FINISH[reason]


def finish_from_proto(value: int, *, field: str = "reason") -> FinishReason | None:
    """None for "not finished".

    Raises:
        InvalidRequestError: a value that this version does not know.
    """
    if value == pb.FINISH_REASON_UNSPECIFIED:
        return None
    if value not in _FINISH_BACK:
        raise InvalidRequestError(f"{field} is {value}, no known finish reason", field=field)
    return _FINISH_BACK[value]


def usage_to_proto(usage: Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
    )


def usage_from_proto(message: pb.Usage) -> Usage:
    return Usage(message.prompt_tokens, message.completion_tokens, message.cached_prompt_tokens)


def stats_to_proto(stats: SpeculationStats) -> pb.SpeculationStats:
    return pb.SpeculationStats(
        rounds=stats.rounds,
        drafts=stats.drafts,
        draft_tokens=stats.draft_tokens,
        accepted_tokens=stats.accepted_tokens,
        run_ahead_hits=stats.run_ahead_hits,
        missed=stats.missed,
        drafter=stats.drafter,
        drafters=[
            pb.DrafterStats(
                name=one.name,
                asked=one.asked,
                proposals=one.proposals,
                missed=one.missed,
                draft_tokens=one.draft_tokens,
                accepted_tokens=one.accepted_tokens,
            )
            for one in stats.drafters
        ],
    )


def stats_from_proto(message: pb.SpeculationStats) -> SpeculationStats:
    """Raises ProtocolError: a drafter's name is too long."""
    with fields.from_peer("speculation"):
        drafter = fields.text("drafter", message.drafter)
        drafters = [_drafter_stats(one) for one in message.drafters]
    return SpeculationStats(
        rounds=message.rounds,
        drafts=message.drafts,
        draft_tokens=message.draft_tokens,
        accepted_tokens=message.accepted_tokens,
        run_ahead_hits=message.run_ahead_hits,
        missed=message.missed,
        drafter=drafter,
        drafters=drafters,
    )


def _drafter_stats(message: pb.DrafterStats) -> DrafterStats:
    return DrafterStats(
        name=fields.text("drafters.name", message.name),
        asked=message.asked,
        proposals=message.proposals,
        missed=message.missed,
        draft_tokens=message.draft_tokens,
        accepted_tokens=message.accepted_tokens,
    )
