"""Messages of drafter.proto.

A stream carries many sessions, so commands and events are converted one by one: a bad one raises
ProtocolError and costs nobody else anything.
"""

from __future__ import annotations

from collections.abc import Collection

from outrider.core import limits
from outrider.core.errors import ProtocolError
from outrider.core.models import PROTOCOL_VERSION, DrafterInfo
from outrider.core.rounds import Proposal, StaleReason
from outrider.wire.convert import fields
from outrider.wire.convert.models import (
    model_info_from_proto,
    model_info_to_proto,
)
from outrider.wire.convert.params import (
    acceptance_from_proto,
    acceptance_to_proto,
)
from outrider.wire.convert.sampling import (
    sampling_from_proto,
    sampling_to_proto,
)
from outrider.wire.convert.trees import (
    feature_from_proto,
    feature_to_proto,
    tree_from_proto,
    tree_to_proto,
)
from outrider.wire.messages import (
    AdvanceDraft,
    CloseDraft,
    DraftCommand,
    DrafterLoad,
    DraftEvent,
    Draining,
    FeatureBlock,
    OpenDraft,
    Stale,
)
from outrider.wire.v1 import common_pb2
from outrider.wire.v1 import drafter_pb2 as pb

_STALE = {
    StaleReason.UNKNOWN: pb.STALE_REASON_UNKNOWN,
    StaleReason.DIVERGED: pb.STALE_REASON_DIVERGED,
    StaleReason.TOO_LONG: pb.STALE_REASON_TOO_LONG,
    StaleReason.FULL: pb.STALE_REASON_FULL,
    StaleReason.INVALID: pb.STALE_REASON_INVALID,
}
_STALE_BACK = {int(value): key for key, value in _STALE.items()}

MAX_FEATURES = 16
MAX_DETAIL = 1024
MAX_PATIENCE_US = 2**32 - 1


def drafter_info_to_proto(info: DrafterInfo) -> pb.DrafterGetInfoResponse:
    return pb.DrafterGetInfoResponse(
        protocol_version=info.protocol_version,
        model=model_info_to_proto(info.model),
        method=info.method,
        features=info.features,
        max_draft_tokens=info.max_draft_tokens,
        max_sessions=info.max_sessions,
        instance_id=info.instance_id,
        last_feature_only=info.last_feature_only,
    )


def drafter_info_from_proto(message: pb.DrafterGetInfoResponse) -> DrafterInfo:
    """Raises ProtocolError: no method, or a text or list that is too long."""
    with fields.from_peer("drafter info"):
        if not message.method:
            raise fields.fail("method", "is empty")
        fields.at_most("features", len(message.features), MAX_FEATURES)
        return DrafterInfo(
            model=model_info_from_proto(message.model),
            method=fields.text("method", message.method),
            features=tuple(fields.text("features", name) for name in message.features),
            max_draft_tokens=message.max_draft_tokens,
            max_sessions=message.max_sessions,
            instance_id=fields.text("instance_id", message.instance_id),
            last_feature_only=message.last_feature_only,
            protocol_version=message.protocol_version,
        )


def drafter_info_request() -> pb.DrafterGetInfoRequest:
    """What a verifier asks first."""
    return pb.DrafterGetInfoRequest(protocol_version=PROTOCOL_VERSION)


def command_to_proto(command: DraftCommand) -> pb.DraftCommand:
    message = pb.DraftCommand(session_id=command.session_id, epoch=command.epoch)
    if isinstance(command, OpenDraft):
        message.open.CopyFrom(
            pb.OpenSession(
                token_ids=command.token_ids,
                sampling=sampling_to_proto(command.sampling),
                draft_length=command.draft_length,
                features=map(feature_to_proto, command.features),
                traceparent=command.traceparent,
                patience_us=min(command.patience_us, MAX_PATIENCE_US),
                prompt_len=command.prompt_len,
                acceptance=acceptance_to_proto(command.acceptance),
                draft_nodes=command.draft_nodes,
                tenant=command.tenant,
            )
        )
    elif isinstance(command, AdvanceDraft):
        message.advance.CopyFrom(
            pb.AdvanceSession(
                base_len=command.base_len,
                token_ids=command.token_ids,
                accepted=command.accepted,
                draft_length=command.draft_length,
                features=map(feature_to_proto, command.features),
                traceparent=command.traceparent,
                patience_us=min(command.patience_us, MAX_PATIENCE_US),
                draft_nodes=command.draft_nodes,
            )
        )
    else:
        message.close.SetInParent()
    return message


def command_from_proto(message: pb.DraftCommand, *, vocab_size: int = 0) -> DraftCommand:
    """One command. `vocab_size` 0: any ids that fit 31 bits.

    Raises:
        ProtocolError: which field, and what was wrong.
    """
    with fields.from_peer("draft command"):
        session_id = fields.session_id(message.session_id)
        epoch = fields.epoch(message.epoch)
        kind = message.WhichOneof("command")
        if kind == "open":
            return _open_from_proto(session_id, epoch, message.open, vocab_size)
        if kind == "advance":
            return _advance_from_proto(session_id, epoch, message.advance, vocab_size)
    if kind == "close":
        return CloseDraft(session_id, epoch)
    raise ProtocolError("draft command: none of open, advance and close is set")


