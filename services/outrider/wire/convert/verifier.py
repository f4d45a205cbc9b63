"""Messages of verifier.proto."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

from outrider.core import limits
from outrider.core.errors import ProtocolError
from outrider.core.models import PROTOCOL_VERSION
from outrider.core.sessions import FinishReason
from outrider.wire.convert import fields
from outrider.wire.convert.logprobs import (
    logprobs_from_proto,
    logprobs_to_proto,
    prompt_logprobs_from_proto,
    prompt_logprobs_to_proto,
)
from outrider.wire.convert.models import (
    model_info_from_proto,
    model_info_to_proto,
)
from outrider.wire.convert.outcomes import (
    finish_from_proto,
    finish_to_proto,
    stats_from_proto,
    stats_to_proto,
    usage_from_proto,
    usage_to_proto,
)
from outrider.wire.convert.params import (
    logprob_params_from_proto,
    logprob_params_to_proto,
    speculation_from_proto,
    speculation_to_proto,
    stop_request_from_proto,
    stop_request_to_proto,
)
from outrider.wire.convert.sampling import (
    sampling_request_from_proto,
    sampling_to_proto,
)
from outrider.wire.messages import (
    CancelSession,
    PromptLogprobs,
    ResumeSession,
    SessionEvent,
    SessionFinished,
    SessionRequest,
    SessionStarted,
    SessionTokens,
    VerifierInfo,
    VerifierLoad,
)
from outrider.wire.v1 import verifier_pb2 as pb

MAX_DRAFTERS = 1024
MAX_REASONS = 32
MAX_REASON = 1024
MAX_EOS_IDS = 4096


def verifier_info_to_proto(info: VerifierInfo) -> pb.VerifierGetInfoResponse:
    return pb.VerifierGetInfoResponse(
        protocol_version=info.protocol_version,
        model=model_info_to_proto(info.model),
        eos_token_ids=sorted(info.eos_token_ids),
        batch_invariance=info.batch_invariance,
        drafters=info.drafters,
        instance_id=info.instance_id,
        default_draft_length=info.default_draft_length,
        degraded=[reason[:MAX_REASON] for reason in info.degraded[:MAX_REASONS]],
        draining=info.draining,
        load=pb.VerifierLoad(**asdict(info.load)),
        pool_tokens=info.pool_tokens,
    )


def verifier_info_from_proto(message: pb.VerifierGetInfoResponse) -> VerifierInfo:
    """Raises ProtocolError: a text or list that is too long."""
    with fields.from_peer("verifier info"):
        fields.at_most("drafters", len(message.drafters), MAX_DRAFTERS)
        fields.at_most("degraded", len(message.degraded), MAX_REASONS)
        return VerifierInfo(
            model=model_info_from_proto(message.model),
            eos_token_ids=frozenset(
                fields.token_ids("eos_token_ids", message.eos_token_ids, most=MAX_EOS_IDS)
            ),
            batch_invariance=fields.text("batch_invariance", message.batch_invariance),
            drafters=tuple(fields.text("drafters", name) for name in message.drafters),
            instance_id=fields.text("instance_id", message.instance_id),
            default_draft_length=message.default_draft_length,
            degraded=tuple(fields.text("degraded", one, longest=MAX_REASON) for one in message.degraded),
            protocol_version=message.protocol_version,
            draining=message.draining,
            load=_load_from_proto(message.load),
            pool_tokens=message.pool_tokens,
        )


def _load_from_proto(message: pb.VerifierLoad) -> VerifierLoad:
    return VerifierLoad(
        running=message.running,
        waiting=message.waiting,
        max_running=message.max_running,
        max_waiting=message.max_waiting,
        kv_usage=fields.finite("load.kv_usage", message.kv_usage),
    )


def verifier_info_request() -> pb.VerifierGetInfoRequest:
    """What a gateway asks first."""
    return pb.VerifierGetInfoRequest(protocol_version=PROTOCOL_VERSION)


def session_request_to_proto(request: SessionRequest) -> pb.VerifierGenerateRequest:
    """Stop strings and what is delivered of a stop are the gateway's business and are left out."""
    stop = stop_request_to_proto(replace(request.stop, stop=(), include_stop=False))
    return pb.VerifierGenerateRequest(
        session_id=request.session_id,
        token_ids=request.prompt,
        sampling=sampling_to_proto(request.sampling),
        stop=stop,
        speculation=speculation_to_proto(request.speculation),
        logprobs=logprob_params_to_proto(request.logprobs),
        cache_salt=request.cache_salt,
        tenant=request.tenant,
        presentation=request.presentation,
        generated=request.generated,
        epoch=request.epoch,
    )


def session_request_from_proto(
    message: pb.VerifierGenerateRequest,
    *,
    vocab_size: int = 0,
    draw_seed: Callable[[], int] | None = None,
) -> SessionRequest:
    """What a gateway asks; an unset seed is drawn by `draw_seed`.

    Raises:
        InvalidRequestError: which field, what was wrong, what is allowed.
    """
    stop = stop_request_from_proto(message.stop)
    if stop.stop:
        raise fields.fail("stop.stop", "must be empty: stop strings are the gateway's business")
    if stop.include_stop:
        raise fields.fail("stop.include_stop", "must be false: what is delivered is the gateway's business")
    return SessionRequest(
        session_id=fields.session_id(message.session_id),
        prompt=fields.token_ids("token_ids", message.token_ids, vocab_size=vocab_size, least=1),
        sampling=sampling_request_from_proto(message.sampling, draw_seed=draw_seed),
        stop=stop,
        speculation=speculation_from_proto(message.speculation),
        logprobs=logprob_params_from_proto(message.logprobs),
        cache_salt=fields.text("cache_salt", message.cache_salt, longest=limits.MAX_CACHE_SALT_CHARS),
        tenant=fields.text("tenant", message.tenant, longest=limits.MAX_TENANT_CHARS),
        presentation=fields.data("presentation", message.presentation, longest=limits.MAX_PRESENTATION_BYTES),
        generated=fields.token_ids("generated", message.generated, vocab_size=vocab_size),
        epoch=fields.epoch(message.epoch or 1, "epoch"),
    )


