"""How sessions are written."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import ProtocolError
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
from outrider.core.sessions import SessionRecord
from outrider.sessions.codec import pack_params, pack_tokens, unpack_record, unpack_tokens
from tests.unit.wire.strategies import EDITS as WIRE_EDITS
from tests.unit.wire.strategies import LOGPROB_PARAMS

EDITS = LogitEdits(
    grammar=Grammar(GrammarKind.JSON_SCHEMA, '{"type": "ä"}'),
    allowed_token_ids=(3, 1),
    bad_words=((1, 2), (3,)),
    min_tokens=2,
    end_token_ids=(4, 9),
    logit_bias=((1, -100.0), (2, 0.1)),
    repetition_penalty=1.1,
    frequency_penalty=-0.3,
    presence_penalty=0.7,
)
RECORD = SessionRecord("s", (1, 2), SamplingParams(seed=5), StopParams(3, frozenset({9, 4})))
RECORDS = st.builds(
    SessionRecord,
    session_id=st.just("s"),
    prompt=st.lists(st.integers(0, 2**31 - 1)).map(tuple),
    sampling=st.builds(
        SamplingParams,
        temperature=st.floats(0, 100),
        top_k=st.integers(0, 2**31 - 1),
        top_p=st.floats(0, 1),
        min_p=st.floats(0, 1),
        seed=st.integers(0, 2**64 - 1),
        typical_p=st.floats(0, 1),
        edits=st.just(LogitEdits()) | WIRE_EDITS,
    ),
    stop=st.builds(StopParams, max_tokens=st.integers(1), stop_token_ids=st.frozensets(st.integers(0))),
    speculation=st.builds(
        SpeculationParams,
        enabled=st.booleans(),
        max_draft_tokens=st.none() | st.integers(0, 99),
        drafter=st.text(),
        acceptance=st.sampled_from(Acceptance),
    ),
    logprobs=LOGPROB_PARAMS,
    tokens=st.lists(st.integers(0, 2**31 - 1)).map(tuple),
    model=st.text(),
    cache_salt=st.text(),
)


def unpacked(record: SessionRecord, **changes: bytes) -> SessionRecord:
    stored: dict[str, Any] = {
        "epoch": record.epoch,
        "prompt": pack_tokens(record.prompt),
        "params": pack_params(record).encode(),
        "tokens": pack_tokens(record.tokens),
        "finish": b"",
        **changes,
    }
    return unpack_record(record.session_id, **stored)


@given(record=RECORDS)
def test_there_and_back(record: SessionRecord) -> None:
    assert unpacked(record) == record


def test_tokens_are_little_endian_int32() -> None:
    assert pack_tokens([1, 258]) == b"\x01\x00\x00\x00\x02\x01\x00\x00"
    assert unpack_tokens(b"\x01\x00\x00\x00\x02\x01\x00\x00") == (1, 258)
    with pytest.raises(ProtocolError, match="32 bits"):
        pack_tokens([2**31])
    with pytest.raises(ProtocolError, match="5 bytes"):
        unpack_tokens(b"12345")


def test_parameters_are_readable_json() -> None:
    assert json.loads(pack_params(RECORD))["stop"] == {"max_tokens": 3, "stop_token_ids": [4, 9]}


def test_a_record_from_before_models_were_stored_can_be_read() -> None:
    params = json.loads(pack_params(RECORD))
    del params["model"]
    assert unpacked(RECORD, params=json.dumps(params).encode()) == RECORD


@pytest.mark.parametrize("field", [field.name for field in fields(LogitEdits)])
def test_each_edit_alone(field: str) -> None:
    edits = LogitEdits(**{field: getattr(EDITS, field)})
    assert edits != LogitEdits()
    record = replace(RECORD, sampling=SamplingParams(edits=edits))
    assert unpacked(record) == record


# Written by 0.1.0: it must be readable as long as the format is.
OLD_PARAMS = (
    b'{"format":1,"sampling":{"temperature":0.7,"top_k":5,"top_p":0.9,"min_p":0.05,"seed":7},'
    b'"stop":{"max_tokens":3,"stop_token_ids":[4,9]},'
    b'"speculation":{"enabled":true,"max_draft_tokens":null,"drafter":"d"},"model":"m"}'
)


def edits(written: bytes) -> dict[str, bytes]:
    """Parameters with these edits."""
    return {"params": OLD_PARAMS.replace(b'"seed":7', b'"seed":7,"edits":' + written)}


def test_what_an_older_version_wrote_can_be_read() -> None:
    assert unpacked(RECORD, params=OLD_PARAMS) == replace(
        RECORD,
        sampling=SamplingParams(0.7, 5, 0.9, 0.05, 7),
        speculation=SpeculationParams(drafter="d"),
        model="m",
    )


def test_what_says_nothing_new_is_written_as_it_was() -> None:
    old = json.loads(OLD_PARAMS)
    new = json.loads(pack_params(unpacked(RECORD, params=OLD_PARAMS)))
    assert new == {**old, "logprobs": {}}
    new = json.loads(pack_params(replace(RECORD, logprobs=LogprobParams(top=0))))
    assert new["logprobs"] == {"top": 0}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (edits(b'{"heat":1}'), "cannot be read"),
        (edits(b"[1]"), "cannot be read"),
        (edits(b'{"grammar":{}}'), "cannot be read"),
        (
            {"params": OLD_PARAMS.replace(b'"seed":7', b'"seed":7,"edits":{"bad_words":[1]}')},
            "cannot be read",
        ),
        ({"params": OLD_PARAMS.replace(b'"drafter"', b'"acceptance":"hope","drafter"')}, "cannot be read"),
        ({"params": OLD_PARAMS.replace(b'"model"', b'"logprobs":{"top":1,"x":2},"model"')}, "cannot be read"),
        ({"params": OLD_PARAMS.replace(b'"model"', b'"cache_salt":7,"model"')}, "cannot be read"),
        ({"params": b"[]"}, "cannot be read"),
        ({"params": b"{}"}, "cannot be read"),
        ({"params": b"not json"}, "cannot be read"),
        ({"params": b'{"format": 1, "sampling": {"heat": 1}, "stop": {}}'}, "cannot be read"),
        ({"params": b'{"format": 99}'}, "format 99, not 1"),
        ({"params": b"\xff"}, "cannot be read"),
        ({"finish": b"exploded"}, "cannot be read"),
        ({"prompt": b"123"}, "3 bytes"),
    ],
)
def test_what_others_wrote_is_refused(changes: dict[str, bytes], text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        unpacked(RECORD, **changes)
