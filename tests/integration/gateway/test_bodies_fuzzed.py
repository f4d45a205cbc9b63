"""Bodies that nobody would send: refused by field and before any token, or applied in full."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.core.params import SpeculationParams
from outrider.wire.messages import SessionRequest
from tests.fuzzing import fuzzed, time_limit_s
from tests.integration.gateway.conftest import Stack, config_for, gateway_over
from tests.integration.gateway.scripted_verifier import running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(time_limit_s(300))]
EXAMPLES = 150
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]})
COMPLETION = ("/v1/completions", {"prompt": "hello"})
ENDPOINTS = st.sampled_from((CHAT, COMPLETION))


def _same(value: Any, got: float) -> bool:
    """Floats travel in 32 bits."""
    return bool(struct.unpack("f", struct.pack("f", value))[0] == got)


APPLIED: dict[str, Callable[[SessionRequest, Any], bool]] = {
    "temperature": lambda asked, value: _same(value, asked.sampling.temperature),
    "top_p": lambda asked, value: _same(value, asked.sampling.top_p),
    "top_k": lambda asked, value: asked.sampling.top_k == max(value, 0),
    "min_p": lambda asked, value: _same(value, asked.sampling.min_p),
    "typical_p": lambda asked, value: _same(value, asked.sampling.typical_p),
    "seed": lambda asked, value: asked.sampling.seed == value % 2**64,
    "presence_penalty": lambda asked, value: _same(value, asked.sampling.edits.presence_penalty),
    "frequency_penalty": lambda asked, value: _same(value, asked.sampling.edits.frequency_penalty),
    "repetition_penalty": lambda asked, value: _same(value, asked.sampling.edits.repetition_penalty),
    "min_tokens": lambda asked, value: asked.sampling.edits.min_tokens == value,
    "logit_bias": lambda asked, value: (
        {int(key) for key in value} == {key for key, _ in asked.sampling.edits.logit_bias}
        and all(_same(value[str(key)], added) for key, added in asked.sampling.edits.logit_bias)
    ),
    "allowed_token_ids": lambda asked, value: set(asked.sampling.edits.allowed_token_ids) == set(value),
    "bad_words": lambda asked, value: bool(value) == bool(asked.sampling.edits.bad_words),
    "max_tokens": lambda asked, value: asked.stop.max_tokens == value,
    "stop_token_ids": lambda asked, value: asked.stop.stop_token_ids == set(value),
    "ignore_eos": lambda asked, value: asked.stop.ignore_eos is value,
    "prompt_logprobs": lambda asked, value: asked.logprobs.prompt_top == value,
    "speculation": lambda asked, value: asked.speculation == _speculation(value),
}
"""For each field, whether a session is what the field's value asks for."""
OTHERS = (
    *("model", "n", "best_of", "stop", "stream", "stream_options", "user", "return_token_ids", "echo"),
    *("include_stop_str_in_output", "skip_special_tokens", "logprobs", "top_logprobs", "response_format"),
    *("structured_outputs", "guided_regex", "guided_json", "guided_choice", "guided_grammar", "tools"),
    *(
        "tool_choice",
        "max_completion_tokens",
        "messages",
        "prompt",
        "suffix",
        "functions",
        "logits_processors",
    ),
    *("truncate_prompt_tokens", "add_special_tokens", "chat_template", "chat_template_kwargs", "documents"),
)
FIELDS = st.sampled_from((*APPLIED, *OTHERS))


def _speculation(value: dict[str, Any]) -> SpeculationParams:
    plain = SpeculationParams()
    known = {
        name: value[name]
        for name in ("enabled", "max_draft_tokens", "drafter")
        if value.get(name) is not None
    }
    acceptance = type(plain.acceptance)(value.get("acceptance") or plain.acceptance.value)
    return SpeculationParams(**known, acceptance=acceptance)


class Raw(float):
    """A number as its text stands in the body, also where JSON has no such number."""

    def __new__(cls, text: str) -> Raw:
        made = super().__new__(cls, "nan")
        made.text = text
        return made

    text: str

    def __repr__(self) -> str:
        return self.text


numbers = st.one_of(
    st.integers(-3, 40),
    st.integers(),
    st.sampled_from([2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64 - 1, 2**64, -(2**63), 10**400, -(10**30)]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-2, 2),
    st.sampled_from([0.0, -0.0, 1e-45, 1e-300, 1e308, 1.0, 0.001, 3.4e38, 3.5e38]),
)
texts = st.one_of(
    st.text(max_size=20), st.sampled_from(["", "\x00", "\ud800", "\uffff", "a" * 5000, "0", "true"])
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(texts, inner, max_size=4),
        st.dictionaries(st.integers(-1, 500).map(str), inner, max_size=4),
        st.fixed_dictionaries({"type": st.sampled_from(["text", "json_object", "json_schema", "function"])}),
        st.fixed_dictionaries({}, optional={"enabled": inner, "max_draft_tokens": inner, "drafter": texts}),
    ),
    max_leaves=8,
)
not_json = st.sampled_from([Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("1e999"), Raw("-1e999")])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(model_folder, make_verifier):
    """A gateway over a verifier that admits everything and generates nothing."""
    verifier = make_verifier(text="")
    async with (
        running(verifier) as address,
        gateway_over(config_for(model_folder, address)) as (addresses, serving, stop),
        httpx.AsyncClient(base_url=addresses["http"], timeout=30) as client,
    ):
        yield Stack(addresses["http"], addresses["grpc"], verifier, stop, serving), client


