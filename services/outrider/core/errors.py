"""Everything that can go wrong, and how it looks from outside.

OutriderError
├── InvalidRequestError         a field of a request is wrong
│   └── PromptTooLongError      prompt (and what is asked for) exceed the context length
├── ModelNotFoundError          no such model is served
├── SessionNotFoundError        no such session here or in the store
├── SessionExistsError          the session id is in use
├── StaleEpochError             somebody else owns the session now
│   └── SupersededError         a newer client of this session has taken the stream's place
├── UnauthenticatedError        no credential, or a wrong one
├── PermissionDeniedError       the credential does not allow this
├── OverloadedError             queues are full: try again later
│   └── RateLimitedError        the caller's own limit is used up: try again later
├── UnavailableError            a service that is needed is away: try again
│   ├── StoreUnavailableError   the session store is away
│   └── SessionMovedError       the verifier hands the session over: resume it elsewhere
│       └── SessionParkedError  the verifier is well, the session left too much unread: resume it there
├── DeadlineExceededError       the caller's deadline passed
├── RequestCancelledError       the caller went away
├── ModelMismatchError          two services cannot work together
├── UnsupportedModelError       the model's architecture is not supported
├── ConfigError                 the configuration is wrong
├── ProtocolError               a peer broke the protocol
└── InternalError               a defect

`describe` is the one table from exception to gRPC code, HTTP status, OpenAI error type and
metric label.
"""

from __future__ import annotations

from dataclasses import dataclass


class OutriderError(Exception):
    """Base of all errors raised by Outrider."""


class InvalidRequestError(OutriderError):
    """A field of a request is wrong: which one, what was wrong, what is allowed."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class PromptTooLongError(InvalidRequestError):
    """The prompt does not fit the model's context length."""


class ModelNotFoundError(OutriderError):
    """No such model is served."""


class SessionNotFoundError(OutriderError):
    """No such session is known."""


class SessionExistsError(OutriderError):
    """The session id is in use."""


class StaleEpochError(OutriderError):
    """A newer owner has claimed the session."""


class SupersededError(StaleEpochError):
    """Another client has attached to the session."""


class OverloadedError(OutriderError):
    """Queues are full."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimitedError(OverloadedError):
    """The caller's own limit is used up."""


class UnauthenticatedError(OutriderError):
    """There is no credential, or a wrong one."""


class PermissionDeniedError(OutriderError):
    """The credential does not allow what is asked for."""


class UnavailableError(OutriderError):
    """A service that is needed is away."""


class StoreUnavailableError(UnavailableError):
    """The session store is away."""


class SessionMovedError(UnavailableError):
    """The verifier hands the session over: all of it is stored, resume it elsewhere."""


class SessionParkedError(SessionMovedError):
    """The verifier has put the session aside, as nobody read it: all of it is stored."""


class DeadlineExceededError(OutriderError):
    """The caller's deadline passed."""


class RequestCancelledError(OutriderError):
    """The caller went away."""


class ModelMismatchError(OutriderError):
    """Two services hold models that cannot work together."""


class UnsupportedModelError(OutriderError):
    """The model's architecture is not supported."""


class ConfigError(OutriderError):
    """The configuration is wrong."""


class ProtocolError(OutriderError):
    """A peer sent what the protocol does not allow."""


class InternalError(OutriderError):
    """A defect in Outrider."""


@dataclass(frozen=True, slots=True)
class ErrorDescription:
    """How one kind of error looks from outside."""

    grpc_code: str  # name of a grpc.StatusCode
    http_status: int
    openai_type: str
    label: str  # value of the metric label `outcome`


_INTERNAL = ErrorDescription("INTERNAL", 500, "server_error", "internal")

_TABLE: dict[type[OutriderError], ErrorDescription] = {
    PromptTooLongError: ErrorDescription("INVALID_ARGUMENT", 400, "invalid_request_error", "prompt_too_long"),
    InvalidRequestError: ErrorDescription("INVALID_ARGUMENT", 400, "invalid_request_error", "invalid"),
    ModelNotFoundError: ErrorDescription("NOT_FOUND", 404, "not_found_error", "model_not_found"),
    SessionNotFoundError: ErrorDescription("NOT_FOUND", 404, "not_found_error", "session_not_found"),
    SessionExistsError: ErrorDescription("ALREADY_EXISTS", 409, "conflict_error", "session_exists"),
    StaleEpochError: ErrorDescription("ABORTED", 409, "conflict_error", "stale_epoch"),
    SupersededError: ErrorDescription("ABORTED", 409, "conflict_error", "superseded"),
    UnauthenticatedError: ErrorDescription("UNAUTHENTICATED", 401, "authentication_error", "unauthenticated"),
    PermissionDeniedError: ErrorDescription(
        "PERMISSION_DENIED", 403, "permission_error", "permission_denied"
    ),
    RateLimitedError: ErrorDescription("RESOURCE_EXHAUSTED", 429, "rate_limit_error", "rate_limited"),
    SessionMovedError: ErrorDescription("UNAVAILABLE", 503, "server_error", "session_moved"),
    SessionParkedError: ErrorDescription("UNAVAILABLE", 503, "server_error", "session_parked"),
    OverloadedError: ErrorDescription("RESOURCE_EXHAUSTED", 429, "rate_limit_error", "overloaded"),
    StoreUnavailableError: ErrorDescription("UNAVAILABLE", 503, "server_error", "store_unavailable"),
    UnavailableError: ErrorDescription("UNAVAILABLE", 503, "server_error", "unavailable"),
    DeadlineExceededError: ErrorDescription("DEADLINE_EXCEEDED", 504, "timeout_error", "deadline"),
    RequestCancelledError: ErrorDescription("CANCELLED", 499, "cancelled_error", "cancelled"),
    ModelMismatchError: ErrorDescription("FAILED_PRECONDITION", 500, "server_error", "model_mismatch"),
    UnsupportedModelError: ErrorDescription("FAILED_PRECONDITION", 500, "server_error", "unsupported_model"),
    ConfigError: ErrorDescription("FAILED_PRECONDITION", 500, "server_error", "config"),
    ProtocolError: ErrorDescription("INVALID_ARGUMENT", 400, "invalid_request_error", "protocol"),
    InternalError: _INTERNAL,
}


def describe(error: BaseException) -> ErrorDescription:
    """The row for `error`: its own class's, or its nearest base's; a defect if there is none."""
    for kind in type(error).__mro__:
        if kind in _TABLE:
            return _TABLE[kind]
    return _INTERNAL
