"""SamplingParams with LogitEdits and Grammar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outrider.core import limits
from outrider.core.params import Grammar, GrammarKind, LogitEdits, SamplingParams
from outrider.wire.convert import fields
from outrider.wire.v1 import common_pb2 as pb

_KINDS = {
    GrammarKind.JSON_OBJECT: pb.GRAMMAR_KIND_JSON_OBJECT,
    GrammarKind.JSON_SCHEMA: pb.GRAMMAR_KIND_JSON_SCHEMA,
    GrammarKind.REGEX: pb.GRAMMAR_KIND_REGEX,
    GrammarKind.CHOICE: pb.GRAMMAR_KIND_CHOICE,
    GrammarKind.GRAMMAR: pb.GRAMMAR_KIND_GRAMMAR,
}
_KINDS_BACK = {int(value): key for key, value in _KINDS.items()}
_PLAIN = LogitEdits()


def sampling_to_proto(params: SamplingParams) -> pb.SamplingParams:
    return pb.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
        typical_p=params.typical_p,
        edits=None if params.edits == _PLAIN else edits_to_proto(params.edits),
    )


def sampling_from_proto(
    message: pb.SamplingParams, *, draw_seed: Callable[[], int] | None = None, field: str = "sampling"
) -> SamplingParams:
    """Unset fields take their documented defaults; an unset seed is drawn by `draw_seed`.

    Raises:
        InvalidRequestError: a number is NaN, infinite or out of its range, or the seed is unset
            and there is no `draw_seed`.
    """
    if message.HasField("seed"):
        seed = message.seed
    elif draw_seed is not None:
        seed = draw_seed()
    else:
        raise fields.fail(f"{field}.seed", "is not set")
    params = SamplingParams(
        temperature=message.temperature if message.HasField("temperature") else 1.0,
        top_k=message.top_k,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        min_p=message.min_p,
        seed=seed,
        typical_p=message.typical_p if message.HasField("typical_p") else 1.0,
        edits=edits_from_proto(message.edits, field=f"{field}.edits")
        if message.HasField("edits")
        else _PLAIN,
    )
    with fields.within(field):
        limits.check_sampling(params)
    return params


def sampling_request_from_proto(
    message: pb.SamplingParams, *, draw_seed: Callable[[], int] | None = None, field: str = "sampling"
) -> SamplingParams:
    """As `sampling_from_proto`, of a request: the end tokens are the verifier's to say."""
    params = sampling_from_proto(message, draw_seed=draw_seed, field=field)
    if not params.edits.end_token_ids:
        return params
    return replace(params, edits=replace(params.edits, end_token_ids=()))


def edits_to_proto(edits: LogitEdits) -> pb.LogitEdits:
    return pb.LogitEdits(
        grammar=None if edits.grammar is None else grammar_to_proto(edits.grammar),
        allowed_token_ids=edits.allowed_token_ids,
        bad_words=[pb.TokenSequence(token_ids=sequence) for sequence in edits.bad_words],
        min_tokens=edits.min_tokens,
        end_token_ids=edits.end_token_ids,
        logit_bias=dict(edits.logit_bias),
        repetition_penalty=edits.repetition_penalty,
        frequency_penalty=edits.frequency_penalty,
        presence_penalty=edits.presence_penalty,
    )


def edits_from_proto(message: pb.LogitEdits, *, field: str = "edits") -> LogitEdits:
    """Unset fields take their documented defaults; logit_bias comes in the order of its ids.

    Raises:
        InvalidRequestError: which field, what was wrong, what is allowed.
    """
    edits = LogitEdits(
        grammar=grammar_from_proto(message.grammar, field=f"{field}.grammar")
        if message.HasField("grammar")
        else None,
        allowed_token_ids=tuple(message.allowed_token_ids),
        bad_words=tuple(tuple(sequence.token_ids) for sequence in message.bad_words),
        min_tokens=message.min_tokens,
        end_token_ids=tuple(message.end_token_ids),
        logit_bias=tuple(sorted(message.logit_bias.items())),
        repetition_penalty=message.repetition_penalty if message.HasField("repetition_penalty") else 1.0,
        frequency_penalty=message.frequency_penalty,
        presence_penalty=message.presence_penalty,
    )
    with fields.within(field):
        limits.check_edits(edits)
    return edits


def grammar_to_proto(grammar: Grammar) -> pb.Grammar:
    return pb.Grammar(kind=_KINDS[grammar.kind], text=grammar.text)


def grammar_from_proto(message: pb.Grammar, *, field: str = "grammar") -> Grammar:
    """Raises InvalidRequestError: a kind that this version does not know."""
    if message.kind not in _KINDS_BACK:
        raise fields.fail(f"{field}.kind", f"is {message.kind}, no known kind")
    return Grammar(_KINDS_BACK[message.kind], message.text)
