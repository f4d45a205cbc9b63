"""How long tests with random input go on.

By default they are short and the same each time. With OUTRIDER_FUZZ=30 they go on 30 times as long, each
time with other input; `make fuzz` does that.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

FACTOR = int(os.environ.get("OUTRIDER_FUZZ", "0"))


def fuzzed(examples: int, *, shrink: bool = True) -> settings:
    """Settings of a hypothesis test that takes `examples` by default; `shrink` what fails."""
    return settings(
        max_examples=examples * max(FACTOR, 1),
        derandomize=not FACTOR,
        database=None,
        deadline=None,
        phases=[phase for phase in Phase if shrink or phase not in (Phase.shrink, Phase.explain)],
        suppress_health_check=list(HealthCheck),
    )


def time_limit_s(usual: int) -> int:
    """Time limit of a test that has `usual` seconds by default."""
    return usual * max(FACTOR, 1)
