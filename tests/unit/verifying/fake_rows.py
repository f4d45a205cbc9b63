"""Stands in for an engine where only its features matter."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from outrider.core.errors import OverloadedError
from outrider.core.models import ModelInfo
from outrider.engine.api import EngineApi

WIDTH = 4


@dataclass
class FakeSequence:
    """Holds so many tokens."""

    kv_len: int
    token_ids: Sequence[int] = ()
    cached_len: int = 0


@dataclass
class FakeRows:
    """Row i of every feature is i, all along."""

    info: ModelInfo = field(default_factory=lambda: ModelInfo("target", hidden_size=WIDTH, num_layers=2))
    kept: list[set[str]] = field(default_factory=list)
    full: bool = False

    def keep_features(self, names: Collection[str]) -> None:
        if self.full:
            raise OverloadedError("no memory")
        self.kept.append(set(names))

    def features_of(
        self, sequence: FakeSequence, name: str, start: int, stop: int, nodes: Sequence[int] = ()
    ) -> torch.Tensor:
        assert name in self.kept[-1] and 0 <= start < stop <= sequence.kv_len + len(nodes)
        return torch.arange(start, stop).to(torch.bfloat16)[:, None].expand(-1, WIDTH)

    @property
    def api(self) -> EngineApi:
        return cast(EngineApi, self)
