"""StopParams, SpeculationParams and LogprobParams."""

from __future__ import annotations

from outrider.core import limits
from outrider.core.params import Acceptance, LogprobParams, SpeculationParams
from outrider.wire.convert import fields
from outrider.wire.messages import StopRequest
from outrider.wire.v1 import common_pb2 as pb

_ACCEPTANCE = {
    Acceptance.COUPLED: pb.ACCEPTANCE_COUPLED,
    Acceptance.TOKEN: pb.ACCEPTANCE_TOKEN,
    Acceptance.BLOCK: pb.ACCEPTANCE_BLOCK,
}
_ACCEPTANCE_BACK = {
    int(pb.ACCEPTANCE_UNSPECIFIED): Acceptance.COUPLED,
    **{int(value): key for key, value in _ACCEPTANCE.items()},
}


def stop_request_to_proto(stop: StopRequest) -> pb.StopParams:
    return pb.StopParams(
        max_tokens=stop.max_tokens,
        stop_token_ids=sorted(stop.stop_token_ids),
        stop=stop.stop,
        ignore_eos=stop.ignore_eos,
        include_stop=stop.include_stop,
    )


def stop_request_from_proto(message: pb.StopParams, *, field: str = "stop") -> StopRequest:
    """Raises InvalidRequestError: too many stops, an empty or too long one, an id out of range."""
    ids = fields.token_ids(f"{field}.stop_token_ids", message.stop_token_ids, most=limits.MAX_STOP_TOKEN_IDS)
    with fields.within(field):
        limits.check_stop_strings(message.stop)
    max_tokens = fields.at_most(f"{field}.max_tokens", message.max_tokens, limits.MAX_TOKEN_ID)
    return StopRequest(
        max_tokens, frozenset(ids), tuple(message.stop), message.ignore_eos, message.include_stop
    )


def speculation_to_proto(params: SpeculationParams) -> pb.SpeculationParams:
    return pb.SpeculationParams(
        enabled=params.enabled,
        max_draft_tokens=params.max_draft_tokens,
        drafter=params.drafter,
        acceptance=acceptance_to_proto(params.acceptance),
    )


def speculation_from_proto(message: pb.SpeculationParams, *, field: str = "speculation") -> SpeculationParams:
    """Raises InvalidRequestError: more draft tokens than any deployment allows, a long name, an
    unknown rule of acceptance."""
    params = SpeculationParams(
        enabled=message.enabled if message.HasField("enabled") else True,
        max_draft_tokens=message.max_draft_tokens if message.HasField("max_draft_tokens") else None,
        drafter=message.drafter,
        acceptance=acceptance_from_proto(message.acceptance, field=f"{field}.acceptance"),
    )
    with fields.within(field):
        limits.check_speculation(params)
    return params


def acceptance_to_proto(acceptance: Acceptance) -> pb.Acceptance:
    return _ACCEPTANCE[acceptance]


def acceptance_from_proto(value: int, *, field: str = "acceptance") -> Acceptance:
    """Unset means coupled.

    Raises:
        InvalidRequestError: a value that this version does not know.
    """
    if value not in _ACCEPTANCE_BACK:
        raise fields.fail(field, f"is {value}, no known rule")
    return _ACCEPTANCE_BACK[value]


def logprob_params_to_proto(params: LogprobParams) -> pb.LogprobParams:
    return pb.LogprobParams(top=params.top, prompt_top=params.prompt_top)


def logprob_params_from_proto(message: pb.LogprobParams, *, field: str = "logprobs") -> LogprobParams:
    """Raises InvalidRequestError: more alternatives than are told."""
    params = LogprobParams(
        top=message.top if message.HasField("top") else None,
        prompt_top=message.prompt_top if message.HasField("prompt_top") else None,
    )
    fields.at_most(f"{field}.top", params.top or 0, limits.MAX_LOGPROBS)
    fields.at_most(f"{field}.prompt_top", params.prompt_top or 0, limits.MAX_LOGPROBS)
    return params
