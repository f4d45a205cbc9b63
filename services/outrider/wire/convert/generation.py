"""Messages of generation.proto, the public API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outrider.core import limits
from outrider.core.errors import ProtocolError
from outrider.wire.convert import fields
from outrider.wire.convert.logprobs import (
    logprobs_from_proto,
    logprobs_to_proto,
    prompt_logprobs_from_proto,
    prompt_logprobs_to_proto,
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
    ChatTurn,
    Conversation,
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    PromptInput,
    PromptLogprobs,
)
from outrider.wire.v1 import generation_pb2 as pb

MAX_CHAT_MESSAGES = 4096
ROLES = ("system", "user", "assistant")


def generation_request_to_proto(request: GenerationRequest) -> pb.GenerateRequest:
    message = pb.GenerateRequest(
        model=request.model,
        sampling=sampling_to_proto(request.sampling),
        stop=stop_request_to_proto(request.stop),
        speculation=speculation_to_proto(request.speculation),
        logprobs=logprob_params_to_proto(request.logprobs),
        bad_words=request.bad_words,
        skip_special_tokens=request.skip_special_tokens,
        cache_salt=request.cache_salt,
    )
    if isinstance(request.input, Conversation):
        raise fields.fail("input", "is a conversation with tools or a template, which the gRPC API has not")
    if isinstance(request.input, str):
        message.prompt = request.input
        return message
    turns = [turn for turn in request.input if isinstance(turn, ChatTurn)]
    if turns:
        message.chat.messages.extend(pb.ChatMessage(role=turn.role, content=turn.content) for turn in turns)
    else:
        message.token_ids.ids.extend(item for item in request.input if isinstance(item, int))
    return message


def generation_request_from_proto(
    message: pb.GenerateRequest, *, vocab_size: int = 0, draw_seed: Callable[[], int] | None = None
) -> GenerationRequest:
    """What a client asks; an unset seed is drawn by `draw_seed`.

    Raises:
        InvalidRequestError: which field, what was wrong, what is allowed.
    """
    limits.check_bad_words(message.bad_words)
    return GenerationRequest(
        input=_input_from_proto(message, vocab_size),
        sampling=sampling_request_from_proto(message.sampling, draw_seed=draw_seed),
        stop=stop_request_from_proto(message.stop),
        speculation=speculation_from_proto(message.speculation),
        model=fields.text("model", message.model),
        logprobs=logprob_params_from_proto(message.logprobs),
        bad_words=tuple(message.bad_words),
        skip_special_tokens=message.skip_special_tokens if message.HasField("skip_special_tokens") else True,
        cache_salt=fields.text("cache_salt", message.cache_salt, longest=limits.MAX_CACHE_SALT_CHARS),
    )


def resume_request_from_proto(message: pb.ResumeRequest) -> tuple[str, int]:
    """Id of the generation, and how many tokens the client has.

    Raises:
        InvalidRequestError: which field, what was wrong, what is allowed.
    """
    from_token = fields.at_most("from_token", message.from_token, fields.MAX_TOKENS)
    return fields.session_id(message.generation_id, "generation_id"), from_token


def _input_from_proto(message: pb.GenerateRequest, vocab_size: int) -> PromptInput:
    kind = message.WhichOneof("input")
    if kind == "prompt":
        return fields.text("prompt", message.prompt, longest=fields.MAX_TEXT)
    if kind == "token_ids":
        return fields.token_ids("token_ids", message.token_ids.ids, vocab_size=vocab_size, least=1)
    if kind is None:
        raise fields.fail("input", "is not set: give one of prompt, token_ids and chat")
    fields.at_most("chat.messages", len(message.chat.messages), MAX_CHAT_MESSAGES, least=1)
    return tuple(_turn_from_proto(index, turn) for index, turn in enumerate(message.chat.messages))


def _turn_from_proto(index: int, turn: pb.ChatMessage) -> ChatTurn:
    where = f"chat.messages[{index}]"
    if turn.role not in ROLES:
        raise fields.fail(
            f"{where}.role", f"is {limits.quoted(turn.role)}, it must be one of {', '.join(ROLES)}"
        )
    return ChatTurn(turn.role, fields.text(f"{where}.content", turn.content, longest=fields.MAX_TEXT))


def generation_event_to_proto(event: GenerationEvent) -> pb.GenerateResponse:
    return pb.GenerateResponse(**_event_to_proto(event))


def resumed_event_to_proto(event: GenerationEvent) -> pb.ResumeResponse:
    return pb.ResumeResponse(**_event_to_proto(event))


def _event_to_proto(event: GenerationEvent) -> dict[str, Any]:
    if isinstance(event, GenerationStarted):
        started = pb.GenerationStarted(generation_id=event.generation_id, model=event.model, seed=event.seed)
        return {"started": started}
    if isinstance(event, GenerationDelta):
        delta = pb.GenerationDelta(
            text=event.text,
            token_ids=event.token_ids,
            accepted=event.accepted,
            first_token=event.first_token,
            logprobs=logprobs_to_proto(event.logprobs),
        )
        return {"delta": delta}
    if isinstance(event, PromptLogprobs):
        return {"prompt_logprobs": prompt_logprobs_to_proto(event)}
    finished = pb.GenerationFinished(
        reason=finish_to_proto(event.reason),
        usage=usage_to_proto(event.usage),
        speculation=stats_to_proto(event.speculation),
    )
    return {"finished": finished}


def generation_event_from_proto(message: pb.GenerateResponse | pb.ResumeResponse) -> GenerationEvent:
    """Raises ProtocolError: which field, and what was wrong."""
    kind = message.WhichOneof("event")
    if kind is None:
        raise ProtocolError("generation event: none of started, prompt_logprobs, delta and finished is set")
    with fields.from_peer("generation event"):
        if kind == "started":
            return GenerationStarted(
                generation_id=fields.text("started.generation_id", message.started.generation_id),
                model=fields.text("started.model", message.started.model),
                seed=message.started.seed,
            )
        if kind == "delta":
            ids = fields.token_ids("delta.token_ids", message.delta.token_ids)
            return GenerationDelta(
                text=fields.text("delta.text", message.delta.text, longest=fields.MAX_TEXT),
                token_ids=ids,
                accepted=fields.at_most("delta.accepted", message.delta.accepted, len(ids)),
                first_token=fields.at_most("delta.first_token", message.delta.first_token, fields.MAX_TOKENS),
                logprobs=logprobs_from_proto("delta.logprobs", message.delta.logprobs, expected=len(ids)),
            )
        if kind == "prompt_logprobs":
            return prompt_logprobs_from_proto(message.prompt_logprobs)
        reason = finish_from_proto(message.finished.reason, field="finished.reason")
        if reason is None:
            raise fields.fail("finished.reason", "is not set")
    return GenerationFinished(
        reason=reason,
        usage=usage_from_proto(message.finished.usage),
        speculation=stats_from_proto(message.finished.speculation),
    )
