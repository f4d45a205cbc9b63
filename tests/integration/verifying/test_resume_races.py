"""Resume of a session that its owner ends at the same moment, or that does not fit here."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.core.errors import InvalidRequestError, ModelMismatchError
from outrider.core.params import StopParams
from outrider.core.sessions import FinishReason, SessionRecord
from outrider.sessions.memory import MemoryStore
from outrider.wire.messages import SessionFinished, SessionTokens
from tests.integration.verifying.harness import GREEDY, request, running


class EndedBeforeClaim(MemoryStore):
    """The owner writes the session's end after the reader's load, before its claim."""

    async def claim(self, session_id: str) -> SessionRecord:
        await self.truncate(session_id, 1, 2, FinishReason.STOP)
        return await super().claim(session_id)


async def test_a_session_ended_between_load_and_claim_does_not_go_on(
    tiny: Path, prompts: list[list[int]]
) -> None:
    store = EndedBeforeClaim()
    await store.create(SessionRecord("s", tuple(prompts[2]), GREEDY, StopParams(50), tokens=(5, 6, 7)))
    async with running(tiny, store=store) as verifier:
        events = [event async for event in verifier.resume("s", 0)]
        tokens = [t for event in events if isinstance(event, SessionTokens) for t in event.token_ids]
        assert tokens == [5, 6]  # up to the stop string, and no further
        assert isinstance(events[-1], SessionFinished) and events[-1].reason is FinishReason.STOP
        assert not len(verifier.replica.streams) and verifier.used == 0


@pytest.mark.parametrize(
    "prompt, field",
    [((), "prompt"), ((5, 100_000), "prompt"), ((7,) * 600, "prompt"), ((7,) * 500, "max_tokens")],
)
async def test_a_session_that_does_not_fit_this_model_is_refused_before_it_is_taken_over(
    tiny: Path, prompt: tuple[int, ...], field: str
) -> None:
    store = MemoryStore()
    await store.create(SessionRecord("s", prompt, GREEDY, StopParams(100)))
    async with running(tiny, store=store) as verifier:
        with pytest.raises(InvalidRequestError) as caught:
            await anext(verifier.resume("s", 0))
        assert caught.value.field == field
        assert (await store.load("s")).epoch == 1  # another verifier may still have it


@pytest.mark.parametrize("finish", [None, FinishReason.LENGTH])
async def test_a_session_of_another_model_is_refused_before_it_is_taken_over(
    tiny: Path, finish: FinishReason | None
) -> None:
    store, theirs = MemoryStore(), "another (bfloat16, tokenizer 0f)"
    record = SessionRecord("s", (5,), GREEDY, StopParams(9), tokens=(6,), finish_reason=finish, model=theirs)
    await store.create(record)
    async with running(tiny, store=store) as verifier:
        with pytest.raises(ModelMismatchError) as caught:
            await anext(verifier.resume("s", 0))
        assert theirs in str(caught.value) and verifier.engine.info.identity in str(caught.value)
        assert await store.load("s") == record


async def test_a_session_is_not_resumed_in_another_number_format(
    tiny: Path, prompts: list[list[int]]
) -> None:
    store = MemoryStore()
    async with running(tiny, store=store) as verifier:
        reply = await verifier.generate(request(prompts[2], session_id="s", max_tokens=3))
        same = [event async for event in verifier.resume("s", 0)]
        assert [t for e in same if isinstance(e, SessionTokens) for t in e.token_ids] == reply.tokens
    async with running(tiny, store=store, dtype="bfloat16") as other:
        with pytest.raises(ModelMismatchError, match=r"float32.*bfloat16"):
            await anext(other.resume("s", 0))
