"""Whether a stack is at its base line: nothing runs, nothing is held, nothing waits to be written."""

from __future__ import annotations

from collections.abc import Collection

import httpx

from tests.stack import Stack, total, wait_until

_GATEWAY = ("outrider_open_streams",)
_VERIFIER = (
    "outrider_num_requests_running",
    "outrider_num_requests_waiting",
    "outrider_kv_cache_usage_perc",
    "outrider_store_pending_commits",
)
_DRAFTER = ("outrider_drafter_sessions", "outrider_drafter_queued", "outrider_drafter_kv_cache_usage_perc")


def held(stack: Stack, absent: Collection[str] = ()) -> dict[str, float]:
    """What is not zero and would be if nothing ran: `service metric` -> value. All but `absent` are asked."""
    found: dict[str, float] = {}
    for name, service in stack.services.items():
        if name in absent or service.process is None:
            continue
        role = name.partition("-")[0]
        wanted = {"gateway": _GATEWAY, "verifier": _VERIFIER}.get(role, _DRAFTER)
        try:
            values = service.metrics()
        except httpx.TransportError:
            found[f"{name} does not answer"] = 1.0
            continue
        found |= {f"{name} {metric}": value for metric in wanted if (value := total(values, metric))}
    return found


def wait_until_idle(stack: Stack, *, timeout_s: float = 30, absent: Collection[str] = ()) -> None:
    """Everything is given back, soon."""
    last: dict[str, float] = {}

    def idle() -> bool:
        nonlocal last
        last = held(stack, absent)
        return not last

    try:
        wait_until(idle, "nothing is held", timeout_s=timeout_s)
    except AssertionError as error:
        raise AssertionError(f"{error}; held: {last}") from None
