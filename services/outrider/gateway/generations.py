"""Admission, and the generations that run on this gateway."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from outrider.core.errors import (
    DeadlineExceededError,
    InternalError,
    OutriderError,
    UnavailableError,
)
from outrider.core.tenants import salt_of
from outrider.gateway.admission import Admission
from outrider.gateway.attaching import Origin
from outrider.gateway.background import Background
from outrider.gateway.failover import Session
from outrider.gateway.generation import Generation
from outrider.gateway.limits import Lease, Limiter
from outrider.gateway.observation import Caller, Observation, Observer
from outrider.gateway.placement import affinity_key
from outrider.gateway.presentation import Presentation
from outrider.gateway.tokenizer import TextTokenizer
from outrider.gateway.verifiers import VerifierPool
from outrider.wire import metadata
from outrider.wire.messages import (
    GenerationRequest,
    GenerationStarted,
    SessionStarted,
    VerifierInfo,
)

UNREAD_S = 5.0
"""How long after the generation's own limit a client may take to read the rest of the answer."""
MAX_HOLDERS = 4096
"""Sessions of which is remembered which verifier had them when their client left."""


class Generations:
    """Admits requests and keeps what runs, by its id."""

    def __init__(
        self,
        verifiers: VerifierPool,
        tokenizer: TextTokenizer,
        observer: Observer,
        *,
        timeout_s: float,
        failover_s: float = 30.0,
        block_size: int = 16,
        limiter: Limiter | None = None,
    ) -> None:
        """Args:
        verifiers: where sessions run.
        tokenizer: the model's.
        observer: of each generation.
        timeout_s: longest that one may run.
        failover_s: how long one that lost its verifier waits for another.
        block_size: tokens of a KV block, for placement.
        limiter: of each tenant's generations and tokens.
        """
        self._verifiers = verifiers
        self.tokenizer = tokenizer
        self._observer = observer
        self._timeout_s = timeout_s
        self._failover_s = failover_s
        self._block_size = block_size
        self._limiter = limiter or Limiter()
        self._running: dict[str, Generation] = {}
        self._holders: OrderedDict[str, str] = OrderedDict()  # oldest first
        self._background = Background()
        self._stopped: UnavailableError | None = None

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
        One that is streamed is parked where it is left early, to be resumed; any other is ended.

        Raises:
            OutriderError: the request is refused, no verifier takes it, or it failed later.
        """
        model = self.info.model.model_name
        with self._observed(request, caller, model) as (observation, lease):
            asked = await (admission or Admission()).session(request, self.info, self.tokenizer)
            lease.reserve(len(asked.prompt) + asked.stop.max_tokens)
            asked = replace(asked, tenant=caller.tenant)
            note = Presentation.decode(asked.presentation)
            key = affinity_key(asked.prompt, salt_of(asked.tenant, asked.cache_salt), self._block_size)
            session = self._session(
                Origin(asked.session_id, caller.tenant, asked, key=key), caller, observation
            )

            def begin(started: SessionStarted) -> Generation:
                return Generation(
                    GenerationStarted(asked.session_id, model, started.seed),
                    note.delivery(self.tokenizer),
                    session,
                    observation,
                    self._background,
                    tenant=caller.tenant,
                    prompt=asked.prompt,
                    prompt_tokens=len(asked.prompt),
                    presentation=asked.presentation,
                )

            async with self._running_one(session, caller, observation, begin) as generation:
                yield generation

    @asynccontextmanager
    async def resume(
        self, generation_id: str, from_token: int, caller: Caller, *, digest: str = ""
    ) -> AsyncIterator[Generation]:
        """Take a generation up again whose client has `from_token` tokens: a delta ends behind them.

        `digest`: of its presentation; without one, whoever has the id is believed.

        Its events begin with the first token. An older stream ends with StaleEpochError. If the caller
        raises, it can be resumed once more. All else is as with `open`.

        Raises:
            SessionNotFoundError: no verifier knows of it, or it is another tenant's.
            InvalidRequestError: it has another digest (field "mark"); nobody loses it then.
            OutriderError: no verifier takes it, or it failed later.
        """
        model = self.info.model.model_name
        with self._observed(None, caller, model) as (observation, lease):
            lease.reserve(0)
            await self._background.done(generation_id)  # a verifier may yet be asked to park it
            holder = self._holders.get(generation_id, "")
            origin = Origin(generation_id, caller.tenant, holder=holder, mark=digest.encode())
            session = self._session(origin, caller, observation)

            def begin(started: SessionStarted) -> Generation:
                note = Presentation.decode(started.presentation)
                return Generation(
                    GenerationStarted(generation_id, model, started.seed),
                    note.delivery(self.tokenizer, resumed_at=from_token),
                    session,
                    observation,
                    self._background,
                    tenant=caller.tenant,
                    prompt_tokens=started.prompt_tokens,
                    presentation=started.presentation,
                    resumed=True,
                )

            async with self._running_one(session, caller, observation, begin) as generation:
                yield generation

    async def cancel(self, generation_id: str, tenant: str = "") -> bool:
        """End a generation; False if none of that id, and of that tenant, runs here."""
        generation = self._running.get(generation_id)
        if generation is None or generation.tenant != tenant:
            return False
        await generation.cancel()
        return True

    def stop(self) -> None:
        """Break off what still runs, to be resumed on another gateway."""
        self._stopped = UnavailableError("the gateway is stopping; resume it on another")
        for generation in list(self._running.values()):
            generation.stop(self._stopped)

    async def settled(self) -> None:
        """Until verifiers have been told of all that was left."""
        await self._background.done()

    @contextmanager
    def _observed(
        self, request: GenerationRequest | None, caller: Caller, model: str
    ) -> Iterator[tuple[Observation, Lease]]:
        observation = self._observer.begin(request, caller, model)
        try:
            with self._limiter.generation(caller.tenant, lambda: observation.tokens) as lease:
                yield observation, lease
        except OutriderError as error:
            observation.failed(error)
            raise
        finally:
            observation.close()

    @asynccontextmanager
    async def _running_one(
        self,
        session: Session,
        caller: Caller,
        observation: Observation,
        begin: Callable[[SessionStarted], Generation],
    ) -> AsyncIterator[Generation]:
        """Place a session; it is left in the end, whatever happens."""
        park, generation = caller.stream, None
        try:
            generation = begin(await session.open())
            self._running[session.session_id] = generation
            observation.admitted(generation.started, generation.prompt_tokens)
            if self._stopped is not None:
                generation.stop(self._stopped)
            yield generation
        except (DeadlineExceededError, InternalError):
            park = False
            raise
        finally:
            if self._running.get(session.session_id) is generation:
                self._running.pop(session.session_id, None)
            if generation is not None:
                generation.abandon(park=park)
            else:
                session.give_up(self._background, park=park)
            self._remember(session)

    def _session(self, origin: Origin, caller: Caller, observation: Observation) -> Session:
        limit_s = self._timeout_s if caller.timeout_s is None else min(self._timeout_s, caller.timeout_s)
        return Session(
            self._verifiers,
            origin,
            observation,
            metadata=metadata.pairs(traceparent=observation.traceparent, x_request_id=caller.request_id),
            timeout_s=limit_s,
            failover_s=self._failover_s,
        )

    def _remember(self, session: Session) -> None:
        """Which verifier is likely to hold what was left."""
        self._holders.pop(session.session_id, None)
        if not session.over and session.holder:
            self._holders[session.session_id] = session.holder
            while len(self._holders) > MAX_HOLDERS:
                self._holders.popitem(last=False)


def draw_seed() -> int:
    """A seed for a request that gives none; below 2**53, so that every JSON reader keeps it exact."""
    return secrets.randbits(53)
