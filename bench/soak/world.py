"""What the soak runs on: two verifiers, two gateways, two kinds of drafters, Redis, proxies between."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.proxy import Proxy
from tests.servers import RedisServer, redis_server
from tests.stack import Stack, tiny_config

VERIFIERS = ("verifier-1", "verifier-2")
GATEWAYS = ("gateway-1", "gateway-2")
DRAFT_MODEL, LOOKUP = "draft_model", "prompt_lookup"
DRAFTERS = (f"{DRAFT_MODEL}-1", f"{DRAFT_MODEL}-2")
MORTAL = ("verifier-1", "gateway-1", f"{DRAFT_MODEL}-1")
"""These are killed and drained. The others are only frozen and cut off: their memory is watched."""
VERIFIER_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class World:
    """All that runs."""

    stack: Stack
    redis: RedisServer
    store: Proxy  # between all services and Redis


def config_of(model: str, folder: Path) -> dict[str, Any]:
    """Models and drafters: tiny random ones, or the demo's."""
    if model == "tiny":
        config = tiny_config(folder)
        other, lookup = config["drafters"]["other"], config["drafters"]["lookup"]
        config["drafters"] = {DRAFT_MODEL: other, LOOKUP: lookup}
        return config
    dtype = {"dtype": "float32", "threads": 1}
    return {
        "model": "smollm2-135m-instruct",
        "served_name": "tiny",
        "verifier": {**dtype, "pool_tokens": 32768, "draft_length": 3},
        "drafters": {
            DRAFT_MODEL: {**dtype, "model": "smollm2-135m-draft-3l", "pool_tokens": 32768},
            LOOKUP: {"method": "prompt_lookup", "tree": "dynamic"},
        },
    }


@contextmanager
def running(model: str, folder: Path) -> Iterator[World]:
    """Everything, started. Logs are in `folder`/services; they are kept if anything goes wrong."""
    with (
        redis_server("--appendonly", "yes", "--appendfsync", "always") as redis,
        Proxy(f"127.0.0.1:{redis.port}") as store,
    ):
        config = config_of(model, folder)
        config["store"] = {"kind": "redis", "url": f"redis://{store.address}/0", "timeout_s": 0.5}
        config["registry"] = {"kind": "redis", "lease_s": 2.0, "heartbeat_s": 0.25}
        config["verifier"] |= {"max_sessions": 32, "detached_s": 1.0, "drain_s": 1.0, "rest_ms": 300}
        config["gateway"] = {"probe_s": 0.25, "verifier_timeout_s": VERIFIER_TIMEOUT_S, "failover_s": 60}
        stack = Stack(
            folder / "services",
            config,
            verifiers=len(VERIFIERS),
            gateways=len(GATEWAYS),
            replicas={DRAFT_MODEL: len(DRAFTERS)},
            proxied=(*VERIFIERS, *GATEWAYS, *DRAFTERS),
        )
        with stack:
            yield World(stack, redis, store)


def remove(folder: Path) -> None:
    """The logs and models of a run that went well."""
    shutil.rmtree(folder, ignore_errors=True)
