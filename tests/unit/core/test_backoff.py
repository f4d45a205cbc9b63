"""Delays between attempts."""

from __future__ import annotations

from outrider.core.backoff import Backoff


def test_backoff_doubles_with_jitter_and_starts_over() -> None:
    backoff = Backoff(0.1, 1.0)
    for most in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert most / 2 <= backoff.next_s() <= most
    backoff.reset()
    assert backoff.next_s() <= 0.1
