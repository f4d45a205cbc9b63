"""From the tokens of each round to what the client gets: text, ids, counts, and when to stop.

Tokens are taken one at a time, so the outcome is the same however they were grouped into rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from outrider.gateway.detokenizer import Detokenizer, TextPiece
from outrider.gateway.stop_strings import StopMatcher
from outrider.wire.messages import GenerationDelta


class Delivery:
    """State of one generation between verifier and client."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops)
        self._waiting: deque[tuple[int, bool]] = deque()  # token id, was it a draft token
        self.delivered = 0
        self.accepted = 0

    @property
    def stopped(self) -> bool:
        """A stop string was found; nothing after it will be delivered."""
        return self._matcher.hit

    def push(self, token_ids: Sequence[int], accepted: int) -> list[GenerationDelta]:
        """Take the tokens of a round, the first `accepted` of which were draft tokens."""
        deltas = _Deltas(self)
        for index, token_id in enumerate(token_ids):
            self._waiting.append((token_id, index < accepted))
            if self._take(self._detokenizer.push(token_id), deltas):
                break
            deltas.release(self._detokenizer.settled)
        return deltas.done()

    def finish(self) -> list[GenerationDelta]:
        """The verifier has no more tokens: give out all that was held back."""
        deltas = _Deltas(self)
        if not self.stopped and not self._take(self._detokenizer.flush(), deltas):
            deltas.text.append(self._matcher.flush())
            deltas.release(self.delivered + len(self._waiting))
        return deltas.done()

    def take_waiting(self, until: int) -> Iterable[tuple[int, int, bool]]:
        """Count tokens as delivered up to `until`; yields index, id, and whether it was drafted."""
        while self._waiting and self.delivered < until:
            token_id, drafted = self._waiting.popleft()
            yield self.delivered, token_id, drafted
            self.delivered += 1
            self.accepted += drafted

    def _take(self, pieces: Iterable[TextPiece], deltas: _Deltas) -> bool:
        """Match stop strings in new text; True on a hit, after which tokens past it are dropped."""
        for piece in pieces:
            deltas.text.append(self._matcher.push(piece.text))
            if self._matcher.hit:
                deltas.release(piece.tokens)
                self._waiting.clear()
                return True
        return False


class _Deltas:
    """Collects text and tokens; starts another delta where a draft token follows one that was not."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self.text: list[str] = []
        self._runs: list[list[tuple[int, int, bool]]] = []

    def release(self, until: int) -> None:
        for token in self._delivery.take_waiting(until):
            drafted = token[2]
            if not self._runs or (drafted and not self._runs[-1][-1][2]):
                self._runs.append([])
            self._runs[-1].append(token)

    def done(self) -> list[GenerationDelta]:
        """The deltas; the text goes with the last of them."""
        text = "".join(self.text)
        if not self._runs:
            return [GenerationDelta(text, (), 0, self._delivery.delivered)] if text else []
        last = len(self._runs) - 1
        return [
            GenerationDelta(
                text if index == last else "",
                tuple(token_id for _, token_id, _ in run),
                sum(drafted for _, _, drafted in run),
                run[0][0],
            )
            for index, run in enumerate(self._runs)
        ]
