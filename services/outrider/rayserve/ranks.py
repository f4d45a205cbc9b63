"""The other ranks of a tensor-parallel verifier: actors in the bundles of its replica's placement group."""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from outrider.core.errors import ConfigError
from outrider.engine.parallel.ranks import Ranks, RankTask
from outrider.rayserve.placing import fetch_models

CLOSE_S = 2.0
"""How long followers may take to end by themselves."""

_log = logging.getLogger(__name__)


class Follower:
    """One rank, an actor. It dies with the replica that made it."""

    def follow(self, model: str, task: RankTask) -> None:
        """Be the rank until rank 0 says stop. `model` is looked up on this node, wherever it lies here."""
        from outrider import catalogue
        from outrider.engine.parallel.follower import follow  # the replica itself does not need it

        fetch_models(model)
        follow(replace(task, folder=catalogue.resolve(model)))


class RayRanks:
    """Implements Ranks."""

    def __init__(
        self, actors: Mapping[int, Any], ends: Mapping[int, concurrent.futures.Future[None]]
    ) -> None:
        """Args:
        actors: handles, by rank.
        ends: what comes of `follow`, by rank.
        """
        self._actors = dict(actors)
        self._ends = dict(ends)

    def dead(self) -> str:
        """See Ranks."""
        for rank, end in self._ends.items():
            if end.done():
                error = end.exception()
                return f"rank {rank} has ended" + (f": {_in_short(error)}" if error is not None else "")
        return ""

    def close(self) -> None:
        """See Ranks."""
        actors, self._actors = self._actors, {}
        if not actors:
            return
        _, late = concurrent.futures.wait(self._ends.values(), timeout=CLOSE_S)
        if late:
            _log.warning("%d ranks did not end by themselves", len(late))
        for actor in actors.values():
            ray.kill(actor)


class RayRankLauncher:
    """Implements RankLauncher, for a replica whose placement group has a bundle for each rank."""

    def __init__(self, model: str, host: str) -> None:
        """Args:
        model: as the configuration calls it.
        host: the replica's own address, where rank 0 listens.
        """
        self._model = model
        self._host = host

    def host(self) -> str:
        """See RankLauncher."""
        return self._host

    def threads(self, world_size: int) -> int:
        """See RankLauncher: Ray sets OMP_NUM_THREADS by the CPUs of an actor."""
        return 0

    def launch(self, tasks: list[RankTask]) -> Ranks:
        """See RankLauncher.

        Raises:
            ConfigError: the replica's placement group has too few bundles.
        """
        group = get_current_placement_group()
        bundles = [] if group is None else group.bundle_specs
        if len(bundles) < len(tasks) + 1:
            raise ConfigError(
                f"verifier.tensor_parallel is {len(tasks) + 1}, but the replica has {len(bundles)} bundles "
                "of resources: `placement_group_bundles` under `deployments` must give one for each rank"
            )
        actors = {task.rank: _actor(group, bundles[task.rank], task.rank) for task in tasks}
        ends = {task.rank: actors[task.rank].follow.remote(self._model, task).future() for task in tasks}
        return RayRanks(actors, ends)


def _actor(group: PlacementGroup, bundle: Mapping[str, float], rank: int) -> Any:
    """A follower that takes all of its bundle."""
    others = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")}
    actor = ray.remote(Follower).options(
        num_cpus=bundle.get("CPU", 0),
        num_gpus=bundle.get("GPU", 0),
        resources=others,
        max_restarts=0,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank),
    )
    return actor.remote()


def _in_short(error: BaseException) -> str:
    """The first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
