"""What every drafting method offers to the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.core.models import ModelInfo
from outrider.core.trees import TokenTree
from outrider.drafting.session import DraftSession
from outrider.wire.messages import FeatureBlock


@dataclass(frozen=True, slots=True)
class StepReport:
    """What became of a step."""

    progressed: int  # sessions that it brought forward
    starved: Sequence[DraftSession] = ()  # sessions that found no room in memory; nothing changed for them
    forward_ns: tuple[int, int] = (0, 0)  # the model's forward: start and end, time.perf_counter_ns


class DraftingMethod(Protocol):
    """One way to draft. Owned by the scheduler's thread.

    A method works towards `session.goal` in short steps over many sessions at once, so that the
    scheduler can put other work in between. What it proposes is a function of the session's
    committed tokens, sampling parameters and features only, never of the steps that led there.
    """

    @property
    def name(self) -> str:
        """Name of the method, as in the configuration."""

    @property
    def info(self) -> ModelInfo:
        """The draft model; empty values for a method without one."""

    @property
    def features(self) -> frozenset[str]:
        """Features that Open and Advance must carry."""

    @property
    def last_feature_only(self) -> bool:
        """Whether the features of the last token that has any are enough."""

    @property
    def runs_ahead(self) -> bool:
        """Whether work past a proposal can make the next one come sooner."""

    @property
    def usage(self) -> float:
        """Share of the method's memory in use, 0 to 1."""

    def open(self, session: DraftSession, features: Sequence[FeatureBlock]) -> None:
        """Take up a session. Allocates nothing that scales with its length.

        Features may be missing, begin late or come later: then the method drafts worse, or not at all.

        Raises:
            ProtocolError: the features are not what was asked for. The caller closes the session.
            OverloadedError: there is no room for them. Likewise.
        """

    def advance(self, session: DraftSession, same: int, features: Sequence[FeatureBlock]) -> None:
        """Tokens were committed (or, without any, features came): forget all after the first `same`
        (see `DraftSession.commit`). Raises as `open` does.
        """

    def step(self, sessions: Sequence[DraftSession]) -> StepReport:
        """Bring sessions that are not finished one step nearer to their goals, in one forward pass.

        Raises:
            OutriderError, RuntimeError: the forward failed; the state of these sessions is lost.
        """

    def finished(self, session: DraftSession) -> bool:
        """Whether the session's goal is reached, or nothing more can be done for it."""

    def proposal(self, session: DraftSession, length: int, nodes: int) -> TokenTree:
        """The draft of a finished session, at most `length` deep and `nodes` nodes; empty: nothing."""

    def close(self, session: DraftSession) -> None:
        """Give back all that the session holds. Idempotent."""
