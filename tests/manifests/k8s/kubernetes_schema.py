"""What Kubernetes takes, by the strict schemas that `kubernetes-validate` carries; each is read once."""

from __future__ import annotations

import functools
import re
from typing import Any

import jsonschema
import referencing
from kubernetes_validate.utils import schema_contents

VERSION = "1.37.0"
_FOLDER = f"kubernetes-json-schema/v{VERSION}-local-strict"


def check(found: dict[str, Any]) -> None:
    """Raises jsonschema.ValidationError: a field that is unknown, missing, or of another type."""
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", found["apiVersion"])
    _validator(f"{found['kind'].lower()}-{group}").validate(found)


@functools.cache
def _validator(name: str) -> Any:
    schema = schema_contents(f"{_FOLDER}/{name}.json", VERSION)
    return jsonschema.Draft202012Validator(schema, registry=_definitions())


@functools.cache
def _definitions() -> Any:
    definitions = schema_contents(f"{_FOLDER}/_definitions.json", VERSION)
    resource = referencing.Resource.from_contents(definitions)
    return (resource @ referencing.Registry()).crawl()
