"""Any parameters, any batch, any drafter: with speculation every answer is the one without it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.e2e.any_parameters.adversaries import NAMES, Oracle, playing
from tests.e2e.any_parameters.answers import ask
from tests.e2e.any_parameters.requests import CONTEXT, Asked, requests
from tests.fuzzing import fuzzed, time_limit_s
from tests.stack import Stack, tiny_config, total
from tests.tiny_models import make_tiny

CONCURRENCY = 8
EXAMPLES = 40

T = TypeVar("T")


class Arena:
    """A stack of real processes, and adversaries in the place of some of its drafters."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.oracle = Oracle()
        self.adversaries: dict[str, Any] = {}
        self.accepted: Counter[str] = Counter()  # draft tokens, by drafter
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._open = AsyncExitStack()
        self._client = httpx.AsyncClient(base_url=stack.http, trust_env=False)

    def __enter__(self) -> Arena:
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._open.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it in the adversaries' event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self) -> None:
        await self._open.enter_async_context(self._client)
        drafters = self.stack.config["drafters"]
        addresses = {name: f"127.0.0.1:{drafters[name]['port']}" for name in NAMES}
        self.adversaries = await self._open.enter_async_context(playing(self.oracle, addresses))

    async def off_and_on(self, batch: list[Asked]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The batch with speculation off, and then with the drafters mixed."""
        off = await asyncio.gather(*(self._ask(asked, asked.off()) for asked in batch))
        seeds = [answer.get("seed") for answer in off]
        self._learn(batch, off)
        on = await asyncio.gather(
            *(self._ask(asked, asked.on(seed)) for asked, seed in zip(batch, seeds, strict=True))
        )
        return list(off), list(on)

    async def _ask(self, asked: Asked, body: dict[str, Any]) -> dict[str, Any]:
        return await ask(self._client, asked, body, self.accepted)

    def _learn(self, batch: list[Asked], answers: list[dict[str, Any]]) -> None:
        self.oracle.answers.clear()
        for asked, answer in zip(batch, answers, strict=True):
            candidates = asked.body.get("n", 1)
            for index, choice in answer.get("choices", {}).items():
                prompt = choice["prompt_token_ids"] or answer.get("prompt_token_ids", [])
                seed = (answer["seed"] + index % candidates) % 2**64
                self.oracle.answers[seed, tuple(prompt)] = choice["token_ids"]


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """Tiny fp32 models, every drafter."""
    folder: Path = tmp_path_factory.mktemp("any-parameters")
    config = tiny_config(folder)
    make_tiny("llama", folder / "target", max_position=CONTEXT)
    config["verifier"] |= {"max_draft_tokens": 16, "patience_ms": 100.0, "rest_ms": 20.0}
    config["drafters"] |= {name: {"method": "prompt_lookup"} for name in NAMES}
    with Stack(folder, config, absent=NAMES) as stack, Arena(stack) as arena:
        yield arena


@fuzzed(EXAMPLES, shrink=False)
@given(batch=st.lists(requests(), min_size=CONCURRENCY, max_size=CONCURRENCY))
def run_batches(arena: Arena, batch: list[Asked]) -> None:
    off, on = arena.run(arena.off_and_on(batch))
    for asked, without, with_speculation in zip(batch, off, on, strict=True):
        assert with_speculation == without, asked


@pytest.mark.timeout(time_limit_s(600))
def test_any_parameters_give_what_they_give_without_speculation(arena: Arena) -> None:
    run_batches(arena)
    # It was not equal for want of drafts: every drafter was heard, and the verifier believed some of them.
    assert all(adversary.played for adversary in arena.adversaries.values())
    for name in ("twin", "almost", "tree", "oversized", "duplicates", "stale", "past-the-end", "slow"):
        assert arena.accepted[name] > 0, (name, arena.accepted)
    assert arena.accepted["wrong"] == arena.accepted["illegal"] == 0
    assert total(arena.stack.metrics("verifier"), "outrider_num_requests_running") == 0
