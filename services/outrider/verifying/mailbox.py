"""What passes between the event loop and the engine thread. Immutable, so nothing is shared."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.core.errors import OutriderError
from outrider.core.models import DrafterInfo
from outrider.core.rounds import Proposal
from outrider.core.sessions import Commit, FinishReason, SessionRecord
from outrider.structured import GrammarMatcher
from outrider.verifying.spans import RoundSpans
from outrider.wire.messages import (
    DraftCommand,
    DrafterLoad,
    PromptLogprobs,
    SessionFinished,
    SessionTokens,
    Stale,
)


@dataclass(frozen=True, slots=True)
class Admit:
    """Run a session: a new one, or one that goes on from what its record holds."""

    record: SessionRecord
    drafters: tuple[tuple[str, int], ...] = ()  # links to draft through, with depths; none: it is off
    draft_nodes: int = 0  # most draft tokens a round
    spans: RoundSpans | None = None
    grammar: GrammarMatcher | None = None  # at the beginning of the output; the engine thread's from now on
    from_token: int = 0  # of the record's tokens, those from here on are told, if with log-probabilities


@dataclass(frozen=True, slots=True)
class End:
    """End a session before it ended by itself. Unknown ids are ignored."""

    session_id: str
    keep_tokens: int | None = None  # generated tokens that count as delivered; None: all
    reason: FinishReason = FinishReason.CANCELLED
    error: OutriderError | None = None  # the stream ends with it instead of with SessionFinished
    unless_started: bool = False  # leave it alone if it has had its turn


@dataclass(frozen=True, slots=True)
class Leave:
    """Let go of a session that is not over: what it held is free, and somebody may go on with it."""

    session_id: str | None  # None: all
    waiting: bool = False  # only if it waits for its turn


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A drafter replica can be reached; each connection has another generation."""

    link: str
    generation: int
    info: DrafterInfo
    drafter: str  # its name in the configuration


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The connection is gone, and with it all that the drafter held."""

    link: str
    generation: int


@dataclass(frozen=True, slots=True)
class LinkDraining:
    """The drafter is about to stop: no new sessions for it."""

    link: str
    generation: int


@dataclass(frozen=True, slots=True)
class LinkTook:
    """So many bytes of features went out on the connection."""

    link: str
    generation: int
    feature_bytes: int


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """The drafter says how busy it is."""

    link: str
    generation: int
    load: DrafterLoad


@dataclass(frozen=True, slots=True)
class LinkGone:
    """There is no such replica any more: forget it."""

    link: str
    drafter: str


LinkNews = LinkUp | LinkDown | LinkDraining | LinkTook | LinkLoad | LinkGone


@dataclass(frozen=True, slots=True)
class Drafted:
    """A drafter's word about a session."""

    link: str
    generation: int
    event: Proposal | Stale


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End the thread. Sessions that still run end with UnavailableError."""


Inward = Admit | End | Leave | LinkNews | Drafted | Shutdown

StreamItem = PromptLogprobs | SessionTokens | SessionFinished | OutriderError
"""What a session's stream carries after its start; the last two end it."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """A session ended before its last committed token; the store has to forget the rest."""

    session_id: str
    epoch: int
    length: int  # generated tokens that stay
    reason: FinishReason


@dataclass(slots=True)
class Outcome:
    """All that one step (or one round of housekeeping) has to tell the event loop."""

    commands: dict[tuple[str, int], list[DraftCommand]] = field(default_factory=dict)  # by link, generation
    items: list[tuple[str, StreamItem]] = field(default_factory=list)  # by session, in order
    commits: list[Commit] = field(default_factory=list)
    truncations: list[Truncation] = field(default_factory=list)  # come after the commits
    started: list[str] = field(default_factory=list)  # sessions that have their first turn
    left: list[str] = field(default_factory=list)  # sessions that were let go; after their commits

    def __bool__(self) -> bool:
        if self.commands or self.items or self.commits:
            return True
        return bool(self.truncations or self.started or self.left)
