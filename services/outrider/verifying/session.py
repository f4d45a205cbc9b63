"""State of a session that lives here. Owned by the engine thread; nobody else touches it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from outrider.core.history import TokenHistory
from outrider.core.params import FUSED
from outrider.core.rounds import Proposal
from outrider.core.sessions import DrafterStats, FinishReason, SessionRecord, SpeculationStats, Usage
from outrider.engine.api import SequenceHandle
from outrider.structured import GrammarMatcher
from outrider.verifying.fusion.worth import Worth
from outrider.verifying.spans import RoundSpans


class DraftPhase(enum.Enum):
    """What a session's drafter knows of it."""

    OFF = "off"  # speculation is off, or given up: no message about this session is ever sent
    ABSENT = "absent"  # the drafter does not hold it: open it at the next chance
    OPEN = "open"  # the drafter holds it


@dataclass(slots=True)
class LinkDrafting:
    """A session's side of one drafter."""

    name: str  # of the drafter
    depth: int  # usual depth of its drafts
    phase: DraftPhase = DraftPhase.ABSENT
    link: str = ""  # to the replica that holds it, or held it last; empty: to none
    known: int = 0  # tokens of the session that it was told of
    credited: int = 0  # of the tokens past these, from the start: those that stood in its proposal
    wanted: int = 0  # depth of the drafts asked for at the present length; 0: none are awaited
    nodes: int = 0  # how many of them there may be
    asked_at: float = 0.0
    wait_until: float | None = None  # end of patience; None: nothing is awaited
    proposal: Proposal | None = None
    refused: dict[str, float] = field(default_factory=dict)  # by link: not there again before this time
    settled_at: float = 0.0  # before this time it does not leave a replica only because that one rests
    failures: int = 0  # times that it lost the session since its last proposal
    missed_len: int = -1  # length whose proposal was missed last, and when it had been asked for
    missed_asked_at: float = 0.0

    def forget_round(self) -> None:
        """Drop what was asked and what came for the length that the session has outgrown."""
        self.wanted = self.nodes = 0
        self.wait_until = None
        self.proposal = None


@dataclass(slots=True)
class Drafting:
    """A session's side of drafting."""

    links: dict[str, LinkDrafting] = field(default_factory=dict)  # its drafters; none: speculation is off
    nodes: int = 0  # most draft tokens of a round
    worth: Worth | None = None  # which of several drafters are worth asking; None: there is one at most

    @property
    def label(self) -> str:
        """What statistics call it."""
        return FUSED if self.worth is not None else next(iter(self.links), "")

    @property
    def waiting(self) -> list[LinkDrafting]:
        """Drafters whose proposals are awaited."""
        return [own for own in self.links.values() if own.wait_until is not None]

    @property
    def wait_until(self) -> float | None:
        """Until when the session waits for proposals; None: it is ready."""
        ends = [own.wait_until for own in self.links.values() if own.wait_until is not None]
        return max(ends, default=None)

    @property
    def asked_at(self) -> float | None:
        """When proposals for the present length were asked for; None: none were."""
        return min((own.asked_at for own in self.links.values() if own.wanted), default=None)

    @property
    def proposals(self) -> dict[str, Proposal]:
        """What came for the present length."""
        return {name: own.proposal for name, own in self.links.items() if own.proposal is not None}

    def forget_round(self) -> None:
        """Drop what was asked and what came for the length that the session has outgrown."""
        for own in self.links.values():
            own.forget_round()


