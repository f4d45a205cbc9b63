"""The OpenAPI page's part that FastAPI cannot know: bodies that `Exchange` parses, within its limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

_REFERENCE = "#/components/schemas/{model}"


def describe_bodies(app: FastAPI, bodies: Mapping[str, type[BaseModel]]) -> None:
    """Add the request body of each POST route to the application's OpenAPI document."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = plain()
            for route, body in bodies.items():
                schema = body.model_json_schema(ref_template=_REFERENCE)
                document["components"]["schemas"].update(schema.pop("$defs", {}))
                content = {"application/json": {"schema": schema}}
                document["paths"][route]["post"]["requestBody"] = {"required": True, "content": content}
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
