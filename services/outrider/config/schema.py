"""The one typed configuration. YAML files, `--set` and Helm values derive from it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from outrider.core.params import FUSED, JOINED, OFF

Port = Annotated[int, Field(ge=0, le=65535, description="TCP port; 0: any free one")]
Dtype = Literal["bfloat16", "float32", "float16"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


_ADVERTISE = "address (host:port) under which others reach it, for the registry; empty: the one it listens on"


class EngineConfig(_Section):
    """The paged engine that runs a model."""

    dtype: Dtype = "bfloat16"
    device: str = "cpu"
    metrics_port: Port | None = Field(None, description="serve /metrics here; empty: do not")
    threads: int = Field(0, ge=0, description="torch threads; 0: torch's default")
    block_size: int = Field(16, ge=1, le=256, description="tokens per KV block; a divisor of 256")
    pool_tokens: int = Field(32768, ge=256, description="tokens that fit the KV pool")
    prefill_chunk: int = Field(256, ge=16, description="most prompt tokens in one step")
    prefix_cache: bool = True
    batch_invariance: Literal["exact", "warn", "off"] = Field(
        "exact", description="if the start-up probe fails: take the slower exact path, warn, or do not probe"
    )

    @model_validator(mode="after")
    def _check_block_size(self) -> EngineConfig:
        if 256 % self.block_size:
            raise ValueError(f"block_size must divide 256, got {self.block_size}")
        return self


class VerifierConfig(EngineConfig):
    """A verifier: target model, rounds, sessions."""

    host: str = "127.0.0.1"
    port: Port = 9100
    advertise: str = Field("", description=_ADVERTISE)
    drain_s: float = Field(
        7.0, ge=0, description="after SIGTERM: how long sessions may go on; then they are handed over"
    )
    detached_s: float = Field(
        2.0,
        ge=0,
        description="how long a session whose gateway was lost goes on before it is parked in the store",
    )
    max_sessions: int = Field(64, ge=1, description="sessions that run at once")
    max_queue: int = Field(256, ge=0, description="sessions that wait; more are refused")
    queue_timeout_s: float | None = Field(
        None, gt=0, description="longest wait for the first turn, then a session is refused; none: no limit"
    )
    max_unread_bytes: int = Field(
        2**22, ge=1, description="memory of what a client may leave unread; then its session is parked"
    )
    draft_length: int = Field(4, ge=0, description="draft tokens a round when the request does not say")
    max_draft_tokens: int = Field(32, ge=1, description="most draft tokens a round")
    step_rows: int = Field(
        64, ge=0, description="most rows of a step with drafts: more sessions have fewer each; 0: no bound"
    )
    drafter: str = Field(
        "",
        description="used if the request does not say: a drafter, several joined by +, or fused (empty too)",
    )
    tree_nodes: int = Field(16, ge=1, description="most draft tokens of a tree merged of several proposals")
    tensor_parallel: int = Field(
        1, ge=1, le=64, description="ranks that share the model: each has its part of every layer's heads"
    )
    rank_timeout_s: float = Field(
        30.0, gt=0, description="a rank that the others wait for so long in a step counts as dead"
    )
    min_acceptance: float = Field(
        0.05,
        ge=0,
        le=1,
        description="draft tokens less likely than this to be accepted are left out of it",
    )
    patience_ms: float = Field(250.0, gt=0, description="longest wait for a proposal")
    max_misses: int = Field(4, ge=1, description="missed proposals in a row that rest a drafter")
    rest_ms: float = Field(
        1000.0, gt=0, description="how long a drafter that missed too often rests, at first"
    )


class DrafterConfig(EngineConfig):
    """A drafter: one drafting method and its sessions."""

    method: Literal["draft_model", "prompt_lookup", "suffix", "medusa", "eagle"] = "draft_model"
    host: str = "127.0.0.1"
    port: Port = 9200
    advertise: str = Field("", description=_ADVERTISE)
    addresses: tuple[str, ...] = Field(
        (), description="where its replicas are, with registry.kind static; empty: at host:port"
    )
    model: str = Field(
        "", description="draft model or head: catalogue name or folder; unused by prompt_lookup, suffix"
    )
    draft_length: int | None = Field(
        None,
        ge=0,
        description="draft tokens a round for sessions that use this drafter; empty: verifier.draft_length",
    )
    max_draft_tokens: int = Field(16, ge=1, description="most draft tokens in one proposal")
    tree: str = Field(
        "chain",
        pattern=r"^(chain|dynamic|[1-9][0-9]?(,[1-9][0-9]?)*)$",
        description="shape of proposals: chain, dynamic (likeliest nodes), or branches by depth: 3,2,1,1",
    )
    tree_nodes: int = Field(
        16, ge=1, description="most draft tokens of a tree, if the verifier asks for no fewer"
    )
    tree_top_k: int = Field(4, ge=1, le=64, description="dynamic trees: most children of a node")
    max_sessions: int = Field(256, ge=1, description="sessions held; the least recently used one is dropped")
    run_ahead: int = Field(0, ge=0, description="tokens drafted past the proposal while the verifier works")
    ngram_min: int = Field(1, ge=1, description="prompt_lookup: shortest match")
    ngram_max: int = Field(4, ge=1, le=32, description="prompt_lookup: longest n-gram that is looked for")
    suffix_shared: bool = Field(
        False, description="suffix: keep text that was served, for later sessions of the same tenant"
    )
    suffix_tokens: int = Field(
        262_144,
        ge=1024,
        le=2**28,
        description="suffix: tokens of running sessions that are indexed, and as many of served text",
    )


class GatewayConfig(_Section):
    """The public APIs."""

    host: str = "127.0.0.1"
    http_port: Port = 8000
    grpc_port: Port = 9000
    metrics_port: Port | None = Field(
        None, description="serve /metrics here too, where several gateways share an address; empty: do not"
    )
    advertise: str = Field(
        "",
        description="address (host:port) under which others reach its gRPC API, for the registry, which has "
        "its page of metrics; empty: the one it listens on",
    )
    verifiers: tuple[str, ...] = Field(
        (), description="addresses, with registry.kind static; empty: the verifier of this file"
    )
    probe_s: float = Field(0.5, gt=0, description="how often each verifier is asked how it is")
    verifier_timeout_s: float = Field(
        3.0, gt=0, description="a verifier that has not answered for so long counts as gone"
    )
    failover_s: float = Field(
        30.0, ge=0, description="how long a session that lost its verifier waits for another one"
    )
    max_body_bytes: int = Field(4 * 1024 * 1024, ge=1024)
    head_timeout_s: float = Field(
        10.0, gt=0, description="HTTP: time for the head of a request, from when it is waited for"
    )
    body_timeout_s: float = Field(60.0, gt=0, description="HTTP: time for the body of a request")
    max_connections: int = Field(4096, ge=1, description="HTTP: connections at once; more are closed")
    max_choices: int = Field(128, ge=1, description="most prompts x n (or best_of) of one request")
    max_request_tokens: int = Field(
        1_048_576, ge=1, description="most prompts x n x max_tokens of a request with several answers"
    )
    request_timeout_s: float = Field(600.0, gt=0)
    unread_s: float = Field(
        60.0, gt=0, description="a client that leaves what was sent unread for so long counts as gone"
    )
    reflection: bool = Field(True, description="gRPC reflection")
    tool_parser: Literal["auto", "hermes", "llama3_json", "mistral"] = Field(
        "auto", description="format of the model's tool calls; auto: as its chat template tells"
    )
    trust_request_chat_template: bool = Field(
        False, description="accept chat_template in requests: a template may use much time and memory"
    )


class RegistryConfig(_Section):
    """Who is alive, and where."""

    kind: Literal["static", "redis", "ray"] = Field(
        "static",
        description="static: the addresses in this file; redis, ray: services enter themselves, in Redis or "
        "in the Ray Serve application that they are part of",
    )
    url: str = Field("", description="Redis, as in store.url; empty: the store's")
    namespace: str = Field(
        "",
        description="deployments on one Redis see only their own; empty: the model's name in the API",
    )
    lease_s: float = Field(3.0, gt=0, description="one that has not been heard of for so long is left out")
    heartbeat_s: float = Field(
        0.5, gt=0, description="how often each one renews its lease, and reads the list"
    )

    @model_validator(mode="after")
    def _check_lease(self) -> RegistryConfig:
        if self.lease_s < 2 * self.heartbeat_s:
            raise ValueError(
                f"lease_s must be at least twice heartbeat_s ({self.heartbeat_s:g}), got {self.lease_s:g}"
            )
        return self


class TlsConfig(_Section):
    """Certificates of one kind of link, PEM files. They are read again when they change."""

    certificate: str = Field("", description="certificate chain of this service; empty: plaintext")
    key: str = Field("", description="its private key")
    ca: str = Field("", description="authorities of peers' certificates; servers then ask callers for one")
    server_name: str = Field("", description="name in the services' certificates, where addresses are not it")

    @model_validator(mode="after")
    def _check_pair(self) -> TlsConfig:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("certificate and key go together: one of them is not set")
        if self.server_name and not (self.certificate or self.ca):
            raise ValueError("server_name needs a certificate or a ca: without them the links are plaintext")
        return self


class SecurityConfig(_Section):
    """Who may call whom, and how links are protected."""

    internal_tls: TlsConfig = Field(TlsConfig(), description="links between gateways, verifiers and drafters")
    public_tls: TlsConfig = Field(TlsConfig(), description="the gateway's own APIs, HTTP and gRPC")
    cluster_token_file: str = Field(
        "", description="file with a secret that all services share; callers without it are refused"
    )
    api_keys_file: str = Field(
        "", description="file with the hashes of API keys (`outrider keys`); empty: none is asked for"
    )


class StoreConfig(_Section):
    """The session store."""

    kind: Literal["memory", "redis"] = "memory"
    url: str = Field(
        "redis://127.0.0.1:6379/0",
        description="redis://, rediss:// (TLS), unix://; redis+cluster:// and redis+sentinel://, also with "
        "TLS as rediss+..., take several HOST:PORT, the latter /SERVICE/DB too",
    )
    ttl_s: int = Field(3600, ge=1, description="how long a session can be resumed")
    timeout_s: float = Field(1.0, gt=0, description="longest wait for one round trip")
    when_away: Literal["admit", "refuse"] = Field("admit", description="new sessions while the store is away")
    max_pending: int = Field(10_000, ge=1, description="commits kept for a store that is away")


class TelemetryConfig(_Section):
    """Traces, metrics, logs."""

    otlp_endpoint: str = Field(
        "", description="OTLP/gRPC endpoint such as http://127.0.0.1:4317; empty: no traces"
    )
    sample_ratio: float = Field(1.0, ge=0, le=1)
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class OutriderConfig(_Section):
    """A whole deployment. Each process reads its own part."""

    model: str = Field("smollm2-135m-instruct", description="target model: catalogue name or folder")
    served_name: str = Field("", description="model name in the API; empty: the last part of `model`")
    verifier: VerifierConfig = VerifierConfig()
    drafters: dict[str, DrafterConfig] = Field(default_factory=dict)
    gateway: GatewayConfig = GatewayConfig()
    store: StoreConfig = StoreConfig()
    registry: RegistryConfig = RegistryConfig()
    security: SecurityConfig = SecurityConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    @model_validator(mode="after")
    def _check_names(self) -> OutriderConfig:
        for name in self.drafters:
            if name in (FUSED, OFF) or JOINED in name or not name:
                raise ValueError(f"a drafter may not be called {name!r}: requests mean something else by it")
        default = self.verifier.drafter
        if default not in ("", FUSED) and not set(default.split(JOINED)) <= set(self.drafters):
            raise ValueError(f"verifier.drafter is {default!r}, not one of {[*sorted(self.drafters), FUSED]}")
        return self

    @property
    def name(self) -> str:
        """The model's name in the API."""
        return self.served_name or self.model.rstrip("/").rsplit("/", 1)[-1]
