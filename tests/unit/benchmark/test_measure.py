"""Figures follow their definitions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest

from outrider.benchmark.client import Answer
from outrider.benchmark.measure import Row, Sample, percentile, rows_of, share_out, token_gaps
from outrider.benchmark.provenance import provenance
from outrider.benchmark.report import speed_up, table_of, write_rows
from outrider.benchmark.workload import Block, Prompt

QA, RAG = Prompt("1", "qa", "q"), Prompt("2", "rag", "r")


def answer(
    token_ids: list[int], *, sent: float = 0.0, done: float = 1.0, rounds: int = 0, drafted: int = 0
) -> Answer:
    return Answer(
        sent,
        done,
        token_ids,
        [(sent + 0.1, 1), (done, len(token_ids) - 1)],
        rounds=rounds,
        drafted=drafted,
        accepted=len(token_ids) - rounds if rounds else 0,
    )


def sample(drafter: str, prompt: Prompt, own: Answer, seconds: float = 1.0) -> Sample:
    return Sample(drafter, 1, prompt, own, seconds)


def row(rows: list[Row], drafter: str, category: str) -> Row:
    return next(row for row in rows if (row.drafter, row.category) == (drafter, category))


@pytest.mark.parametrize("count", [1, 2, 5, 100])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99, 1.0])
def test_percentiles_are_those_of_numpy(count: int, share: float) -> None:
    samples = numpy.random.default_rng(1).random(count).tolist()
    assert percentile(samples, share) == pytest.approx(numpy.quantile(samples, share))


def test_a_percentile_of_nothing_is_none() -> None:
    assert percentile([], 0.5) is None


def test_a_gap_is_shared_by_the_tokens_that_it_brought() -> None:
    own = Answer(0.0, 4.0, [1, 2, 3, 4], [(1.0, 1), (2.5, 3)])
    assert token_gaps(own) == [0.5, 0.5, 0.5]


def test_shares_of_a_block_add_up_to_its_wall_time() -> None:
    block = Block(0, "off", (QA, RAG))
    samples = share_out(block, 8, [answer([1, 2], done=1.0), answer([1, 2], done=3.0)], wall_s=3.0)
    assert [own.seconds for own in samples] == [pytest.approx(0.75), pytest.approx(2.25)]


def test_a_row_adds_up_its_requests() -> None:
    rows = rows_of(
        [
            sample("off", QA, answer([5, 6, 7, 8]), 2.0),
            sample("ngram", QA, answer([5, 6, 7, 8], rounds=2, drafted=6), 1.0),
            sample("off", RAG, answer([9, 9]), 1.0),
            sample("ngram", RAG, answer([9, 9], rounds=1, drafted=2), 1.0),
        ]
    )
    assert [(own.category, own.drafter) for own in rows] == [
        ("qa", "off"),
        ("qa", "ngram"),
        ("rag", "off"),
        ("rag", "ngram"),
        ("all", "off"),
        ("all", "ngram"),
    ]
    whole = row(rows, "ngram", "all")
    assert (whole.requests, whole.tokens, whole.seconds, whole.tokens_per_second) == (2, 6, 2.0, 3.0)
    assert (whole.rounds, whole.drafted, whole.accepted, whole.tokens_per_round) == (3, 8, 3, 2.0)
    assert whole.ttft_ms_p50 == pytest.approx(100)
    assert speed_up(row(rows, "ngram", "qa"), rows) == 2.0
    assert row(rows, "off", "qa").tokens_per_round is None


def test_another_token_anywhere_is_not_identical() -> None:
    same = sample("ngram", QA, answer([5, 6]))
    other = sample("ngram", RAG, answer([9, 1]))
    rows = rows_of([sample("off", QA, answer([5, 6])), sample("off", RAG, answer([9, 9])), same, other])
    assert row(rows, "ngram", "qa").identical_to_off is True
    assert row(rows, "ngram", "rag").identical_to_off is False
    assert row(rows, "ngram", "all").identical_to_off is False


def test_without_off_nothing_is_said_of_identity() -> None:
    rows = rows_of([sample("ngram", QA, answer([5, 6]))])
    assert [own.identical_to_off for own in rows] == [None, None]
    assert speed_up(rows[0], rows) is None


def test_rows_are_written_with_their_provenance(tmp_path: Path) -> None:
    rows = rows_of([sample("off", QA, answer([5, 6]))])
    path = tmp_path / "out" / "rows.jsonl"
    write_rows(path, rows, provenance(["/a/b/outrider", "bench", "--limit", "3"]))
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert [own["category"] for own in written] == ["qa", "all"]
    source = written[0]["provenance"]
    assert source["command"] == "outrider bench --limit 3"
    assert set(source["versions"]) == {"python", "outrider", "torch", "transformers", "grpc"}
    assert source["machine"]["cores"] >= 1
    assert source["date"].endswith("+00:00")


def test_the_table_has_a_line_for_each_row() -> None:
    rows = rows_of([sample("off", QA, answer([5, 6])), sample("a", QA, answer([5, 7], rounds=1, drafted=1))])
    table = table_of(rows, "a title")
    assert table.row_count == 4
