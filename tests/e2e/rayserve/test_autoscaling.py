"""The application's policy, run by Serve's own controller: a verifier comes with load and goes with it."""

from __future__ import annotations

import asyncio

import pytest

from outrider.rayserve.autoscaling_options import followed_by_policy
from tests.e2e.rayserve.policy import TARGET
from tests.serve_cluster import ServeApp
from tests.traffic import Generated, ask, connected, generate

TOKENS = 120
STREAMS = 2 * round(TARGET)


@pytest.fixture
def scaled_app(tiny_app: ServeApp) -> ServeApp:
    """The shared application, with one verifier or two as its policy decides."""
    scaled = {"name": "verifier", "num_replicas": "auto", "autoscaling_config": followed_by_policy(1, 2)}
    tiny_app.cluster.change(tiny_app.name, deployments=[scaled])
    return tiny_app


@pytest.mark.filterwarnings("ignore:The `metrics_interval_s` field:DeprecationWarning")
async def test_a_verifier_comes_with_load_and_goes_with_it(scaled_app: ServeApp) -> None:
    async with connected(scaled_app.cluster.grpc) as stub:

        async def answer(number: int) -> Generated:
            return await generate(
                stub, ask(f"Stream {number}", seed=number, temperature=0.8, max_tokens=TOKENS)
            )

        alone = [(await answer(number)).token_ids for number in range(STREAMS)]
        enough = asyncio.Event()

        async def keep_busy(number: int) -> None:
            while True:
                assert (await answer(number)).token_ids == alone[number]
                if enough.is_set():
                    return

        clients = [asyncio.create_task(keep_busy(number)) for number in range(STREAMS)]
        try:
            await asyncio.to_thread(scaled_app.wait_running, verifier=2)
        finally:
            enough.set()
            await asyncio.gather(*clients)
        await asyncio.to_thread(scaled_app.wait_running, verifier=1)
