"""A generation over all the streams that it takes: what is new to its caller, what to do when one breaks."""

from __future__ import annotations

import time
from dataclasses import replace

from outrider.client.connection import MAX_ATTEMPTS, Connection
from outrider.core.errors import (
    DeadlineExceededError,
    ModelMismatchError,
    ModelNotFoundError,
    OutriderError,
    ProtocolError,
    RequestCancelledError,
    SessionNotFoundError,
    UnavailableError,
)
from outrider.wire.messages import (
    GenerationDelta,
    GenerationEvent,
    GenerationStarted,
    PromptLogprobs,
)
from outrider.wire.v1 import generation_pb2 as pb

MAX_RESUMES = 10
"""Attempts in a row that brought nothing new; about 7 s, and what each one takes."""
FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 1.0


class Progress:
    """What has been told of a generation. A stream that takes it up may tell a part of it again."""

    def __init__(self, generation_id: str = "", tokens: int = 0) -> None:
        """`generation_id`: of one that is to be resumed behind so many tokens."""
        self.generation_id = generation_id
        self.tokens = tokens
        self._started: GenerationStarted | None = None
        self._prompt_told = 0  # positions of the prompt, those without log-probabilities included
        self._ended = False  # the text that only the end made certain has come

    def take(self, event: GenerationEvent) -> GenerationEvent | None:
        """What is new in it; None: nothing.

        Raises:
            ProtocolError: it does not go on from what was told.
        """
        match event:
            case GenerationStarted():
                return self._start(event)
            case PromptLogprobs():
                return self._take_prompt(event)
            case GenerationDelta():
                return self._take_delta(event)
        return event

    def _start(self, event: GenerationStarted) -> GenerationStarted | None:
        if self._started is not None:
            if event != self._started:
                raise ProtocolError("the gateway went on with another generation")
            return None
        self._started, self.generation_id = event, event.generation_id
        return event

    def _take_prompt(self, event: PromptLogprobs) -> PromptLogprobs | None:
        known = max(0, self._prompt_told - event.first_position)
        self._prompt_told = max(self._prompt_told, event.first_position + len(event.entries))
        if known >= len(event.entries):
            return None
        return replace(event, first_position=event.first_position + known, entries=event.entries[known:])

    def _take_delta(self, event: GenerationDelta) -> GenerationDelta | None:
        if event.first_token != self.tokens:
            raise ProtocolError(f"the gateway sent token {event.first_token}, {self.tokens} was next")
        self.tokens += len(event.token_ids)
        if not event.token_ids:
            if self._ended:
                return None
            self._ended = True
        return event


class Course:
    """The calls that a generation takes, one after the other."""

    def __init__(
        self, connection: Connection, progress: Progress, request: pb.GenerateRequest | None, timeout_s: float
    ) -> None:
        """`request` None: it is to be resumed, as `progress` says."""
        self.progress = progress
        self._connection = connection
        self._request = request
        self._until = time.monotonic() + timeout_s
        self._attempts = 0  # since something new came
        self._broken: OutriderError | None = None  # why it was interrupted, until something new comes

    @property
    def remaining_s(self) -> float:
        """Time that is left for all of it."""
        return max(0.0, self._until - time.monotonic())

    @property
    def request(self) -> pb.GenerateRequest | pb.ResumeRequest:
        """What to ask for next."""
        if self.progress.generation_id:
            return pb.ResumeRequest(
                generation_id=self.progress.generation_id, from_token=self.progress.tokens
            )
        assert self._request is not None
        return self._request

    def take(self, event: GenerationEvent) -> GenerationEvent | None:
        """What is new in it; None: nothing. Raises ProtocolError as `Progress` does."""
        new = self.progress.take(event)
        if new is not None:
            self._attempts, self._broken = 0, None
        return new

    def failed(self, error: OutriderError) -> float:
        """A stream ended with `error`: how long to wait before the next gateway is asked, in seconds.

        Raises:
            OutriderError: none is to be asked; what the caller is told.
        """
        if isinstance(error, SessionNotFoundError) and not self.progress.generation_id:
            # So it looks behind a proxy that drops the label: a new generation misses no session.
            raise ModelNotFoundError(str(error)) from error
        if self._broken is not None and isinstance(error, SessionNotFoundError | ModelMismatchError):
            raise self._broken from error  # it cannot be resumed there, so this is what went wrong
        if not isinstance(error, UnavailableError | RequestCancelledError) or not self._may_go_on(error):
            raise error
        self._broken = self._broken or error
        self._attempts += 1
        pause = min(FIRST_PAUSE_S * 2 ** (self._attempts - 2), LAST_PAUSE_S) if self._attempts > 1 else 0.0
        if pause >= self.remaining_s:
            raise DeadlineExceededError(f"the time passed while the stream was broken: {error}") from error
        return pause

    def _may_go_on(self, error: OutriderError) -> bool:
        if self.progress.generation_id:
            return self._connection.resume and self._attempts < MAX_RESUMES
        # A stopping server cancels calls that it has not taken up; gRPC itself makes none of them again.
        least = MAX_ATTEMPTS if isinstance(error, RequestCancelledError) else 1
        return self._connection.retry and self._attempts + 1 < max(len(self._connection.addresses), least)
