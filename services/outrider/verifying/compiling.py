"""The grammar of a session to admit: compiled off the event loop and the engine thread, in bounded time."""

from __future__ import annotations

import asyncio

from outrider.core.errors import InvalidRequestError
from outrider.core.sessions import SessionRecord
from outrider.structured import GrammarCompiler, GrammarMatcher

COMPILE_S = 10.0
"""Longest that a request waits for its grammar."""


async def grammar_matcher(compiler: GrammarCompiler, record: SessionRecord) -> GrammarMatcher | None:
    """A matcher at the beginning of the session's output; None if anything is allowed.

    Raises:
        InvalidRequestError: the grammar is wrong, uses what is not supported, or takes too long.
        OverloadedError: too many grammars are being compiled.
    """
    grammar = record.sampling.edits.grammar
    if grammar is None:
        return None
    compiling = asyncio.wrap_future(compiler.submit(grammar))
    # Others may wait for the same grammar: it goes on if this request is cancelled or gives up.
    compiling.add_done_callback(lambda late: late.cancelled() or late.exception())
    done, _ = await asyncio.wait([compiling], timeout=COMPILE_S)
    if not done:
        raise InvalidRequestError(f"grammar takes more than {COMPILE_S:g} s to compile", field="grammar")
    return compiling.result().matcher(record.stop.stop_token_ids)
