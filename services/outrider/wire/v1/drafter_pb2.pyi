from outrider.wire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StaleReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STALE_REASON_UNSPECIFIED: _ClassVar[StaleReason]
    STALE_REASON_UNKNOWN: _ClassVar[StaleReason]
    STALE_REASON_DIVERGED: _ClassVar[StaleReason]
    STALE_REASON_TOO_LONG: _ClassVar[StaleReason]
    STALE_REASON_FULL: _ClassVar[StaleReason]
    STALE_REASON_INVALID: _ClassVar[StaleReason]
STALE_REASON_UNSPECIFIED: StaleReason
STALE_REASON_UNKNOWN: StaleReason
STALE_REASON_DIVERGED: StaleReason
STALE_REASON_TOO_LONG: StaleReason
STALE_REASON_FULL: StaleReason
STALE_REASON_INVALID: StaleReason

class DrafterGetInfoRequest(_message.Message):
    __slots__ = ("protocol_version",)
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    def __init__(self, protocol_version: _Optional[int] = ...) -> None: ...

class DrafterGetInfoResponse(_message.Message):
    __slots__ = ("protocol_version", "model", "method", "features", "max_draft_tokens", "max_sessions", "instance_id", "last_feature_only")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_FEATURE_ONLY_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    model: _common_pb2.ModelInfo
    method: str
    features: _containers.RepeatedScalarFieldContainer[str]
    max_draft_tokens: int
    max_sessions: int
    instance_id: str
    last_feature_only: bool
    def __init__(self, protocol_version: _Optional[int] = ..., model: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ..., method: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., max_draft_tokens: _Optional[int] = ..., max_sessions: _Optional[int] = ..., instance_id: _Optional[str] = ..., last_feature_only: _Optional[bool] = ...) -> None: ...

class DraftRequest(_message.Message):
    __slots__ = ("commands",)
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedCompositeFieldContainer[DraftCommand]
    def __init__(self, commands: _Optional[_Iterable[_Union[DraftCommand, _Mapping]]] = ...) -> None: ...

class DraftCommand(_message.Message):
    __slots__ = ("session_id", "epoch", "open", "advance", "close")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    epoch: int
    open: OpenSession
    advance: AdvanceSession
    close: CloseSession
    def __init__(self, session_id: _Optional[str] = ..., epoch: _Optional[int] = ..., open: _Optional[_Union[OpenSession, _Mapping]] = ..., advance: _Optional[_Union[AdvanceSession, _Mapping]] = ..., close: _Optional[_Union[CloseSession, _Mapping]] = ...) -> None: ...

class OpenSession(_message.Message):
    __slots__ = ("token_ids", "sampling", "draft_length", "features", "traceparent", "patience_us", "prompt_len", "acceptance", "draft_nodes", "tenant")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_US_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NODES_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _common_pb2.SamplingParams
    draft_length: int
    features: _containers.RepeatedCompositeFieldContainer[_common_pb2.FeatureBlock]
    traceparent: str
    patience_us: int
    prompt_len: int
    acceptance: _common_pb2.Acceptance
    draft_nodes: int
    tenant: str
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., draft_length: _Optional[int] = ..., features: _Optional[_Iterable[_Union[_common_pb2.FeatureBlock, _Mapping]]] = ..., traceparent: _Optional[str] = ..., patience_us: _Optional[int] = ..., prompt_len: _Optional[int] = ..., acceptance: _Optional[_Union[_common_pb2.Acceptance, str]] = ..., draft_nodes: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

class AdvanceSession(_message.Message):
    __slots__ = ("base_len", "token_ids", "accepted", "draft_length", "features", "traceparent", "patience_us", "draft_nodes")
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_US_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NODES_FIELD_NUMBER: _ClassVar[int]
    base_len: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    accepted: int
    draft_length: int
    features: _containers.RepeatedCompositeFieldContainer[_common_pb2.FeatureBlock]
    traceparent: str
    patience_us: int
    draft_nodes: int
    def __init__(self, base_len: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., accepted: _Optional[int] = ..., draft_length: _Optional[int] = ..., features: _Optional[_Iterable[_Union[_common_pb2.FeatureBlock, _Mapping]]] = ..., traceparent: _Optional[str] = ..., patience_us: _Optional[int] = ..., draft_nodes: _Optional[int] = ...) -> None: ...

class CloseSession(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[DraftEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[DraftEvent, _Mapping]]] = ...) -> None: ...

class DraftEvent(_message.Message):
    __slots__ = ("session_id", "epoch", "proposal", "stale", "load", "draining")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    epoch: int
    proposal: DraftProposal
    stale: StaleSession
    load: DrafterLoad
    draining: DrafterDraining
    def __init__(self, session_id: _Optional[str] = ..., epoch: _Optional[int] = ..., proposal: _Optional[_Union[DraftProposal, _Mapping]] = ..., stale: _Optional[_Union[StaleSession, _Mapping]] = ..., load: _Optional[_Union[DrafterLoad, _Mapping]] = ..., draining: _Optional[_Union[DrafterDraining, _Mapping]] = ...) -> None: ...

class DraftProposal(_message.Message):
    __slots__ = ("base_len", "tree", "run_ahead_hit", "draft_us", "forward_us")
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    RUN_AHEAD_HIT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    FORWARD_US_FIELD_NUMBER: _ClassVar[int]
    base_len: int
    tree: _common_pb2.TokenTree
    run_ahead_hit: bool
    draft_us: int
    forward_us: int
    def __init__(self, base_len: _Optional[int] = ..., tree: _Optional[_Union[_common_pb2.TokenTree, _Mapping]] = ..., run_ahead_hit: _Optional[bool] = ..., draft_us: _Optional[int] = ..., forward_us: _Optional[int] = ...) -> None: ...

class StaleSession(_message.Message):
    __slots__ = ("reason", "detail")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    reason: StaleReason
    detail: str
    def __init__(self, reason: _Optional[_Union[StaleReason, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class DrafterLoad(_message.Message):
    __slots__ = ("sessions", "queued", "kv_usage")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    queued: int
    kv_usage: float
    def __init__(self, sessions: _Optional[int] = ..., queued: _Optional[int] = ..., kv_usage: _Optional[float] = ...) -> None: ...

class DrafterDraining(_message.Message):
    __slots__ = ("grace_ms",)
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    grace_ms: int
    def __init__(self, grace_ms: _Optional[int] = ...) -> None: ...
