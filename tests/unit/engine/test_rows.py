"""Row policies are found from numbers that tell orders of summation apart."""

from __future__ import annotations

import torch

from outrider.engine.rows import RowPolicy, cancelling, find_policy


def in_halves(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    half = rows.shape[1] // 3
    return rows[:, :half] @ weight[:, :half].T + rows[:, half:] @ weight[:, half:].T


def test_terms_cancel_whatever_their_number() -> None:
    for terms in (1, 6, 7, 64):
        rows, weight = cancelling(8, 700, terms)
        assert rows.shape == (8, terms)
        assert weight.shape == (700, terms)
        assert (rows.double() @ weight.double().T).abs().max() < 1e-12


def test_another_order_shows_in_a_layer_so_small_that_ordinary_numbers_hide_it() -> None:
    torch.manual_seed(0)
    ordinary = torch.randn(32, 48), torch.randn(16, 48)
    told = []
    for rows, weight in (ordinary, cancelling(32, 16, 48)):

        def run(part: torch.Tensor, weight: torch.Tensor = weight) -> torch.Tensor:
            """As a kernel that sums otherwise from 16 rows on, and rounds to bf16."""
            return (part @ weight.T if len(part) < 16 else in_halves(part, weight)).bfloat16()

        told.append(find_policy(run, rows, "layer", (8, 16, 32)))
    assert told == [RowPolicy(8, 32), RowPolicy(16, 32)]
