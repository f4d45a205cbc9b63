"""A tensor-parallel verifier that loses a rank ends as a whole; its sessions go on at another one."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.stack import Service, Stack, tiny_config, total, wait_until
from tests.traffic import Generated, ask, connected, generate, generate_all

REQUESTS = [
    ask(max_tokens=200, drafter="lookup"),
    ask(max_tokens=200, drafter="lookup", temperature=1.0, seed=3),
    ask(max_tokens=200, drafter="lookup", temperature=0.8, seed=4),
]


@pytest.fixture(scope="module")
def shared_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two verifiers of two ranks each; sessions live in their own stores only."""
    folder = tmp_path_factory.mktemp("ranks")
    config = tiny_config(folder)
    config["drafters"] = {"lookup": config["drafters"]["lookup"]}
    config["verifier"] |= {"tensor_parallel": 2, "batch_invariance": "off"}
    config["gateway"] = {"probe_s": 0.2, "failover_s": 120}
    with Stack(folder, config, verifiers=2) as stack:
        yield stack


def follower_of(verifier: Service) -> psutil.Process:
    (follower,) = [child for child in psutil.Process(verifier.pid).children() if "rank" in child.cmdline()]
    return follower


def has_ended_for_want_of_its_rank(verifier: Service) -> None:
    """Wait until it has, then start it again."""
    assert verifier.process is not None
    verifier.expected_to_die = True
    assert verifier.process.wait(30) == 1
    last = verifier.log_tail(1)
    assert re.match(
        r"error: (rank 1 of the model .*died: SIGKILL|the ranks of the model are out of step)", last
    )
    verifier.start()
    verifier.wait_serving()


async def test_streams_outlive_a_rank_that_is_killed(shared_model: Stack) -> None:
    async with connected(shared_model.grpc) as stub:
        for request in REQUESTS:
            request.speculation.enabled = False
        undisturbed = await generate_all(stub, REQUESTS)
    for request in REQUESTS:
        request.speculation.enabled = True
    struck: list[Service] = []

    def strike(seen: Generated) -> None:
        if seen.deltas == 10 and not struck:
            struck.extend(
                verifier
                for verifier in shared_model.all("verifier")
                if total(verifier.metrics(), "outrider_num_requests_running")
            )
            follower_of(struck[0]).kill()

    async with connected(shared_model.grpc) as stub:
        seen = [await generate(stub, REQUESTS[0], on_delta=strike)]
        seen += await generate_all(stub, REQUESTS[1:])
    assert struck
    assert [got.token_ids for got in seen] == [got.token_ids for got in undisturbed]
    assert seen[0].stats.drafts > 0
    has_ended_for_want_of_its_rank(struck[0])


def test_a_rank_that_dies_while_nobody_needs_it_is_noticed(shared_model: Stack) -> None:
    verifier = shared_model["verifier-1"]
    follower_of(verifier).kill()
    has_ended_for_want_of_its_rank(verifier)


def test_a_rank_does_not_outlive_its_verifier_nor_end_before_it(shared_model: Stack) -> None:
    verifier = shared_model["verifier-2"]
    follower = follower_of(verifier)
    follower.send_signal(signal.SIGTERM)  # as an init system does to all processes of a service
    follower.suspend()  # even a frozen one goes
    verifier.kill()
    wait_until(lambda: not follower.is_running(), "the follower is gone")
    verifier.start()
    verifier.wait_serving()
