"""From the tokens of each round to what the client gets: text, ids, counts, and when to stop.

Tokens are taken one at a time, so the outcome is the same however they were grouped into rounds. The text
of all deltas up to the D-th token is a function of D alone: a stream that broke can be taken up behind any
delta. Text that only the end makes certain goes with the last tokens or, if those are delivered, alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider.core.errors import InternalError, InvalidRequestError
from outrider.core.params import TokenLogprobs
from outrider.gateway.detokenizer import Detokenizer, TextPiece
from outrider.gateway.stop_strings import StopMatcher
from outrider.wire.messages import GenerationDelta


@dataclass(frozen=True, slots=True)
class _Token:
    """A generated token on its way to the client."""

    token_id: int
    drafted: bool  # it was a draft token
    logprobs: TokenLogprobs | None


class Delivery:
    """State of one generation between verifier and client."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
        logprobs: bool = False,
        resumed_at: int = 0,
    ) -> None:
        """Args:
        detokenizer: makes the text.
        stops: stop strings.
        include_stop: deliver the text of the stop string, or of the stop token, that ended it.
        min_tokens: a stop string counts only if a later token than this completes it.
        logprobs: each token comes with its log-probabilities.
        resumed_at: so many tokens were delivered by an earlier stream: a delta ends behind them.
        """
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops, include=include_stop)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._logprobs = logprobs
        self.resumed_at = resumed_at
        self._waiting: deque[_Token] = deque()
        self.delivered = 0
        self.accepted = 0

    @property
    def repeats(self) -> bool:
        """What was delivered so far is less than an earlier stream delivered."""
        return self.delivered < self.resumed_at

    @property
    def stopped(self) -> bool:
        """A stop string was found; nothing after it will be delivered."""
        return self._matcher.hit

    def push(
        self, token_ids: Sequence[int], accepted: int, logprobs: Sequence[TokenLogprobs] = ()
    ) -> list[GenerationDelta]:
        """Take the tokens of a round, the first `accepted` of which were draft tokens.

        Raises:
            InternalError: there is not one entry of `logprobs` for each token, though they are to be told.
        """
        told: Sequence[TokenLogprobs | None] = logprobs if self._logprobs else [None] * len(token_ids)
        if len(told) != len(token_ids):
            raise InternalError(f"{len(token_ids)} tokens came with log-probabilities of {len(told)}")
        deltas = _Deltas(self)
        for index, (token_id, entry) in enumerate(zip(token_ids, told, strict=True)):
            self._waiting.append(_Token(token_id, index < accepted, entry))
            if self._take(self._detokenizer.push(token_id), deltas):
                break
            deltas.release(self._detokenizer.settled)
        return deltas.done()

    def finish(self, stop_token_id: int | None = None) -> list[GenerationDelta]:
        """The verifier has no more tokens: give out all that was held back.

        `stop_token_id` ended them; its text is the last one if it is to be included, its id is not told.

        Raises:
            InvalidRequestError: there are fewer tokens than an earlier stream is said to have delivered.
        """
        deltas = _Deltas(self)
        if not self.stopped and not self._take(self._last_pieces(stop_token_id), deltas):
            deltas.say(self._matcher.flush(), self.delivered + len(self._waiting))
            deltas.release(self.delivered + len(self._waiting))
        if self.repeats:
            raise InvalidRequestError(
                f"from_token must be at most {self.delivered}, the tokens of the generation, "
                f"got {self.resumed_at}",
                field="from_token",
            )
        return deltas.done()

    def take_waiting(self, until: int) -> Iterable[tuple[int, _Token]]:
        """Count tokens as delivered up to `until`; yields each with its index."""
        while self._waiting and self.delivered < until:
            token = self._waiting.popleft()
            yield self.delivered, token
            self.delivered += 1
            self.accepted += token.drafted

    def _last_pieces(self, stop_token_id: int | None) -> list[TextPiece]:
        pieces: list[TextPiece] = []
        if self._include_stop and stop_token_id is not None:
            pieces += self._detokenizer.push(stop_token_id)
        return pieces + self._detokenizer.flush()

    def _take(self, pieces: Iterable[TextPiece], deltas: _Deltas) -> bool:
        """Match stop strings in new text; True on a hit, after which tokens past it are dropped."""
        for piece in pieces:
            text = self._matcher.push(piece.text, counts=piece.tokens > self._min_tokens)
            deltas.say(text, piece.tokens)
            if self._matcher.hit:
                deltas.release(piece.tokens)
                self._waiting.clear()
                return True
        return False


class _Deltas:
    """Collects text and tokens; starts another delta where a draft token follows one that was not."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._texts: list[tuple[int, str]] = []  # with the number of tokens that made it certain
        self._runs: list[list[tuple[int, _Token]]] = []

    def say(self, text: str, tokens: int) -> None:
        """Text that became certain with the token of this number, counted from 1."""
        if text:
            self._texts.append((tokens, text))

    def release(self, until: int) -> None:
        """Deliver the tokens up to this number."""
        for index, token in self._delivery.take_waiting(until):
            if self._begins(index, token):
                self._runs.append([])
            self._runs[-1].append((index, token))

    def done(self) -> list[GenerationDelta]:
        """The deltas, each with the text that its tokens made certain; the last one with all that is left."""
        if not self._runs:
            text = "".join(text for _, text in self._texts)
            return [GenerationDelta(text, (), 0, self._delivery.delivered)] if text else []
        deltas = []
        for run in self._runs:
            last = run is self._runs[-1]
            own = [text for tokens, text in self._texts if last or tokens <= run[-1][0] + 1]
            self._texts = self._texts[len(own) :]
            deltas.append(_delta("".join(own), run))
        return deltas

    def _begins(self, index: int, token: _Token) -> bool:
        """Whether this token is the first one of a delta."""
        if not self._runs or index == self._delivery.resumed_at:
            return True
        return token.drafted and not self._runs[-1][-1][1].drafted


def _delta(text: str, run: Sequence[tuple[int, _Token]]) -> GenerationDelta:
    return GenerationDelta(
        text,
        tuple(token.token_id for _, token in run),
        sum(token.drafted for _, token in run),
        run[0][0],
        tuple(token.logprobs for _, token in run if token.logprobs is not None),
    )