async def send(shared, route: str, content: bytes) -> tuple[httpx.Response, list[SessionRequest]]:
    """The answer, and the sessions that it took. A refused request took none."""
    stack, client = shared
    stack.verifier.sessions.clear()
    response = await client.post(route, content=content, headers={"content-type": "application/json"})
    sessions = [session.request for session in stack.verifier.sessions.values()]
    if response.status_code == 200:
        return response, sessions
    assert 400 <= response.status_code < 500, response.text
    assert not sessions, "a token might have been generated"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and len(error["message"]) < 2000
    assert error["type"] in ("invalid_request_error", "not_found_error")
    return response, []


def _dump(body: Any) -> bytes:
    return json.dumps(body).encode()


def _no_json(response: httpx.Response) -> bool:
    """Whether the body as a whole could not be read."""
    return "not valid JSON" in response.json()["error"]["message"]


def _named(response: httpx.Response) -> str:
    """The field that an error names, without what stands within it."""
    param = response.json()["error"]["param"] or ""
    return param.split(".")[0].split("[")[0]


@fuzzed(EXAMPLES)
@given(endpoint=ENDPOINTS, field=FIELDS, value=st.one_of(values, not_json))
@example(endpoint=COMPLETION, field="prompt", value=[[]])
@example(endpoint=COMPLETION, field="prompt", value=[10**400])
@example(endpoint=COMPLETION, field="logit_bias", value={"5": 1e300})
@example(endpoint=CHAT, field="seed", value=-(2**63))
async def test_any_value_in_any_field(shared, endpoint, field, value):
    route, base = endpoint
    response, sessions = await send(shared, route, _dump(base | {field: value}))
    if response.status_code != 200:
        assert _named(response) == field or field == "model" or _no_json(response), (value, response.text)
        return
    if field in APPLIED:
        assert not isinstance(value, float) or math.isfinite(value)
    if value is not None and field in APPLIED:
        assert all(APPLIED[field](asked, value) for asked in sessions), (field, value)


@fuzzed(EXAMPLES)
@given(endpoint=ENDPOINTS, fields=st.dictionaries(FIELDS, values, min_size=2, max_size=6))
async def test_any_values_in_several_fields(shared, endpoint, fields):
    route, base = endpoint
    response, sessions = await send(shared, route, _dump(base | fields))
    if response.status_code != 200:
        assert _named(response) in fields or "model" in fields or _no_json(response), response.text
        return
    for field, value in fields.items():
        if value is not None and field in APPLIED and field not in ("max_tokens", "seed"):
            assert all(APPLIED[field](asked, value) for asked in sessions), (field, value)


@fuzzed(EXAMPLES)
@given(endpoint=ENDPOINTS, body=values)
async def test_any_json_body(shared, endpoint, body):
    response, _ = await send(shared, endpoint[0], _dump(body))
    assert response.status_code == 400


@fuzzed(EXAMPLES)
@given(
    endpoint=ENDPOINTS,
    cuts=st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 4), st.binary(max_size=4)), min_size=1, max_size=4
    ),
)
async def test_any_bytes_anywhere_in_a_body(shared, endpoint, cuts):
    route, base = endpoint
    content = _dump(base | {"temperature": 0.5, "stop": ["x"], "logit_bias": {"5": 1}})
    for at, length, other in cuts:
        at %= len(content)
        content = content[:at] + other + content[at + length :]
    await send(shared, route, content or b" ")


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"b":[', "]}]")])
@pytest.mark.parametrize("depth", [50, 500, 100_000])
@pytest.mark.parametrize("closed", [True, False])
async def test_any_depth(shared, opening, closing, depth, closed):
    deep = opening * depth + "1" + closing * depth * closed
    route, base = CHAT
    for field in ("stop", "response_format", "tools", "metadata", "messages"):
        body = _dump(base).decode()[:-1] + f', "{field}": {deep}}}'
        response, _ = await send(shared, route, body.encode())
        # A field that nobody knows may be as deep as the JSON parser goes.
        assert response.status_code == 400 or field == "metadata"


@pytest.mark.parametrize(
    "content", [b"\xff\xfe{}", b'{"prompt": "\xc3"}', b'{"prompt": "\xed\xa0\x80"}', b"\x00"]
)
async def test_bad_utf8(shared, content):
    for route in (CHAT[0], COMPLETION[0]):
        response, _ = await send(shared, route, content)
        assert response.status_code == 400
