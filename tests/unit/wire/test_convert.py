"""Defaults of unset fields, and what is refused: by which error, naming which field."""

from __future__ import annotations

import math
from typing import Any

import pytest

from outrider.core.errors import InvalidRequestError, ProtocolError
from outrider.core.params import LogitEdits, SamplingParams, SpeculationParams, StopParams
from outrider.core.sessions import FinishReason
from outrider.wire import convert
from outrider.wire.messages import OpenDraft, StopRequest
from outrider.wire.v1 import common_pb2 as c
from outrider.wire.v1 import drafter_pb2 as d
from outrider.wire.v1 import generation_pb2 as g
from outrider.wire.v1 import verifier_pb2 as v

SEEDED = c.SamplingParams(seed=3)


def test_unset_sampling_fields_take_their_documented_defaults() -> None:
    read = convert.sampling_from_proto(c.SamplingParams(), draw_seed=lambda: 77)
    assert read == SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=77)


def test_a_given_seed_is_kept_even_if_it_is_0_and_temperature_0_is_greedy() -> None:
    message = c.SamplingParams(temperature=0.0, seed=0)
    read = convert.sampling_from_proto(message, draw_seed=lambda: pytest.fail("a seed was drawn"))
    assert (read.temperature, read.seed) == (0.0, 0)


def test_an_unset_seed_without_a_way_to_draw_one() -> None:
    with pytest.raises(InvalidRequestError, match=r"sampling\.seed is not set") as caught:
        convert.sampling_from_proto(c.SamplingParams())
    assert caught.value.field == "sampling.seed"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", -0.5),
        ("temperature", 1e30),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", math.nan),
        ("top_k", 2**32 - 1),
    ],
)
def test_sampling_out_of_range(field: str, value: Any) -> None:
    message = c.SamplingParams(seed=1, **{field: value})
    with pytest.raises(InvalidRequestError, match=rf"^sampling\.{field} must be") as caught:
        convert.sampling_from_proto(message)
    assert caught.value.field == f"sampling.{field}"


def test_unset_edits_change_nothing() -> None:
    read = convert.sampling_from_proto(c.SamplingParams(seed=1, edits=c.LogitEdits()))
    assert read.edits == LogitEdits() == convert.edits_from_proto(c.LogitEdits())
    assert not convert.sampling_to_proto(SamplingParams()).HasField("edits")


def test_logit_bias_comes_in_the_order_of_its_ids() -> None:
    read = convert.edits_from_proto(c.LogitEdits(logit_bias={9: 1.0, 2**31 - 1: 2.0, 0: 0.0}))
    assert read.logit_bias == ((0, 0.0), (9, 1.0), (2**31 - 1, 2.0))


@pytest.mark.parametrize(
    ("edits", "field"),
    [
        (c.LogitEdits(repetition_penalty=0.0), "repetition_penalty"),
        (c.LogitEdits(repetition_penalty=math.nan), "repetition_penalty"),
        (c.LogitEdits(frequency_penalty=3), "frequency_penalty"),
        (c.LogitEdits(presence_penalty=-math.inf), "presence_penalty"),
        (c.LogitEdits(logit_bias={1: math.nan}), "logit_bias"),
        (c.LogitEdits(logit_bias={2**31: 1.0}), "logit_bias"),
        (c.LogitEdits(allowed_token_ids=[2**31]), "allowed_token_ids"),
        (c.LogitEdits(bad_words=[c.TokenSequence()]), "bad_words"),
        (c.LogitEdits(min_tokens=2**31), "min_tokens"),
        (c.LogitEdits(grammar=c.Grammar()), "grammar.kind"),
        (c.LogitEdits(grammar=c.Grammar(kind=77)), "grammar.kind"),  # type: ignore[arg-type]
        (c.LogitEdits(grammar=c.Grammar(kind=c.GRAMMAR_KIND_REGEX)), "grammar"),
    ],
)
def test_edits_out_of_range(edits: c.LogitEdits, field: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^sampling\.edits\.{field} ") as caught:
        convert.sampling_from_proto(c.SamplingParams(seed=1, edits=edits))
    assert caught.value.field == f"sampling.edits.{field}"


def test_end_tokens_are_not_for_clients_to_say() -> None:
    sampling = c.SamplingParams(seed=1, edits=c.LogitEdits(min_tokens=3, end_token_ids=[1, 2]))
    asked = convert.generation_request_from_proto(g.GenerateRequest(prompt="x", sampling=sampling))
    assert asked.sampling.edits == LogitEdits(min_tokens=3)
    request = v.VerifierGenerateRequest(session_id="s", token_ids=[1], sampling=sampling)
    assert convert.session_request_from_proto(request).sampling.edits == LogitEdits(min_tokens=3)
    opened = d.DraftCommand(session_id="s", epoch=1, open=d.OpenSession(token_ids=[1], sampling=sampling))
    command = convert.command_from_proto(opened)
    assert isinstance(command, OpenDraft)
    assert command.sampling.edits.end_token_ids == (1, 2)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (c.LogprobParams(top=21), "logprobs.top"),
        (c.LogprobParams(top=2**32 - 1), "logprobs.top"),
        (c.LogprobParams(prompt_top=21), "logprobs.prompt_top"),
    ],
)
def test_logprobs_out_of_range(message: c.LogprobParams, field: str) -> None:
    with pytest.raises(InvalidRequestError, match="between 0 and 20") as caught:
        convert.logprob_params_from_proto(message)
    assert caught.value.field == field


