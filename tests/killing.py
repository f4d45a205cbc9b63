"""A drafter process that is killed in mid-stream, and comes back: nobody notices but by speed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.stack import Stack
from tests.traffic import Generated, ask, connected, generate


async def killed_and_back(stack: Stack, name: str, expected: Generated, **request: Any) -> None:
    """A session goes on without its drafter, later ones draft through it; all say what is `expected`."""
    drafter = stack[name]

    def strike(seen: Generated) -> None:
        if seen.deltas == 10:
            drafter.kill()
            drafter.start()

    async with connected(stack.grpc) as stub:
        got = await generate(stub, ask(drafter=name, **request), on_delta=strike)
        assert got.token_ids == expected.token_ids
        assert got.stats.drafts > 0
        await asyncio.to_thread(drafter.wait_serving)
        for _ in range(100):
            again = await generate(stub, ask(drafter=name, **request))
            assert again.token_ids == expected.token_ids
            if again.stats.draft_tokens:
                return
    pytest.fail(f"{name} is not used again")