def _open_from_proto(session_id: str, epoch: int, message: pb.OpenSession, vocab_size: int) -> OpenDraft:
    ids = fields.token_ids("open.token_ids", message.token_ids, vocab_size=vocab_size, least=1)
    return OpenDraft(
        session_id=session_id,
        epoch=epoch,
        token_ids=ids,
        sampling=sampling_from_proto(message.sampling, field="open.sampling"),
        draft_length=fields.at_most("open.draft_length", message.draft_length, limits.MAX_DRAFT_TOKENS),
        features=_features(message.features),
        traceparent=_traceparent("open.traceparent", message.traceparent),
        patience_us=message.patience_us,
        prompt_len=fields.at_most("open.prompt_len", message.prompt_len, len(ids)),
        acceptance=acceptance_from_proto(message.acceptance, field="open.acceptance"),
        draft_nodes=fields.at_most("open.draft_nodes", message.draft_nodes, limits.MAX_DRAFT_TOKENS),
        tenant=fields.text("open.tenant", message.tenant, longest=limits.MAX_CACHE_SALT_CHARS),
    )


def _advance_from_proto(
    session_id: str, epoch: int, message: pb.AdvanceSession, vocab_size: int
) -> AdvanceDraft:
    ids = fields.token_ids("advance.token_ids", message.token_ids, vocab_size=vocab_size)
    length = fields.at_most("advance.draft_length", message.draft_length, limits.MAX_DRAFT_TOKENS)
    return AdvanceDraft(
        session_id=session_id,
        epoch=epoch,
        base_len=fields.at_most("advance.base_len", message.base_len, fields.MAX_TOKENS, least=1),
        token_ids=ids,
        accepted=fields.at_most("advance.accepted", message.accepted, len(ids)),
        draft_length=length,
        features=_features(message.features),
        traceparent=_traceparent("advance.traceparent", message.traceparent),
        patience_us=message.patience_us,
        draft_nodes=fields.at_most("advance.draft_nodes", message.draft_nodes, limits.MAX_DRAFT_TOKENS),
    )


def _features(blocks: Collection[common_pb2.FeatureBlock]) -> tuple[FeatureBlock, ...]:
    fields.at_most("features", len(blocks), MAX_FEATURES)
    return tuple(map(feature_from_proto, blocks))


def _traceparent(field: str, value: str) -> str:
    return fields.text(field, value, longest=fields.MAX_TRACEPARENT)


def event_to_proto(event: DraftEvent) -> pb.DraftEvent:
    if isinstance(event, Proposal):
        return pb.DraftEvent(
            session_id=event.session_id,
            epoch=event.epoch,
            proposal=pb.DraftProposal(
                base_len=event.base_len,
                tree=tree_to_proto(event.tree),
                run_ahead_hit=event.run_ahead_hit,
                draft_us=min(event.draft_us, MAX_PATIENCE_US),
                forward_us=min(event.forward_us, MAX_PATIENCE_US),
            ),
        )
    if isinstance(event, Stale):
        return pb.DraftEvent(
            session_id=event.session_id,
            epoch=event.epoch,
            stale=pb.StaleSession(reason=_STALE[event.reason], detail=event.detail[:MAX_DETAIL]),
        )
    if isinstance(event, DrafterLoad):
        load = pb.DrafterLoad(sessions=event.sessions, queued=event.queued, kv_usage=event.kv_usage)
        return pb.DraftEvent(load=load)
    return pb.DraftEvent(draining=pb.DrafterDraining(grace_ms=event.grace_ms))


def event_from_proto(
    message: pb.DraftEvent, *, vocab_size: int = 0, max_nodes: int = limits.MAX_DRAFT_TOKENS
) -> DraftEvent:
    """One event. `vocab_size` 0: any ids that fit 31 bits.

    Raises:
        ProtocolError: which field, and what was wrong.
    """
    kind = message.WhichOneof("event")
    with fields.from_peer("draft event"):
        if kind == "load":
            usage = fields.finite("load.kv_usage", message.load.kv_usage)
            return DrafterLoad(message.load.sessions, message.load.queued, min(max(usage, 0.0), 1.0))
        if kind == "draining":
            return Draining(message.draining.grace_ms)
        session_id = fields.session_id(message.session_id)
        epoch = fields.epoch(message.epoch)
        if kind == "proposal":
            return Proposal(
                session_id=session_id,
                epoch=epoch,
                base_len=fields.at_most("proposal.base_len", message.proposal.base_len, fields.MAX_TOKENS),
                tree=tree_from_proto(message.proposal.tree, vocab_size=vocab_size, max_nodes=max_nodes),
                run_ahead_hit=message.proposal.run_ahead_hit,
                draft_us=message.proposal.draft_us,
                forward_us=message.proposal.forward_us,
            )
        if kind == "stale":
            reason = _STALE_BACK.get(message.stale.reason)
            if reason is None:
                raise fields.fail("stale.reason", f"is {message.stale.reason}, no known reason")
            return Stale(session_id, epoch, reason, message.stale.detail[:MAX_DETAIL])
    raise ProtocolError("draft event: none of proposal, stale, load and draining is set")
