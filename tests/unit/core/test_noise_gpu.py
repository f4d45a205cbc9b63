"""The same bits on CPU and CUDA."""

from __future__ import annotations

import random

import pytest
import torch

from outrider.core.noise import FirstDraws, exponentials, streams
from outrider.core.params import SamplingParams
from outrider.core.sampling import coupled_picks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
ROWS = [(random.Random(seed).getrandbits(64), seed * 1009) for seed in range(20)]


def test_noise() -> None:
    ids = torch.arange(49152)
    cpu = exponentials(streams(ROWS)[:, :, None], ids)
    gpu = exponentials(streams(ROWS, torch.device("cuda"))[:, :, None], ids.cuda())
    assert torch.equal(cpu, gpu.cpu())


def test_first_draws() -> None:
    ids = torch.arange(20) * 317
    cpu = FirstDraws.of(streams(ROWS), 192, ids)
    gpu = FirstDraws.of(streams(ROWS, torch.device("cuda")), 192, ids.cuda())
    assert torch.equal(cpu.least, gpu.least.cpu())
    assert torch.equal(cpu.least_ids, gpu.least_ids.cpu())
    assert torch.equal(cpu.best, gpu.best.cpu())


def test_picks_from_the_same_logits() -> None:
    logits = torch.randn(8, 49152, generator=torch.Generator().manual_seed(0)) * 3
    settings = [
        SamplingParams(temperature=0.0),
        SamplingParams(seed=1),
        SamplingParams(seed=2, temperature=1.7),
        SamplingParams(seed=3, top_p=0.9),
        SamplingParams(seed=4, top_k=50),
        SamplingParams(seed=5, min_p=0.05),
        SamplingParams(seed=6, top_k=200, top_p=0.95, min_p=0.001, temperature=0.7),
        SamplingParams(seed=7, top_p=0.999),
    ]
    rows = [(params, 100 + index) for index, params in enumerate(settings)]
    assert coupled_picks(logits, rows).tolist() == coupled_picks(logits.cuda(), rows).tolist()
