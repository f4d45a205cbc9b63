"""What one service says is what the other hears; what was damaged on the way is a clean error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.errors import InvalidRequestError, ProtocolError
from outrider.wire import convert
from outrider.wire.v1 import common_pb2, drafter_pb2, generation_pb2, verifier_pb2
from tests.unit.wire import strategies as s
from tests.unit.wire.garbage import garbage


@dataclass(frozen=True)
class Pair:
    """A function pair, what goes through it, and the message in between."""

    message: type[Message]
    values: st.SearchStrategy[Any]
    write: Callable[[Any], Message]
    read: Callable[[Any], Any]


PAIRS = {
    "model_info": Pair(
        common_pb2.ModelInfo, s.MODEL_INFOS, convert.model_info_to_proto, convert.model_info_from_proto
    ),
    "sampling": Pair(
        common_pb2.SamplingParams, s.SAMPLINGS, convert.sampling_to_proto, convert.sampling_from_proto
    ),
    "edits": Pair(common_pb2.LogitEdits, s.EDITS, convert.edits_to_proto, convert.edits_from_proto),
    "grammar": Pair(common_pb2.Grammar, s.GRAMMARS, convert.grammar_to_proto, convert.grammar_from_proto),
    "logprob_params": Pair(
        common_pb2.LogprobParams,
        s.LOGPROB_PARAMS,
        convert.logprob_params_to_proto,
        convert.logprob_params_from_proto,
    ),
    "prompt_logprobs": Pair(
        common_pb2.PromptLogprobs,
        s.PROMPT_LOGPROBS,
        convert.prompt_logprobs_to_proto,
        convert.prompt_logprobs_from_proto,
    ),
    "stop": Pair(
        common_pb2.StopParams, s.STOPS, convert.stop_request_to_proto, convert.stop_request_from_proto
    ),
    "speculation": Pair(
        common_pb2.SpeculationParams,
        s.SPECULATIONS,
        convert.speculation_to_proto,
        convert.speculation_from_proto,
    ),
    "tree": Pair(common_pb2.TokenTree, s.trees(), convert.tree_to_proto, convert.tree_from_proto),
    "feature": Pair(
        common_pb2.FeatureBlock, s.features(), convert.feature_to_proto, convert.feature_from_proto
    ),
    "usage": Pair(common_pb2.Usage, s.USAGES, convert.usage_to_proto, convert.usage_from_proto),
    "stats": Pair(common_pb2.SpeculationStats, s.STATS, convert.stats_to_proto, convert.stats_from_proto),
    "drafter_info": Pair(
        drafter_pb2.DrafterGetInfoResponse,
        s.DRAFTER_INFOS,
        convert.drafter_info_to_proto,
        convert.drafter_info_from_proto,
    ),
    "command": Pair(
        drafter_pb2.DraftCommand, s.COMMANDS, convert.command_to_proto, convert.command_from_proto
    ),
    "event": Pair(drafter_pb2.DraftEvent, s.EVENTS, convert.event_to_proto, convert.event_from_proto),
    "verifier_info": Pair(
        verifier_pb2.VerifierGetInfoResponse,
        s.VERIFIER_INFOS,
        convert.verifier_info_to_proto,
        convert.verifier_info_from_proto,
    ),
    "session_request": Pair(
        verifier_pb2.VerifierGenerateRequest,
        s.SESSION_REQUESTS,
        convert.session_request_to_proto,
        convert.session_request_from_proto,
    ),
    "resume": Pair(
        verifier_pb2.VerifierResumeRequest,
        s.RESUMES,
        convert.resume_to_proto,
        convert.resume_from_proto,
    ),
    "cancel": Pair(
        verifier_pb2.VerifierCancelRequest, s.CANCELS, convert.cancel_to_proto, convert.cancel_from_proto
    ),
    "session_event": Pair(
        verifier_pb2.SessionEvent,
        s.SESSION_EVENTS,
        convert.session_event_to_proto,
        convert.session_event_from_proto,
    ),
    "generation_request": Pair(
        generation_pb2.GenerateRequest,
        s.GENERATION_REQUESTS,
        convert.generation_request_to_proto,
        convert.generation_request_from_proto,
    ),
    "generation_event": Pair(
        generation_pb2.GenerateResponse,
        s.GENERATION_EVENTS,
        convert.generation_event_to_proto,
        convert.generation_event_from_proto,
    ),
    "resumed_event": Pair(
        generation_pb2.ResumeResponse,
        s.GENERATION_EVENTS,
        convert.resumed_event_to_proto,
        convert.generation_event_from_proto,
    ),
}
each_pair = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)


def decode_or_refuse(pair: Pair, data: bytes) -> None:
    """Bytes are no message at all, or as `read_or_refuse`."""
    try:
        message = pair.message.FromString(data)
    except DecodeError:
        return
    read_or_refuse(pair, message)


def read_or_refuse(pair: Pair, message: Message) -> None:
    """Whatever arrives is a value or a clean error that says something."""
    try:
        pair.read(message)
    except InvalidRequestError as error:
        assert error.field
        assert str(error).startswith(error.field.split(".")[0])
    except ProtocolError as error:
        assert str(error)


@each_pair
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_there_and_back(pair: Pair, data: st.DataObject) -> None:
    value = data.draw(pair.values)
    sent = pair.write(value)
    assert isinstance(sent, pair.message)
    assert pair.read(pair.message.FromString(sent.SerializeToString())) == value


@each_pair
@given(noise=st.binary(max_size=60))
@settings(max_examples=40, deadline=None)
def test_random_bytes(pair: Pair, noise: bytes) -> None:
    decode_or_refuse(pair, noise)


@each_pair
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_damaged_messages(pair: Pair, data: st.DataObject) -> None:
    sent = bytearray(pair.write(data.draw(pair.values)).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        if sent:
            sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(pair, bytes(sent))


@each_pair
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_well_formed_garbage(pair: Pair, data: st.DataObject) -> None:
    read_or_refuse(pair, data.draw(garbage(pair.message)))


@each_pair
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_what_is_accepted_can_be_sent_on(pair: Pair, data: st.DataObject) -> None:
    """A value that was read is within bounds: it is read again as it was."""
    try:
        value = pair.read(data.draw(garbage(pair.message)))
    except (InvalidRequestError, ProtocolError):
        return
    assert pair.read(pair.write(value)) == value


@each_pair
def test_an_empty_message(pair: Pair) -> None:
    read_or_refuse(pair, pair.message())


def test_every_pair_is_tested() -> None:
    writers = {name.removesuffix("_to_proto") for name in convert.__all__ if name.endswith("_to_proto")}
    renamed = {"stop_request": "stop"}
    assert {renamed.get(name, name) for name in writers} - {"finish", "acceptance"} == set(PAIRS)
