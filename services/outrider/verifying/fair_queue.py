"""Who of those that wait comes next: fair between tenants by tokens of work, in turn within a tenant.

Start-time fair queueing: each tenant has an account of the work that its sessions were let in with, and the
tenant with the smallest account comes next. A session pays when it starts, for all that it may need; what
it did not need is paid back when it ends. A tenant that comes after having had nothing to wait for does not
bring credit along: its account is raised to that of whoever started last.

So, while a tenant waits, each other one gets at most as much work more than it as two sessions may need.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Waiter(Protocol):
    """What waits."""

    @property
    def tenant(self) -> str:
        """Whose account pays."""

    @property
    def place(self) -> tuple[int, int]:
        """Its place in its tenant's line: lower comes first. Unique."""

    @property
    def price(self) -> int:
        """Tokens of work to pay for when it starts."""


_Waiter = TypeVar("_Waiter", bound=Waiter)


@dataclass(slots=True)
class _Tenant(Generic[_Waiter]):
    account: int = 0
    line: list[_Waiter] = field(default_factory=list)


class FairQueue(Generic[_Waiter]):
    """Those that wait. All work is counted in tokens."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant[_Waiter]] = {}
        self._now = 0  # account of the tenant whose session started last, before it paid; never falls
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[_Waiter]:
        """All that wait, in no order."""
        return (waiter for tenant in self._tenants.values() for waiter in tenant.line)

    @property
    def first(self) -> _Waiter | None:
        """Who comes next; of tenants with equal accounts, the one whose first has the lower place."""
        lines = [(one.account, one.line[0].place, one.line[0]) for one in self._tenants.values() if one.line]
        return min(lines, key=lambda line: line[:2])[2] if lines else None

    def add(self, waiter: _Waiter) -> None:
        """One more, at its place in its tenant's line."""
        tenant = self._tenants.setdefault(waiter.tenant, _Tenant())
        if not tenant.line:
            tenant.account = max(tenant.account, self._now)
        bisect.insort(tenant.line, waiter, key=lambda one: one.place)
        self._length += 1

    def remove(self, waiter: _Waiter) -> None:
        """It goes without having started."""
        self._tenants[waiter.tenant].line.remove(waiter)
        self._length -= 1

    def start(self, waiter: _Waiter) -> None:
        """It comes next, and pays."""
        tenant = self._tenants[waiter.tenant]
        if waiter.price:  # else it has paid before: its tenant's account stands behind it already
            self._now = max(self._now, tenant.account)
            tenant.account += waiter.price
        self.remove(waiter)

    def pay_back(self, tenant: str, tokens: int) -> None:
        """A session has ended that had paid for so much more work than it needed."""
        account = self._tenants.get(tenant)
        if account is not None:
            account.account -= tokens

    def forget(self) -> None:
        """Nobody waits or runs: all accounts are settled, for they only matter against each other."""
        self._tenants.clear()
        self._now = 0
