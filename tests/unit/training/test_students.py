"""Students learn what the drafting side will run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.config.schema import DrafterConfig
from outrider.core.params import SamplingParams
from outrider.drafting.factory import build_method
from outrider.drafting.session import DraftSession, SessionKey
from outrider.training.checkpoint import publish
from outrider.training.data.shards import Sample, open_shards
from outrider.training.students.draft_model import DraftModel
from outrider.training.students.eagle import Eagle, Eagle3, EagleStudent
from outrider.training.students.medusa import Medusa
from outrider.training.students.packing import pack, shifted
from outrider.training.students.student import Student
from outrider.wire.messages import FeatureBlock
from tests.unit.training.samples import FEATURES, teacher, tiny_data, tiny_target

STUDENTS = (Eagle, Eagle3, Medusa, DraftModel)


def make(kind: type[Student], seed: int = 1) -> Student:
    """With random weights wherever it begins with zeros, so that all of them count."""
    torch.manual_seed(seed)
    student = kind(teacher(), compute=torch.float32, device="cpu")
    with torch.no_grad():
        for own in student.parameters():
            own.add_(torch.randn(own.shape) * 0.05)
    return student


def samples(student: Student, count: int = 4) -> list[Sample]:
    shards = open_shards([tiny_data()])
    every = [(shard, index) for shard in shards for index in range(len(shard))]
    return [shard.sample(index, FEATURES) for shard, index in every[:count]]


def test_rows_of_a_pack_know_their_conversation() -> None:
    packed = pack(samples(make(Medusa), 3), "cpu")
    for start, stop in packed.segments:
        assert packed.positions[start:stop].tolist() == list(range(stop - start))
        assert packed.left[start:stop].tolist() == list(range(stop - start))[::-1]
    ahead = packed.answered(2)
    for row, said in enumerate(ahead.tolist()):
        stop = next(stop for start, stop in packed.segments if start <= row < stop)
        assert said == (row + 2 < stop and bool(packed.response[row + 2]))


def test_shifted() -> None:
    rows = torch.arange(1, 5)
    assert shifted(rows, 1).tolist() == [0, 1, 2, 3]
    assert shifted(rows, -2).tolist() == [3, 4, 0, 0]
    assert shifted(rows, 0).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", STUDENTS)
def test_conversations_of_a_pack_do_not_see_each_other(kind: type[Student]) -> None:
    student = make(kind)
    every = samples(student)
    together = student.hits(every, 3)
    alone = torch.stack([student.hits([sample], 3) for sample in every]).sum(0)
    assert torch.equal(together, alone)
    loss, tokens = student.loss(every, 3)
    parts = [student.loss([sample], 3) for sample in every]
    assert tokens == sum(part for _, part in parts)
    assert loss.isfinite()


@pytest.mark.parametrize("kind", STUDENTS)
def test_every_weight_learns(kind: type[Student]) -> None:
    student = make(kind)
    loss, _ = student.loss(samples(student), 3)
    loss.backward()  # type: ignore[no-untyped-call]
    for name, own in student.named_parameters():
        assert own.grad is not None and bool(own.grad.any()), name


@pytest.mark.parametrize("kind", [Eagle, Eagle3])
def test_unrolled_passes_are_what_a_head_drafts_token_by_token(kind: type[EagleStudent]) -> None:
    """A pass of training gives, at every row, the state that a head reaches which drafts from there."""
    student = make(kind)
    assert isinstance(student, EagleStudent)
    sample = samples(student, 1)[0]
    length = 12
    whole = cut(sample, length)
    with torch.no_grad():
        passes = student._drafted(pack([whole], "cpu"), 3)
        for row in range(3, length - 3):
            # Only the first row + 1 states are true here; the rest of the passes must not look at more.
            short = student._drafted(pack([cut(sample, row + 4, true=row + 1)], "cpu"), 3)
            for number in range(3):
                torch.testing.assert_close(passes[number][row + number], short[number][row + number])


def cut(sample: Sample, length: int, true: int | None = None) -> Sample:
    """The first tokens; the target's states after the first `true` of them are spoiled."""
    features = {name: rows[:length].clone() for name, rows in sample.features.items()}
    if true is not None:
        for rows in features.values():
            rows[true:] = 100.0
    return Sample(sample.token_ids[:length], sample.response[:length], features, "", 0.0, 0)


def drafted(folder: Path, method: str, sample: Sample, stop: int, depth: int) -> list[int]:
    """What the drafting side proposes, greedily, after the first `stop` tokens."""
    config = DrafterConfig(
        method=method,  # type: ignore[arg-type]
        model=str(folder),
        dtype="float32",
        threads=1,
        pool_tokens=1024,
    )
    built = build_method(config, str(tiny_target()))
    session = DraftSession(
        SessionKey(0, "one"), 0, SamplingParams(temperature=0.0), sample.token_ids[:stop].tolist()
    )
    session.prompt_len = stop
    session.goal = session.nodes = depth
    start = stop - 2 if built.last_feature_only else 0
    blocks = [
        FeatureBlock(
            name,
            start,
            stop - 1 - start,
            64,
            sample.features[name][start : stop - 1].contiguous().view(torch.int16).numpy().tobytes(),
        )
        for name in sorted(built.features)
    ]
    built.open(session, blocks)
    while not built.finished(session):
        built.step([session])
    tree = built.proposal(session, depth, depth)
    return list(tree.token_ids)


def foretold(student: EagleStudent, sample: Sample, stop: int, depth: int) -> list[int]:
    """What the student drafts there: tokens that it drew itself take the place of the text's."""
    token_ids = sample.token_ids[:stop].tolist()
    for number in range(depth):
        length = stop + number
        own = Sample(
            torch.tensor([*token_ids, 0]),
            torch.zeros(length + 1, dtype=torch.bool),
            {
                name: torch.cat((rows[: stop - 1], rows.new_zeros(length + 2 - stop, rows.shape[1])))
                for name, rows in sample.features.items()
            },
            "",
            0.0,
            0,
        )
        with torch.no_grad():
            states = student._drafted(pack([own], "cpu"), number + 1)[-1][stop - 2 + number]
        token_ids.append(int(student.teacher.draft_ids[student.logits(states[None])[0].argmax()]))
    return token_ids[stop:]


@pytest.mark.parametrize("kind", [Eagle, Eagle3])
def test_a_published_head_drafts_what_the_student_does(kind: type[EagleStudent], tmp_path: Path) -> None:
    student = make(kind)
    assert isinstance(student, EagleStudent)
    with torch.no_grad():
        for own in student.parameters():
            own.copy_(own.to(torch.bfloat16))  # as it is published
    publish(tmp_path, student)
    sample = samples(student, 1)[0]
    for stop in (14, 21):
        assert drafted(tmp_path, "eagle", sample, stop, 3) == foretold(student, sample, stop, 3)


@pytest.mark.parametrize("kind", STUDENTS)
def test_published_weights_can_be_learnt_on(kind: type[Student], tmp_path: Path) -> None:
    student = make(kind)
    publish(tmp_path, student)
    other = make(kind, seed=2)
    other.load_published(load_file(tmp_path / "model.safetensors"))
    for name, own in student.tensors().items():
        assert torch.equal(own.to(torch.bfloat16), other.tensors()[name].to(torch.bfloat16)), name
    assert json.loads((tmp_path / "config.json").read_text())


def test_a_weight_of_another_shape_is_named(tmp_path: Path) -> None:
    student = make(Eagle)
    with pytest.raises(ValueError, match=r"fc\.weight"):
        student.load_published({"fc.weight": torch.zeros(3, 3)})
