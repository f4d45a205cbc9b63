"""The order in which conversations are learnt: shuffled anew each epoch, packed to a number of tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.training.data.shards import Sample, Shard


@dataclass(slots=True)
class Place:
    """Where training stands."""

    epoch: int = 0
    batch: int = 0  # of the epoch


class Batches:
    """Batches without end. The same shards, seed and place give the same batches."""

    def __init__(
        self, shards: Sequence[Shard], features: Sequence[str], *, tokens: int, seed: int, place: Place
    ) -> None:
        """Args:
        shards: of the data.
        features: that the student learns from.
        tokens: of a batch, and most of a conversation: of a longer one the end is taken.
        seed: of the order.
        place: where to go on.
        """
        self._shards = shards
        self._features = features
        self._tokens = tokens
        self._seed = seed
        self.place = place
        self._planned = self._plan(place.epoch)

    def next(self) -> list[Sample]:
        """The next batch; `place` moves past it."""
        if self.place.batch >= len(self._planned):
            self.place = Place(self.place.epoch + 1, 0)
            self._planned = self._plan(self.place.epoch)
        chosen = self._planned[self.place.batch]
        self.place.batch += 1
        return [self._shards[shard].sample(index, self._features, self._tokens) for shard, index in chosen]

    def _plan(self, epoch: int) -> list[list[tuple[int, int]]]:
        every = [(number, index) for number, shard in enumerate(self._shards) for index in range(len(shard))]
        random.Random(f"{self._seed}/{epoch}").shuffle(every)
        batches: list[list[tuple[int, int]]] = [[]]
        room = self._tokens
        for number, index in every:
            length = min(self._shards[number].length(index), self._tokens)
            if length > room and batches[-1]:
                batches.append([])
                room = self._tokens
            batches[-1].append((number, index))
            room -= length
        return batches
