"""What answers calls in one verifier, put together. Event loop only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider.config.schema import OutriderConfig
from outrider.sessions.store import SessionStore
from outrider.sessions.writer import CommitWriter
from outrider.structured import GrammarCompiler
from outrider.telemetry.metrics import VerifierMetrics
from outrider.telemetry.tracing import Tracing
from outrider.verifying.admission import Admission
from outrider.verifying.arrivals import Arrivals
from outrider.verifying.leaving import Leaving
from outrider.verifying.loop import RoundLoop
from outrider.verifying.opening import Opening
from outrider.verifying.ownership import Ownership
from outrider.verifying.places import Places
from outrider.verifying.running import Running
from outrider.verifying.service import VerifierServicer
from outrider.verifying.streams import StreamTable
from outrider.verifying.takeover import Takeover
from outrider.wire.messages import VerifierInfo


@dataclass(frozen=True, slots=True)
class Front:
    """The servicer, and those of its parts that others need."""

    servicer: VerifierServicer
    arrivals: Arrivals
    leaving: Leaving
    ownership: Ownership

    @classmethod
    def build(
        cls,
        config: OutriderConfig,
        *,
        info: VerifierInfo,
        admission: Admission,
        compiler: GrammarCompiler,
        places: Places,
        streams: StreamTable,
        store: SessionStore,
        writer: CommitWriter,
        rounds: RoundLoop,
        metrics: VerifierMetrics,
        tracing: Tracing,
        degraded: Callable[[], tuple[str, ...]],
    ) -> Front:
        """Args: see the parts."""
        post, moved = rounds.post, metrics.session_moved
        arrivals = Arrivals(streams, places)
        leaving = Leaving(streams, writer, post=post, detached_s=config.verifier.detached_s, moved=moved)
        ownership = Ownership(streams, store, writer, post=post, moved=moved)
        running = Running(streams, arrivals, admission, post=post, tracing=tracing)
        opening = Opening(
            admission=admission,
            arrivals=arrivals,
            ownership=ownership,
            running=running,
            compiler=compiler,
            store=store,
            writer=writer,
            refuse_when_away=config.store.when_away == "refuse",
        )
        takeover = Takeover(
            admission=admission,
            arrivals=arrivals,
            ownership=ownership,
            running=running,
            leaving=leaving,
            streams=streams,
            compiler=compiler,
            store=store,
            writer=writer,
        )
        servicer = VerifierServicer(
            info=info,
            arrivals=arrivals,
            opening=opening,
            takeover=takeover,
            leaving=leaving,
            streams=streams,
            writer=writer,
            post=post,
            tracing=tracing,
            degraded=degraded,
            load=lambda: rounds.load,
        )
        return cls(servicer, arrivals, leaving, ownership)
