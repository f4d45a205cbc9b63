"""What a drafter knows of one session, whatever the drafting method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from outrider.core.params import Acceptance, SamplingParams
from outrider.core.trees import SparseProbs

if TYPE_CHECKING:  # it needs torch, which takes seconds to load; drafters without a model do not
    from outrider.core.history import TokenHistory


class SessionKey(NamedTuple):
    """Session ids are unique within one stream only: two verifiers cannot touch each other's sessions."""

    stream: int
    session_id: str


@dataclass(slots=True, eq=False)
class DraftRequest:
    """A proposal that a session owes."""

    base_len: int  # committed tokens that it continues
    length: int  # depth, at least 1
    nodes: int  # most draft tokens, at least `length`
    arrived_ns: int  # time.perf_counter_ns of the command
    deadline_ns: int  # after that nobody waits for it; 0: no deadline
    traceparent: str = ""
    run_ahead_hit: bool = False
    forward_ns: int = 0  # time since arrival that the model's forwards took


@dataclass(slots=True, eq=False)
class DraftSession:
    """Committed tokens, and the chain drafted past them.

    `ahead` holds tokens that were proposed or drafted in run-ahead; it stays valid as long as
    commits agree with it. Methods that draft trees keep them by themselves.

    By the rules "token" and "block" tokens are drawn, by random numbers that a position and `since` name.
    No number may be used again once a token that it drew may have been judged: the verdict, which the
    commits depend on, depended on that number. So if part of a proposal was not committed, all that was
    drafted goes, and `since` moves on. What was drafted past a proposal that was accepted was not judged;
    it stays if it fits, and is drawn again by the same numbers if not, so that it does not matter how far the
    drafter had run ahead.
    """

    key: SessionKey
    epoch: int
    sampling: SamplingParams
    tokens: list[int] = field(repr=False)  # a prompt must not reach a log
    ahead: list[int] = field(default_factory=list, repr=False)
    goal: int = 0  # depth to work towards; 0: only keep up with the commits
    nodes: int = 0  # most draft tokens of the next proposal; at most `goal`: a chain
    request: DraftRequest | None = None
    acceptance: Acceptance = Acceptance.COUPLED
    laws: list[SparseProbs] = field(default_factory=list, repr=False)  # of `ahead`, if its tokens are drawn
    confidences: list[float] = field(default_factory=list, repr=False)  # of `ahead`
    since: int = 0  # tokens that were committed when the numbers in use began
    sent: int = 0  # tokens of `ahead` that were proposed
    prompt_len: int = 0  # of `tokens`
    tenant: str = ""  # what was served to one tenant is never proposed to another
    history: TokenHistory | None = None  # of `tokens`, for edits; made when first needed

    def __len__(self) -> int:
        """Tokens committed and drafted."""
        return len(self.tokens) + len(self.ahead)

    def window(self, start: int, stop: int) -> list[int]:
        """Tokens `start` to `stop` of the committed ones followed by the drafted ones."""
        committed = len(self.tokens)
        if start >= committed:
            return self.ahead[start - committed : stop - committed]
        if stop <= committed:
            return self.tokens[start:stop]
        return self.tokens[start:] + self.ahead[: stop - committed]

    def commit(self, token_ids: Sequence[int]) -> int:
        """Append committed tokens and drop what was drafted otherwise.

        Returns:
            How many tokens, from the start, of committed and drafted ones are what they were.
        """
        agreed = 0
        for committed, drafted in zip(token_ids, self.ahead, strict=False):
            if committed != drafted:
                break
            agreed += 1
        same = len(self.tokens) + agreed
        spent = self.acceptance is not Acceptance.COUPLED and self.sent > agreed
        if agreed == len(token_ids) and not spent:
            same = len(self)
            del self.ahead[:agreed]
            del self.laws[:agreed]
            del self.confidences[:agreed]
        else:
            self.forget_ahead()
        if spent:
            self.since = len(self.tokens) + len(token_ids)
        self.sent = 0
        self.tokens.extend(token_ids)
        return same

    def forget_ahead(self) -> None:
        """Drop what was drafted."""
        self.ahead.clear()
        self.laws.clear()
        self.confidences.clear()
