"""A run that can be taken up again: weights, optimiser and place, written whole or not at all."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from outrider.core.errors import ConfigError
from outrider.training.batches import Place
from outrider.training.students.student import Student

_FILE = "run.pt"
DRAFT_VOCABULARY = "draft_vocabulary.safetensors"


@dataclass(slots=True)
class Progress:
    """How far a run has come."""

    step: int = 0
    tokens: int = 0  # of answers that were learnt from
    place: Place = field(default_factory=Place)


def save_run(
    folder: Path,
    student: Student,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
    about: dict[str, Any],
) -> None:
    """Write what `load_run` reads. `about`: all that must be the same when the run goes on."""
    state = {
        "student": student.state_dict(),
        "optimiser": optimiser.state_dict(),
        "progress": asdict(progress),
        "about": json.dumps(about, sort_keys=True),
    }
    partial = folder / (_FILE + ".partial")
    torch.save(state, partial)
    partial.rename(folder / _FILE)


def load_run(
    folder: Path, student: Student, optimiser: torch.optim.Optimizer, about: dict[str, Any]
) -> Progress:
    """Take up the run in `folder`; without one, begin.

    Raises:
        ConfigError: the run was begun with other settings or data.
    """
    path = folder / _FILE
    if not path.exists():
        return Progress()
    state = torch.load(path, weights_only=True)
    if state["about"] != json.dumps(about, sort_keys=True):
        raise ConfigError(f"{folder} holds a run with other settings: {state['about']}")
    student.load_state_dict(state["student"])
    optimiser.load_state_dict(state["optimiser"])
    told = state["progress"]
    return Progress(told["step"], told["tokens"], Place(**told["place"]))


def publish(folder: Path, student: Student) -> None:
    """Write the student as a drafter's checkpoint: config.json, bf16 weights, draft vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: (own.detach().to(torch.bfloat16) if own.is_floating_point() else own).cpu().contiguous()
        for name, own in student.tensors().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if "d2t" not in tensors:  # which says the same
        ids = student.teacher.draft_ids.cpu().int()
        save_file({"draft_vocabulary": ids}, folder / DRAFT_VOCABULARY)
    text = json.dumps(student.published_config(), indent=2, sort_keys=True, default=str)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def read_published(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint folder but the draft vocabulary.

    Raises:
        ConfigError: there are none.
    """
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        if path.name != DRAFT_VOCABULARY:
            tensors |= load_file(path)
    if not tensors:
        raise ConfigError(f"{folder} holds no safetensors weights")
    return tensors
