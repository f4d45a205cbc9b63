"""Which replica of a drafter a session is put on. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

from outrider.verifying.link_state import LinkState


def place(candidates: Sequence[LinkState], rng: random.Random) -> LinkState | None:
    """The less loaded of two replicas drawn at random; None: there is none.

    With what is known being a moment old, the least loaded of all would be overrun by all verifiers at once.
    """
    sound = [link for link in candidates if not _on_trial(link)] or list(candidates)
    if not sound:
        return None
    return min(rng.sample(sound, min(2, len(sound))), key=_load)


def _on_trial(link: LinkState) -> bool:
    """Whether it has rested, and somebody is finding out already if it drafts again."""
    return link.patience.doubted and bool(link.sessions)


def _load(link: LinkState) -> tuple[float, int, float]:
    return link.fullness, link.queued, link.usual_s
