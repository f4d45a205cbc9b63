"""A gateway tells Prometheus where all pages of metrics are, its own included."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider.config.schema import OutriderConfig
from outrider.discovery import Instance, Load, Role, open_announcer, open_registry
from outrider.gateway.auth.entries import hash_of, new_key
from tests.integration.gateway.conftest import config_for, gateway_over
from tests.integration.gateway.scripted_verifier import running
from tests.processes import parse_metrics, total
from tests.servers import redis_server


async def targets(http: str) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(base_url=http) as client:
        answer = await client.get("/metrics/targets")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        listed: list[dict[str, Any]] = answer.json()
        return listed


async def test_a_page_of_its_own_is_listed_and_is_the_same(model_folder: Path, make_verifier: Any) -> None:
    async with running(make_verifier()) as address:
        config = config_for(model_folder, address, metrics_port=0)
        config = config.model_copy(
            update={"verifier": config.verifier.model_copy(update={"metrics_port": 1})}
        )
        async with gateway_over(config) as (up, _, _), httpx.AsyncClient() as client:
            host = address.rpartition(":")[0]
            assert await targets(up["http"]) == [
                {"targets": [up["metrics"]], "labels": {"role": "gateway"}},
                {"targets": [f"{host}:1"], "labels": {"role": "verifier"}},
            ]
            await client.post(f"{up['http']}/v1/completions", json={"model": "tiny", "prompt": "hello"})
            page = parse_metrics((await client.get(f"http://{up['metrics']}/metrics")).text)
            assert total(page, "outrider_requests_total", outcome="ok") == 1


async def test_without_one_it_is_the_page_of_the_api_and_needs_no_key(
    model_folder: Path, make_verifier: Any, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"- name: alice\n  hash: {hash_of(new_key())}\n")
    async with running(make_verifier()) as address:
        config = OutriderConfig.model_validate(
            config_for(model_folder, address).model_dump() | {"security": {"api_keys_file": str(keys)}}
        )
        async with gateway_over(config) as (up, _, _):
            own = up["http"].removeprefix("http://")
            assert await targets(up["http"]) == [{"targets": [own], "labels": {"role": "gateway"}}]


async def test_gateways_find_each_other_in_redis(model_folder: Path, make_verifier: Any) -> None:
    with redis_server() as redis:
        config = config_for(model_folder, probe_s=0.05)
        lease = {"kind": "redis", "url": redis.url, "lease_s": 2, "heartbeat_s": 0.05}
        config = OutriderConfig.model_validate(config.model_dump() | {"registry": lease})
        announcer = open_announcer(config)
        async with running(make_verifier()) as address:
            await announcer.start(Instance(Role.VERIFIER, address, instance_id="v", metrics="verifier:9101"))
            async with gateway_over(config) as (one, _, _):
                async with gateway_over(config) as (two, _, _):
                    pages = [group["targets"][0] for group in await targets(one["http"])]
                    own = sorted(up["http"].removeprefix("http://") for up in (one, two))
                    assert pages == [*own, "verifier:9101"]
                pages = [group["targets"][0] for group in await targets(one["http"])]
                assert pages == [one["http"].removeprefix("http://"), "verifier:9101"]
            await announcer.close()


@pytest.mark.parametrize(("advertise", "listed"), [("", False), ("pod.example:0", True)])
async def test_one_that_listens_everywhere_is_listed_if_it_says_where(
    model_folder: Path, make_verifier: Any, advertise: str, listed: bool
) -> None:
    async with running(make_verifier()) as address:
        config = config_for(model_folder, address, host="0.0.0.0", advertise=advertise, metrics_port=0)
        async with gateway_over(config) as (up, _, _):
            port = up["metrics"].rpartition(":")[2]
            http = up["http"].replace("0.0.0.0", "127.0.0.1")
            expected = [{"targets": [f"pod.example:{port}"], "labels": {"role": "gateway"}}]
            assert await targets(http) == (expected if listed else [])


async def test_its_load_is_told(model_folder: Path, make_verifier: Any) -> None:
    with redis_server() as redis:
        verifier = make_verifier()
        hold = asyncio.Event()

        async def pace(session: Any, index: int) -> None:
            if index:
                await hold.wait()

        verifier.pace = pace
        config = config_for(model_folder)
        lease = {"kind": "redis", "url": redis.url, "lease_s": 2, "heartbeat_s": 0.05}
        config = OutriderConfig.model_validate(config.model_dump() | {"registry": lease})
        announcer, registry = open_announcer(config), open_registry(config, Role.GATEWAY)
        async with running(verifier) as address:
            await announcer.start(Instance(Role.VERIFIER, address, instance_id="v"))
            async with gateway_over(config) as (up, _, _), httpx.AsyncClient(base_url=up["http"]) as client:
                body = {"model": "tiny", "prompt": "hello", "stream": True}
                async with client.stream("POST", "/v1/completions", json=body), asyncio.timeout(20):
                    async for found in registry.watch(Role.GATEWAY):
                        if found[0].load == Load(running=1):
                            break
                hold.set()
            assert await registry.list(Role.GATEWAY) == ()
            await announcer.close()
            await registry.close()
