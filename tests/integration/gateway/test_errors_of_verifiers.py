"""What a verifier refuses, or breaks off, as clients of the HTTP API see it."""

import json

import pytest

from outrider.core import errors
from tests.integration.gateway.error_bodies import check

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (errors.OverloadedError("full", retry_after_s=2.5), 429, "rate_limit_error", "overloaded"),
        (errors.UnavailableError("draining"), 503, "server_error", "unavailable"),
        (errors.InternalError("broken"), 500, "server_error", "internal"),
        (errors.InvalidRequestError("no such drafter", field="drafter"), 400, "invalid_request_error", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_verifiers_refusals(client, stack, error, status, kind, code, stream):
    stack.verifier.refuse = error
    response = await client.post("/v1/chat/completions", json=CHAT | {"stream": stream})
    param = "speculation.drafter" if status == 400 else None
    check(response, status, kind=kind, code=code, param=param, text=str(error))
    assert response.headers.get("retry-after") == {429: "3", 503: "1"}.get(status)


@pytest.mark.parametrize("fields", [{}, {"n": 2}])
@pytest.mark.parametrize("stream", [False, True])
async def test_one_that_is_put_out_of_the_queue_before_any_token_is_told_when_to_come_back(
    client, stack, stream, fields
):
    stack.verifier.fail_after = (0, errors.OverloadedError("it waited too long", retry_after_s=2.5))
    response = await client.post("/v1/chat/completions", json=CHAT | fields | {"stream": stream})
    check(response, 429, kind="rate_limit_error", code="overloaded", text="it waited too long")
    assert response.headers["retry-after"] == "3"


async def test_an_error_in_mid_stream_is_an_event_and_the_end(client, stack):
    stack.verifier.fail_after = (1, errors.InternalError("out of order"))
    async with client.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as response:
        assert response.status_code == 200
        text = "".join([part async for part in response.aiter_text()])
    *deltas, last, rest = text.split("\n\n")
    assert rest == ""
    assert len(deltas) == 2  # the role, the first round
    assert json.loads(last.removeprefix("data: ")) == {
        "error": {"message": "out of order", "type": "server_error", "param": None, "code": "internal"}
    }
    assert len(await metrics_of(client, 'outcome="internal"')) == 1


async def metrics_of(client, label):
    page = (await client.get("/metrics")).text
    return [
        line for line in page.splitlines() if line.startswith("outrider_requests_total") and label in line
    ]
