"""What edits have to know of a session's tokens, kept up as tokens are committed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch


class TokenHistory:
    """Which ids the prompt and the output hold, and how often the output holds each. Only ever grows.

    Costs a few microseconds a token; reading it costs nothing that grows with the text but its distinct ids.
    """

    def __init__(self, prompt_len: int) -> None:
        """`prompt_len`: how many of the tokens that `keep_up` is given first are the prompt."""
        self.prompt_len = prompt_len
        self.output: list[int] = []
        self.seen = IdTable()  # ids of prompt and output
        self.counted = IdTable()  # ids of the output
        self._length = 0

    @property
    def generated(self) -> int:
        """Tokens of the output."""
        return len(self.output)

    def keep_up(self, tokens: Sequence[int]) -> None:
        """Take in what of the session's tokens, prompt included, is new."""
        if len(tokens) == self._length:
            return
        fresh = tokens[self._length :]
        output = fresh[max(0, self.prompt_len - self._length) :]
        self._length = len(tokens)
        self.output.extend(output)
        self.seen.add(fresh)
        self.counted.add(output)


class IdTable:
    """Distinct ids in the order of their first appearance, and how often each was added."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}  # id -> index into `ids` and `counts`
        self._ids = torch.empty(64, dtype=torch.int64)
        self._counts = torch.zeros(64, dtype=torch.float32)

    def __len__(self) -> int:
        return len(self.places)

    @property
    def ids(self) -> torch.Tensor:
        """int64 [n]."""
        return self._ids[: len(self.places)]

    @property
    def counts(self) -> torch.Tensor:
        """float32 [n], exact up to 2**24."""
        return self._counts[: len(self.places)]

    def add(self, token_ids: Sequence[int]) -> None:
        """Count these."""
        before = len(self.places)
        indices = [self.places.setdefault(token_id, len(self.places)) for token_id in token_ids]
        self._reserve(len(self.places))
        if len(self.places) > before:
            fresh = list(islice(reversed(self.places), len(self.places) - before))
            self._ids[before : len(self.places)] = torch.tensor(fresh[::-1])
        if indices:
            index = torch.tensor(indices)
            self._counts.index_add_(0, index, torch.ones(len(indices)))

    def _reserve(self, count: int) -> None:
        if count > len(self._ids):
            size = max(count, 2 * len(self._ids))
            ids, counts = torch.empty(size, dtype=torch.int64), torch.zeros(size)
            ids[: len(self._ids)], counts[: len(self._counts)] = self._ids, self._counts
            self._ids, self._counts = ids, counts
