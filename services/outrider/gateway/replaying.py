"""Takes up the generations of one request again, on whichever gateway its client has come to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from outrider.core.errors import InvalidRequestError, SessionNotFoundError
from outrider.gateway.generations import Generations
from outrider.gateway.observation import Caller
from outrider.gateway.playing import Begun, Events, Part, PlayEvent, merged, play_one
from outrider.gateway.presentation import Presentation


async def replay(
    generations: Generations, parts: Sequence[Part], caller: Caller, had: Sequence[int | None], *, field: str
) -> AsyncGenerator[tuple[int, PlayEvent]]:
    """Events of all `parts` from their first tokens on, also of those that are over.

    `had`: for each part the tokens that the client has, None if it knows nothing of it. A delta ends behind
    them. A part that the client knows nothing of, and that was not admitted then, is now.
    No event is given out before all that the client knows of are found. Closing the generator ends all.

    Raises:
        SessionNotFoundError: one that the client knows of is not there, or not this tenant's.
        InvalidRequestError: it was another request (`field` says by what this one claims to be the same), or
            the client says to have tokens that there are not.
        OutriderError: the first that failed; the others are ended.
    """
    revival = _Revival(generations, parts, caller, field)
    iterators = [revival.events(index, tokens) for index, tokens in enumerate(had)]
    needed = {0} | {index for index, tokens in enumerate(had) if tokens is not None}
    async with aclosing(merged(iterators, needed)) as events:
        async for index, event in events:
            yield index, event


class _Revival:
    """The generations of one request. The first one tells the seed that the others' follow."""

    def __init__(self, generations: Generations, parts: Sequence[Part], caller: Caller, field: str) -> None:
        self._generations = generations
        self._parts = parts
        self._caller = caller
        self._field = field
        self._seed = 0  # of the first part
        self._found = asyncio.Event()  # the first part is there

    async def events(self, index: int, had: int | None) -> Events:
        """Events of a part, of which the client has `had` tokens."""
        if index:
            await self._found.wait()
        begun = had is not None or not index
        try:
            async with aclosing(self._resumed(index, had or 0)) as events:
                async for event in events:
                    begun = True
                    yield event
            return
        except InvalidRequestError as error:
            if error.field == "mark":
                raise self._another() from error
            if error.field == "from_token":
                error.field = self._field
            raise
        except SessionNotFoundError:
            if begun:
                raise
        part = self._parts[index]
        seed = (part.request.sampling.seed - self._parts[0].request.sampling.seed + self._seed) % 2**64
        request = replace(part.request, sampling=replace(part.request.sampling, seed=seed))
        async with aclosing(play_one(self._generations, replace(part, request=request), self._caller)) as new:
            async for event in new:
                yield event

    async def _resumed(self, index: int, had: int) -> Events:
        part = self._parts[index]
        asked = await part.admission.session(
            part.request, self._generations.info, self._generations.tokenizer, part.session_id
        )
        digest = Presentation.decode(asked.presentation).digest
        resumed = self._generations.resume(part.session_id, had, self._caller, digest=digest)
        async with resumed as generation:
            noted = Presentation.decode(generation.presentation)
            if noted.digest != digest:
                raise self._another()
            if not index:
                self._seed = generation.started.seed
                self._found.set()
            yield Begun(generation.started, asked.prompt, noted.created)
            async for event in generation.events():
                yield event

    def _another(self) -> InvalidRequestError:
        return InvalidRequestError(
            f"{self._field} is of another request: send the same body to go on with its answer",
            field=self._field,
        )