ENTRY = c.TokenLogprobs(token=c.TokenLogprob(token_id=1, logprob=-1), rank=1)


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([ENTRY], "1 entries for 2 tokens"),
        ([ENTRY] * 3, "3 entries for 2 tokens"),
        ([ENTRY, c.TokenLogprobs(rank=1)], r"logprobs\[1\]\.token is not set"),
        ([ENTRY, c.TokenLogprobs(token=c.TokenLogprob(logprob=math.nan), rank=1)], "logprob is nan"),
        ([ENTRY, c.TokenLogprobs(token=c.TokenLogprob(token_id=2**31), rank=1)], "token_id is 2147483648"),
        ([ENTRY, c.TokenLogprobs(token=c.TokenLogprob())], "rank is 0"),
        ([ENTRY, c.TokenLogprobs(token=c.TokenLogprob(), rank=1, top=[c.TokenLogprob()] * 21)], "top is 21"),
    ],
)
def test_bad_logprobs(entries: list[c.TokenLogprobs], text: str) -> None:
    tokens = v.SessionTokens(token_ids=[1, 2], logprobs=entries)
    with pytest.raises(ProtocolError, match=f"^session event.*{text}"):
        convert.session_event_from_proto(v.SessionEvent(tokens=tokens))
    delta = g.GenerationDelta(token_ids=[1, 2], logprobs=entries)
    with pytest.raises(ProtocolError, match=f"^generation event.*{text}"):
        convert.generation_event_from_proto(g.GenerateResponse(delta=delta))


def test_an_unknown_rule_of_acceptance() -> None:
    with pytest.raises(InvalidRequestError, match=r"speculation\.acceptance is 9, no known rule"):
        convert.speculation_from_proto(c.SpeculationParams(acceptance=9))  # type: ignore[arg-type]
    opened = d.OpenSession(token_ids=[1], sampling=SEEDED, acceptance=9)  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match=r"open\.acceptance is 9"):
        convert.command_from_proto(d.DraftCommand(session_id="s", epoch=1, open=opened))


