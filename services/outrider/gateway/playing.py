"""Runs the generations of one request side by side and merges their events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from outrider.gateway.admission import PromptAdmission
from outrider.gateway.generations import Generations
from outrider.gateway.observation import Caller
from outrider.wire.messages import (
    GenerationDelta,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    PromptLogprobs,
)


@dataclass(frozen=True, slots=True)
class Begun:
    """A generation was admitted, or found again."""

    started: GenerationStarted
    prompt: tuple[int, ...]
    created: int = 0  # when the request came that it was admitted for, in seconds since 1970


PlayEvent = Begun | PromptLogprobs | GenerationDelta | GenerationFinished
"""First that the generation has begun; then its events."""

Events = AsyncGenerator[PlayEvent]

SHARED_PROMPT_TOKENS = 64
"""From this length on, requests with the same prompt wait until the first one has prefilled it."""


@dataclass(frozen=True, slots=True)
class Part:
    """One generation of a request."""

    request: GenerationRequest
    session_id: str
    admission: PromptAdmission  # shared by all with the same prompt


def parts_of(
    requests: Sequence[GenerationRequest],
    session_id: Callable[[int], str],
    admission: Callable[[], PromptAdmission],
) -> list[Part]:
    """The parts of a request; those with the very same `input` object share its admission."""
    admissions: dict[int, PromptAdmission] = {}
    parts = []
    for index, request in enumerate(requests):
        shared = admissions.get(id(request.input)) or admissions.setdefault(id(request.input), admission())
        parts.append(Part(request, session_id(index), shared))
    return parts


async def play(
    generations: Generations, parts: Sequence[Part], caller: Caller
) -> AsyncGenerator[tuple[int, PlayEvent]]:
    """Events of all `parts` as they come, each with the index of its part.

    Parts that share their prompt differ in their seeds alone.
    No event is given out before a part of every prompt is admitted. Closing the generator ends all.

    Raises:
        OutriderError: the first that failed; the others are ended.
    """
    prompts: dict[int, _Prompt] = {}
    iterators = []
    for index, part in enumerate(parts):
        prompt = prompts.setdefault(id(part.admission), _Prompt(index))
        one = play_one(generations, part, caller)
        iterators.append(_first(prompt, one) if prompt.first == index else _after(prompt, one))
    async with aclosing(merged(iterators, {prompt.first for prompt in prompts.values()})) as events:
        async for index, event in events:
            yield index, event


@dataclass(slots=True)
class _Prompt:
    """A prompt of one or more parts."""

    first: int  # index of the part that is admitted first, and prefills it
    prefilled: asyncio.Event = field(default_factory=asyncio.Event)


async def _first(prompt: _Prompt, events: Events) -> Events:
    """Tell the others of the same prompt when they may begin."""
    async with aclosing(events):
        async for event in events:
            if not isinstance(event, Begun) or len(event.prompt) < SHARED_PROMPT_TOKENS:
                prompt.prefilled.set()
            yield event


async def _after(prompt: _Prompt, events: Events) -> Events:
    """Begin when the first part of the same prompt has left its KV to be reused."""
    await prompt.prefilled.wait()
    async with aclosing(events):
        async for event in events:
            yield event


async def play_one(generations: Generations, part: Part, caller: Caller) -> Events:
    """Events of a new generation.

    Raises:
        OutriderError: it is refused, or it failed.
    """
    async with generations.open(part.request, caller, part.admission.named(part.session_id)) as generation:
        yield Begun(generation.started, generation.prompt)
        async for event in generation.events():
            yield event


async def merged(iterators: Sequence[Events], needed: set[int]) -> AsyncGenerator[tuple[int, PlayEvent]]:
    """Events of all `iterators` as they come; none before each of the `needed` ones has given one."""
    if len(iterators) == 1:
        async with aclosing(iterators[0]) as events:
            async for only in events:
                yield 0, only
        return
    awaited = set(needed)
    held: list[tuple[int, PlayEvent]] = []
    async with aclosing(_side_by_side(iterators)) as side_by_side:
        async for index, event in side_by_side:
            held.append((index, event))
            awaited.discard(index)
            if not awaited:
                for item in held:
                    yield item
                held.clear()


async def _side_by_side(iterators: Sequence[Events]) -> AsyncGenerator[tuple[int, PlayEvent]]:
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


def _next(iterator: Events) -> asyncio.Task[PlayEvent | None]:
    async def step() -> PlayEvent | None:
        return await anext(iterator, None)

    return asyncio.create_task(step())
