"""Random commits while the server is frozen, thawed, killed and started again: the end is always the same."""

from __future__ import annotations

import asyncio
import random

import pytest

from outrider.core.sessions import Commit, FinishReason, SessionRecord
from outrider.sessions.redis import RedisStore
from outrider.sessions.writer import CommitWriter
from tests.integration.sessions.records import record
from tests.servers import RedisServer

STEPS = 120
SESSIONS = 6
PATIENCE_S = 120.0


class Verifier:
    """Makes tokens as a verifier does; its memory is the truth."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.sessions: dict[str, SessionRecord] = {}

    def begin(self) -> SessionRecord:
        new = record(f"s-{len(self.sessions)}")
        self.sessions[new.session_id] = new
        return new

    def step(self) -> list[Commit]:
        """One round of some of the sessions."""
        chosen = self.dice.sample(sorted(self.sessions), k=self.dice.randint(1, len(self.sessions)))
        return [self.advance(session_id, ended=False) for session_id in chosen]

    def advance(self, session_id: str, *, ended: bool) -> Commit:
        old = self.sessions[session_id]
        tokens = tuple(self.dice.randrange(100) for _ in range(self.dice.randint(1, 5)))
        reason = FinishReason.LENGTH if ended else None
        self.sessions[session_id] = record(session_id, tokens=old.tokens + tokens, finish_reason=reason)
        return Commit(session_id, 1, len(old.tokens), tokens, reason)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_to_the_server(server: RedisServer, seed: int) -> None:
    dice = random.Random(seed)
    verifier = Verifier(dice)
    store = RedisStore(server.url, timeout_s=0.5)
    fenced: list[str] = []
    writer = CommitWriter(
        store,
        max_pending=40,  # overflows now and then
        on_fenced=lambda session_id, _: fenced.append(session_id),
        snapshot=verifier.sessions.get,
    )
    writer.start()
    frozen = False
    for _ in range(SESSIONS):
        writer.create(verifier.begin())
    for _ in range(STEPS):
        writer.put(verifier.step())
        event = dice.random()
        if frozen:
            if event < 0.2:
                server.thaw()
                frozen = False
        elif event < 0.05:
            server.freeze()
            frozen = True
        elif event < 0.08:
            server.stop()
            server.start()
        await asyncio.sleep(dice.choice([0, 0, 0.001]))  # lets the writer run, sometimes
    if frozen:
        server.thaw()
    assert await writer.flush(PATIENCE_S)
    # Only a session's next write shows that a store which came back empty has forgotten it.
    writer.put([verifier.advance(session_id, ended=False) for session_id in verifier.sessions])
    assert await writer.flush(PATIENCE_S)
    writer.put([verifier.advance(session_id, ended=True) for session_id in verifier.sessions])
    assert await writer.flush(PATIENCE_S)
    patient = RedisStore(server.url, timeout_s=10.0)
    for session_id, expected in verifier.sessions.items():
        assert await patient.load(session_id) == expected
    assert fenced == []
    assert not writer.degraded
    await writer.close(0.0)
    await store.close()
    await patient.close()
