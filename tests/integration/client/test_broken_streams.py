"""Streams that break go on, at the next gateway, behind the last token; gateways here play a script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from outrider.client import Connection
from outrider.client import course as course_module
from outrider.core import errors
from outrider.core.params import TokenLogprobs
from outrider.core.sessions import FinishReason, SpeculationStats, Usage
from outrider.wire import convert
from outrider.wire.errors import abort
from outrider.wire.messages import GenerationDelta, GenerationFinished, GenerationStarted, PromptLogprobs
from outrider.wire.v1 import generation_pb2 as pb
from tests.integration.client.faces import Blocking, Face
from tests.integration.client.test_connection import AWAY, Scripted, Step, connected, playing

STARTED = GenerationStarted("g-1", "m", 5)
ONE, TWO = GenerationDelta("a", (7,), 0, 0), GenerationDelta("bc", (8, 9), 1, 1)
END = GenerationDelta("!", (), 0, 3)
FINISHED = GenerationFinished(FinishReason.LENGTH, Usage(1, 3, 0), SpeculationStats())
MOVED = errors.SessionMovedError("the verifier hands it over")


class Resuming(Scripted):
    """Plays the lists of `again` to those that resume."""

    def __init__(self, *attempts: tuple[Step, ...], again: Sequence[tuple[Step, ...]] = ()) -> None:
        super().__init__(*attempts)
        self._again = list(again)
        self.resumed: list[tuple[str, int]] = []

    async def Resume(self, request: Any, context: Any) -> None:
        self.resumed.append((request.generation_id, request.from_token))
        steps = self._again.pop(0) if len(self._again) > 1 else self._again[0]
        for step in steps:
            if isinstance(step, errors.OutriderError):
                await abort(context, step)
            else:
                await context.write(convert.resumed_event_to_proto(step))


@asynccontextmanager
async def client_of(face: type[Blocking], *services: Scripted, **settings: Any) -> AsyncIterator[Face]:
    if not services:
        async with connected(face, Connection(**settings)) as client:
            yield client
        return
    first, *others = services
    async with playing(first) as address:
        addresses = (*settings.pop("address", ()), address)
        async with client_of(face, *others, address=addresses, **settings) as client:
            yield client


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course_module, "LAST_PAUSE_S", 0.001)


@pytest.mark.parametrize("error", [AWAY, MOVED], ids=["away", "moved"])
@pytest.mark.parametrize("read", [(), (ONE,), (ONE, TWO), (ONE, TWO, END)])
async def test_a_stream_that_breaks_goes_on_at_the_next_gateway(
    face: type[Blocking], read: tuple[GenerationDelta, ...], error: errors.OutriderError
) -> None:
    tokens = sum(len(delta.token_ids) for delta in read)
    rest = tuple(one for one in (ONE, TWO) if one.first_token >= tokens)
    first = Resuming((STARTED, *read, error))
    second = Resuming((AWAY,), again=[(STARTED, *rest, END, FINISHED)])
    async with client_of(face, first, second) as client:
        events = [event async for event in client.stream("x")]
    assert events == [STARTED, ONE, TWO, END, FINISHED]
    assert (len(first.seen), first.resumed) == (1, [])
    assert (len(second.seen), second.resumed) == (0, [("g-1", tokens)])


async def test_one_gateway_alone_is_asked_again(face: type[Blocking]) -> None:
    service = Resuming(
        (STARTED, ONE, AWAY), again=[(AWAY,), (STARTED, MOVED), (STARTED, TWO, AWAY), (STARTED, FINISHED)]
    )
    async with client_of(face, service, retry=False) as client:
        result = await client.generate("x")
    assert (result.text, result.token_ids) == ("abc", [7, 8, 9])
    assert service.resumed == [("g-1", 1)] * 3 + [("g-1", 3)]


async def test_log_probabilities_of_the_prompt_come_once(face: type[Blocking]) -> None:
    entries = tuple(TokenLogprobs(token, -1.0 * token, 1) for token in range(1, 5))
    parts = PromptLogprobs(1, entries[:1]), PromptLogprobs(2, entries[1:])
    whole = PromptLogprobs(1, entries)
    service = Resuming(
        (STARTED, parts[0], AWAY), again=[(STARTED, whole, AWAY), (STARTED, *parts, ONE, FINISHED)]
    )
    async with client_of(face, service) as client:
        events = [event async for event in client.stream("x", prompt_logprobs=0)]
    assert events == [STARTED, parts[0], PromptLogprobs(2, entries[1:]), ONE, FINISHED]


async def test_it_is_not_resumed_for_ever(face: type[Blocking]) -> None:
    service = Resuming((STARTED, ONE, AWAY), again=[(STARTED, AWAY)])
    async with client_of(face, service) as client:
        with pytest.raises(errors.UnavailableError, match="no verifier"):
            await client.generate("x")
    assert len(service.resumed) == course_module.MAX_RESUMES


async def test_resuming_can_be_switched_off(face: type[Blocking]) -> None:
    service = Resuming((STARTED, ONE, AWAY), again=[(STARTED, TWO, FINISHED)])
    async with client_of(face, service, resume=False) as client:
        with pytest.raises(errors.UnavailableError, match="no verifier"):
            await client.generate("x")
    assert service.resumed == []


@pytest.mark.parametrize(
    "refusal",
    [errors.SessionNotFoundError("no such generation"), errors.ModelMismatchError("UNIMPLEMENTED")],
)
async def test_what_cannot_be_resumed_ends_with_what_broke_it(
    face: type[Blocking], refusal: errors.OutriderError
) -> None:
    service = Resuming((STARTED, ONE, AWAY), again=[(refusal,)])
    async with client_of(face, service) as client:
        with pytest.raises(errors.UnavailableError, match="no verifier"):
            await client.generate("x")
    assert len(service.resumed) == 1


@pytest.mark.parametrize("error", [errors.StaleEpochError("another client"), errors.InternalError("x")])
async def test_a_stream_that_ended_with_another_error_is_not_resumed(
    face: type[Blocking], error: errors.OutriderError
) -> None:
    service = Resuming((STARTED, ONE, error), again=[(STARTED, TWO, FINISHED)])
    async with client_of(face, service) as client:
        with pytest.raises(type(error)):
            await client.generate("x")
    assert service.resumed == []


@pytest.mark.parametrize(
    "wrong",
    [(STARTED, ONE), (STARTED, GenerationDelta("c", (9,), 0, 2)), (GenerationStarted("g-2", "m", 5),)],
    ids=["repeated", "lost", "another"],
)
async def test_tokens_repeated_or_lost_are_an_error_not_an_answer(
    face: type[Blocking], wrong: tuple[Step, ...]
) -> None:
    service = Resuming((STARTED, ONE, AWAY), again=[wrong])
    async with client_of(face, service) as client:
        with pytest.raises(errors.ProtocolError):
            await client.generate("x")


async def test_a_generation_is_resumed_by_its_id(face: type[Blocking]) -> None:
    service = Resuming(
        (AWAY,), again=[(STARTED, AWAY), (STARTED, TWO, FINISHED), (errors.SessionNotFoundError("none"),)]
    )
    async with client_of(face, service) as client:
        assert [event async for event in client.resume("g-1", 1)] == [STARTED, TWO, FINISHED]
        with pytest.raises(errors.SessionNotFoundError):
            [event async for event in client.resume("g-2")]
    assert service.resumed == [("g-1", 1), ("g-1", 1), ("g-2", 0)]


async def test_a_gateway_that_is_away_is_passed_over(face: type[Blocking]) -> None:
    async with playing(Scripted((AWAY,))) as nobody:
        pass
    service = Scripted((STARTED, ONE, FINISHED))
    async with playing(service) as address:
        connection = Connection((nobody, address))
        async with connected(face, connection) as client:
            assert (await client.generate("x")).text == "a"
            assert await client.models() == []
            assert await client.cancel("g-1")
    with pytest.raises(errors.ConfigError):
        Connection(())


async def test_a_generation_is_cancelled_on_whichever_gateway_has_it(face: type[Blocking]) -> None:
    class Without(Scripted):
        async def Cancel(self, request: Any, context: Any) -> pb.CancelResponse:
            return pb.CancelResponse(found=False)

    async with client_of(face, Without(()), Scripted(())) as client:
        assert await client.cancel("g-1")
    async with client_of(face, Without(()), Without(())) as client:
        assert not await client.cancel("g-1")


CANCELLED = errors.RequestCancelledError("CANCELLED")
"""As a stopping server ends calls, also those that it has not taken up."""


async def test_a_call_that_a_stopping_gateway_had_not_taken_up_is_made_again(face: type[Blocking]) -> None:
    service = Scripted((CANCELLED,), (CANCELLED,), (STARTED, ONE, FINISHED))
    async with client_of(face, service) as client:
        assert (await client.generate("x")).text == "a"
    assert len(service.seen) == 3
    never = Scripted((CANCELLED,))
    async with client_of(face, never) as client:
        with pytest.raises(errors.RequestCancelledError):
            await client.generate("x")
    assert len(never.seen) == 5
    once = Scripted((CANCELLED,))
    async with client_of(face, once, retry=False) as client:
        with pytest.raises(errors.RequestCancelledError):
            await client.generate("x")
    assert len(once.seen) == 1


async def test_a_stream_that_a_stopping_gateway_cancelled_goes_on(face: type[Blocking]) -> None:
    first = Resuming((STARTED, ONE, CANCELLED))
    second = Resuming((AWAY,), again=[(STARTED, TWO, FINISHED)])
    async with client_of(face, first, second) as client:
        assert (await client.generate("x")).text == "abc"
    assert second.resumed == [("g-1", 1)]
