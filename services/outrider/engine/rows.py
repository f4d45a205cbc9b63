"""Matrix products whose rows do not depend on how many rows there are.

A GEMM library picks another kernel, with another order of summation, for another number of rows.
Which numbers share a kernel depends on the machine, the type and the shape, so it is measured: at load, each
distinct shape is run with all the row counts that will ever be used, and a `RowPolicy` is
chosen under which all give the same bits. Its numbers are such that another order of summation shows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F

_log = logging.getLogger(__name__)

ROW_COUNTS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Row counts of packed forwards; fewer distinct shapes also means fewer kernels to prepare."""


def bucket(rows: int) -> int:
    """The smallest count of ROW_COUNTS that holds `rows` (past the last: its next multiple)."""
    for count in ROW_COUNTS:
        if rows <= count:
            return count
    return -(-rows // ROW_COUNTS[-1]) * ROW_COUNTS[-1]


@dataclass(frozen=True, slots=True)
class RowPolicy:
    """Calls take at least `least` and at most `most` rows. Both are in ROW_COUNTS."""

    least: int = ROW_COUNTS[0]
    most: int = ROW_COUNTS[-1]


PolicyTable = dict[tuple[int, int, bool], RowPolicy]
"""Policies found so far, by (in, out, has bias)."""

_WIDE = 32_000  # outputs of a head: only a few rows ever go through it at once

_DISTINCT = 512  # columns of a weight for measuring that differ: more take long to draw

RowFunction = Callable[[torch.Tensor], torch.Tensor]


def find_policy(
    function: RowFunction, sample: torch.Tensor, what: str, counts: Sequence[int] = ROW_COUNTS
) -> RowPolicy:
    """The widest policy under which `function` treats every row alike, by trying all counts.

    Args:
        function: rows [T, K] to rows [T, N].
        sample: rows [counts[-1], K] to try it with.
        what: its name in the log.
        counts: row counts to try.
    """
    outputs = {count: function(sample[:count]) for count in counts}
    best = RowPolicy(counts[0], counts[0])
    for least in counts[:4]:
        alone = torch.cat([function(part) for part in torch.split(sample, least) if part.shape[0] == least])
        most = least
        for count in counts[counts.index(least) :]:
            rows = min(count, alone.shape[0])
            if not torch.equal(outputs[count][:rows], alone[:rows]):
                break
            most = count
        if most > best.most:
            best = RowPolicy(least, most)
        if best.most == counts[-1]:
            break
    _log.debug("%s: %d to %d rows a call", what, best.least, best.most)
    return best


def cancelling(rows: int, columns: int, terms: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers whose products sum to 0, so that what comes out is nothing but rounding on the way.

    Of ordinary numbers, rounded to bf16, one result in 10^5 or fewer tells two orders of summation apart: a
    small layer may show none, and get a policy that is too wide. Here nearly every result tells.

    Returns:
        Rows [rows, terms] and a weight [columns, terms], float32: each term stands elsewhere too, negated.
    """
    generator = torch.Generator().manual_seed(0)
    half = terms // 2
    order = torch.randperm(half, generator=generator)
    values = torch.randn(rows, half, generator=generator)
    factors = torch.randn(min(columns, _DISTINCT), half, generator=generator)
    odd = terms % 2
    left = torch.cat((values, -values[:, order], torch.zeros(rows, odd)), 1)
    right = torch.cat((factors, factors[:, order], torch.zeros(len(factors), odd)), 1)
    return left, right.repeat(-(-columns // len(right)), 1)[:columns]


def apply_rows(function: RowFunction, rows: torch.Tensor, policy: RowPolicy) -> torch.Tensor:
    """`function` over `rows` [T, K], in calls that keep to the policy."""
    count = rows.shape[0]
    if policy.least <= count <= policy.most:
        return function(rows)
    if count < policy.least:
        return function(_padded(rows, policy.least))[:count]
    parts = [apply_rows(function, part, policy) for part in torch.split(rows, policy.most)]
    return torch.cat(parts)


def _padded(rows: torch.Tensor, count: int) -> torch.Tensor:
    padded = rows.new_zeros(count, rows.shape[1])
    padded[: rows.shape[0]] = rows
    return padded


class Projection(torch.nn.Module):
    """A linear layer over packed rows: prepacked where that is possible, exact by its row policy.

    Args:
        weight: [out, in].
        bias: [out] or None.
        name: for the log.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, name: str = "projection"
    ) -> None:
        super().__init__()
        self.in_features = weight.shape[1]
        self.out_features = weight.shape[0]
        self.name = name
        self.policy = RowPolicy()
        self._bias = None if bias is None else bias.detach()
        self.weight: torch.Tensor | None = None
        self._linear_pointwise = _mkldnn("_linear_pointwise")
        self._packed: torch.Tensor | None = None
        if weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and _can_prepack():
            self._packed = _mkldnn("_reorder_linear_weight")(weight.detach().contiguous(), ROW_COUNTS[0])
        else:
            self.weight = weight.detach()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows` [..., in] to [..., out]."""
        if rows.ndim == 2:
            return apply_rows(self._multiply, rows, self.policy)
        flat = apply_rows(self._multiply, rows.reshape(-1, self.in_features), self.policy)
        return flat.view(*rows.shape[:-1], self.out_features)

    def calibrate(self, known: PolicyTable, dtype: torch.dtype, device: str) -> None:
        """Choose the row policy; layers of one shape share what was found (`known`)."""
        key = (self.in_features, self.out_features, self._bias is not None)
        if key not in known:
            counts = ROW_COUNTS if self.out_features < _WIDE else ROW_COUNTS[:6]
            rows, weight = cancelling(counts[-1], self.out_features, self.in_features)
            bias = None if self._bias is None else torch.zeros(self.out_features).to(device, dtype)
            twin = Projection(weight.to(device, dtype), bias, self.name)
            known[key] = find_policy(twin._multiply, rows.to(device, dtype), f"{self.name} {key}", counts)
        self.policy = known[key]

    def _multiply(self, rows: torch.Tensor) -> torch.Tensor:
        if self._packed is None:
            assert self.weight is not None
            return F.linear(rows, self.weight, self._bias)
        product: torch.Tensor = self._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        return product


def _mkldnn(name: str) -> Callable[..., Any]:
    """An operator of torch's own oneDNN binding; compiled graphs use the same ones."""
    return cast(Callable[..., Any], getattr(torch.ops.mkldnn, name))


def _can_prepack() -> bool:
    return bool(torch.backends.mkldnn.is_available() and _mkldnn("_is_mkldnn_bf16_supported")())  # type: ignore[no-untyped-call]
