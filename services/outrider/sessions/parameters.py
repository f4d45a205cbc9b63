"""How a session's parameters are written: as what JSON knows.

Fields younger than the format stand there only where they differ from their defaults. So what an
older version wrote can be read, and an older version reads what says nothing that it does not
know, and refuses the rest.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from outrider.core.params import (
    Acceptance,
    Grammar,
    GrammarKind,
    LogitEdits,
    LogprobParams,
    SamplingParams,
    SpeculationParams,
    StopParams,
)

Json = dict[str, Any]


def pack_sampling(sampling: SamplingParams) -> Json:
    written: Json = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "seed": sampling.seed,
    }
    if sampling.typical_p != 1.0:
        written["typical_p"] = sampling.typical_p
    if edits := _pack_edits(sampling.edits):
        written["edits"] = edits
    return written


def unpack_sampling(written: Json) -> SamplingParams:
    return SamplingParams(**{**written, "edits": _unpack_edits(written.get("edits", {}))})


def pack_stop(stop: StopParams) -> Json:
    return {"max_tokens": stop.max_tokens, "stop_token_ids": sorted(stop.stop_token_ids)}


def unpack_stop(written: Json) -> StopParams:
    return StopParams(written["max_tokens"], frozenset(written["stop_token_ids"]))


def pack_speculation(speculation: SpeculationParams) -> Json:
    written: Json = {
        "enabled": speculation.enabled,
        "max_draft_tokens": speculation.max_draft_tokens,
        "drafter": speculation.drafter,
    }
    if speculation.acceptance is not Acceptance.COUPLED:
        written["acceptance"] = speculation.acceptance.value
    return written


def unpack_speculation(written: Json) -> SpeculationParams:
    acceptance = Acceptance(written.get("acceptance", Acceptance.COUPLED))
    return SpeculationParams(**{**written, "acceptance": acceptance})


def pack_logprobs(logprobs: LogprobParams) -> Json:
    return _differing(logprobs, LogprobParams())


def unpack_logprobs(written: Json) -> LogprobParams:
    return LogprobParams(**written)


def _pack_edits(edits: LogitEdits) -> Json:
    written = _differing(edits, LogitEdits())
    if edits.grammar is not None:
        written["grammar"] = {"kind": edits.grammar.kind.value, "text": edits.grammar.text}
    return written


def _unpack_edits(written: Json) -> LogitEdits:
    read: Json = {key: tuple(value) if isinstance(value, list) else value for key, value in written.items()}
    for pairs in ("bad_words", "logit_bias"):
        if pairs in read:
            read[pairs] = tuple(map(tuple, read[pairs]))
    if "grammar" in read:
        read["grammar"] = Grammar(GrammarKind(read["grammar"]["kind"]), read["grammar"]["text"])
    return LogitEdits(**read)


def _differing(value: LogitEdits | LogprobParams, default: LogitEdits | LogprobParams) -> Json:
    return {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if getattr(value, field.name) != getattr(default, field.name)
    }
