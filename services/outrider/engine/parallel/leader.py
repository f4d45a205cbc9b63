"""Rank 0 of a model that several ranks share: it starts the others, and has them do what it does."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from outrider.config.schema import EngineConfig, VerifierConfig
from outrider.engine.attention import AttentionKind
from outrider.engine.calibration import Calibrated, Least, calibrate
from outrider.engine.kv_store import KvStore
from outrider.engine.parallel import wire
from outrider.engine.parallel.group import Control, Group, listen, open_control, open_group
from outrider.engine.parallel.meeting import await_followers
from outrider.engine.parallel.ranks import LostRankError, RankLauncher, Ranks, RankTask
from outrider.engine.plan import StepPlan
from outrider.engine.rows import Projection
from outrider.engine.runner import Runner, RunnerOutput

_log = logging.getLogger(__name__)


class Leader:
    """The other ranks, as rank 0 sees them. Owned by the engine's thread but for `dead` and `close`."""

    def __init__(
        self, store: Any, ranks: Ranks, control: Control, group: Group, config: EngineConfig
    ) -> None:
        """Args:
        store: where ranks meet; lives as long as this.
        ranks: the other processes.
        control: for commands.
        group: for the layers' sums.
        config: of the engine, with the threads that rank 0 may use.
        """
        self.group = group
        self.config = config
        self._store = store
        self._ranks = ranks
        self._control = control
        self._lost = ""

    @classmethod
    def launch(cls, folder: Path, config: VerifierConfig, launcher: RankLauncher) -> Leader:
        """Start ranks 1 to N - 1 and wait until all have met. They load while rank 0 does.

        Raises:
            InternalError: one of them did not come.
        """
        size, host = config.tensor_parallel, launcher.host()
        threads = config.threads or launcher.threads(size)
        own = EngineConfig.model_validate(
            {name: getattr(config, name) for name in EngineConfig.model_fields} | {"threads": threads}
        )
        store, rendezvous = listen(host)
        tasks = [
            RankTask(folder, own, rank, size, rendezvous, config.rank_timeout_s) for rank in range(1, size)
        ]
        ranks = launcher.launch(tasks)
        try:
            await_followers(store, "started", size, ranks)
            control = open_control(store, 0, size, host, config.rank_timeout_s)
            group = open_group(store, 0, size, host, config.device, config.rank_timeout_s)
        except BaseException:
            ranks.close()
            raise
        return cls(store, ranks, control, group, own)

    def lead(self, runner: Runner) -> LeadingRunner:
        """A runner whose steps all ranks take. Waits until all have loaded.

        Raises:
            InternalError: one of them could not.
        """
        await_followers(self._store, "loaded", self.group.size, self._ranks)
        _log.info("%d ranks share the model", self.group.size)
        return LeadingRunner(self, runner)

    def calibrate(self, runner: Calibrated, dtype: torch.dtype, device: str) -> Least:
        """See calibration.calibrate. Every rank measures its own kernels.

        Row policies stay each rank's own: its products are split where its own kernels need it, and nobody
        else sees that. What plans are padded to is common to all, so it is the most that any rank needs.
        """
        with self.together():
            self._control.tell(wire.bare(wire.Command.CALIBRATE))
            own = calibrate(runner, dtype, device)
            answers = self._control.answers(torch.tensor([own.rows, own.queries]))
        rows, queries = torch.stack(answers).max(0).values.tolist()
        return Least(rows, queries)

    def tell(self, words: torch.Tensor) -> None:
        """Have the others do something. In `together`."""
        self._control.tell(words)

    def answers(self, own: torch.Tensor) -> list[torch.Tensor]:
        """What they answer to it, after rank 0's own answer. In `together`."""
        return self._control.answers(own)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around what all ranks do. Whatever goes wrong in it has them out of step, for good.

        Raises:
            LostRankError: instead of any error; and at once, if there was one before.
        """
        if self._lost:
            raise LostRankError(self._lost)
        try:
            yield
        except Exception as error:
            self._lost = self._ranks.dead() or f"the ranks of the model are out of step: {error}"
            raise LostRankError(self._lost) from error

    def dead(self) -> str:
        """Why the model cannot run any more, in words; empty: it can. Does not wait; any thread may ask."""
        return self._ranks.dead() or self._lost

    def close(self) -> None:
        """End the other ranks. Idempotent."""
        if not self.dead():
            try:
                with self.together():
                    self._control.tell(wire.bare(wire.Command.STOP))
            except LostRankError as error:
                _log.warning("the other ranks cannot be told to stop, and are killed: %s", error)
            self._lost = "the engine is closed"
        self._ranks.close()


class LeadingStore(KvStore):
    """The KV of all ranks: each has that of its heads, in the same slots. Reads and moves are of all."""

    def __init__(self, leader: Leader, own: KvStore) -> None:
        """`own`: rank 0's, whose memory this is."""
        self.shapes, self.layers = own.shapes, own.layers
        self._leader = leader

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """See KvStore; of one rank after the other."""
        with self._leader.together():
            self._leader.tell(wire.of_read(slots))
            return torch.cat(self._leader.answers(super().read(slots).cpu()))

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """See KvStore."""
        with self._leader.together():
            self._leader.tell(wire.of_move(source, target))
            super().move(source, target)


class LeadingRunner:
    """Runs a step on all ranks (implements Runner). Logits and features are rank 0's."""

    def __init__(self, leader: Leader, own: Runner) -> None:
        self._leader = leader
        self._own = own
        self._store = LeadingStore(leader, own.store)

    @property
    def store(self) -> LeadingStore:
        """The pool's tensors, of all ranks."""
        return self._store

    @property
    def attention_kinds(self) -> list[AttentionKind]:
        """See Runner."""
        return self._own.attention_kinds

    @property
    def projections(self) -> list[Projection]:
        """Rank 0's parts."""
        return self._own.projections

    @property
    def vocab_size(self) -> int:
        """See Runner."""
        return self._own.vocab_size

    @property
    def features(self) -> frozenset[str]:
        """See Runner."""
        return self._own.features

    def forward(self, plan: StepPlan, rows: torch.Tensor, *, features: Collection[str] = ()) -> RunnerOutput:
        """See Runner.

        Raises:
            LostRankError: a rank is gone, or took longer than `verifier.rank_timeout_s`.
        """
        with self._leader.together():
            self._leader.tell(wire.of_forward(plan, rows))
            return self._own.forward(plan, rows, features=features)