def test_unset_speculation_means_on_with_the_verifiers_defaults() -> None:
    assert convert.speculation_from_proto(c.SpeculationParams()) == SpeculationParams(True, None, "")
    off = convert.speculation_from_proto(c.SpeculationParams(enabled=False, max_draft_tokens=0))
    assert off == SpeculationParams(False, 0, "")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (c.StopParams(stop=[""]), "stop.stop"),
        (c.StopParams(stop=["x"] * 1000), "stop.stop"),
        (c.StopParams(stop=["x" * 100_000]), "stop.stop"),
        (c.StopParams(stop_token_ids=[2**31]), "stop.stop_token_ids"),
        (c.StopParams(stop_token_ids=range(100_000)), "stop.stop_token_ids"),
        (c.StopParams(max_tokens=2**32 - 1), "stop.max_tokens"),
    ],
)
def test_stops_out_of_range(message: c.StopParams, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        convert.stop_request_from_proto(message)
    assert caught.value.field == field


def test_stop_requests_resolve_to_what_the_verifier_goes_by() -> None:
    plain = StopRequest(stop_token_ids=frozenset({5}))
    assert plain.resolve(eos_token_ids={2}, room=40) == StopParams(40, frozenset({2, 5}))
    capped = StopRequest(max_tokens=7, ignore_eos=True)
    assert capped.resolve(eos_token_ids={2}, room=40) == StopParams(7, frozenset())
    assert capped.resolve(eos_token_ids={2}, room=3) == StopParams(3, frozenset())
    with pytest.raises(InvalidRequestError, match="no room"):
        plain.resolve(eos_token_ids={2}, room=0)


def tree(ids: list[int], parents: list[int]) -> c.TokenTree:
    return c.TokenTree(token_ids=ids, parents=parents)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (tree([1, 2], [-1]), "2 token ids but 1 parents"),
        (tree([1], [0]), "node 0 has parent 0"),
        (tree([1, 2], [-1, 5]), "node 1 has parent 5"),
        (tree([1, 2], [-1, -2]), "node 1 has parent -2"),
        (tree([100], [-1]), "node 0 has token id 100"),
        (tree([1, 1], [-1, -1]), "node 1 repeats token id 1"),
        (tree([1] * 9, list(range(-1, 8))), "9 nodes, at most 8"),
        (tree([], [-1] * 9), "9 nodes, at most 8"),
    ],
)
def test_bad_trees(message: c.TokenTree, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        convert.tree_from_proto(message, vocab_size=100, max_nodes=8)


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([], None),
        ([([1, 2], [0.5, 0.5])], None),
        ([([1], [1.0]), ([1], [1.0])], "2 entries for 1 nodes"),
        ([([1, 2], [1.0])], "one probability for each"),
        ([([1, 1], [0.5, 0.5])], "different"),
        ([([1, 2], [0.5, math.nan])], "above 0"),
        ([([1, 2], [1.0, 0.0])], "above 0"),
        ([([1, 2], [0.5, 0.1])], "sum to"),
        ([([2], [1.0])], "own token id 1"),
        ([([1, 100], [0.5, 0.5])], "token id 100"),
    ],
)
def test_draft_distributions(entries: list[tuple[list[int], list[float]]], text: str | None) -> None:
    message = tree([1], [-1])
    for ids, probs in entries:
        message.draft_probs.add(token_ids=ids, probs=probs)
    if text is None:
        read = convert.tree_from_proto(message, vocab_size=100)
        assert [(list(one.token_ids), list(one.probs)) for one in read.draft_probs] == entries
    else:
        with pytest.raises(ProtocolError, match=text):
            convert.tree_from_proto(message, vocab_size=100)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (c.FeatureBlock(name="f", shape=[2], data=b"1234"), "1 dimensions"),
        (c.FeatureBlock(name="f", shape=[2, 2], data=b"1234"), "4 bytes"),
        (c.FeatureBlock(name="f" * 1000, shape=[1, 1]), "name has 1000 characters"),
        (c.FeatureBlock(name="f", shape=[2**20, 2**16]), "0 bytes"),
        (c.FeatureBlock(name="f", shape=[2**32 - 1, 0]), "rows is 4294967295"),
        (c.FeatureBlock(name="f", shape=[1, 2**16 + 1]), "columns is 65537"),
        (c.FeatureBlock(name="f", shape=[0, 1]), "rows is 0"),
        (c.FeatureBlock(name="f", shape=[1, 0]), "columns is 0"),
        (c.FeatureBlock(name="f", shape=[2, 1], first_position=2**20 - 1, data=b"1234"), "first_position is"),
    ],
)
def test_bad_features(message: c.FeatureBlock, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        convert.feature_from_proto(message)


OPEN = d.OpenSession(token_ids=[1], sampling=SEEDED)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (d.DraftCommand(session_id="s", epoch=1), "none of open, advance and close"),
        (d.DraftCommand(session_id="", epoch=1, open=OPEN), "session_id"),
        (d.DraftCommand(session_id="a{b}", epoch=1, open=OPEN), "session_id"),
        (d.DraftCommand(session_id="s", open=OPEN), "epoch is 0"),
        (d.DraftCommand(session_id="s", epoch=2**54, open=OPEN), "epoch"),
        (
            d.DraftCommand(session_id="s", epoch=1, open=d.OpenSession(sampling=SEEDED)),
            r"open\.token_ids has 0",
        ),
        (
            d.DraftCommand(session_id="s", epoch=1, open=d.OpenSession(token_ids=[99], sampling=SEEDED)),
            r"open\.token_ids has token id 99 at 0",
        ),
        (
            d.DraftCommand(session_id="s", epoch=1, open=d.OpenSession(token_ids=[1])),
            r"open\.sampling\.seed is not set",
        ),
        (
            d.DraftCommand(
                session_id="s", epoch=1, open=d.OpenSession(token_ids=[1], sampling=SEEDED, prompt_len=2)
            ),
            r"open\.prompt_len is 2",
        ),
        (
            d.DraftCommand(session_id="s", epoch=1, advance=d.AdvanceSession(base_len=0)),
            r"advance\.base_len is 0",
        ),
        (
            d.DraftCommand(session_id="s", epoch=1, advance=d.AdvanceSession(base_len=1, accepted=1)),
            r"advance\.accepted is 1",
        ),
        (
            d.DraftCommand(session_id="s", epoch=1, advance=d.AdvanceSession(base_len=1, draft_length=9999)),
            r"advance\.draft_length",
        ),
        (
            d.DraftCommand(
                session_id="s", epoch=1, advance=d.AdvanceSession(base_len=1, traceparent="x" * 1000)
            ),
            r"advance\.traceparent",
        ),
    ],
)
def test_bad_commands(message: d.DraftCommand, text: str) -> None:
    with pytest.raises(ProtocolError, match=f"^draft command.*{text}"):
        convert.command_from_proto(message, vocab_size=50)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (d.DraftEvent(session_id="s", epoch=1), "none of proposal"),
        (d.DraftEvent(session_id="s", epoch=0, proposal=d.DraftProposal()), "epoch"),
        (
            d.DraftEvent(session_id="s", epoch=1, proposal=d.DraftProposal(base_len=2**30)),
            r"proposal\.base_len",
        ),
        (d.DraftEvent(session_id="s", epoch=1, proposal=d.DraftProposal(tree=tree([99], [-1]))), "node 0"),
        (d.DraftEvent(session_id="s", epoch=1, stale=d.StaleSession()), r"stale\.reason is 0"),
        (d.DraftEvent(session_id="s", epoch=1, stale=d.StaleSession(reason=99)), r"stale\.reason is 99"),  # type: ignore[arg-type]
        (d.DraftEvent(load=d.DrafterLoad(kv_usage=math.nan)), r"load\.kv_usage is nan"),
    ],
)
def test_bad_events(message: d.DraftEvent, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        convert.event_from_proto(message, vocab_size=50)


def test_a_drafter_without_a_method_is_refused() -> None:
    with pytest.raises(ProtocolError, match="method is empty"):
        convert.drafter_info_from_proto(d.DrafterGetInfoResponse())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"session_id": "a b"}, "session_id"),
        ({"session_id": "x" * 1000}, "session_id"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [50]}, "token_ids"),
        ({"stop": c.StopParams(stop=["x"])}, "stop.stop"),
        ({"stop": c.StopParams(include_stop=True)}, "stop.include_stop"),
        ({"logprobs": c.LogprobParams(top=99)}, "logprobs.top"),
        ({"sampling": c.SamplingParams()}, "sampling.seed"),
        ({"speculation": c.SpeculationParams(max_draft_tokens=2**20)}, "speculation.max_draft_tokens"),
        ({"speculation": c.SpeculationParams(drafter="x" * 1000)}, "speculation.drafter"),
    ],
)
def test_bad_session_requests(changes: dict[str, Any], field: str) -> None:
    fields: dict[str, Any] = {"session_id": "s", "token_ids": [1], "sampling": SEEDED}
    with pytest.raises(InvalidRequestError) as caught:
        convert.session_request_from_proto(v.VerifierGenerateRequest(**{**fields, **changes}), vocab_size=50)
    assert caught.value.field == field


