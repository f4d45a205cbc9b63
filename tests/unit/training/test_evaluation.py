"""Rounds are counted as serving would have them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from outrider.core.errors import ConfigError
from outrider.core.models import ModelInfo
from outrider.core.trees import TokenTree
from outrider.drafting.method import StepReport
from outrider.drafting.session import DraftSession
from outrider.training.data.shards import Shard, open_shards
from outrider.training.evaluation import evaluate_method, table_of, write_counts
from outrider.wire.messages import FeatureBlock
from tests.unit.training.samples import tiny_data

WRONG = 10_000  # no token of the texts


@dataclass(eq=False)
class Knowing:
    """Drafts the text itself, but for every `wrong`-th position; beside it a wrong token."""

    texts: Sequence[Sequence[int]]
    wrong: int = 10**9
    features: frozenset[str] = frozenset({"last_hidden"})
    last_feature_only: bool = False
    name: str = "knowing"
    info: ModelInfo = field(default_factory=lambda: ModelInfo("knowing"))
    runs_ahead: bool = False
    usage: float = 0.0
    open_sessions: int = 0
    rows: list[tuple[int, int, int]] = field(default_factory=list)  # first, rows, committed tokens

    def open(self, session: DraftSession, features: Sequence[FeatureBlock]) -> None:
        self.open_sessions += 1
        self.advance(session, 0, features)

    def advance(self, session: DraftSession, same: int, features: Sequence[FeatureBlock]) -> None:
        (block,) = features
        assert len(block.data) == block.rows * block.columns * 2
        self.rows.append((block.first_position, block.rows, len(session.tokens)))

    def step(self, sessions: Sequence[DraftSession]) -> StepReport:
        raise AssertionError("nothing to do")

    def finished(self, session: DraftSession) -> bool:
        return True

    def proposal(self, session: DraftSession, length: int, nodes: int) -> TokenTree:
        at = len(session.tokens)
        (text,) = {tuple(own) for own in self.texts if list(own[:at]) == session.tokens and len(own) > at}
        right = [
            WRONG if (at + number) % self.wrong == 0 else token
            for number, token in enumerate(text[at : at + length])
        ]
        chain = TokenTree.chain(right)
        return TokenTree((WRONG, *chain.token_ids), (-1, -1, *(n + 1 for n in chain.parents[1:])))

    def close(self, session: DraftSession) -> None:
        self.open_sessions -= 1


def texts() -> tuple[list[Shard], list[list[int]], list[int]]:
    """Shards, their conversations, and where the last answer of each has one token."""
    shards = open_shards([tiny_data()])
    every = [shard.sample(index).token_ids.tolist() for shard in shards for index in range(len(shard))]
    answers = [len(shard.answer(index)) for shard in shards for index in range(len(shard))]
    return shards, every, [len(own) - length + 1 for own, length in zip(every, answers, strict=True)]


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("wrong", [10**9, 3, 7])
def test_rounds_are_those_of_serving(length: int, wrong: int) -> None:
    shards, every, starts = texts()
    method = Knowing(every, wrong)
    *_, all_of_them = evaluate_method(method, shards, length, length + 1, 0, lambda done: None)
    rounds = tokens = 0
    for own, start in zip(every, starts, strict=True):
        at = start
        while at < len(own):
            accepted = 0
            while accepted < length and at + accepted < len(own) and (at + accepted) % wrong:
                accepted += 1
            at += accepted + 1
            rounds += 1
        tokens += len(own) - start
    assert (all_of_them.rounds, all_of_them.tokens) == (rounds, tokens)
    assert method.open_sessions == 0


def test_features_come_once_and_in_order() -> None:
    shards, every, _ = texts()
    method = Knowing(every)
    evaluate_method(method, shards[:1], 2, 0, 1, lambda done: None)
    ends = 0
    for first, rows, committed in method.rows:
        assert first == ends
        ends = first + rows
        assert ends == committed - 1  # the last committed token has not run


def test_a_method_that_wants_the_last_row_gets_that() -> None:
    shards, every, _ = texts()
    method = Knowing(every, last_feature_only=True)
    evaluate_method(method, shards[:1], 2, 0, 1, lambda done: None)
    assert all(rows == 1 and first == committed - 2 for first, rows, committed in method.rows)


def test_missing_features_are_named() -> None:
    shards, every, _ = texts()
    with pytest.raises(ConfigError, match="hidden_7"):
        evaluate_method(Knowing(every, features=frozenset({"hidden_7"})), shards, 2, 0, 0, lambda done: None)


def test_figures_by_category(tmp_path: Path) -> None:
    shards, every, _ = texts()
    told: list[int] = []
    counts = evaluate_method(Knowing(every, 5), shards, 3, 4, 0, told.append)
    assert counts[-1].category == "all"
    assert sum(own.rounds for own in counts[:-1]) == counts[-1].rounds
    assert counts[-1].tokens == counts[-1].rounds + sum(counts[-1].accepted)
    assert told[-1] == len(every)
    write_counts(tmp_path / "figures.jsonl", counts)
    rows = [json.loads(line) for line in (tmp_path / "figures.jsonl").read_text().splitlines()]
    assert [row["category"] for row in rows] == [own.category for own in counts]
    assert table_of(counts).row_count == len(counts)
