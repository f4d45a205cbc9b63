"""Activations give an element the same bits however many rows and threads there are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from outrider.engine.elementwise import apply_elementwise
from outrider.engine.rows import ROW_COUNTS

FUNCTIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda rows: F.gelu(rows, approximate="tanh"),
    "tanh": torch.tanh,
}


@pytest.fixture(params=[1, 2, 3, 5, 8])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("width", [128, 1000, 1536])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_do_not_depend_on_their_number(threads: int, name: str, width: int, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(0)
    both = torch.randn(ROW_COUNTS[-1], 2 * width, generator=generator).to(dtype)
    gate = both[:, :width]  # rows with a gap between them, as the fused product gives them
    want = torch.cat([apply_elementwise(function, rows) for rows in torch.split(gate, ROW_COUNTS[0])])
    for count in ROW_COUNTS:
        got = apply_elementwise(function, gate[:count])
        assert torch.equal(got, want[:count]), f"{count} rows on {threads} threads"
    torch.testing.assert_close(want, function(gate))
