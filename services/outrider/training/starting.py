"""From a method's name to a student that is ready to learn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from outrider import catalogue
from outrider.core.errors import ConfigError
from outrider.training.checkpoint import DRAFT_VOCABULARY, read_published
from outrider.training.data.shards import Shard
from outrider.training.students.draft_model import DraftModel
from outrider.training.students.eagle import Eagle, Eagle3
from outrider.training.students.medusa import Medusa
from outrider.training.students.student import Student
from outrider.training.target import Teacher
from outrider.training.vocabulary import frequent_ids, read_ids

_STUDENTS = {"eagle": Eagle, "eagle3": Eagle3, "medusa": Medusa, "draft_model": DraftModel}


def build_student(
    method: Literal["eagle", "eagle3", "medusa", "draft_model"],
    target: str,
    shards: Sequence[Shard],
    *,
    vocabulary: Path | None,
    columns: int,
    start: Path | None,
    compute: torch.dtype,
    device: str,
) -> Student:
    """A student that begins as the target's last layer, or goes on from a drafter.

    Args:
        method: what it is.
        target: catalogue name or folder.
        shards: its data; the draft vocabulary is counted in them if none is given.
        vocabulary: file of a draft vocabulary; None: that of `start`.
        columns: size of a draft vocabulary that is counted.
        start: folder of a drafter's checkpoint.
        compute: type of activations.
        device: torch device.

    Raises:
        ConfigError: target, vocabulary or checkpoint cannot be used, or do not fit each other.
    """
    folder = catalogue.resolve(target)
    if vocabulary is None and start is not None:
        ids = _vocabulary_of(start)
    elif vocabulary is not None:
        ids = read_ids(vocabulary)
    else:
        from outrider.drafting.heads.target import describe_target

        size = describe_target(folder).info.vocab_size
        ids = frequent_ids(shards, min(columns, size), size)
    teacher = Teacher.load(folder, Path(target).name, ids, device=device, dtype=compute)
    student: Student = _STUDENTS[method](teacher, compute=compute, device=device)
    if start is not None:
        _go_on(student, start)
    return student


def _vocabulary_of(start: Path) -> torch.Tensor:
    if (start / DRAFT_VOCABULARY).exists():
        return read_ids(start / DRAFT_VOCABULARY)
    offsets = read_published(start).get("d2t")
    if offsets is None:
        raise ConfigError(f"{start} names no draft vocabulary: give --vocabulary")
    return offsets.long() + torch.arange(len(offsets))


def _go_on(student: Student, start: Path) -> None:
    tensors = read_published(start)
    own = student.tensors()
    if "d2t" in tensors and "d2t" in own and not torch.equal(tensors["d2t"], own["d2t"]):
        raise ConfigError(f"the draft vocabulary of {start} is another one")
    if not set(tensors) & set(own):
        raise ConfigError(f"{start} holds no weights of this method: there are {sorted(tensors)[:5]}")
    try:
        student.load_published(tensors)
    except ValueError as error:
        raise ConfigError(f"the weights of {start} do not fit: {error}") from error
