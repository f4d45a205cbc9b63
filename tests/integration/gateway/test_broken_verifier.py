"""A verifier that breaks the protocol costs its own session an error, and nobody else anything."""

import pytest

from outrider.core.sessions import FinishReason, SpeculationStats, Usage
from outrider.wire import convert
from outrider.wire.messages import SessionFinished, SessionStarted, SessionTokens
from outrider.wire.v1 import verifier_pb2 as pb
from tests.unit.gateway import tokenizers_zoo as zoo

COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 64}
STARTED = convert.generate_response(SessionStarted(1, 1))
FINISHED = convert.generate_response(SessionFinished(FinishReason.STOP, Usage(), SpeculationStats()))


def tokens(first, *ids):
    return convert.generate_response(SessionTokens(first, ids, 0))


def too_many_accepted():
    event = pb.SessionEvent(tokens=pb.SessionTokens(token_ids=[5], accepted=2))
    return pb.VerifierGenerateResponse(event=event)


@pytest.mark.parametrize(
    ("events", "status", "text"),
    [
        ([], 500, "did not say that the session started"),
        ([tokens(0, 5)], 500, "did not say that the session started"),
        ([STARTED, tokens(0, 5), tokens(2, 6), FINISHED], 500, "sent token 2, 1 was next"),
        ([STARTED, tokens(0, 5), tokens(0, 5), FINISHED], 500, "sent token 0, 1 was next"),
        ([STARTED, too_many_accepted()], 500, "broke the protocol"),
        ([STARTED, pb.VerifierGenerateResponse()], 500, "broke the protocol"),
        (
            [STARTED, pb.VerifierGenerateResponse(event=pb.SessionEvent(finished=pb.SessionFinished()))],
            500,
            "broke the protocol",
        ),
    ],
)
async def test_it_is_a_clear_error(client, stack, events, status, text):
    stack.verifier.answers = events
    response = await client.post("/v1/completions", json=COMPLETION)
    assert response.status_code == status
    assert text in response.json()["error"]["message"]
    stack.verifier.answers = None
    assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200


async def test_ids_that_the_tokenizer_does_not_know_have_no_text(client, stack):
    stack.verifier.script = lambda _: [([300, 4000, 301], 2)]
    body = (await client.post("/v1/completions", json=COMPLETION | {"return_token_ids": True})).json()
    assert body["choices"][0]["token_ids"] == [300, 4000, 301]
    assert body["choices"][0]["text"] == zoo.byte_level().decode([300, 301])
