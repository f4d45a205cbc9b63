"""The fixed list."""

from __future__ import annotations

import asyncio

import pytest

from outrider.core.errors import ConfigError
from outrider.discovery import Instance, Registry, Role, StaticRegistry

A = Instance(Role.DRAFTER, "127.0.0.1:1", "draft_model")
B = Instance(Role.DRAFTER, "127.0.0.1:2", "draft_model")
C = Instance(Role.DRAFTER, "127.0.0.1:2", "prompt_lookup")
D = Instance(Role.VERIFIER, "[::1]:9100")


async def test_by_role_and_name() -> None:
    registry: Registry = StaticRegistry([A, B, C, D])
    assert await registry.list(Role.DRAFTER) == (A, B, C)
    assert await registry.list(Role.DRAFTER, "draft_model") == (A, B)
    assert await registry.list(Role.DRAFTER, "nobody") == ()
    assert await registry.list(Role.VERIFIER) == (D,)
    assert await registry.list(Role.GATEWAY) == ()


async def test_a_watch_gives_the_list_and_ends_with_the_registry() -> None:
    registry = StaticRegistry([A, D])
    watch = registry.watch(Role.VERIFIER)
    assert await anext(watch) == (D,)
    rest = asyncio.create_task(anext(watch, None))  # type: ignore[arg-type]
    await registry.close()
    await registry.close()
    assert await rest is None


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "::1:90", "h:１"]
)
def test_addresses_are_checked(address: str) -> None:
    with pytest.raises(ConfigError, match="address"):
        StaticRegistry([Instance(Role.VERIFIER, address)])


def test_twice_the_same() -> None:
    with pytest.raises(ConfigError, match="listed twice"):
        StaticRegistry([A, A])
