"""A Serve configuration file with Outrider in it, read and checked before a cluster sees it.

It is an ordinary one, as `serve deploy` and KubeRay take it: whatever passes here, they take for the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from ray._common.utils import import_attr
from ray.serve.config import AutoscalingPolicy
from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema

from outrider.config.explaining import Where, complaints, joined, no_such, path_of, shown, unknown_keys
from outrider.config.yaml_text import parse_mapping, text_of
from outrider.core.errors import ConfigError
from outrider.discovery.ray_ledger import DEPLOYMENT as REGISTRY
from outrider.rayserve.app import build
from outrider.rayserve.arguments import Pool, ServeArguments
from outrider.rayserve.servicing import SERVICER
from outrider.rayserve.steering import GATEWAY
from outrider.scaling.observation import VERIFIER, drafter_pool
from outrider.scaling.settings import ScalingSettings

M = TypeVar("M", bound=BaseModel)

BUILDER = "outrider.rayserve:build"
"""`import_path` of an application that is Outrider."""
POLICY = "outrider.rayserve.autoscaling:ApplicationPolicy"
"""`autoscaling_policy.policy_function` of an application that scales by what matters."""
_THEY = "Ray Serve and Kubernetes"


@dataclass(frozen=True)
class OutriderApplication:
    """One of the file's applications, one of ours."""

    name: str
    at: Where
    arguments: ServeArguments

    @property
    def pools(self) -> dict[str, Pool]:
        """By deployment."""
        return pools_of(self.arguments)


@dataclass(frozen=True)
class ServeFile:
    """A file in which nothing was found wrong."""

    source: str
    data: dict[str, Any]
    schema: ServeDeploySchema
    ours: tuple[OutriderApplication, ...]

    @property
    def has_grpc(self) -> bool:
        """Whether it has the gRPC API, beside HTTP."""
        return SERVICER in self.schema.grpc_options.grpc_servicer_functions


def load_serve_file(path: Path) -> ServeFile:
    """Read and check a file.

    Raises:
        ConfigError: every value that is wrong, what was given, what is allowed.
    """
    return parse_serve_text(text_of(path), str(path))


def parse_serve_text(text: str, source: str) -> ServeFile:
    """As `load_serve_file`; `source` is how errors call it."""
    data = parse_mapping(text, source)
    if wrong := [*_read_otherwise(data, yaml.safe_load(text)), *unknown_keys(data, ServeDeploySchema)]:
        raise ConfigError(joined(wrong, source))
    try:
        schema = ServeDeploySchema.model_validate(data)
    except ValidationError as error:
        raise ConfigError(joined(complaints(error, ServeDeploySchema), source)) from None
    ours: list[OutriderApplication] = []
    wrong = list(_importable(schema))
    for number, application in enumerate(schema.applications):
        if not is_ours(application.import_path):
            continue
        at: Where = ("applications", number)
        arguments, errors = _checked(application.args, ServeArguments, (*at, "args"))
        wrong += errors
        if arguments is not None:
            ours.append(OutriderApplication(application.name, at, arguments))
            wrong += _application(application, arguments, at)
    if not ours and not wrong:
        wrong.append(f"applications: none of them is Outrider: import_path must be {BUILDER}")
    if wrong:
        raise ConfigError(joined(wrong, source))
    return ServeFile(source, data, schema, tuple(ours))


def pools_of(arguments: ServeArguments) -> dict[str, Pool]:
    """By deployment, those of drafters that the file leaves out too."""
    drafters = {
        drafter_pool(name): arguments.pools.drafters.get(name, Pool()) for name in arguments.config.drafters
    }
    return {GATEWAY: arguments.pools.gateway, VERIFIER: arguments.pools.verifier} | drafters


def is_ours(import_path: str) -> bool:
    """Whether an application's `import_path` is that of Outrider."""
    return import_path.replace(":", ".") == BUILDER.replace(":", ".")


def _checked(data: Any, kind: type[M], at: Where) -> tuple[M | None, list[str]]:
    try:
        return kind.model_validate(data), []
    except ValidationError as error:
        return None, complaints(error, kind, at)


def _importable(schema: ServeDeploySchema) -> Iterator[str]:
    for number, path in enumerate(schema.grpc_options.grpc_servicer_functions):
        try:
            import_attr(path)
        except (ImportError, AttributeError, ValueError) as error:
            yield f"grpc_options.grpc_servicer_functions.{number}: cannot import {path!r}: {error}"


def _application(application: ServeApplicationSchema, arguments: ServeArguments, at: Where) -> Iterator[str]:
    """What is wrong beside the arguments themselves."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Ray's, of options that it has no others for
            build(arguments)
    except ConfigError as error:
        yield f"{path_of((*at, 'args', 'config'))}.{error}"
    pools = pools_of(arguments)
    known = {**dict.fromkeys(pools), REGISTRY: None}
    overridden = set()
    for number, deployment in enumerate(application.deployments):
        if deployment.name not in known:
            where = path_of((*at, "deployments", number, "name"))
            yield f"{where}: {no_such(deployment.name, known, 'this application')}"
        if deployment.is_autoscaling_configured():
            overridden.add(deployment.name)
    if application.autoscaling_policy is not None:
        yield from _policy(application.autoscaling_policy, arguments, (*at, "autoscaling_policy"))
        return
    for name, pool in pools.items():
        # Sessions go past Serve, so the rule that Serve scales by on its own sees none of them.
        if name != GATEWAY and pool.min_replicas != pool.max_replicas and name not in overridden:
            yield (
                f"{path_of(at)}: {name} may have {pool.min_replicas} to {pool.max_replicas} replicas, but "
                f"nothing decides how many: autoscaling_policy.policy_function is missing ({POLICY})"
            )


def _policy(given: Mapping[str, Any], arguments: ServeArguments, at: Where) -> Iterator[str]:
    yield from unknown_keys(given, AutoscalingPolicy, at)
    policy = str(given.get("policy_function", ""))
    if policy.replace(":", ".") != POLICY.replace(":", "."):
        try:
            import_attr(policy)
        except (ImportError, AttributeError, ValueError) as error:
            yield f"{path_of((*at, 'policy_function'))}: cannot import {policy!r}: {error}"
        return
    inside: Where = (*at, "policy_kwargs")
    settings, errors = _checked(given.get("policy_kwargs") or {}, ScalingSettings, inside)
    yield from errors
    if settings is not None:
        for name in sorted(set(settings.drafters) - set(arguments.config.drafters)):
            yield f"{path_of((*inside, 'drafters'))}: {no_such(name, arguments.config.drafters, 'drafters')}"


def _read_otherwise(ours: Any, theirs: Any, at: Where = ()) -> Iterator[str]:
    """Values that YAML 1.1, which Serve and Kubernetes read, takes for something else than YAML 1.2."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name, value in ours.items():
            if name in theirs:
                yield from _read_otherwise(value, theirs[name], (*at, name))
            else:
                yield f"{path_of((*at, name))}: {shown(name)} is no text to {_THEY}: put it in quotes"
    elif isinstance(ours, list) and isinstance(theirs, list):
        for number, (mine, value) in enumerate(zip(ours, theirs, strict=True)):
            yield from _read_otherwise(mine, value, (*at, number))
    elif type(ours) is not type(theirs) or ours != theirs:
        better = "put it in quotes" if isinstance(ours, str) else f"write {shown(ours)}"
        yield f"{path_of(at)}: {shown(ours)} is {shown(theirs)} to {_THEY}: {better}"
