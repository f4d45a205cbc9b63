"""Hypothesis strategies for everything that passes between services."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from outrider.core import limits
from outrider.core.models import DrafterInfo, ModelInfo
from outrider.core.params import SamplingParams, SpeculationParams
from outrider.core.rounds import Proposal, StaleReason
from outrider.core.sessions import FinishReason, SpeculationStats, Usage
from outrider.core.trees import TokenTree
from outrider.wire import messages as m

U32 = st.integers(0, 2**32 - 1)
IDS = st.integers(0, 2**31 - 1)
ID_LISTS = st.lists(IDS, max_size=6).map(tuple)
EPOCHS = st.integers(1, 2**53)
SESSION_IDS = st.text("abzAZ09._:-", min_size=1, max_size=limits.MAX_SESSION_ID_CHARS)
NAMES = st.text(max_size=20)
COUNTS = st.integers(0, 2**20)
DRAFT_LENGTHS = st.integers(0, limits.MAX_DRAFT_TOKENS)


def fractions(low: float, high: float, **options: Any) -> st.SearchStrategy[float]:
    """Numbers that a proto float holds exactly."""
    return st.floats(low, high, width=32, **options)


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Any valid tree: parents first, siblings different."""
    size = draw(st.integers(0, 8))
    parents = [draw(st.integers(-1, index - 1)) for index in range(size)]
    used: set[tuple[int, int]] = set()
    ids = []
    for parent in parents:
        token = draw(IDS.filter(lambda value, parent=parent: (parent, value) not in used))
        used.add((parent, token))
        ids.append(token)
    return TokenTree(tuple(ids), tuple(parents))


@st.composite
def features(draw: st.DrawFn) -> m.FeatureBlock:
    rows, columns = draw(st.integers(0, 3)), draw(st.integers(0, 4))
    data = draw(st.binary(min_size=2 * rows * columns, max_size=2 * rows * columns))
    return m.FeatureBlock(draw(NAMES), draw(U32), rows, columns, data)


FEATURES = st.lists(features(), max_size=2).map(tuple)
TRACEPARENTS = st.just("") | st.just("00-" + "a" * 32 + "-" + "b" * 16 + "-01")
MODEL_INFOS = st.builds(
    ModelInfo,
    model_name=NAMES,
    tokenizer_fingerprint=NAMES,
    vocab_size=U32,
    context_length=U32,
    dtype=NAMES,
    hidden_size=U32,
    num_layers=U32,
)
DRAFTER_INFOS = st.builds(
    DrafterInfo,
    model=MODEL_INFOS,
    method=st.text(min_size=1, max_size=20),
    features=st.lists(NAMES, max_size=3).map(tuple),
    max_draft_tokens=U32,
    max_sessions=U32,
    instance_id=NAMES,
    protocol_version=U32,
)
SAMPLINGS = st.builds(
    SamplingParams,
    temperature=st.just(0.0) | fractions(0.0078125, limits.MAX_TEMPERATURE),
    top_k=st.integers(0, limits.MAX_TOP_K),
    top_p=fractions(0, 1, exclude_min=True),
    min_p=fractions(0, 1),
    seed=st.integers(0, limits.MAX_SEED),
)
STOPS = st.builds(
    m.StopRequest,
    max_tokens=st.integers(0, 2**31 - 1),
    stop_token_ids=st.frozensets(IDS, max_size=4),
    stop=st.lists(st.text(min_size=1, max_size=8), max_size=3).map(tuple),
    ignore_eos=st.booleans(),
)
SPECULATIONS = st.builds(
    SpeculationParams,
    enabled=st.booleans(),
    max_draft_tokens=st.none() | DRAFT_LENGTHS,
    drafter=NAMES,
)
USAGES = st.builds(Usage, prompt_tokens=U32, completion_tokens=U32, cached_prompt_tokens=U32)
STATS = st.builds(
    SpeculationStats,
    rounds=U32,
    drafts=U32,
    draft_tokens=U32,
    accepted_tokens=U32,
    run_ahead_hits=U32,
    missed=U32,
    drafter=NAMES,
)


