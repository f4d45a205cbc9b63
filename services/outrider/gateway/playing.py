"""Runs the generations of one request side by side and merges their events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from outrider.gateway.admission import Admission, PromptAdmission, PromptOptions
from outrider.gateway.generation import Generation
from outrider.gateway.generations import Generations
from outrider.gateway.observation import Caller
from outrider.wire.messages import (
    GenerationDelta,
    GenerationFinished,
    GenerationRequest,
    PromptLogprobs,
)

PlayEvent = Generation | PromptLogprobs | GenerationDelta | GenerationFinished
"""First the generation itself, once admitted; then its events."""


SHARED_PROMPT_TOKENS = 64
"""From this length on, requests with the same prompt wait until the first one has prefilled it."""


async def play(
    generations: Generations,
    requests: Sequence[GenerationRequest],
    caller: Caller,
    options: PromptOptions,
) -> AsyncGenerator[tuple[int, PlayEvent]]:
    """Events of all `requests` as they come, each with the index of its request.

    Requests with the very same `input` object differ in their seeds alone.
    No event is given out before a request of every prompt is admitted. Closing the generator ends all.

    Raises:
        OutriderError: the first that failed; the others are ended.
    """
    if len(requests) == 1:
        async with aclosing(
            _play_one(generations, requests[0], caller, Admission(PromptAdmission(options)))
        ) as events:
            async for only in events:
                yield 0, only
        return
    prompts: dict[int, _Prompt] = {}
    iterators = []
    for index, request in enumerate(requests):
        prompt = prompts.setdefault(id(request.input), _Prompt(index, PromptAdmission(options)))
        one = _play_one(generations, request, caller, Admission(prompt.admission))
        iterators.append(_first(prompt, one) if prompt.first == index else _after(prompt, one))
    unadmitted = {prompt.first for prompt in prompts.values()}
    held: list[tuple[int, PlayEvent]] = []
    async with aclosing(_merged(iterators)) as merged:
        async for index, event in merged:
            held.append((index, event))
            unadmitted.discard(index)
            if not unadmitted:
                for item in held:
                    yield item
                held.clear()


@dataclass(slots=True)
class _Prompt:
    """A prompt of one or more requests."""

    first: int  # index of the request that is admitted first, and prefills it
    admission: PromptAdmission
    prefilled: asyncio.Event = field(default_factory=asyncio.Event)


async def _first(prompt: _Prompt, events: AsyncGenerator[PlayEvent]) -> AsyncGenerator[PlayEvent]:
    """Tell the others of the same prompt when they may begin."""
    async with aclosing(events):
        async for event in events:
            if not isinstance(event, Generation) or len(event.prompt) < SHARED_PROMPT_TOKENS:
                prompt.prefilled.set()
            yield event


async def _after(prompt: _Prompt, events: AsyncGenerator[PlayEvent]) -> AsyncGenerator[PlayEvent]:
    """Begin when the first request of the same prompt has left its KV to be reused."""
    await prompt.prefilled.wait()
    async with aclosing(events):
        async for event in events:
            yield event


async def _merged(iterators: Sequence[AsyncGenerator[PlayEvent]]) -> AsyncGenerator[tuple[int, PlayEvent]]:
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
    generations: Generations, request: GenerationRequest, caller: Caller, admission: Admission
) -> AsyncGenerator[PlayEvent]:
    async with generations.open(request, caller, admission) as generation:
        yield generation
        async for event in generation.events():
            yield event
