"""Follows one output through a grammar: forwards, backwards, and what may come next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from outrider.core.errors import InvalidRequestError
from outrider.structured.vocabulary import GrammarVocabulary

_MOST_CHARS = 300
"""Of a message of the library, which may repeat the grammar."""


@dataclass(slots=True)
class GrammarStart:
    """The beginning of a grammar, for many matchers.

    Copies share the library's lexer, whose limits count all that any of them had it build. So one that fails
    is tried again with a lexer of its own: whether an output can go on must not depend on other outputs, nor
    on draft tokens that were taken back.
    """

    matcher: LLMatcher
    fresh: Callable[[], LLMatcher]  # with a lexer of its own; takes as long as compiling
    worn: bool = False  # the shared lexer has reached a limit, for good


class GrammarMatcher:
    """A place in a grammar. Not thread-safe.

    End tokens are allowed exactly where the output may end; after the first one, only they are. They are
    kept from the library, which knows one rule for them and another for tokens of a grammar.
    """

    def __init__(
        self, start: GrammarStart, vocabulary: GrammarVocabulary, end_token_ids: Sequence[int]
    ) -> None:
        """Args:
        start: of the grammar.
        vocabulary: that it was compiled for.
        end_token_ids: what may end an output, as `GrammarVocabulary.end_token_ids` gives them.
        """
        self._start = start
        self._origin = start.matcher  # the beginning, with the lexer that is in use
        self._matcher = self._origin.deep_copy()
        self._vocab_size = vocabulary.tokenizer.vocab_size
        self._words = vocabulary.words
        self._ends = frozenset(end_token_ids)
        self._end_bits = _bits(end_token_ids, vocabulary.words)
        self._row = np.zeros(-(-self._vocab_size // 32), dtype=np.int32)
        self._tokens: list[int] = []  # accepted, end tokens left out
        self._ended = 0  # end tokens accepted after these

    def __len__(self) -> int:
        """Tokens accepted so far."""
        return len(self._tokens) + self._ended

    @property
    def words(self) -> int:
        """32-bit words of a mask."""
        return self._words

    @property
    def is_terminated(self) -> bool:
        """Whether only end tokens may follow."""
        return self._ended > 0 or bool(self._matcher.is_stopped())

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        """Write what may come next.

        Args:
            mask: int32 [words]; bit x % 32 of word x // 32 becomes 1 if token x may.

        Raises:
            InvalidRequestError: the grammar has become too complex, or leads nowhere. The place is kept.
        """
        if self._ended:
            mask[:] = self._end_bits
            return
        row = self._row
        if not self._fill(self._matcher):
            self._renew()
            if not self._fill(self._matcher):
                raise self._lost("it is too complex, or nothing fits it")
        np.bitwise_and(row[: self._words], ~self._end_bits, out=mask)
        if self._matcher.is_accepting():
            mask |= self._end_bits
        elif not mask.any():
            raise self._lost("no token fits what it asks for")

    def accept(self, token_id: int) -> bool:
        """Go on by a token; False: it is not allowed here, and the place is kept.

        Raises:
            InvalidRequestError: the grammar has become too complex. The place is kept.
        """
        if self._take(token_id):
            return True
        if self._is_worn():
            self._renew()
            if self._take(token_id):
                return True
            if self._is_worn():
                raise self._lost("it is too complex")
        return False

    def _take(self, token_id: int) -> bool:
        if token_id in self._ends:
            taken = self._ended > 0 or bool(self._matcher.is_accepting())
            self._ended += taken
            return taken
        # The library takes an id past its vocabulary for a defect.
        if self._ended or not 0 <= token_id < self._vocab_size:
            return False
        if not self._matcher.try_consume_tokens([token_id]):
            return False
        self._tokens.append(token_id)
        return True

    def rollback(self, count: int) -> None:
        """Take the last `count` tokens back."""
        ends = min(count, self._ended)
        self._ended -= ends
        count -= ends
        if count:
            del self._tokens[-count:]
            if not self._matcher.rollback(count):
                self._go_back()

    def _lost(self, why: str) -> InvalidRequestError:
        """The library's matcher has failed, for good: take another one to the same place."""
        detail = brief(self._matcher.get_error())
        self._renew()
        return self._too_complex(why, detail)

    def _too_complex(self, why: str, detail: str) -> InvalidRequestError:
        message = f"grammar cannot be followed past token {len(self)} of the output: {why}"
        return InvalidRequestError(f"{message} ({detail})" if detail else message, field="grammar")

    def _fill(self, matcher: LLMatcher) -> bool:
        """Write the library's mask into the row; False: its lexer has reached a limit."""
        matcher.unsafe_compute_mask_ptr(self._row.ctypes.data, self._row.nbytes)
        return not matcher.is_error()

    def _is_worn(self) -> bool:
        """Whether the lexer has reached a limit. It then refuses tokens as if they were not allowed, so it
        takes a mask to tell; that of the beginning costs little."""
        return bool(self._matcher.is_error()) or not self._fill(self._origin.deep_copy())

    def _go_back(self) -> None:
        self._matcher = self._origin.deep_copy()
        if self._matcher.try_consume_tokens(self._tokens) < len(self._tokens):
            self._renew()

    def _renew(self) -> None:
        """The same place with a lexer of its own, by the same steps: a mask gives fuel for the next one."""
        self._start.worn = True
        self._origin = self._start.fresh()
        self._matcher = self._origin.deep_copy()
        for token_id in self._tokens:
            if not self._fill(self._matcher) or not self._matcher.try_consume_tokens([token_id]):
                raise self._too_complex("it is too complex", brief(self._matcher.get_error()))


def brief(message: str) -> str:
    """What of the library's message a client is told: the first line, and what a regular expression lacks."""
    lines = message.strip().splitlines() or [""]
    error = next((line for line in lines[1:] if line.startswith("error: ")), "")
    text = f"{lines[0]} {error}".strip()
    return text if len(text) <= _MOST_CHARS else text[:_MOST_CHARS] + "..."


def _bits(token_ids: Sequence[int], words: int) -> NDArray[np.int32]:
    bits = np.zeros(words, dtype=np.uint32)
    for token_id in token_ids:
        bits[token_id // 32] |= np.uint32(1 << token_id % 32)
    return bits.view(np.int32)