@st.composite
def advances(draw: st.DrawFn) -> m.AdvanceDraft:
    ids = draw(ID_LISTS)
    return m.AdvanceDraft(
        session_id=draw(SESSION_IDS),
        epoch=draw(EPOCHS),
        base_len=draw(st.integers(1, 2**20)),
        token_ids=ids,
        accepted=draw(st.integers(0, len(ids))),
        draft_length=draw(DRAFT_LENGTHS),
        features=draw(FEATURES),
        traceparent=draw(TRACEPARENTS),
        patience_us=draw(U32),
    )


COMMANDS = (
    st.builds(
        m.OpenDraft,
        session_id=SESSION_IDS,
        epoch=EPOCHS,
        token_ids=st.lists(IDS, min_size=1, max_size=6).map(tuple),
        sampling=SAMPLINGS,
        draft_length=DRAFT_LENGTHS,
        features=FEATURES,
        traceparent=TRACEPARENTS,
        patience_us=U32,
    )
    | advances()
    | st.builds(m.CloseDraft, session_id=SESSION_IDS, epoch=EPOCHS)
)
EVENTS = (
    st.builds(
        Proposal,
        session_id=SESSION_IDS,
        epoch=EPOCHS,
        base_len=COUNTS,
        tree=trees(),
        run_ahead_hit=st.booleans(),
        draft_us=U32,
        forward_us=U32,
    )
    | st.builds(
        m.Stale,
        session_id=SESSION_IDS,
        epoch=EPOCHS,
        reason=st.sampled_from(StaleReason),
        detail=NAMES,
    )
    | st.builds(m.DrafterLoad, sessions=U32, queued=U32, kv_usage=fractions(0, 1))
    | st.builds(m.Draining, grace_ms=U32)
)
VERIFIER_INFOS = st.builds(
    m.VerifierInfo,
    model=MODEL_INFOS,
    eos_token_ids=st.frozensets(IDS, max_size=3),
    batch_invariance=NAMES,
    drafters=st.lists(NAMES, max_size=3).map(tuple),
    instance_id=NAMES,
    default_draft_length=U32,
    degraded=st.lists(NAMES, max_size=3).map(tuple),
    protocol_version=U32,
)
SESSION_REQUESTS = st.builds(
    m.SessionRequest,
    session_id=SESSION_IDS,
    prompt=st.lists(IDS, min_size=1, max_size=6).map(tuple),
    sampling=SAMPLINGS,
    stop=STOPS.map(lambda stop: m.StopRequest(stop.max_tokens, stop.stop_token_ids, (), stop.ignore_eos)),
    speculation=SPECULATIONS,
)
CANCELS = st.builds(
    m.CancelSession,
    session_id=SESSION_IDS,
    keep_tokens=st.none() | COUNTS,
    reason=st.sampled_from(FinishReason),
)


@st.composite
def session_tokens(draw: st.DrawFn) -> m.SessionTokens:
    ids = draw(ID_LISTS)
    return m.SessionTokens(draw(COUNTS), ids, draw(st.integers(0, len(ids))))


SESSION_EVENTS = (
    st.builds(m.SessionStarted, seed=st.integers(0, limits.MAX_SEED), epoch=EPOCHS)
    | session_tokens()
    | st.builds(
        m.SessionFinished,
        reason=st.sampled_from(FinishReason),
        usage=USAGES,
        speculation=STATS,
        stop_token_id=st.none() | U32,
    )
)
TURNS = st.builds(m.ChatTurn, role=st.sampled_from(["system", "user", "assistant"]), content=st.text())
GENERATION_REQUESTS = st.builds(
    m.GenerationRequest,
    input=st.text()
    | st.lists(IDS, min_size=1, max_size=6).map(tuple)
    | st.lists(TURNS, min_size=1, max_size=3).map(tuple),
    sampling=SAMPLINGS,
    stop=STOPS,
    speculation=SPECULATIONS,
    model=NAMES,
)


@st.composite
def generation_deltas(draw: st.DrawFn) -> m.GenerationDelta:
    ids = draw(ID_LISTS)
    return m.GenerationDelta(draw(st.text()), ids, draw(st.integers(0, len(ids))), draw(COUNTS))


GENERATION_EVENTS = (
    st.builds(m.GenerationStarted, generation_id=NAMES, model=NAMES, seed=st.integers(0, limits.MAX_SEED))
    | generation_deltas()
    | st.builds(m.GenerationFinished, reason=st.sampled_from(FinishReason), usage=USAGES, speculation=STATS)
)
