"""Faults of other servers' drafters, each as what must hold here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from outrider.config.schema import DrafterConfig, OutriderConfig, VerifierConfig
from outrider.core.params import SamplingParams
from outrider.core.rounds import Proposal
from outrider.drafting.server import serve
from outrider.wire.messages import OpenDraft
from tests.integration.drafting.conftest import Link
from tests.tiny_models import make_tiny

PROMPT = tuple(range(3, 60))


async def proposal(model: Path, verifier: dict[str, Any]) -> Proposal:
    """What a drafter proposes whose file describes its verifier so."""
    draft = DrafterConfig(port=0, model=str(model), dtype="float32", pool_tokens=2048, threads=1)
    config = OutriderConfig(model=str(model), drafters={"mine": draft}, verifier=VerifierConfig(**verifier))
    up: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    task = asyncio.create_task(serve(config, "mine", ready=up.set_result, stop=stop))
    await asyncio.wait({task, up}, return_when=asyncio.FIRST_COMPLETED)
    link = Link((await up)["grpc"])
    try:
        answer = await link.ask(OpenDraft("a", 1, PROMPT, SamplingParams(temperature=1.0, seed=4), 6))
    finally:
        await link.close()
        stop.set()
        await task
    assert isinstance(answer, Proposal)
    return answer


@pytest.mark.parametrize(
    "layout",
    [{"threads": 2}, {"block_size": 64, "pool_tokens": 4096}, {"dtype": "bfloat16", "max_sessions": 1}],
)
async def test_how_the_target_is_laid_out_is_nothing_to_the_drafter(
    tmp_path: Path, layout: dict[str, Any]
) -> None:
    """Case 43: a drafter's own section says how it runs, whatever the verifier's says of the target."""
    model = make_tiny("llama", tmp_path / "model", max_position=256)
    plain, other = await proposal(model, {}), await proposal(model, layout)
    assert plain.tree == other.tree
    assert len(plain.tree) == 6
