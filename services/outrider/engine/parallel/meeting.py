"""How ranks find out about each other while they start: notes in rank 0's store."""

from __future__ import annotations

import time
from typing import Any

from outrider.core.errors import InternalError
from outrider.engine.parallel.ranks import Ranks

_POLL_S = 0.05
PATIENCE_S = 1800.0
"""Longest wait for a follower to start or to load. One that dies, or says why it cannot, is noticed soon."""


def note(store: Any, what: str, rank: int) -> None:
    """At a follower: this is done ("started", "loaded")."""
    store.set(f"{what}/{rank}", "1")


def note_failure(store: Any, rank: int, why: str) -> None:
    """At a follower: it cannot go on."""
    store.set(f"failed/{rank}", why)


def await_followers(store: Any, what: str, size: int, ranks: Ranks) -> None:
    """At rank 0: wait until all of ranks 1 to `size` - 1 have noted this.

    Raises:
        InternalError: one of them has failed, is dead, or takes longer than `PATIENCE_S`.
    """
    deadline = time.monotonic() + PATIENCE_S
    for rank in range(1, size):
        while not store.check([f"{what}/{rank}"]):
            dead = ranks.dead()
            for other in range(1, size):  # looked at after `dead`: its last words come before its death
                if store.check([f"failed/{other}"]):
                    why = store.get(f"failed/{other}").decode("utf-8", "replace")
                    raise InternalError(f"rank {other} of the model did not start: {why}")
            if dead:
                raise InternalError(f"{dead} before it had {what}")
            if time.monotonic() > deadline:
                raise InternalError(f"rank {rank} of the model has not {what} within {PATIENCE_S:g} s")
            time.sleep(_POLL_S)