def resume_to_proto(resume: ResumeSession) -> pb.VerifierResumeRequest:
    return pb.VerifierResumeRequest(
        session_id=resume.session_id,
        from_token=resume.from_token,
        tenant=resume.tenant,
        known=resume.known,
        mark=resume.mark,
    )


def resume_from_proto(message: pb.VerifierResumeRequest) -> ResumeSession:
    """Raises InvalidRequestError: which field, what was wrong, what is allowed."""
    from_token = fields.at_most("from_token", message.from_token, fields.MAX_TOKENS)
    known = fields.token_ids("known", message.known)
    if known and len(known) != from_token:
        raise fields.fail(
            "known", f"has {len(known)} tokens, it must have `from_token` ({from_token}) or none"
        )
    return ResumeSession(
        session_id=fields.session_id(message.session_id),
        from_token=from_token,
        tenant=fields.text("tenant", message.tenant, longest=limits.MAX_TENANT_CHARS),
        known=known,
        mark=fields.data("mark", message.mark, longest=limits.MAX_PRESENTATION_BYTES),
    )


def cancel_to_proto(cancel: CancelSession) -> pb.VerifierCancelRequest:
    return pb.VerifierCancelRequest(
        session_id=cancel.session_id,
        keep_tokens=cancel.keep_tokens,
        reason=finish_to_proto(cancel.reason),
        park=cancel.park,
    )


def cancel_from_proto(message: pb.VerifierCancelRequest) -> CancelSession:
    """An unset reason is CANCELLED.

    Raises:
        InvalidRequestError: which field, what was wrong, what is allowed.
    """
    keep: int | None = None
    if message.HasField("keep_tokens"):
        keep = fields.at_most("keep_tokens", message.keep_tokens, fields.MAX_TOKENS)
    return CancelSession(
        session_id=fields.session_id(message.session_id),
        keep_tokens=keep,
        reason=finish_from_proto(message.reason) or FinishReason.CANCELLED,
        park=message.park,
    )


def session_event_to_proto(event: SessionEvent) -> pb.SessionEvent:
    if isinstance(event, SessionStarted):
        return pb.SessionEvent(
            started=pb.SessionStarted(
                seed=event.seed,
                epoch=event.epoch,
                presentation=event.presentation,
                prompt_tokens=event.prompt_tokens,
            )
        )
    if isinstance(event, SessionTokens):
        tokens = pb.SessionTokens(
            first_token=event.first_token,
            token_ids=event.token_ids,
            accepted=event.accepted,
            logprobs=logprobs_to_proto(event.logprobs),
        )
        return pb.SessionEvent(tokens=tokens)
    if isinstance(event, PromptLogprobs):
        return pb.SessionEvent(prompt_logprobs=prompt_logprobs_to_proto(event))
    finished = pb.SessionFinished(
        reason=finish_to_proto(event.reason),
        usage=usage_to_proto(event.usage),
        speculation=stats_to_proto(event.speculation),
        stop_token_id=event.stop_token_id,
    )
    return pb.SessionEvent(finished=finished)


def generate_response(event: SessionEvent) -> pb.VerifierGenerateResponse:
    return pb.VerifierGenerateResponse(event=session_event_to_proto(event))


def resume_response(event: SessionEvent) -> pb.VerifierResumeResponse:
    return pb.VerifierResumeResponse(event=session_event_to_proto(event))


def session_event_from_proto(message: pb.SessionEvent) -> SessionEvent:
    """Raises ProtocolError: which field, and what was wrong."""
    kind = message.WhichOneof("event")
    if kind is None:
        raise ProtocolError("session event: none of started, prompt_logprobs, tokens and finished is set")
    with fields.from_peer("session event"):
        if kind == "started":
            started = message.started
            return SessionStarted(
                started.seed,
                fields.epoch(started.epoch, "started.epoch"),
                fields.data(
                    "started.presentation", started.presentation, longest=limits.MAX_PRESENTATION_BYTES
                ),
                started.prompt_tokens,
            )
        if kind == "tokens":
            ids = fields.token_ids("tokens.token_ids", message.tokens.token_ids)
            return SessionTokens(
                first_token=fields.at_most(
                    "tokens.first_token", message.tokens.first_token, fields.MAX_TOKENS
                ),
                token_ids=ids,
                accepted=fields.at_most("tokens.accepted", message.tokens.accepted, len(ids)),
                logprobs=logprobs_from_proto("tokens.logprobs", message.tokens.logprobs, expected=len(ids)),
            )
        if kind == "prompt_logprobs":
            return prompt_logprobs_from_proto(message.prompt_logprobs)
        finished = message.finished
        reason = finish_from_proto(finished.reason, field="finished.reason")
        if reason is None:
            raise fields.fail("finished.reason", "is not set")
    return SessionFinished(
        reason=reason,
        usage=usage_from_proto(finished.usage),
        speculation=stats_from_proto(finished.speculation),
        stop_token_id=finished.stop_token_id if finished.HasField("stop_token_id") else None,
    )
