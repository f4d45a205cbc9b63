"""What hidden states cost on their way to a drafter: bytes a round, and milliseconds of each stage.

    python bench/feature_traffic.py [--hidden 4096] [--layers 32] [--sessions 1 16] [--tokens 1 4]
                                    [--json OUT.json]

Stages of one step over all sessions: `keep` (the forward's rows go beside the KV), `gather` (the new rows
leave it), `write` (to messages and to bytes), `read` (from bytes to messages, checked, to tensors). Sizes
only, no model. What the network takes comes on top: `bytes` says how much there is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import cast

import torch

from outrider.benchmark.provenance import provenance
from outrider.core.features import LAST_HIDDEN, hidden_after
from outrider.core.models import DrafterInfo, ModelInfo
from outrider.drafting.heads.features import FeatureRows
from outrider.engine.api import EngineApi, SequenceHandle
from outrider.engine.features import FeatureStore
from outrider.verifying.features import FeatureFeed, spread
from outrider.wire.convert.drafter import command_from_proto, command_to_proto
from outrider.wire.messages import AdvanceDraft, DraftCommand
from outrider.wire.v1 import drafter_pb2 as pb

_CONTEXT = 512
"""Tokens of each session before the round."""
_WARM_UP = 3
_STAGES = ("keep", "gather", "write", "read")


class _Sequence:
    """Tokens of a session that stand somewhere in the pool."""

    def __init__(self, first_slot: int) -> None:
        self.first_slot = first_slot
        self.kv_len = 0
        self.cached_len = 0
        self.token_ids: Sequence[int] = ()


class _Rows:
    """The engine's features, without an engine."""

    def __init__(self, info: ModelInfo, slots: int) -> None:
        self.info = info
        self.store = FeatureStore(slots, info.hidden_size, "cpu")

    def keep_features(self, names: Collection[str]) -> None:
        self.store.keep(names)

    def features_of(
        self, sequence: SequenceHandle, name: str, start: int, stop: int, nodes: Sequence[int] = ()
    ) -> torch.Tensor:
        first = cast(_Sequence, sequence).first_slot
        return self.store.read(name, torch.arange(first + start, first + stop))


class _Traffic:
    """Sessions that each commit `tokens` tokens a round; 0: what they commit does not count, one row goes."""

    def __init__(
        self, names: tuple[str, ...], info: ModelInfo, sessions: int, tokens: int, rounds: int
    ) -> None:
        self._names = names
        self._info = info
        self._rows_each = max(tokens, 1)
        self._last_only = not tokens
        room = _CONTEXT + self._rows_each * rounds
        self._rows = _Rows(info, sessions * room)
        self._feed = FeatureFeed(cast(EngineApi, self._rows), lambda *_: None)
        self._feed.link_up("d", DrafterInfo(info, "head", names, 8, sessions, "", self._last_only))
        self._sequences = [_Sequence(index * room) for index in range(sessions)]
        self._held = [FeatureRows(names, info.hidden_size) for _ in self._sequences]
        for sequence in self._sequences:
            sequence.kv_len = _CONTEXT - self._rows_each
        for index in range(sessions):
            self._feed.start("d", str(index))
        self.gather()

    def keep(self) -> None:
        """The forward's rows go beside the KV."""
        starts = [sequence.first_slot + sequence.kv_len for sequence in self._sequences]
        slots = torch.cat([torch.arange(start, start + self._rows_each) for start in starts])
        fresh = torch.ones(len(slots), self._info.hidden_size, dtype=torch.bfloat16)
        self._rows.store.write(slots, dict.fromkeys(self._names, fresh))

    def gather(self) -> list[DraftCommand]:
        """Commands with the rows of a round."""
        commands: list[DraftCommand] = []
        for index, sequence in enumerate(self._sequences):
            base = sequence.kv_len + 1
            sequence.kv_len += self._rows_each
            shipment = self._feed.take("d", str(index), cast(SequenceHandle, sequence))
            commands += spread(AdvanceDraft(str(index), 1, base, (7,) * self._rows_each, 0, 4), shipment)
        self._feed.took("d", 2**40)
        return commands

    def read(self, data: bytes) -> None:
        """What a drafter does with a message."""
        for message in pb.DraftRequest.FromString(data).commands:
            command = command_from_proto(message)
            assert isinstance(command, AdvanceDraft)
            rows = self._held[int(command.session_id)]
            if self._last_only:
                rows = FeatureRows(self._names, self._info.hidden_size)
            rows.add(command.features, most=2**20)
            rows.take(rows.waiting)


def measure(
    names: tuple[str, ...], info: ModelInfo, sessions: int, tokens: int, repeats: int
) -> dict[str, float]:
    """Medians in milliseconds, and bytes, of one round of all sessions."""
    traffic = _Traffic(names, info, sessions, tokens, repeats + _WARM_UP)
    times: dict[str, list[float]] = {stage: [] for stage in _STAGES}
    data = b""
    for _ in range(repeats + _WARM_UP):
        marks = [time.perf_counter()]
        traffic.keep()
        marks.append(time.perf_counter())
        commands = traffic.gather()
        marks.append(time.perf_counter())
        data = pb.DraftRequest(commands=map(command_to_proto, commands)).SerializeToString()
        marks.append(time.perf_counter())
        traffic.read(data)
        marks.append(time.perf_counter())
        for stage, start, stop in zip(_STAGES, marks[:-1], marks[1:], strict=True):
            times[stage].append((stop - start) * 1e3)
    medians = {f"{stage}_ms": statistics.median(own[_WARM_UP:]) for stage, own in times.items()}
    return {"bytes": len(data), **{name: round(value, 3) for name, value in medians.items()}}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4], help="tokens committed a round")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    info = ModelInfo("sizes", hidden_size=options.hidden, num_layers=options.layers)
    low, middle, high = (hidden_after(n) for n in (2, options.layers // 2, options.layers - 3))
    methods = {"medusa": (LAST_HIDDEN,), "eagle": (LAST_HIDDEN,), "eagle3": (low, middle, high)}
    results = []
    for method, names in methods.items():
        for sessions in options.sessions:
            # Of a round Medusa takes the last row, however many tokens it committed.
            for tokens in [0] if method == "medusa" else options.tokens:
                found = measure(names, info, sessions, tokens, options.repeats)
                row = {"method": method, "sessions": sessions, "tokens": tokens or "any", **found}
                results.append(row)
                print(" ".join(f"{name}={value}" for name, value in row.items()))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        sizes = {"hidden": options.hidden, "layers": options.layers, "threads": torch.get_num_threads()}
        page = {"rows": results, **sizes, "provenance": provenance()}
        options.json.write_text(json.dumps(page, indent=2) + "\n")


if __name__ == "__main__":
    main()
