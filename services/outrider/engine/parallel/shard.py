"""A rank's part of a checkpoint, cut and read by transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers.distributed import DistributedConfig

from outrider.core.errors import InternalError
from outrider.engine.parallel.group import Group

_loading = Lock()  # a process has one default group


@contextmanager
def part_of(group: Group | None) -> Iterator[dict[str, Any]]:
    """What `from_pretrained` is to be told, and the surroundings it needs, to read this rank's part only.

    transformers cuts weights by a mesh of devices over torch's default process group. It does not talk over
    it while it loads, so a group that only knows rank and size will do: no rank waits for another one here.
    """
    if group is None:
        yield {}
        return
    with _loading:
        if dist.is_initialized():
            raise InternalError("torch.distributed has a default process group here, which is not ours")
        dist.init_process_group(backend="fake", rank=group.rank, world_size=group.size)
        try:
            yield {"distributed_config": DistributedConfig(tp_size=group.size)}
        finally:
            dist.destroy_process_group()


def local_part(weight: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a weight, as a plain tensor."""
    if isinstance(weight, DTensor):
        weight = weight.to_local()
    return weight.detach().contiguous()
