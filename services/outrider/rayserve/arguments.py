"""The arguments of the application, `args` in a Serve configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from outrider.config import OutriderConfig, load_config
from outrider.core.errors import ConfigError


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Pool(_Section):
    """Replicas of one deployment, and what each of them takes."""

    min_replicas: int = Field(1, ge=0, description="never fewer (drafters may have 0)")
    max_replicas: int = Field(1, ge=1, description="never more")
    cpus: float = Field(1.0, ge=0, description="CPUs of a replica (of each rank, if tensor parallel)")
    gpus: float = Field(0.0, ge=0, description="GPUs of a replica (of each rank, if tensor parallel)")
    labels: dict[str, str] = Field(default_factory=dict, description="labels of the nodes to run on")
    env: dict[str, str] = Field(default_factory=dict, description="environment variables of the replicas")

    @model_validator(mode="after")
    def _check_bounds(self) -> Pool:
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas ({self.max_replicas}) is below min_replicas ({self.min_replicas})"
            )
        return self


class Pools(_Section):
    """All deployments."""

    gateway: Pool = Pool(cpus=0.5)
    verifier: Pool = Pool()
    drafters: dict[str, Pool] = Field(
        default_factory=dict, description="by the names in config.drafters; one left out has the defaults"
    )


class ServeArguments(_Section):
    """What `outrider.rayserve:build` takes."""

    config: OutriderConfig = Field(
        default_factory=OutriderConfig, description="the deployment, as for all other commands"
    )
    config_file: str = Field("", description="YAML file with it instead, on the head node")
    pools: Pools = Pools()
    loopback: bool = Field(
        False,
        description="replicas listen on 127.0.0.1 only: for a cluster of one node, which others cannot join",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_file(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not given.get("config_file"):
            return given
        if given.get("config"):
            raise ValueError("config and config_file exclude each other")
        try:
            return {**given, "config": load_config(Path(given["config_file"]))}
        except ConfigError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _check_registry(self) -> ServeArguments:
        registry = self.config.registry
        if registry.kind == "static" and "kind" in registry.model_fields_set:
            raise ValueError(
                "config.registry.kind is static, but under Ray Serve replicas come and go: "
                "leave it out (then it is ray), or set ray or redis"
            )
        return self

    @model_validator(mode="after")
    def _check_names(self) -> ServeArguments:
        unknown = sorted(set(self.pools.drafters) - set(self.config.drafters))
        if unknown:
            raise ValueError(
                f"pools.drafters names {unknown}, but config.drafters has {sorted(self.config.drafters)}"
            )
        for name, pool in (("gateway", self.pools.gateway), ("verifier", self.pools.verifier)):
            if not pool.min_replicas:
                raise ValueError(
                    f"pools.{name}.min_replicas must be at least 1: only drafters may go to zero"
                )
        return self

    @model_validator(mode="after")
    def _check_ranks(self) -> ServeArguments:
        ranks, pool = self.config.verifier.tensor_parallel, self.pools.verifier
        if ranks > 1 and not (pool.cpus or pool.gpus):
            raise ValueError(
                f"pools.verifier must have cpus or gpus above 0: with {ranks} ranks each has a bundle of them"
            )
        return self
