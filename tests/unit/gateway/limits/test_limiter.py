"""Limits of API keys: what counts, what is given back, what the refusal says."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from outrider.core.errors import RateLimitedError
from outrider.gateway.auth import KeyLimits
from outrider.gateway.limits import Lease, Limiter
from tests.unit.core.test_bucket import Clock


class Setting:
    """A limiter, its clock and its limits, which may be changed."""

    def __init__(self, **limits: KeyLimits) -> None:
        self.clock = Clock()
        self.limits = limits
        self.used = 0  # by each generation that ends
        self.limiter = Limiter(lambda tenant: self.limits.get(tenant, KeyLimits()), clock=self.clock)

    def generation(self, tenant: str) -> AbstractContextManager[Lease]:
        return self.limiter.generation(tenant, lambda: self.used)


def test_requests_over_the_rate_are_refused_with_the_time_until_the_next() -> None:
    setting = Setting(a=KeyLimits(requests_per_minute=3))
    for _ in range(3):
        setting.limiter.request("a")
    with pytest.raises(RateLimitedError, match="requests_per_minute") as caught:
        setting.limiter.request("a")
    assert caught.value.retry_after_s == 20
    setting.clock.now += 20
    setting.limiter.request("a")


def test_a_refused_request_costs_nothing() -> None:
    setting = Setting(a=KeyLimits(requests_per_minute=1))
    setting.limiter.request("a")
    for _ in range(5):
        with pytest.raises(RateLimitedError) as caught:
            setting.limiter.request("a")
        assert caught.value.retry_after_s == 60


def test_tenants_do_not_share_and_nobody_without_limits_is_limited() -> None:
    setting = Setting(a=KeyLimits(requests_per_minute=1), b=KeyLimits(requests_per_minute=1))
    setting.limiter.request("a")
    setting.limiter.request("b")
    for _ in range(1000):
        setting.limiter.request("")


def test_generations_at_once_are_counted_until_they_end_however_they_end() -> None:
    setting = Setting(a=KeyLimits(max_concurrent=2))
    with setting.generation("a"):
        with pytest.raises(KeyError), setting.generation("a"):
            with pytest.raises(RateLimitedError, match="2 generations at once") as caught:
                setting.generation("a").__enter__()
            assert caught.value.retry_after_s > 0
            raise KeyError
        with setting.generation("a"):
            pass


def test_tokens_that_were_not_used_are_given_back() -> None:
    setting = Setting(a=KeyLimits(tokens_per_minute=100))
    with setting.generation("a") as lease:
        lease.reserve(100)
        with setting.generation("a") as other, pytest.raises(RateLimitedError) as caught:
            other.reserve(1)
        assert caught.value.retry_after_s == pytest.approx(0.6)
        setting.used = 15
    setting.used = 0
    with setting.generation("a") as lease:
        lease.reserve(85)
        with setting.generation("a") as other, pytest.raises(RateLimitedError):
            other.reserve(1)


def test_a_generation_that_failed_before_it_ran_costs_no_tokens() -> None:
    setting = Setting(a=KeyLimits(tokens_per_minute=100))
    for _ in range(5):
        with setting.generation("a") as lease:
            lease.reserve(100)


@pytest.mark.parametrize(
    ("set_aside", "wanted", "wait_s"), [(0, 0, 36), (1000, 40, 60)], ids=["not set aside", "over a minute's"]
)
def test_what_is_used_beyond_a_minutes_tokens_is_owed(set_aside: int, wanted: int, wait_s: float) -> None:
    """Used without having been set aside: so a generation that is broken off and resumed costs as much as one
    that is not. A request larger than a minute's tokens is served when nothing else was.
    """
    setting = Setting(a=KeyLimits(tokens_per_minute=100))
    with setting.generation("a") as lease:
        lease.reserve(set_aside)
        setting.used = 160
    setting.used = 0
    with setting.generation("a") as lease:
        with pytest.raises(RateLimitedError) as caught:
            lease.reserve(wanted)
        assert caught.value.retry_after_s == pytest.approx(wait_s)
        setting.clock.now += wait_s
        lease.reserve(wanted)


def test_limits_that_change_hold_at_once() -> None:
    setting = Setting(a=KeyLimits(requests_per_minute=1))
    setting.limiter.request("a")
    setting.limits["a"] = KeyLimits(requests_per_minute=2)
    setting.limiter.request("a")
    with pytest.raises(RateLimitedError):
        setting.limiter.request("a")
    setting.limits["a"] = KeyLimits()
    setting.limiter.request("a")
