"""Grammars of the sessions that a draft model drafts for: what they forbid would never be accepted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import torch

from outrider.core.errors import OutriderError
from outrider.drafting.session import DraftSession
from outrider.structured import CompiledGrammar, GrammarCompiler, GrammarMatcher

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Followed:
    compiling: Future[CompiledGrammar]
    matcher: GrammarMatcher | None = None  # once it is compiled
    committed: int = 0  # generated tokens that the matcher has accepted
    drafted: list[int] = field(default_factory=list)  # draft tokens that it has accepted after these


class DraftGrammars:
    """Follows sessions through their grammars, as far as that is cheap.

    A session whose grammar is not compiled yet, or cannot be, is drafted for without masks: the target's own
    mask decides, so that costs acceptance only. Owned by the drafter's thread, which never waits for it.
    """

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._followed: dict[DraftSession, _Followed] = {}

    def open(self, session: DraftSession) -> None:
        """Take up a session: its grammar, if it has one, begins to be compiled."""
        grammar = session.sampling.edits.grammar
        if grammar is None:
            return
        try:
            self._followed[session] = _Followed(self._compiler.submit(grammar))
        except OutriderError as error:
            log.info("session %s is drafted for without its grammar: %s", session.key.session_id, error)

    def mask(self, session: DraftSession, above: Sequence[int]) -> torch.Tensor | None:
        """What the session's grammar allows after its committed tokens and these draft tokens.

        Returns:
            int32 [ceil(V / 32)], bit x % 32 of word x // 32 for id x; None: anything, or it is not known.
        """
        followed = self._followed.get(session)
        if followed is None or not followed.compiling.done():
            return None
        if followed.compiling.cancelled() or followed.compiling.exception() is not None:
            self._give_up(session, "it was not compiled")  # whatever it was that failed
            return None
        try:
            if followed.matcher is None:
                compiled = followed.compiling.result()
                followed.matcher = compiled.matcher(session.sampling.edits.end_token_ids)
            mask = _mask(followed, followed.matcher, session, above)
        except OutriderError as error:
            self._give_up(session, error)
            return None
        if session.prompt_len + followed.committed < len(session.tokens):
            self._give_up(session, "a committed token does not fit it")  # nor would any that follow
        return mask

    def _give_up(self, session: DraftSession, why: object) -> None:
        log.info("session %s is drafted for without its grammar: %s", session.key.session_id, why)
        self.close(session)

    def close(self, session: DraftSession) -> None:
        """Forget a session. Idempotent."""
        self._followed.pop(session, None)


def _mask(
    followed: _Followed, matcher: GrammarMatcher, session: DraftSession, above: Sequence[int]
) -> torch.Tensor | None:
    """Only what differs from the path that the matcher stands on is gone through."""
    start = session.prompt_len + followed.committed
    fresh = len(session.tokens) - start
    wanted = [*session.tokens[start:], *above]
    accepted = 0
    for token_id, drafted in zip(wanted, followed.drafted, strict=False):
        if token_id != drafted:
            break
        accepted += 1
    matcher.rollback(len(followed.drafted) - accepted)
    for token_id in wanted[accepted:]:
        if not matcher.accept(token_id):
            break  # drafted before there was a mask: the target will refuse it
        accepted += 1
    moved = min(accepted, fresh)
    followed.committed += moved
    followed.drafted = wanted[moved:accepted]
    if accepted < len(wanted):
        return None
    mask = np.empty(matcher.words, dtype=np.int32)
    matcher.fill_mask(mask)
    return torch.from_numpy(mask)
