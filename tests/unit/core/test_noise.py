"""The noise: published vectors, the specification written twice, and that no way of asking changes it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from outrider.core.exponential import negative_log
from outrider.core.noise import GROUP_SIZE, FirstDraws, exponentials, streams
from tests.unit.core import reference_noise

VECTORS = json.loads(Path(__file__).with_name("noise_vectors.json").read_text(encoding="utf-8"))
ROWS = [(0, 0), (5, 10), (2**64 - 1, 3), (2**63 + 17, 2**40), (12345, 77)]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['seed']}-{v['position']}-{v['token_id']}")
def test_published_vectors(vector: dict[str, str | int]) -> None:
    seed, position, token_id = int(vector["seed"]), int(vector["position"]), int(vector["token_id"])
    noise = exponentials(streams([(seed, position)]), torch.tensor([token_id]))
    assert f"{int(noise.view(torch.int64)[0]):016x}" == vector["exponential_bits"]
    assert repr(float(noise[0])) == vector["exponential"]
    group, least_id, own = reference_noise.draws(seed, position, token_id)
    assert (group, least_id, own) == (
        vector["group_numerator"],
        vector["least_id"],
        vector["token_numerator"],
    )
    fixed = negative_log(torch.tensor([group, own])).tolist()
    assert fixed == [vector["group_fixed"], vector["token_fixed"]]


def test_the_documented_table_is_these_vectors() -> None:
    text = (Path(__file__).parents[3] / "docs" / "noise.md").read_text(encoding="utf-8")
    names = ("seed", "position", "token_id", "group_numerator", "least_id", "token_numerator")
    for vector in VECTORS:
        cells = [str(vector[name]) for name in names]
        line = " | ".join([*cells, f"`{vector['exponential_bits']}`", str(vector["exponential"])])
        assert f"| {line} |" in text


def test_equals_the_specification_in_plain_python() -> None:
    draw = random.Random(4)
    cases = [
        (draw.getrandbits(64), draw.getrandbits(draw.randint(1, 64)), draw.getrandbits(18))
        for _ in range(400)
    ]
    noise = exponentials(
        streams([(seed, position) for seed, position, _ in cases]),
        torch.tensor([token_id for _, _, token_id in cases]),
    ).tolist()
    for value, case in zip(noise, cases, strict=True):
        assert value == pytest.approx(float(reference_noise.exponential(*case)), rel=1e-13, abs=1e-15)


def whole_vocabulary(size: int) -> torch.Tensor:
    return exponentials(streams(ROWS)[:, :, None], torch.arange(size))


def test_subset_equals_whole() -> None:
    size = 3000
    whole = whole_vocabulary(size)
    generator = torch.Generator().manual_seed(0)
    for count in (1, 2, 7, 100, 999):
        ids = torch.randperm(size, generator=generator)[:count]
        rows = torch.randint(0, len(ROWS), (count,), generator=generator)
        assert torch.equal(exponentials(streams(ROWS)[:, rows], ids), whole[rows, ids])


def test_a_row_alone_equals_the_row_among_others() -> None:
    whole = whole_vocabulary(1000)
    for index, row in enumerate(ROWS):
        assert torch.equal(exponentials(streams([row])[:, :, None], torch.arange(1000))[0], whole[index])


def test_first_draws_are_the_groups_minima() -> None:
    groups = 30
    whole = whole_vocabulary(groups * GROUP_SIZE)
    some = torch.tensor([0, 129, 3839, 77, 2000])
    draws = FirstDraws.of(streams(ROWS), groups, some)
    grouped = whole.view(len(ROWS), groups, GROUP_SIZE)
    assert torch.equal(draws.least, grouped.amin(2))
    assert torch.equal(draws.least_ids, grouped.argmin(2) + torch.arange(groups) * GROUP_SIZE)
    assert torch.equal(draws.best, whole[torch.arange(len(ROWS)), some])
    # The same for an id that is its group's least.
    again = FirstDraws.of(streams(ROWS), groups, draws.least_ids[:, 4])
    assert torch.equal(again.best, draws.least[:, 4])


def test_later_draws_equal_the_whole() -> None:
    groups = 8
    whole = whole_vocabulary(groups * GROUP_SIZE)
    draws = FirstDraws.of(streams(ROWS), groups, torch.zeros(len(ROWS), dtype=torch.int64))
    rows = torch.arange(len(ROWS)).repeat_interleave(groups * GROUP_SIZE)
    ids = torch.arange(groups * GROUP_SIZE).repeat(len(ROWS))
    assert torch.equal(draws.exponentials(rows, ids), whole.reshape(-1))


def test_all_64_bits_of_seed_and_position_count() -> None:
    base = exponentials(streams([(0, 0)]), torch.tensor([9]))
    seen = {float(base[0])}
    for bit in range(64):
        seen.add(float(exponentials(streams([(1 << bit, 0)]), torch.tensor([9]))[0]))
        seen.add(float(exponentials(streams([(0, 1 << bit)]), torch.tensor([9]))[0]))
    assert len(seen) == 129


def test_noise_is_positive_and_finite() -> None:
    whole = whole_vocabulary(20000)
    assert (whole > 0).all()
    assert torch.isfinite(whole).all()
