"""Resume of a session that its owner ends at the same moment, or that does not fit here."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.core.errors import InvalidRequestError
from outrider.core.sessions import FinishReason, SessionRecord, StopParams
from outrider.sessions.memory import MemoryStore
from outrider.wire.messages import SessionFinished, SessionTokens
from tests.integration.verifying.harness import GREEDY, running


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
    "prompt, field", [((5, 100_000), "prompt"), ((7,) * 600, "prompt"), ((7,) * 500, "max_tokens")]
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
