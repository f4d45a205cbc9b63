"""A verifier that breaks the protocol costs its own session an error, and nobody else anything."""

import pytest

from outrider.core.errors import UnavailableError
from outrider.core.sessions import FinishReason, SpeculationStats, Usage
from outrider.gateway.signals import Signal
from outrider.gateway.verifier_link import VerifierLink
from outrider.wire import convert
from outrider.wire.channels import open_channel
from outrider.wire.messages import ResumeSession, SessionFinished, SessionStarted, SessionTokens
from outrider.wire.v1 import verifier_pb2 as pb
from tests.processes import free_ports
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


async def test_errors_tell_clients_no_address_of_a_verifier():
    (port,) = free_ports(1)
    link = VerifierLink(f"127.0.0.1:{port}", open_channel, Signal())
    try:
        stream = link.resume(ResumeSession("s", 0), 10, ())
        with pytest.raises(UnavailableError) as caught:
            await stream.next()
        assert "127.0.0.1" not in str(caught.value) and str(port) not in str(caught.value)
    finally:
        await link.close()
