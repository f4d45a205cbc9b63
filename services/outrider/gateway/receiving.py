"""What has been received of a session: makes one sequence, each part once, of what several streams tell."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic

from outrider.core.errors import InternalError
from outrider.wire.messages import (
    PromptLogprobs,
    SessionEvent,
    SessionFinished,
    SessionStarted,
    SessionTokens,
)


class Received:
    """Grows with every event. A stream that takes another one's place may tell again what is known."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.rounds = 0  # that brought tokens
        self._prompt_told = 0  # positions of the prompt that came with log-probabilities, and those before
        self._next: int | None = None  # token that this stream tells next; None: it has told none
        self._here = _Counts()  # of this stream's owner
        self._lost = _Counts()  # of owners that are gone and cannot tell them any more
        self._last_at: float | None = None  # when the last token came
        self._paused_since: float | None = None

    def attached(self, *, same_owner: bool) -> None:
        """Another stream begins; `same_owner`: of the one that counted the rounds so far."""
        self._next = None
        if not same_owner:
            self._lost.add(self._here)
            self._here = _Counts()

    def broken(self) -> None:
        """The stream ended before the session: the time without tokens is measured."""
        if self._paused_since is None:
            self._paused_since = self._last_at if self._last_at is not None else monotonic()

    def pause(self) -> float | None:
        """How long tokens stayed away, in seconds, if they did and have come again. Told once."""
        since, last = self._paused_since, self._last_at
        if since is None or last is None or last <= since:
            return None
        self._paused_since = None
        return last - since

    def take(self, event: SessionEvent) -> SessionEvent | None:
        """What is new in an event; None: nothing is.

        Raises:
            InternalError: it does not go on from what is known, or contradicts it.
        """
        match event:
            case SessionTokens():
                return self._take_tokens(event)
            case PromptLogprobs():
                return self._take_prompt(event)
            case SessionFinished():
                return self._counted(event)
            case SessionStarted():
                raise InternalError("the verifier said twice that the session started")

    def _take_tokens(self, event: SessionTokens) -> SessionTokens | None:
        have, first = len(self.tokens), event.first_token
        expected = have if self._next is None else self._next
        if first > expected or (self._next is not None and first < expected):
            raise InternalError(f"the verifier sent token {first}, {expected} was next")
        self._next = first + len(event.token_ids)
        again = have - first
        new = event
        if again:
            if tuple(self.tokens[first : self._next]) != event.token_ids[:again]:
                raise InternalError(
                    f"the session went on with other tokens from {first} on than those received"
                )
            if again >= len(event.token_ids):
                return None
            accepted = max(0, event.accepted - again)
            new = SessionTokens(have, event.token_ids[again:], accepted, event.logprobs[again:])
        self.tokens.extend(new.token_ids)
        self.rounds += 1
        self._here.rounds += 1
        self._here.accepted += new.accepted
        if new.token_ids:
            self._last_at = monotonic()
        return new

    def _take_prompt(self, event: PromptLogprobs) -> PromptLogprobs | None:
        told = self._prompt_told or event.first_position
        if event.first_position > told:
            raise InternalError(
                f"the verifier sent log-probabilities of position {event.first_position}, {told} was next"
            )
        again = told - event.first_position
        self._prompt_told = max(told, event.first_position + len(event.entries))
        if self.tokens or (again and again >= len(event.entries)):
            return None
        return PromptLogprobs(told, event.entries[again:])

    def _counted(self, event: SessionFinished) -> SessionFinished:
        """Together with the rounds of owners that are gone, of which only accepted drafts are known."""
        lost, stats = self._lost, event.speculation
        if not lost.rounds:
            return event
        total = replace(
            stats,
            rounds=stats.rounds + lost.rounds,
            draft_tokens=stats.draft_tokens + lost.accepted,
            accepted_tokens=stats.accepted_tokens + lost.accepted,
        )
        return replace(event, speculation=total)


class _Counts:
    """Of one owner of the session."""

    def __init__(self) -> None:
        self.rounds = 0
        self.accepted = 0  # draft tokens

    def add(self, other: _Counts) -> None:
        self.rounds += other.rounds
        self.accepted += other.accepted
