"""The target's hidden states on their way to drafters: which rows each one has, and which come next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from outrider.core.errors import OutriderError, OverloadedError
from outrider.core.models import DrafterInfo
from outrider.engine.api import EngineApi, SequenceHandle
from outrider.wire.messages import AdvanceDraft, DraftCommand, FeatureBlock, OpenDraft

_log = logging.getLogger(__name__)

_PART_BYTES = 4 * 2**20
"""Rows in one command: far below what a message may hold."""
_CREDIT_BYTES = 64 * 2**20
"""Rows on their way to one drafter. What reads slowly gets no more, so memory stays bounded."""
_MOST_KEPT = 16
"""Features kept beside the KV at the same time, for all drafters together."""


@dataclass(frozen=True, slots=True)
class Shipment:
    """Rows for one drafter of a session, in parts that each fit a command."""

    parts: tuple[tuple[FeatureBlock, ...], ...] = ()
    complete: bool = True  # with these the drafter has all rows there are


NOTHING = Shipment()


@dataclass(slots=True)
class _Link:
    """A drafter replica that needs features."""

    drafter: str  # its name in the configuration
    names: tuple[str, ...]
    last_only: bool
    credit: int  # bytes that may still be sent before some are known to be on the wire
    dropped: bool = False  # forgotten, but for what it needs


class FeatureFeed:
    """Engine thread only. Knows how many rows of each session each drafter was sent since it was opened."""

    def __init__(self, engine: EngineApi, sent: Callable[[str, int], None]) -> None:
        """Args:
        engine: keeps the rows.
        sent: told drafter and bytes of what is sent.
        """
        self._engine = engine
        self._told = sent
        self._links: dict[str, _Link] = {}
        self._sent: dict[tuple[str, str], int] = {}  # by link and session: rows sent

    def link_up(self, name: str, drafter: str, info: DrafterInfo) -> None:
        """A replica of a drafter is there (again). What it needs is kept from now on, come what may."""
        self._forget_link(name)
        kept = {
            other: link
            for other, link in self._links.items()
            if other != name and not (link.dropped and link.drafter == drafter)
        }
        if info.features:
            needs = tuple(dict.fromkeys(info.features))
            kept[name] = _Link(drafter, needs, info.last_feature_only, _CREDIT_BYTES)
        names = {feature for link in kept.values() for feature in link.names}
        if not names and not self._links:
            return
        try:
            if len(names) > _MOST_KEPT:
                raise OverloadedError(f"{len(names)} features are needed, at most {_MOST_KEPT} are kept")
            self._engine.keep_features(names)
            _log.info("drafter %s: features kept beside the KV are now %s", name, sorted(names))
        except OutriderError as error:
            _log.error("drafter %s gets no features: %s", name, error)
            kept.pop(name, None)
        self._links = kept

    def drop(self, name: str) -> None:
        """There is no such replica any more. What it needed is kept on for the next one of its drafter."""
        self._forget_link(name)
        if (link := self._links.get(name)) is not None:
            link.dropped = True

    def feeds(self, name: str) -> bool:
        """Whether a drafter is sent features."""
        return name in self._links

    def took(self, name: str, size: int) -> None:
        """So many bytes are on the wire: as many more may follow."""
        if (link := self._links.get(name)) is not None:
            link.credit = min(link.credit + size, _CREDIT_BYTES)

    def start(self, name: str, session_id: str) -> None:
        """The session is opened on a drafter: it has no rows yet."""
        if name in self._links:
            self._sent[name, session_id] = 0

    def forget(self, name: str, session_id: str) -> None:
        """The session is closed there. Idempotent."""
        self._sent.pop((name, session_id), None)

    def take_chunk(self, name: str, session_id: str, sequence: SequenceHandle | None, known: int) -> Shipment:
        """The rows of what ran of a prompt, for a drafter that needs those of all tokens.

        `known`: tokens that the drafter knows of; all of these but the last may have rows there.
        """
        link = self._links.get(name)
        if link is None or link.last_only or sequence is None:
            return NOTHING
        return self._rows(name, link, session_id, sequence, (), min(sequence.kv_len, known - 1))

    def take(
        self, name: str, session_id: str, sequence: SequenceHandle | None, nodes: Sequence[int] = ()
    ) -> Shipment:
        """The rows that come next, as many as may be on their way; they count as sent.

        Args:
            name: of the link.
            session_id: a session that is open there.
            sequence: its KV; None: it has none now.
            nodes: those of its last step that will be committed.
        """
        link = self._links.get(name)
        if link is None or sequence is None:
            return NOTHING
        return self._rows(name, link, session_id, sequence, nodes, sequence.kv_len + len(nodes))

    def _rows(
        self,
        name: str,
        link: _Link,
        session_id: str,
        sequence: SequenceHandle,
        nodes: Sequence[int],
        stop: int,
    ) -> Shipment:
        start = max(0, stop - 1) if link.last_only else self._sent.get((name, session_id), 0)
        row_bytes = 2 * self._engine.info.hidden_size * len(link.names)
        end = min(stop, start + link.credit // row_bytes)
        if end <= start:
            return Shipment(complete=stop <= start)
        rows = {
            feature: self._engine.features_of(sequence, feature, start, end, nodes) for feature in link.names
        }
        size = (end - start) * row_bytes
        link.credit -= size
        self._told(link.drafter, size)
        self._sent[name, session_id] = end
        return Shipment(_parts(rows, start, max(1, _PART_BYTES // row_bytes)), complete=end == stop)

    def _forget_link(self, name: str) -> None:
        self._sent = {key: rows for key, rows in self._sent.items() if key[0] != name}


def spread(command: OpenDraft | AdvanceDraft, shipment: Shipment) -> list[DraftCommand]:
    """The command with its rows; parts that one command cannot hold follow it, and the last one asks."""
    if len(shipment.parts) < 2:
        return [replace(command, features=shipment.parts[0])] if shipment.parts else [command]
    if isinstance(command, OpenDraft):
        length = len(command.token_ids)
    else:
        length = command.base_len + len(command.token_ids)
    quiet = replace(command, draft_length=0, draft_nodes=0, traceparent="", patience_us=0)
    more = AdvanceDraft(command.session_id, command.epoch, length, (), 0, 0)
    asking = replace(
        more,
        draft_length=command.draft_length,
        draft_nodes=command.draft_nodes,
        traceparent=command.traceparent,
        patience_us=command.patience_us,
    )
    first, *middle, last = shipment.parts
    return [
        replace(quiet, features=first),
        *(replace(more, features=part) for part in middle),
        replace(asking, features=last),
    ]


def _parts(rows: dict[str, torch.Tensor], first: int, most: int) -> tuple[tuple[FeatureBlock, ...], ...]:
    """Blocks of at most `most` rows of each feature; `first` is the position of the first row."""
    count = len(next(iter(rows.values())))
    return tuple(
        tuple(
            FeatureBlock(name, first + start, len(part), part.shape[1], _bytes(part))
            for name, values in rows.items()
            for part in [values[start : start + most]]
        )
        for start in range(0, count, most)
    )


def _bytes(rows: torch.Tensor) -> bytes:
    data: bytes = rows.contiguous().view(torch.uint8).numpy().tobytes()
    return data