def test_a_cancel_without_a_reason_is_a_cancel() -> None:
    read = convert.cancel_from_proto(v.VerifierCancelRequest(session_id="s"))
    assert (read.reason, read.keep_tokens) == (FinishReason.CANCELLED, None)
    assert convert.cancel_from_proto(v.VerifierCancelRequest(session_id="s", keep_tokens=0)).keep_tokens == 0


def test_an_unknown_finish_reason() -> None:
    with pytest.raises(InvalidRequestError, match="reason is 42"):
        convert.cancel_from_proto(v.VerifierCancelRequest(session_id="s", reason=42))  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match=r"finished\.reason is not set"):
        convert.session_event_from_proto(v.SessionEvent(finished=v.SessionFinished()))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (g.GenerateRequest(sampling=SEEDED), "input"),
        (g.GenerateRequest(sampling=SEEDED, prompt="x", bad_words=[""]), "bad_words"),
        (g.GenerateRequest(sampling=SEEDED, prompt="x", bad_words=["x"] * 1000), "bad_words"),
        (g.GenerateRequest(sampling=SEEDED, token_ids=g.TokenIds()), "token_ids"),
        (g.GenerateRequest(sampling=SEEDED, chat=g.ChatMessages()), "chat.messages"),
        (
            g.GenerateRequest(sampling=SEEDED, chat=g.ChatMessages(messages=[g.ChatMessage(role="robot")])),
            "chat.messages[0].role",
        ),
        (g.GenerateRequest(sampling=SEEDED, prompt="x", model="m" * 1000), "model"),
        (g.GenerateRequest(sampling=SEEDED, prompt="x" * (4 * 2**20 + 1)), "prompt"),
    ],
)
def test_bad_generation_requests(message: g.GenerateRequest, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        convert.generation_request_from_proto(message)
    assert caught.value.field == field