@dataclass(slots=True)
class Session:
    """A session, waiting or running.

    Invariant between steps, once prefilled: the KV cache holds all tokens but the last one, which
    is the root of the next round.
    """

    record: SessionRecord  # as admitted; `tokens` below goes on from it
    order: int  # of arrival
    tokens: list[int] = field(default_factory=list)  # prompt and committed tokens
    sequence: SequenceHandle | None = None  # None: waits for room
    drafting: Drafting = field(default_factory=Drafting)
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    drafted_marks: bytearray = field(default_factory=bytearray)  # per generated token: 1 if accepted
    drafter_marks: list[bytearray] = field(
        default_factory=list
    )  # the same for each drafter's own, as in `stats`
    prompt_told: int = 0  # positions of the prompt whose log-probabilities need not be told any more
    stored_told: int = 0  # positions, prompt included, of the record's tokens that need not be told any more
    history: TokenHistory | None = None  # for edits; made when first needed
    grammar: GrammarMatcher | None = None  # what the output must look like; None: anything
    cached_prompt_tokens: int = 0
    spans: RoundSpans | None = None  # None: tracing is off
    admitted_at: float = 0.0  # monotonic seconds
    age: int = 0  # order of first turns: lower is older; 0: it has not had one
    started: bool = False  # it has run before: it was not always waiting

    @classmethod
    def admitted(cls, record: SessionRecord, order: int, drafting: Drafting, from_token: int = 0) -> Session:
        """A session that starts, or goes on, from what its record holds; its client has `from_token`."""
        # The first token has none; and they come before the first generated token, so who has one had them.
        tells = record.logprobs.prompt_top is not None and not from_token
        stored = len(record.prompt) + len(record.tokens)
        told_again = record.logprobs.top is not None
        return cls(
            record,
            order,
            tokens=[*record.prompt, *record.tokens],
            stored_told=min(len(record.prompt) + from_token, stored) if told_again else stored,
            drafting=drafting,
            stats=SpeculationStats(
                drafter=drafting.label, drafters=[DrafterStats(name) for name in drafting.links]
            ),
            drafted_marks=bytearray(len(record.tokens)),
            drafter_marks=[bytearray(len(record.tokens)) for _ in drafting.links],
            prompt_told=1 if tells else len(record.prompt),
        )

    @property
    def session_id(self) -> str:
        """Its id."""
        return self.record.session_id

    @property
    def generated(self) -> int:
        """Generated tokens so far."""
        return len(self.tokens) - len(self.record.prompt)

    @property
    def remaining(self) -> int:
        """Tokens that may still be generated."""
        return self.record.stop.max_tokens - self.generated

    @property
    def tenant(self) -> str:
        """Who asked."""
        return self.record.tenant

    @property
    def returns(self) -> bool:
        """Whether it ran elsewhere before: its client may have tokens of it."""
        return bool(self.record.tokens) or self.record.epoch > 1

    @property
    def place(self) -> tuple[int, int]:
        """Its place among those of its tenant that wait: preempted ones, those that return, new ones."""
        return (0, self.age) if self.age else (1 if self.returns else 2, self.order)

    @property
    def price(self) -> int:
        """Tokens of work to pay for at its next turn: not what was paid for before, here or elsewhere."""
        if self.age:
            return 0
        return self.remaining if self.record.tokens else len(self.record.prompt) + self.remaining

    @property
    def stored(self) -> int:
        """Tokens that it was admitted with, prompt included."""
        return len(self.record.prompt) + len(self.record.tokens)

    @property
    def ending(self) -> FinishReason | None:
        """Why nothing more is generated: it came with all its tokens. None: it goes on."""
        over = FinishReason.LENGTH if self.remaining < 1 else None
        return self.record.finish_reason or over

    @property
    def untold(self) -> bool:
        """Whether the model has to run for log-probabilities of tokens that it has."""
        return self.prompt_told < len(self.record.prompt) or self.stored_told < self.stored

    @property
    def missing(self) -> int:
        """Tokens without KV, the last one included: 1 when decoding, more while prefilling."""
        return len(self.tokens) - (self.sequence.kv_len if self.sequence else 0)

    @property
    def reusable(self) -> int | None:
        """Tokens whose KV may come from the prefix cache: before those whose logits are wanted. None: any."""
        if self.prompt_told < len(self.record.prompt):
            return self.prompt_told - 1
        return self.stored_told - 1 if self.stored_told < self.stored else None

    def usage(self, delivered: int) -> Usage:
        """Counts for the client when `delivered` generated tokens were kept."""
        return Usage(len(self.record.prompt), delivered, self.cached_prompt_tokens)

    def stats_of(self, delivered: int) -> SpeculationStats:
        """Counts of speculation; accepted tokens count only if they were delivered."""
        self.stats.accepted_tokens = self.drafted_marks.count(1, 0, delivered)
        for stats, marks in zip(self.stats.drafters, self.drafter_marks, strict=True):
            stats.accepted_tokens = marks.count(1, 0, delivered)
        return self.stats
