from outrider.wire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifierGetInfoRequest(_message.Message):
    __slots__ = ("protocol_version",)
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    def __init__(self, protocol_version: _Optional[int] = ...) -> None: ...

class VerifierGetInfoResponse(_message.Message):
    __slots__ = ("protocol_version", "model", "eos_token_ids", "batch_invariance", "drafters", "instance_id", "default_draft_length", "degraded", "draining", "load", "pool_tokens")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BATCH_INVARIANCE_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    POOL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    model: _common_pb2.ModelInfo
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    batch_invariance: str
    drafters: _containers.RepeatedScalarFieldContainer[str]
    instance_id: str
    default_draft_length: int
    degraded: _containers.RepeatedScalarFieldContainer[str]
    draining: bool
    load: VerifierLoad
    pool_tokens: int
    def __init__(self, protocol_version: _Optional[int] = ..., model: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., batch_invariance: _Optional[str] = ..., drafters: _Optional[_Iterable[str]] = ..., instance_id: _Optional[str] = ..., default_draft_length: _Optional[int] = ..., degraded: _Optional[_Iterable[str]] = ..., draining: _Optional[bool] = ..., load: _Optional[_Union[VerifierLoad, _Mapping]] = ..., pool_tokens: _Optional[int] = ...) -> None: ...

class VerifierLoad(_message.Message):
    __slots__ = ("running", "waiting", "max_running", "max_waiting", "kv_usage")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    max_running: int
    max_waiting: int
    kv_usage: float
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., max_running: _Optional[int] = ..., max_waiting: _Optional[int] = ..., kv_usage: _Optional[float] = ...) -> None: ...

class VerifierGenerateRequest(_message.Message):
    __slots__ = ("session_id", "token_ids", "sampling", "stop", "speculation", "logprobs", "cache_salt", "tenant", "presentation", "generated", "epoch")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRESENTATION_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _common_pb2.SamplingParams
    stop: _common_pb2.StopParams
    speculation: _common_pb2.SpeculationParams
    logprobs: _common_pb2.LogprobParams
    cache_salt: str
    tenant: str
    presentation: bytes
    generated: _containers.RepeatedScalarFieldContainer[int]
    epoch: int
    def __init__(self, session_id: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., stop: _Optional[_Union[_common_pb2.StopParams, _Mapping]] = ..., speculation: _Optional[_Union[_common_pb2.SpeculationParams, _Mapping]] = ..., logprobs: _Optional[_Union[_common_pb2.LogprobParams, _Mapping]] = ..., cache_salt: _Optional[str] = ..., tenant: _Optional[str] = ..., presentation: _Optional[bytes] = ..., generated: _Optional[_Iterable[int]] = ..., epoch: _Optional[int] = ...) -> None: ...

class VerifierGenerateResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: SessionEvent
    def __init__(self, event: _Optional[_Union[SessionEvent, _Mapping]] = ...) -> None: ...

class VerifierResumeRequest(_message.Message):
    __slots__ = ("session_id", "from_token", "tenant", "known", "mark")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    from_token: int
    tenant: str
    known: _containers.RepeatedScalarFieldContainer[int]
    mark: bytes
    def __init__(self, session_id: _Optional[str] = ..., from_token: _Optional[int] = ..., tenant: _Optional[str] = ..., known: _Optional[_Iterable[int]] = ..., mark: _Optional[bytes] = ...) -> None: ...

class VerifierResumeResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: SessionEvent
    def __init__(self, event: _Optional[_Union[SessionEvent, _Mapping]] = ...) -> None: ...

class SessionEvent(_message.Message):
    __slots__ = ("started", "tokens", "finished", "prompt_logprobs")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    started: SessionStarted
    tokens: SessionTokens
    finished: SessionFinished
    prompt_logprobs: _common_pb2.PromptLogprobs
    def __init__(self, started: _Optional[_Union[SessionStarted, _Mapping]] = ..., tokens: _Optional[_Union[SessionTokens, _Mapping]] = ..., finished: _Optional[_Union[SessionFinished, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[_common_pb2.PromptLogprobs, _Mapping]] = ...) -> None: ...

class SessionStarted(_message.Message):
    __slots__ = ("seed", "epoch", "presentation", "prompt_tokens")
    SEED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PRESENTATION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    seed: int
    epoch: int
    presentation: bytes
    prompt_tokens: int
    def __init__(self, seed: _Optional[int] = ..., epoch: _Optional[int] = ..., presentation: _Optional[bytes] = ..., prompt_tokens: _Optional[int] = ...) -> None: ...

class SessionTokens(_message.Message):
    __slots__ = ("first_token", "token_ids", "accepted", "logprobs")
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    first_token: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    accepted: int
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    def __init__(self, first_token: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., accepted: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ...) -> None: ...

class SessionFinished(_message.Message):
    __slots__ = ("reason", "usage", "speculation", "stop_token_id")
    REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    reason: _common_pb2.FinishReason
    usage: _common_pb2.Usage
    speculation: _common_pb2.SpeculationStats
    stop_token_id: int
    def __init__(self, reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., speculation: _Optional[_Union[_common_pb2.SpeculationStats, _Mapping]] = ..., stop_token_id: _Optional[int] = ...) -> None: ...

class VerifierCancelRequest(_message.Message):
    __slots__ = ("session_id", "keep_tokens", "reason", "park")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    KEEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PARK_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    keep_tokens: int
    reason: _common_pb2.FinishReason
    park: bool
    def __init__(self, session_id: _Optional[str] = ..., keep_tokens: _Optional[int] = ..., reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., park: _Optional[bool] = ...) -> None: ...

class VerifierCancelResponse(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: _Optional[bool] = ...) -> None: ...
