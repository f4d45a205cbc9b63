"""The other ranks of a model as processes: what a step does when one does not answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from outrider.cli.ranks import LocalFollowers, LocalRanks
from outrider.config.schema import EngineConfig, VerifierConfig
from outrider.core.errors import ConfigError
from outrider.engine.engine import Engine
from outrider.engine.parallel.opening import open_engine
from outrider.engine.parallel.ranks import LostRankError, RankTask
from tests.tiny_models import make_tiny
from tests.unit.engine.stepping import logits_of

TOKENS = [(37 * i + 11) % 500 for i in range(60)]
CONFIG = VerifierConfig(dtype="float32", threads=1, pool_tokens=2048, batch_invariance="off")


class Watched(LocalRanks):
    """Keeps what it launched."""

    followers: LocalFollowers

    def launch(self, tasks: list[RankTask]) -> LocalFollowers:
        self.followers = super().launch(tasks)
        return self.followers


@pytest.fixture
def ranks() -> Iterator[Watched]:
    launcher = Watched("warning")
    yield launcher
    for pid in launcher.followers.pids:
        assert not psutil.pid_exists(pid), "a rank is left behind"


def test_a_rank_that_stands_still_ends_the_engine(ranks: Watched, tmp_path: Path) -> None:
    folder = make_tiny("llama", tmp_path / "llama")
    want = logits_of(Engine.load(folder, CONFIG), TOKENS, chunk=32)
    config = CONFIG.model_copy(update={"tensor_parallel": 2, "rank_timeout_s": 5.0})
    engine = open_engine(folder, config, launcher=ranks)
    try:
        torch.testing.assert_close(logits_of(engine, TOKENS, chunk=16), want, rtol=0, atol=1e-4)
        engine.clear_prefix_cache()
        assert engine.dead() == ""
        os.kill(ranks.followers.pids[0], signal.SIGSTOP)
        with pytest.raises(LostRankError, match="out of step"):
            logits_of(engine, TOKENS, chunk=16)
        assert "out of step" in engine.dead()
        with pytest.raises(LostRankError, match="out of step"):  # at once: nothing is sent any more
            logits_of(engine, TOKENS, chunk=16)
    finally:
        engine.close()


def test_one_gpu_for_all_ranks_is_refused() -> None:
    task = RankTask(Path("model"), EngineConfig(device="cuda:1"), 1, 2, "tcp://127.0.0.1:1", 1.0)
    with pytest.raises(ConfigError, match=r"verifier\.device is cuda:1, but of 2 ranks each needs a GPU"):
        LocalRanks().launch([task])
