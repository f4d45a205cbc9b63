"""Philox4x32-10 against Random123's published answers and against plain Python."""

from __future__ import annotations

import random

import pytest
import torch

from outrider.core.philox import philox4x32
from tests.unit.core import reference_noise

ONES = 0xFFFFFFFF
# kat_vectors of Random123, lines "philox4x32 10".
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]) -> None:
    words = philox4x32(torch.tensor(counter)[:, None], torch.tensor(key)[:, None])
    assert tuple(words[:, 0].tolist()) == answer


def test_equals_plain_python_in_any_shape() -> None:
    draw = random.Random(1)
    counters = [[draw.getrandbits(32) for _ in range(4)] for _ in range(60)]
    keys = [[draw.getrandbits(32) for _ in range(2)] for _ in range(60)]
    expected = torch.tensor(
        [reference_noise.philox(tuple(c), tuple(k)) for c, k in zip(counters, keys, strict=True)]
    )
    counter, key = torch.tensor(counters).t(), torch.tensor(keys).t()
    assert torch.equal(philox4x32(counter, key).t(), expected)
    reshaped = philox4x32(counter.reshape(4, 3, 20), key.reshape(2, 3, 20))
    assert torch.equal(reshaped.reshape(4, 60).t(), expected)


def test_one_key_serves_many_counters() -> None:
    counter = torch.arange(40).reshape(4, 10)
    key = torch.tensor([7, 9])
    together = philox4x32(counter, key[:, None])
    assert torch.equal(together, philox4x32(counter, key[:, None].expand(2, 10)))
