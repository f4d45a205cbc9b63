"""The parts of one verifier, put together."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from outrider import catalogue
from outrider.config.schema import DrafterConfig, OutriderConfig, VerifierConfig
from outrider.core.errors import InternalError, OutriderError, UnavailableError
from outrider.discovery import Announcer, Instance, NullAnnouncer, Role, open_registry
from outrider.engine.api import EngineApi
from outrider.engine.parallel.ranks import LostRankError
from outrider.sessions.store import SessionStore
from outrider.sessions.writer import CommitWriter
from outrider.structured import GrammarCompiler, GrammarVocabulary
from outrider.telemetry.metrics import VerifierMetrics
from outrider.telemetry.tracing import Tracing
from outrider.verifying.admission import Admission
from outrider.verifying.drafter_pool import DrafterPool
from outrider.verifying.drafts import DraftDesk
from outrider.verifying.engine_thread import EngineThread
from outrider.verifying.features import FeatureFeed
from outrider.verifying.front import Front
from outrider.verifying.fusion.council import Council
from outrider.verifying.hub import Hub
from outrider.verifying.link_table import LinkTable
from outrider.verifying.links import DrafterLink, LinkReport, link_of
from outrider.verifying.loop import RoundLoop
from outrider.verifying.mailbox import End, Leave, LinkGone, Shutdown
from outrider.verifying.meter import Meter
from outrider.verifying.patience import Patience
from outrider.verifying.places import Places
from outrider.verifying.streams import StreamTable
from outrider.wire.messages import VerifierInfo
from outrider.wire.protection import PLAIN, Protection


class Replica:
    """Engine thread, drafter links, streams, commits and servicer of one verifier. Event loop only."""

    def __init__(
        self,
        config: OutriderConfig,
        engine: EngineApi,
        *,
        store: SessionStore,
        metrics: VerifierMetrics,
        tracing: Tracing,
        announcer: Announcer | None = None,
        instance_id: str = "",
        protection: Protection = PLAIN,
    ) -> None:
        """Args:
        config: of the whole deployment.
        engine: belongs to the thread that `rounds` will be run in.
        store: for sessions.
        metrics: of this verifier.
        tracing: for request and round spans.
        announcer: its troubles are this verifier's too. None: it enters itself nowhere.
        instance_id: empty: one is drawn.
        protection: of links.
        """
        own = config.verifier
        self._announcer = announcer or NullAnnouncer()
        self.places = Places(
            max_sessions=own.max_sessions,
            max_queue=own.max_queue,
            admitted=lambda session_id: session_id in self.streams,
            evict=lambda session_id, error: self.rounds.post(
                End(session_id, error=error, unless_started=True)
            ),
            refused=metrics.session_refused,
            timeout_s=own.queue_timeout_s,
        )
        self.streams = StreamTable(
            self.places.give_back,
            max_unread_bytes=own.max_unread_bytes,
            unread=lambda session_id: self.rounds.post(Leave(session_id)),
        )
        self.links = LinkTable(
            open_registry(config, Role.DRAFTER),
            config.drafters,
            self._link_to,
            lambda link, drafter: self.rounds.post(LinkGone(link, drafter)),
        )
        self.writer = CommitWriter(
            store,
            max_pending=config.store.max_pending,
            on_fenced=lambda session_id, error: self.front.ownership.fenced(session_id, error),
            on_stored=self.streams.stored,
            snapshot=self.streams.snapshot,
            observer=metrics.store,
        )
        self.admission = _admission(config, engine)
        self.compiler = GrammarCompiler(lambda: _vocabulary(config, engine))
        meter = Meter(metrics)
        hub = Hub(
            self.links,
            self.streams,
            self.places,
            self.writer,
            lambda session_id: self.front.leaving.left(session_id),
        )
        desk = _desk(own, config.drafters, engine, meter)
        self._desk = desk
        self.rounds = RoundLoop(engine, own, desk, meter, hub.publish)
        self.front = Front.build(
            config,
            info=_info(config, engine, instance_id or uuid.uuid4().hex),
            admission=self.admission,
            compiler=self.compiler,
            places=self.places,
            streams=self.streams,
            store=store,
            writer=self.writer,
            rounds=self.rounds,
            metrics=metrics,
            tracing=tracing,
            degraded=self._degraded,
        )
        self.servicer = self.front.servicer
        self._target = engine.info
        self._features = engine.features
        self._metrics = metrics
        self._protection = protection

    @asynccontextmanager
    async def linked(self) -> AsyncIterator[None]:
        """Hold a link to each replica of each drafter."""
        async with self.links.running():
            yield

    def _link_to(self, instance: Instance, stands: Callable[[LinkReport], None]) -> DrafterLink:
        def state(report: LinkReport) -> None:
            link = link_of(report.name, report.address)
            self._metrics.link_state(report.name, link, report.status.value)
            stands(report)

        return DrafterLink(
            instance.name,
            instance.address,
            self._target,
            offered_features=self._features,
            post=self.rounds.post,
            dropped=self._metrics.dropped,
            state=state,
            protection=self._protection,
        )

    @asynccontextmanager
    async def running(self, thread: EngineThread) -> AsyncIterator[asyncio.Future[None]]:
        """The rounds at work in `thread`; yields what ends with them."""
        work = thread.start(self.rounds.run)
        work.add_done_callback(self._engine_ended)
        try:
            yield work
        finally:
            self.compiler.close()
            self.rounds.post(Shutdown())
            await asyncio.wait([work])

    async def drain(self, grace_s: float) -> None:
        """Admit nobody any more and let sessions finish, for `grace_s` seconds at most.

        Those that wait, and in the end those that are left, are handed over: their streams end with
        SessionMovedError once the store has all their tokens, and any verifier can go on with them.
        """
        self.front.arrivals.close()
        await self.front.leaving.hand_over(grace_s)

    def _degraded(self) -> tuple[str, ...]:
        """What does not work as it should although sessions run, in words for an operator."""
        return (
            *self.writer.troubles,
            *self._announcer.troubles,
            *self.links.troubles,
            *self._desk.troubles,
        )

    def _engine_ended(self, work: asyncio.Future[None]) -> None:
        error: OutriderError = UnavailableError("the verifier is stopping")
        failure = work.exception()
        if isinstance(failure, LostRankError):  # no session is to blame: another verifier may go on with it
            error = UnavailableError("the verifier has lost a part of its model")
        elif failure is not None:
            error = InternalError("the engine stopped")
        self.front.arrivals.close()
        self.streams.fail_all(error)


def _desk(
    own: VerifierConfig, drafters: Mapping[str, DrafterConfig], engine: EngineApi, meter: Meter
) -> DraftDesk:
    feed = FeatureFeed(engine, meter.features_sent)
    pool = DrafterPool(
        {name: 0 if drafter.tree == "chain" else drafter.tree_nodes for name, drafter in drafters.items()},
        patience=lambda: Patience(
            limit_s=own.patience_ms / 1000, max_misses=own.max_misses, rest_s=own.rest_ms / 1000
        ),
        feed=feed,
        gone=meter.link_gone,
        useless=meter.useless,
    )
    return DraftDesk(
        pool,
        vocab_size=engine.info.vocab_size,
        max_nodes=own.max_draft_tokens,
        feed=feed,
        council=Council(nodes=own.tree_nodes, least=own.min_acceptance),
        dropped=meter.dropped,
        resting=meter.resting,
    )


def _vocabulary(config: OutriderConfig, engine: EngineApi) -> GrammarVocabulary:
    return GrammarVocabulary.load(
        catalogue.resolve(config.model),
        vocab_size=engine.info.vocab_size,
        eos_token_ids=engine.eos_token_ids,
    )


def _info(config: OutriderConfig, engine: EngineApi, instance_id: str) -> VerifierInfo:
    own = config.verifier
    return VerifierInfo(
        model=engine.info,
        eos_token_ids=engine.eos_token_ids,
        batch_invariance=engine.batch_invariance,
        drafters=tuple(config.drafters),
        instance_id=instance_id,
        default_draft_length=min(own.draft_length, own.max_draft_tokens),
        pool_tokens=engine.pool.total * own.block_size,
    )


def _admission(config: OutriderConfig, engine: EngineApi) -> Admission:
    own = config.verifier
    return Admission(
        engine.info,
        engine.eos_token_ids,
        engine.pool.total * own.block_size,
        own,
        tuple(config.drafters),
        {
            name: drafter.draft_length
            for name, drafter in config.drafters.items()
            if drafter.draft_length is not None
        },
    )
