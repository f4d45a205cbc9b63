"""Compiles grammars, in threads of its own, and keeps the last ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher, LLParserLimits
from numpy.typing import NDArray

from outrider.core.errors import OverloadedError, UnavailableError
from outrider.core.params import Grammar
from outrider.structured.dialects import library_grammar, wrong
from outrider.structured.matcher import GrammarMatcher, GrammarStart, brief
from outrider.structured.vocabulary import GrammarVocabulary

_KEPT = 128
"""Compiled grammars that are kept."""
_MOST_WAITING = 64
_THREADS = 2
_STACK_BYTES = 256 * 2**20
"""The library recurses along rules that stand in one another, some KiB a level. Unused, it costs nothing."""


_MOST_ITEMS = 10_000
_MOST_LEXER_STATES = 50_000
_MOST_EXPRESSIONS = 100_000
"""Of a parse: masks are made in the engine thread, so what would take long, or much memory, has to fail."""


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar for one vocabulary. For any thread."""

    start: GrammarStart
    vocabulary: GrammarVocabulary

    def matcher(self, stop_token_ids: Collection[int]) -> GrammarMatcher:
        """A matcher at the beginning of an output.

        Args:
            stop_token_ids: the request's.

        Raises:
            InvalidRequestError: no token could end the output.
        """
        return GrammarMatcher(self.start, self.vocabulary, self.vocabulary.end_token_ids(stop_token_ids))


class GrammarCompiler:
    """Grammars by their text. For any thread."""

    def __init__(self, load: Callable[[], GrammarVocabulary]) -> None:
        """`load` is called once, when the first grammar comes, in a thread of the compiler."""
        self._load = load
        self._vocabulary: GrammarVocabulary | None = None
        self._loading = threading.Lock()
        self._lock = threading.Lock()
        self._kept: OrderedDict[Grammar, Future[CompiledGrammar]] = OrderedDict()
        self._waiting = 0
        self._executor: ThreadPoolExecutor | None = None
        self._renewing: ThreadPoolExecutor | None = None

    def submit(self, grammar: Grammar) -> Future[CompiledGrammar]:
        """Compile a grammar, or find it among the last ones. Never blocks for long.

        The future raises InvalidRequestError: what is wrong, or which keyword is not supported.

        Raises:
            OverloadedError: too many grammars are waiting to be compiled.
        """
        with self._lock:
            found = self._kept.get(grammar)
            if found is not None and not _is_worn(found):
                self._kept.move_to_end(grammar)
                return found
            if self._waiting >= _MOST_WAITING:
                raise OverloadedError(f"{self._waiting} grammars are waiting to be compiled")
            self._waiting += 1
            if self._executor is None:
                self._executor, self._renewing = _threads(_THREADS), _threads(1)
            future = self._executor.submit(self._compile, grammar)
            self._kept[grammar] = future
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        future.add_done_callback(lambda done: self._done(grammar, done))
        return future

    def close(self) -> None:
        """End the threads; what waits is cancelled."""
        with self._lock:
            for executor in (self._executor, self._renewing):
                if executor is not None:
                    executor.shutdown(wait=False, cancel_futures=True)

    def _done(self, grammar: Grammar, future: Future[CompiledGrammar]) -> None:
        with self._lock:
            self._waiting -= 1
            failed = future.cancelled() or future.exception() is not None
            if failed and self._kept.get(grammar) is future:
                del self._kept[grammar]

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        with self._loading:
            if self._vocabulary is None:
                self._vocabulary = self._load()
        vocabulary = self._vocabulary
        source = library_grammar(grammar)

        def make() -> LLMatcher:
            return LLMatcher(vocabulary.tokenizer, source, log_level=0, limits=_limits())

        start = make()
        if start.is_error():
            raise wrong(f"is not supported: {brief(start.get_error())}")
        if warnings := start.get_grammar_warnings():  # of a schema within a grammar that asks for leniency
            raise wrong(f"is not supported: {brief(warnings[0])}")
        # The first mask is the dearest one, and it shows whether anything fits at all.
        mask = np.zeros(-(-vocabulary.tokenizer.vocab_size // 32), dtype=np.int32)
        start.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if start.is_error():
            raise wrong(f"allows no output, or is too complex: {brief(start.get_error())}")
        _try_a_token(start.deep_copy(), mask)
        return CompiledGrammar(GrammarStart(start, lambda: self._renewed(make)), vocabulary)

    def _renewed(self, make: Callable[[], LLMatcher]) -> LLMatcher:
        """What `make` gives, made where there is room to recurse, and no queue of grammars to wait behind.

        Raises:
            UnavailableError: the compiler is closed.
        """
        assert self._renewing is not None
        try:
            return self._renewing.submit(make).result()
        except (RuntimeError, CancelledError):
            raise UnavailableError("grammars are not compiled any more: the service is stopping") from None


def _is_worn(found: Future[CompiledGrammar]) -> bool:
    """Whether its shared lexer is used up."""
    return found.done() and not found.cancelled() and not found.exception() and found.result().start.worn


def _try_a_token(matcher: LLMatcher, mask: NDArray[np.int32]) -> None:
    """Long texts show only then that they take too many expressions."""
    allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    if len(allowed) and not matcher.try_consume_tokens([int(allowed[0])]) and matcher.is_error():
        raise wrong(f"is too complex: {brief(matcher.get_error())}")


def _threads(count: int) -> ThreadPoolExecutor:
    """Threads with room to recurse, started at once: the size holds for those that start while it is set."""
    executor = ThreadPoolExecutor(count, thread_name_prefix="grammars")
    started = threading.Barrier(count + 1)
    usual = threading.stack_size(_STACK_BYTES)
    try:
        for _ in range(count):
            executor.submit(started.wait)
    finally:
        threading.stack_size(usual)
    started.wait()
    return executor


def _limits() -> LLParserLimits:
    return LLParserLimits(
        step_max_items=_MOST_ITEMS,
        max_lexer_states=_MOST_LEXER_STATES,
        initial_lexer_fuel=_MOST_EXPRESSIONS,
        verbose_errors=False,
    )
