"""Runs the generations of one request side by side and merges their events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from outrider.gateway.generation import Generation
from outrider.gateway.generations import Generations
from outrider.gateway.observation import Caller
from outrider.wire.messages import GenerationDelta, GenerationFinished, GenerationRequest, PromptLogprobs

PlayEvent = Generation | PromptLogprobs | GenerationDelta | GenerationFinished
"""First the generation itself, once admitted; then its events."""


async def play(
    generations: Generations, requests: Sequence[GenerationRequest], caller: Caller
) -> AsyncGenerator[tuple[int, PlayEvent]]:
    """Events of all `requests` as they come, each with the index of its request.

    Closing the generator ends all of them.

    Raises:
        OutriderError: the first that failed; the others are ended.
    """
    if len(requests) == 1:
        async with aclosing(_play_one(generations, requests[0], caller)) as events:
            async for only in events:
                yield 0, only
        return
    iterators = [_play_one(generations, request, caller) for request in requests]
    waiting = {_next(iterator): index for index, iterator in enumerate(iterators)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = waiting.pop(task)
                event = task.result()
                if event is not None:
                    waiting[_next(iterators[index])] = index
                    yield index, event
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for iterator in iterators:
            await iterator.aclose()


def _next(iterator: AsyncGenerator[PlayEvent]) -> asyncio.Task[PlayEvent | None]:
    async def step() -> PlayEvent | None:
        return await anext(iterator, None)

    return asyncio.create_task(step())


async def _play_one(
    generations: Generations, request: GenerationRequest, caller: Caller
) -> AsyncGenerator[PlayEvent]:
    async with generations.open(request, caller) as generation:
        yield generation
        async for event in generation.events():
            yield event
