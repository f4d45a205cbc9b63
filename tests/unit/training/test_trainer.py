"""Runs: they learn, they are taken up again, they say what became of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from outrider.core.errors import ConfigError
from outrider.training import curves
from outrider.training.batches import Batches, Place
from outrider.training.data.shards import open_shards
from outrider.training.schedule import Schedule
from outrider.training.students.draft_model import DraftModel
from outrider.training.students.eagle import Eagle, Eagle3
from outrider.training.students.medusa import Medusa
from outrider.training.students.student import Student
from outrider.training.trainer import Trainer, TrainingSettings
from outrider.training.vocabulary import frequent_ids
from tests.unit.training.samples import teacher, tiny_data

SETTINGS = TrainingSettings(
    Schedule(16, 3e-3, warm_up=2, single=0.5, unroll=2),
    batch_tokens=300,
    depth=3,
    report_every=4,
    measure_every=8,
    save_s=1e9,
)


def trainer(kind: type[Student], folder: Path, settings: TrainingSettings = SETTINGS) -> Trainer:
    torch.manual_seed(1)
    student = kind(teacher(), compute=torch.float32, device="cpu")
    shards = open_shards([tiny_data()])
    held_out = [shards[0].sample(index, student.features) for index in range(len(shards[0]))]
    return Trainer(student, shards[1:], held_out, settings, folder)


def loss_over_data(one: Trainer) -> float:
    student = one._student
    samples = [s.sample(i, student.features) for s in open_shards([tiny_data()])[1:] for i in range(len(s))]
    with torch.no_grad():
        return float(student.loss(samples, 1)[0])


@pytest.mark.parametrize("kind", [Eagle, Eagle3, Medusa, DraftModel])
def test_loss_falls(kind: type[Student], tmp_path: Path) -> None:
    one = trainer(kind, tmp_path, replace(SETTINGS, schedule=Schedule(40, 3e-3, warm_up=2, single=1.0)))
    before = loss_over_data(one)
    one.run(lambda report: None)
    assert loss_over_data(one) < before
    assert (tmp_path / "drafter" / "model.safetensors").exists()
    assert len(one.reports[-1].acceptance) == 3


@pytest.mark.parametrize("kind", [Eagle, Medusa])
def test_a_run_that_was_broken_off_ends_as_if_it_had_not_been(kind: type[Student], tmp_path: Path) -> None:
    whole = trainer(kind, tmp_path / "whole")
    whole.run(lambda report: None)
    trainer(kind, tmp_path / "parts").run(lambda report: None, stop_at=6)
    parts = trainer(kind, tmp_path / "parts")
    assert parts.progress.step == 6
    parts.run(lambda report: None, stop_at=11)
    parts = trainer(kind, tmp_path / "parts")
    parts.run(lambda report: None)
    weights = [
        (tmp_path / name / "drafter" / "model.safetensors").read_bytes() for name in ("whole", "parts")
    ]
    assert weights[0] == weights[1]
    state = [torch.load(tmp_path / name / "run.pt", weights_only=True) for name in ("whole", "parts")]
    for one, other in zip(*(own["student"].values() for own in state), strict=True):
        assert torch.equal(one, other)
    assert state[0]["progress"] == state[1]["progress"]


def test_another_run_is_not_taken_up(tmp_path: Path) -> None:
    trainer(Medusa, tmp_path).run(lambda report: None, stop_at=2)
    with pytest.raises(ConfigError, match="other settings"):
        trainer(Medusa, tmp_path, replace(SETTINGS, seed=2))
    with pytest.raises(ConfigError, match="other settings"):
        trainer(Eagle, tmp_path)


def test_batches_hold_every_conversation_once_an_epoch() -> None:
    shards = open_shards([tiny_data()])
    count = sum(map(len, shards))
    batches = Batches(shards, (), tokens=300, seed=1, place=Place())
    seen: list[tuple[int, ...]] = []
    while batches.place.epoch == 0 and len(seen) < count:
        own = batches.next()
        assert len(own) == 1 or sum(len(sample.token_ids) for sample in own) <= 300
        seen += [tuple(sample.token_ids.tolist()) for sample in own]
    every = [tuple(s.sample(i).token_ids.tolist()) for s in shards for i in range(len(s))]
    assert sorted(seen) == sorted(every)


def test_batches_go_on_where_they_were() -> None:
    shards = open_shards([tiny_data()])
    batches = Batches(shards, (), tokens=200, seed=1, place=Place())
    for _ in range(5):
        batches.next()
    again = Batches(shards, (), tokens=200, seed=1, place=replace(batches.place))
    for _ in range(8):
        one, other = batches.next(), again.next()
        assert [s.token_ids.tolist() for s in one] == [s.token_ids.tolist() for s in other]


def test_schedule() -> None:
    schedule = Schedule(100, warm_up=9, single=0.5, unroll=3)
    factors = [schedule.factor(step) for step in range(100)]
    assert factors[0] == pytest.approx(0.1, rel=0.01)
    assert max(factors) == factors[9] or max(factors) == factors[8]
    assert 0.03 <= factors[-1] < 0.04
    assert [schedule.unrolled(step) for step in (0, 49, 50, 99)] == [1, 1, 3, 3]


def test_the_most_frequent_tokens_are_the_vocabulary() -> None:
    shards = open_shards([tiny_data()])
    ids = frequent_ids(shards, 20, 512)
    counts = torch.zeros(512, dtype=torch.int64)
    for shard in shards:
        counts += torch.bincount(shard.answered_ids(), minlength=512)
    assert ids.tolist() == sorted(ids.tolist())
    assert int(counts[ids].min()) >= int(counts[[x for x in range(512) if x not in ids.tolist()]].max())


def test_curves_are_kept_and_drawn(tmp_path: Path) -> None:
    reports = [
        curves.Report(10, 100, 3.0, 1.0, (0.2, 0.1)),
        curves.Report(20, 200, 2.0, 0.5),
        curves.Report(30, 300, 1.0, 0.1, (0.4, 0.2)),
    ]
    for report in reports:
        curves.append(tmp_path, report)
    assert curves.read(tmp_path) == reports
    assert curves.read(tmp_path, before=20) == reports[:2]
    assert reports[2].tokens_per_round == pytest.approx(1.6)
    path = curves.draw(tmp_path, reports)
    assert path is not None
    assert path.read_bytes().startswith(b"\x89PNG")
