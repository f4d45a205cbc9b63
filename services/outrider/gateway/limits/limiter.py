"""The limits of API keys, kept by this gateway for itself: with several gateways each allows as much."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from outrider.core.bucket import Bucket
from outrider.core.errors import RateLimitedError
from outrider.gateway.auth.entries import KeyLimits

BUSY_RETRY_S = 1.0
"""When one of somebody's generations will end is not known; this is when to look again."""


class Lease:
    """One generation of a tenant, from admission to its end."""

    def __init__(self, bucket: Callable[[], Bucket | None], used: Callable[[], int]) -> None:
        self._bucket = bucket
        self._used = used
        self._reserved = 0

    def reserve(self, tokens: int) -> None:
        """Set aside what the generation may use at most, prompt and answer; 0 if that is not known.

        Raises:
            RateLimitedError: so many tokens are not there now.
        """
        bucket = self._bucket()
        if bucket is None:
            return
        wait = bucket.wait_s(tokens)
        if wait > 0:
            raise RateLimitedError("the API key's tokens_per_minute are used up", retry_after_s=wait)
        bucket.take(tokens)
        self._reserved = tokens

    def settle(self) -> None:
        """It is over: what was set aside and not used is given back, what was used beyond it is taken."""
        unused = self._reserved - self._used()
        bucket = self._bucket()
        if bucket is None:
            return
        if unused > 0:
            bucket.give_back(unused)
        else:
            bucket.take(-unused)


class Limiter:
    """Counts what each tenant uses."""

    def __init__(
        self,
        limits_of: Callable[[str], KeyLimits] = lambda _: KeyLimits(),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limits_of` tells a tenant's limits, which may change; by default nobody has any."""
        self._limits_of = limits_of
        self._clock = clock
        self._requests: dict[str, Bucket] = {}
        self._tokens: dict[str, Bucket] = {}
        self._running: dict[str, int] = {}

    def request(self, tenant: str) -> None:
        """Count a request.

        Raises:
            RateLimitedError: there were too many.
        """
        bucket = self._bucket(self._requests, tenant, self._limits_of(tenant).requests_per_minute)
        if bucket is None:
            return
        wait = bucket.wait_s(1)
        if wait > 0:
            raise RateLimitedError("the API key's requests_per_minute are used up", retry_after_s=wait)
        bucket.take(1)

    @contextmanager
    def generation(self, tenant: str, used: Callable[[], int]) -> Iterator[Lease]:
        """Around a generation; `used` tells how many tokens, of prompt and answer, it has used.

        Raises:
            RateLimitedError: as many as may run at once do.
        """
        most = self._limits_of(tenant).max_concurrent
        running = self._running.get(tenant, 0)
        if most is not None and running >= most:
            raise RateLimitedError(
                f"the API key may have {most} generations at once", retry_after_s=BUSY_RETRY_S
            )
        self._running[tenant] = running + 1
        lease = Lease(
            lambda: self._bucket(self._tokens, tenant, self._limits_of(tenant).tokens_per_minute), used
        )
        try:
            yield lease
        finally:
            lease.settle()
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]

    def _bucket(self, buckets: dict[str, Bucket], tenant: str, per_minute: int | None) -> Bucket | None:
        """The tenant's bucket at its present rate; None: not limited."""
        if per_minute is None:
            buckets.pop(tenant, None)
            return None
        bucket = buckets.get(tenant)
        if bucket is None:
            bucket = buckets[tenant] = Bucket(per_minute, clock=self._clock)
        bucket.resize(per_minute)
        return bucket
