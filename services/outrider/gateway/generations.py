"""Admission, and the generations that run on this gateway."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outrider.core.errors import OutriderError, UnavailableError
from outrider.core.models import ModelInfo
from outrider.gateway.admission import Admission
from outrider.gateway.generation import Generation
from outrider.gateway.observation import Caller, Observation, Observer
from outrider.gateway.presentation import Presentation
from outrider.gateway.tokenizer import TextTokenizer
from outrider.gateway.verifiers import VerifierPool
from outrider.wire import metadata
from outrider.wire.messages import GenerationRequest, GenerationStarted, SessionRequest, VerifierInfo

UNREAD_S = 5.0
"""How long after the generation's own limit a client may take to read the rest of the answer."""


class Generations:
    """Admits requests and keeps what runs, by its id."""

    def __init__(
        self, verifiers: VerifierPool, tokenizer: TextTokenizer, observer: Observer, *, timeout_s: float
    ) -> None:
        self._verifiers = verifiers
        self.tokenizer = tokenizer
        self._observer = observer
        self._timeout_s = timeout_s
        self._running: dict[str, Generation] = {}

    @property
    def answer_s(self) -> float:
        """Longest time that an answer may take, with its client's reading: sending has no end of its own."""
        return self._timeout_s + UNREAD_S

    def __len__(self) -> int:
        return len(self._running)

    @property
    def info(self) -> VerifierInfo:
        """The verifier's description of what is served.

        Raises:
            UnavailableError: no verifier is there.
        """
        info = self._verifiers.info
        if info is None:
            raise UnavailableError("no verifier is available")
        return info

    @property
    def degraded(self) -> tuple[str, ...]:
        """See VerifierPool."""
        return self._verifiers.degraded

    @asynccontextmanager
    async def open(
        self, request: GenerationRequest, caller: Caller, admission: Admission | None = None
    ) -> AsyncIterator[Generation]:
        """Admit a request; leaving the context ends the generation, finished or not.

        Requests whose `admission` shares its prompt must be opened one after the other.
        `max_tokens` 0 means up to the end of the context.

        Raises:
            OutriderError: the request is refused, no verifier takes it, or it failed later.
        """
        model = self.info.model
        observation = self._observer.begin(request, caller, model.model_name)
        try:
            session = await (admission or Admission()).session(request, model, self.tokenizer)
            generation = await self._start(session, request, caller, model, observation)
            self._running[generation.started.generation_id] = generation
            try:
                yield generation
            finally:
                del self._running[generation.started.generation_id]
                generation.abandon()
        except OutriderError as error:
            observation.failed(error)
            raise
        finally:
            observation.close()

    async def cancel(self, generation_id: str) -> bool:
        """End a generation; False if none of that id runs here."""
        generation = self._running.get(generation_id)
        if generation is None:
            return False
        await generation.cancel()
        return True

    async def _start(
        self,
        session: SessionRequest,
        request: GenerationRequest,
        caller: Caller,
        model: ModelInfo,
        observation: Observation,
    ) -> Generation:
        stream, seed = await self._verifiers.open(
            session,
            timeout_s=self._timeout_s if caller.timeout_s is None else min(self._timeout_s, caller.timeout_s),
            metadata=metadata.pairs(traceparent=observation.traceparent, x_request_id=caller.request_id),
        )
        started = GenerationStarted(stream.session_id, model.model_name, seed)
        observation.admitted(started, len(session.prompt))
        delivery = Presentation.decode(session.presentation).delivery(self.tokenizer)
        return Generation(started, session.prompt, delivery, stream, observation)


def draw_seed() -> int:
    """A seed for a request that gives none; below 2**53, so that every JSON reader keeps it exact."""
    return secrets.randbits(53)
