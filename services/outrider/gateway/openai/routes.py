"""The HTTP endpoints."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import CollectorRegistry

from outrider import __version__
from outrider.core import limits
from outrider.core.errors import ModelNotFoundError, UnavailableError
from outrider.gateway.auth import Authenticator
from outrider.gateway.generations import Generations
from outrider.gateway.limits import Limiter
from outrider.gateway.observation import Observer
from outrider.gateway.openai import errors, openapi, positions
from outrider.gateway.openai import responses as r
from outrider.gateway.openai.budget import Budget
from outrider.gateway.openai.chat_shape import ChatShape
from outrider.gateway.openai.completion_shape import CompletionShape
from outrider.gateway.openai.exchange import Endpoint, Exchange
from outrider.gateway.openai.middleware import ApiKey, BodyDeadline, RequestId
from outrider.gateway.openai.requests import ChatRequest, CompletionRequest
from outrider.gateway.openai.shapes import model_card
from outrider.gateway.targets import TargetGroup, Targets
from outrider.telemetry import names
from outrider.telemetry.metrics import exposition

_SPECULATION = {"max_draft_tokens": "speculation.max_draft_tokens", "drafter": "speculation.drafter"}
CHAT = Endpoint(
    "/v1/chat/completions",
    "chatcmpl",
    names.OPERATION_CHAT,
    ChatRequest,
    ChatShape,
    {"prompt": "messages", "logprobs": "top_logprobs", **_SPECULATION},
)
COMPLETIONS = Endpoint(
    "/v1/completions", "cmpl", names.OPERATION_COMPLETION, CompletionRequest, CompletionShape, _SPECULATION
)

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": r.ErrorBody} for status in (400, 401, 404, 408, 409, 413, 415, 429, 500, 503, 504)
}
_STREAM: dict[str, Any] = {
    "description": "with `stream`: server-sent events, each a JSON object, then `[DONE]`",
    "content": {"text/event-stream": {"schema": {}}},  # JSON schema has no word for events
}

_RESUMED: dict[str, Any] = {
    "parameters": [
        {
            "name": positions.FIELD,
            "in": "header",
            "required": False,
            "description": "id of the last event of a stream that broke: it goes on behind it",
            "schema": {"type": "string", "pattern": positions.PATTERN},
        }
    ]
}


@dataclass(frozen=True, slots=True)
class Context:
    """What the endpoints work with."""

    generations: Generations
    observer: Observer
    registry: CollectorRegistry
    targets: Targets
    budget: Budget
    authenticator: Authenticator
    limiter: Limiter
    body_timeout_s: float


def make_app(context: Context) -> FastAPI:
    """The HTTP application."""
    app = FastAPI(title="Outrider", version=__version__, description="OpenAI-compatible API of a gateway")
    app.include_router(_generation_routes(context))
    app.include_router(_model_routes(context))
    app.include_router(_service_routes(context))
    errors.install(app)
    # Each one is put around those before it.
    app.add_middleware(BodyDeadline, timeout_s=context.body_timeout_s)
    app.add_middleware(
        ApiKey,
        authenticator=context.authenticator,
        limiter=context.limiter,
        refused=lambda path, label: context.observer.metrics.request(
            path if path in (CHAT.route, COMPLETIONS.route) else "other", label
        ),
    )
    app.add_middleware(RequestId)
    openapi.describe_bodies(app, {CHAT.route: ChatRequest, COMPLETIONS.route: CompletionRequest})
    return app


def _generation_routes(context: Context) -> APIRouter:
    router = APIRouter(tags=["generation"])

    def exchange(endpoint: Endpoint) -> Exchange:
        return Exchange(endpoint, context.generations, context.observer, context.budget)

    @router.post(
        CHAT.route, responses={200: {"model": r.ChatCompletion, **_STREAM}, **_ERRORS}, openapi_extra=_RESUMED
    )
    async def chat_completions() -> Response:
        """Answer a conversation; with `stream`, as `chat.completion.chunk` events."""
        return exchange(CHAT)

    @router.post(
        COMPLETIONS.route,
        responses={200: {"model": r.Completion, **_STREAM}, **_ERRORS},
        openapi_extra=_RESUMED,
    )
    async def completions() -> Response:
        """Continue prompts; with `stream`, as `text_completion` events."""
        return exchange(COMPLETIONS)

    return router


def _model_routes(context: Context) -> APIRouter:
    router = APIRouter(tags=["models"])
    created = int(time.time())

    @router.get("/v1/models", responses={503: _ERRORS[503]})
    async def models() -> r.ModelList:
        """The models that are served."""
        return {"object": "list", "data": [model_card(context.generations.info, created)]}

    @router.get("/v1/models/{model:path}", responses={404: _ERRORS[404], 503: _ERRORS[503]})
    async def model(model: str) -> r.ModelCard:
        """One model."""
        card = model_card(context.generations.info, created)
        if model != card["id"]:
            raise ModelNotFoundError(
                f"there is no model {limits.quoted(model)}, this gateway serves {card['id']!r}"
            )
        return card

    return router


def _service_routes(context: Context) -> APIRouter:
    router = APIRouter(tags=["service"])

    @router.get("/health", responses={503: {"model": r.Health, "description": "no verifier answers"}})
    async def health(response: Response) -> r.Health:
        """200 if requests can be answered ("ok", or "degraded" for some reasons), 503 if not."""
        reasons = list(context.generations.degraded)
        try:
            _ = context.generations.info
        except UnavailableError:
            response.status_code = 503
            return {"status": "unavailable", "reasons": reasons}
        return {"status": "degraded" if reasons else "ok", "reasons": reasons}

    @router.get("/metrics", response_class=Response)
    async def metrics(request: Request) -> Response:
        """Prometheus metrics."""
        page, content_type = exposition(context.registry, request.headers.get("accept", ""))
        return Response(page, media_type=content_type)

    @router.get("/metrics/targets")
    async def metrics_targets() -> list[TargetGroup]:
        """Where the /metrics pages of all services are, for `http_sd_configs` of Prometheus."""
        return await context.targets.groups()

    @router.get("/version")
    async def version() -> dict[str, str]:
        """Version of this gateway."""
        return {"version": __version__}

    return router
