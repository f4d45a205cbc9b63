"""A verifier that dies, freezes or is cut off in mid-stream: another one goes on, and clients see a pause."""

from __future__ import annotations

from tests.faults import kinds
from tests.faults.conftest import Only
from tests.idle import wait_until_idle
from tests.proxy import Proxy
from tests.stack import Stack, total, wait_until
from tests.traffic import Generated, ask, connected, generate


async def test_streams_of_every_kind_outlive_their_verifier(
    pair: Stack, only: Only, undisturbed: dict[str, Generated], store_link: Proxy
) -> None:
    with only("verifier-1") as other:

        def strike() -> None:
            other.accept()
            pair["verifier-1"].restart()

        seen = await kinds.run([pair.grpc], kinds.KINDS, strike)
    assert all(got.resumes == 0 for got in seen.values()), "a client had to help"
    kinds.check(seen, undisturbed)
    await kinds.check_stored(f"redis://{store_link.target}/0", seen)


async def test_a_frozen_verifier_loses_its_sessions_and_frees_them_when_it_wakes(
    pair: Stack, only: Only, undisturbed: dict[str, Generated], store_link: Proxy
) -> None:
    zombie = pair["verifier-1"]
    with only("verifier-1") as other:

        def strike() -> None:
            other.accept()
            zombie.freeze()

        seen = await kinds.run([pair.grpc], kinds.KINDS, strike)
    zombie.thaw()
    kinds.check(seen, undisturbed)
    wait_until(lambda: total(zombie.metrics(), "outrider_num_requests_running") == 0, "the zombie lets go")
    wait_until_idle(pair)
    await kinds.check_stored(f"redis://{store_link.target}/0", seen)
    with only("verifier-1"):
        async with connected(pair.grpc) as stub:
            again = await generate(stub, kinds.request("seeded"))
    assert again.token_ids == undisturbed["seeded"].token_ids


async def test_a_frozen_verifier_that_wakes_in_mid_stream_spoils_nothing(
    pair: Stack, only: Only, undisturbed: dict[str, Generated], store_link: Proxy
) -> None:
    """Its late writes meet those of the new owner."""
    zombie = pair["verifier-1"]
    with only("verifier-1") as other:

        def freeze() -> None:
            other.accept()
            zombie.freeze()

        frozen = kinds.Barrier(len(kinds.KINDS), 6, freeze)
        woken = False

        def thaw_when_taken_over(watch: kinds.Watch) -> kinds.Watch:
            def on_delta(got: Generated) -> None:
                nonlocal woken
                if frozen.struck and not woken and got.times[-1] - got.times[-2] > 0.5:
                    woken = True
                    zombie.thaw()
                watch(got)

            return on_delta

        watches = {kind: thaw_when_taken_over(frozen.watch()) for kind in kinds.KINDS}
        seen = await kinds.run_watched([pair.grpc], watches)
    zombie.thaw()
    assert woken
    kinds.check(seen, undisturbed)
    await kinds.check_stored(f"redis://{store_link.target}/0", seen)


async def test_a_cut_link_between_gateway_and_verifier_is_a_pause(
    pair: Stack, only: Only, undisturbed: dict[str, Generated], store_link: Proxy
) -> None:
    with only("verifier-1") as other:

        def strike() -> None:
            other.accept()
            pair.proxies["verifier-1"].cut()

        seen = await kinds.run([pair.grpc], kinds.KINDS, strike)
    kinds.check(seen, undisturbed)
    await kinds.check_stored(f"redis://{store_link.target}/0", seen)


async def test_a_link_that_swallows_everything_is_left_for_another_verifier(
    pair: Stack, only: Only, undisturbed: dict[str, Generated], store_link: Proxy
) -> None:
    with only("verifier-1") as other:

        def strike() -> None:
            other.accept()
            pair.proxies["verifier-1"].freeze()

        seen = await kinds.run([pair.grpc], kinds.KINDS, strike)
    kinds.check(seen, undisturbed)
    wait_until(
        lambda: total(pair["verifier-1"].metrics(), "outrider_num_requests_running") == 0,
        "the verifier that nobody listens to gives its sessions up",
    )
    await kinds.check_stored(f"redis://{store_link.target}/0", seen)


async def test_a_server_that_reads_the_end_of_all_calls_is_a_pause(
    pair: Stack, only: Only, undisturbed: dict[str, Generated]
) -> None:
    with only("verifier-1") as other:

        def strike() -> None:
            other.accept()
            pair.proxies["verifier-1"].half_close()

        seen = await kinds.run([pair.grpc], ("greedy", "seeded"), strike)
    kinds.check(seen, undisturbed)


async def test_bytes_of_an_older_connection_sent_again_change_nothing(
    pair: Stack, only: Only, undisturbed: dict[str, Generated]
) -> None:
    """Calls that were made once are made once more, at a verifier and at a drafter."""
    verifier, drafter = pair.proxies["verifier-1"], pair.proxies["twin-1"]
    with only("verifier-1") as other:

        def strike() -> None:
            other.accept()
            verifier.replay(len(verifier.recorded) - 1, listen_s=0.2)
            drafter.replay(len(drafter.recorded) - 1, listen_s=0.2)

        seen = await kinds.run([pair.grpc], kinds.DETERMINED, strike)
    kinds.check(seen, undisturbed)
    async with connected(pair.grpc) as stub:
        assert (await generate(stub, ask(max_tokens=24))).token_ids == undisturbed["greedy"].token_ids[:24]
