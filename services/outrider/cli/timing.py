"""A generation over the public gRPC API, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from outrider.client import AsyncClient, GenerationDelta, Options, Prompt, Result


@dataclass(slots=True)
class TimedResult:
    """A finished generation. Times are seconds since it was asked for."""

    result: Result = field(default_factory=Result)
    first_s: float = 0.0  # when the first tokens were there
    first_tokens: int = 0  # how many they were
    last_s: float = 0.0  # when the last tokens were there

    @property
    def tokens_per_second(self) -> float:
        """Speed of decoding: what came after the first delivery, over its time; 0 if nothing did."""
        seconds = self.last_s - self.first_s
        return (len(self.result.token_ids) - self.first_tokens) / seconds if seconds > 0 else 0.0


async def timed(
    client: AsyncClient, prompt: Prompt, options: Options, on_delta: Callable[[GenerationDelta], None]
) -> TimedResult:
    """Generate to the end; `on_delta` is called with each delta when it is there. Errors as the client's."""
    done = TimedResult()
    start = time.perf_counter()
    async with client.stream(prompt, **options) as stream:
        async for event in stream:
            done.result.add(event)
            if not isinstance(event, GenerationDelta):
                continue
            if event.token_ids:
                done.last_s = time.perf_counter() - start
                if not done.first_tokens:
                    done.first_s, done.first_tokens = done.last_s, len(event.token_ids)
            on_delta(event)
    done.result.whole()
    return done
