"""What a scripted drafter was told of the target's hidden states, checked as it would use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from outrider.core.features import offered
from outrider.core.models import DrafterInfo, ModelInfo
from outrider.core.trees import TokenTree
from outrider.engine.api import StepItem
from outrider.engine.engine import Engine
from outrider.wire.messages import AdvanceDraft, CloseDraft, DraftCommand, FeatureBlock, OpenDraft

WIDTH = 64
NAMES = tuple(sorted(offered(2)))


def needing(names: Sequence[str] = NAMES, *, last_only: bool = False) -> DrafterInfo:
    """A drafter that asks for features of the tiny target."""
    model = ModelInfo("scripted", hidden_size=WIDTH)
    return DrafterInfo(model, "scripted", tuple(names), 64, 64, "one", last_feature_only=last_only)


@dataclass
class Opening:
    """One session as a drafter holds it from an Open on."""

    session_id: str
    tokens: list[int]
    rows: dict[str, list[torch.Tensor]] = field(default_factory=dict)  # by feature, one a position
    asked: int = 0  # commands that asked for drafts

    def length(self, names: Sequence[str]) -> int:
        """Rows that each feature has."""
        lengths = {len(self.rows.get(name, [])) for name in names}
        assert len(lengths) == 1
        return lengths.pop()

    def take(self, blocks: Sequence[FeatureBlock]) -> None:
        """Rows must go on where the last ones ended."""
        for block in blocks:
            rows = self.rows.setdefault(block.name, [])
            assert block.first_position == len(rows)
            assert block.columns == WIDTH and block.rows > 0
            rows += torch.frombuffer(bytearray(block.data), dtype=torch.bfloat16).view(-1, WIDTH)


def openings(commands: Sequence[DraftCommand], names: Sequence[str] = NAMES) -> list[Opening]:
    """All openings. Whoever is asked for drafts must have the rows of all tokens but the last."""
    held: dict[str, Opening] = {}
    done: list[Opening] = []
    for command in commands:
        if isinstance(command, CloseDraft):
            held.pop(command.session_id, None)
            continue
        if isinstance(command, OpenDraft):
            held[command.session_id] = opening = Opening(command.session_id, list(command.token_ids))
            done.append(opening)
        else:
            assert isinstance(command, AdvanceDraft)
            if command.session_id not in held:
                continue  # on its way when the drafter forgot the session
            opening = held[command.session_id]
            assert command.base_len == len(opening.tokens)
            opening.tokens += command.token_ids
        opening.take(command.features)
        assert all(len(rows) < len(opening.tokens) for rows in opening.rows.values())
        if command.draft_length:
            opening.asked += 1
            assert not names or opening.length(names) == len(opening.tokens) - 1
            assert set(opening.rows) <= set(names)
    return done


def plain_rows(
    engine: Engine, token_ids: Sequence[int], names: Sequence[str] = NAMES
) -> dict[str, torch.Tensor]:
    """Features of a text run as one chunk, alone, with nothing reused. The engine must be idle."""
    sequence = engine.open(token_ids, reuse=0)
    assert engine.reserve(sequence, len(token_ids))
    engine.step([StepItem(sequence, TokenTree.chain(token_ids), "none")])
    engine.commit(sequence, range(len(token_ids)))
    rows = {name: engine.features_of(sequence, name, 0, len(token_ids)) for name in names}
    engine.release(sequence)
    return rows


def check(engine: Engine, openings: Sequence[Opening], names: Sequence[str] = NAMES) -> None:
    """Every row that came is, bit for bit, that of a plain forward over the same tokens."""
    for opening in openings:
        want = plain_rows(engine, opening.tokens, names)
        for name, rows in opening.rows.items():
            assert rows and torch.equal(torch.stack(rows), want[name][: len(rows)]), name
