"""Hypothesis strategies for everything that passes between services."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from outrider.core import limits
from outrider.core.models import DrafterInfo, ModelInfo
from outrider.core.params import (
    Acceptance,
    Grammar,
    GrammarKind,
    LogitEdits,
    LogprobParams,
    SamplingParams,
    SpeculationParams,
    TokenLogprobs,
)
from outrider.core.rounds import Proposal, StaleReason
from outrider.core.sessions import DrafterStats, FinishReason, SpeculationStats, Usage
from outrider.core.trees import SparseProbs, TokenTree
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
def distributions(draw: st.DrawFn, token_id: int) -> SparseProbs:
    """A distribution that gives `token_id` a chance; dyadic, so that a proto float holds it exactly."""
    others = draw(st.lists(IDS.filter(lambda value: value != token_id), max_size=4, unique=True))
    weights = [1 / 2 ** (1 + place) for place in range(len(others))]
    return SparseProbs((token_id, *others), (1 - sum(weights), *weights))


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Any valid tree: parents first, siblings different; with distributions or without."""
    size = draw(st.integers(0, 8))
    parents = [draw(st.integers(-1, index - 1)) for index in range(size)]
    used: set[tuple[int, int]] = set()
    ids = []
    for parent in parents:
        token = draw(IDS.filter(lambda value, parent=parent: (parent, value) not in used))
        used.add((parent, token))
        ids.append(token)
    probs = [draw(distributions(token_id)) for token_id in ids] if draw(st.booleans()) else []
    return TokenTree(tuple(ids), tuple(parents), tuple(probs))


@st.composite
def features(draw: st.DrawFn) -> m.FeatureBlock:
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    data = draw(st.binary(min_size=2 * rows * columns, max_size=2 * rows * columns))
    return m.FeatureBlock(draw(NAMES), draw(st.integers(0, 2**20 - 3)), rows, columns, data)


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
SEQUENCES = st.lists(IDS, min_size=1, max_size=3).map(tuple)
GRAMMARS = (
    st.just(Grammar(GrammarKind.JSON_OBJECT))
    | st.dictionaries(NAMES, NAMES).map(lambda schema: Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
    | st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=3).map(
        lambda choices: Grammar(GrammarKind.CHOICE, json.dumps(choices))
    )
    | st.builds(
        Grammar,
        st.sampled_from([GrammarKind.REGEX, GrammarKind.GRAMMAR]),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
    )
)
EDITS = st.builds(
    LogitEdits,
    grammar=st.none() | GRAMMARS,
    allowed_token_ids=ID_LISTS,
    bad_words=st.lists(SEQUENCES, max_size=3).map(tuple),
    min_tokens=st.integers(0, 2**31 - 1),
    end_token_ids=ID_LISTS,
    logit_bias=st.dictionaries(IDS, fractions(-100, 100), max_size=4).map(
        lambda bias: tuple(sorted(bias.items()))
    ),
    repetition_penalty=fractions(0.015625, limits.MAX_REPETITION_PENALTY),
    frequency_penalty=fractions(-2, 2),
    presence_penalty=fractions(-2, 2),
)
LOGPROB_COUNTS = st.none() | st.integers(0, limits.MAX_LOGPROBS)
LOGPROB_PARAMS = st.builds(LogprobParams, top=LOGPROB_COUNTS, prompt_top=LOGPROB_COUNTS)
LOGPROBS = st.floats(max_value=0, width=32)
TOKEN_LOGPROBS = st.builds(
    TokenLogprobs,
    token_id=IDS,
    logprob=LOGPROBS,
    rank=st.integers(1, 2**31),
    top=st.lists(st.tuples(IDS, LOGPROBS), max_size=3).map(tuple),
)
PROMPT_LOGPROBS = st.builds(
    m.PromptLogprobs, first_position=COUNTS, entries=st.lists(TOKEN_LOGPROBS, max_size=3).map(tuple)
)


def logprobs_of(ids: tuple[int, ...]) -> st.SearchStrategy[tuple[TokenLogprobs, ...]]:
    """One for each id, or none at all."""
    return st.just(()) | st.tuples(*[TOKEN_LOGPROBS] * len(ids))


SAMPLINGS = st.builds(
    SamplingParams,
    temperature=st.just(0.0) | fractions(0.0078125, limits.MAX_TEMPERATURE),
    top_k=st.integers(0, limits.MAX_TOP_K),
    top_p=fractions(0, 1, exclude_min=True),
    min_p=fractions(0, 1),
    seed=st.integers(0, limits.MAX_SEED),
    typical_p=fractions(0, 1, exclude_min=True),
    edits=st.just(LogitEdits()) | EDITS,
)
REQUESTED_SAMPLINGS = SAMPLINGS.map(lambda one: replace(one, edits=replace(one.edits, end_token_ids=())))
STOPS = st.builds(
    m.StopRequest,
    max_tokens=st.integers(0, 2**31 - 1),
    stop_token_ids=st.frozensets(IDS, max_size=4),
    stop=st.lists(st.text(min_size=1, max_size=8), max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    include_stop=st.booleans(),
)
SPECULATIONS = st.builds(
    SpeculationParams,
    enabled=st.booleans(),
    max_draft_tokens=st.none() | DRAFT_LENGTHS,
    drafter=NAMES,
    acceptance=st.sampled_from(Acceptance),
)
USAGES = st.builds(Usage, prompt_tokens=U32, completion_tokens=U32, cached_prompt_tokens=U32)
DRAFTER_STATS = st.builds(
    DrafterStats,
    name=NAMES,
    asked=U32,
    proposals=U32,
    missed=U32,
    draft_tokens=U32,
    accepted_tokens=U32,
)
STATS = st.builds(
    SpeculationStats,
    rounds=U32,
    drafts=U32,
    draft_tokens=U32,
    accepted_tokens=U32,
    run_ahead_hits=U32,
    missed=U32,
    drafter=NAMES,
    drafters=st.lists(DRAFTER_STATS, max_size=3),
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


@st.composite
def opens(draw: st.DrawFn) -> m.OpenDraft:
    ids = draw(st.lists(IDS, min_size=1, max_size=6).map(tuple))
    return m.OpenDraft(
        session_id=draw(SESSION_IDS),
        epoch=draw(EPOCHS),
        token_ids=ids,
        sampling=draw(SAMPLINGS),
        draft_length=draw(DRAFT_LENGTHS),
        features=draw(FEATURES),
        traceparent=draw(TRACEPARENTS),
        patience_us=draw(U32),
        prompt_len=draw(st.integers(0, len(ids))),
        acceptance=draw(st.sampled_from(Acceptance)),
        draft_nodes=draw(DRAFT_LENGTHS),
        tenant=draw(NAMES),
    )


COMMANDS = opens() | advances() | st.builds(m.CloseDraft, session_id=SESSION_IDS, epoch=EPOCHS)
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
    draining=st.booleans(),
    pool_tokens=U32,
    load=st.builds(
        m.VerifierLoad, running=U32, waiting=U32, max_running=U32, max_waiting=U32, kv_usage=fractions(0, 1)
    ),
)
SESSION_REQUESTS = st.builds(
    m.SessionRequest,
    session_id=SESSION_IDS,
    prompt=st.lists(IDS, min_size=1, max_size=6).map(tuple),
    sampling=REQUESTED_SAMPLINGS,
    stop=STOPS.map(lambda stop: replace(stop, stop=(), include_stop=False)),
    speculation=SPECULATIONS,
    logprobs=LOGPROB_PARAMS,
    cache_salt=NAMES,
    tenant=NAMES,
    presentation=st.binary(max_size=9),
    generated=st.lists(IDS, max_size=3).map(tuple),
    epoch=EPOCHS,
)
RESUMES = st.builds(m.ResumeSession, session_id=SESSION_IDS, from_token=COUNTS, tenant=NAMES) | st.lists(
    IDS, max_size=4
).map(lambda ids: m.ResumeSession("a", len(ids), known=tuple(ids)))
CANCELS = st.builds(
    m.CancelSession,
    session_id=SESSION_IDS,
    keep_tokens=st.none() | COUNTS,
    reason=st.sampled_from(FinishReason),
    park=st.booleans(),
)


@st.composite
def session_tokens(draw: st.DrawFn) -> m.SessionTokens:
    ids = draw(ID_LISTS)
    return m.SessionTokens(draw(COUNTS), ids, draw(st.integers(0, len(ids))), draw(logprobs_of(ids)))


SESSION_EVENTS = (
    st.builds(
        m.SessionStarted,
        seed=st.integers(0, limits.MAX_SEED),
        epoch=EPOCHS,
        presentation=st.binary(max_size=9),
        prompt_tokens=U32,
    )
    | PROMPT_LOGPROBS
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
    sampling=REQUESTED_SAMPLINGS,
    stop=STOPS,
    speculation=SPECULATIONS,
    model=NAMES,
    logprobs=LOGPROB_PARAMS,
    bad_words=st.lists(st.text(min_size=1, max_size=8), max_size=3).map(tuple),
    skip_special_tokens=st.booleans(),
    cache_salt=NAMES,
)


@st.composite
def generation_deltas(draw: st.DrawFn) -> m.GenerationDelta:
    ids = draw(ID_LISTS)
    accepted = draw(st.integers(0, len(ids)))
    return m.GenerationDelta(draw(st.text()), ids, accepted, draw(COUNTS), draw(logprobs_of(ids)))


GENERATION_EVENTS = (
    st.builds(m.GenerationStarted, generation_id=NAMES, model=NAMES, seed=st.integers(0, limits.MAX_SEED))
    | PROMPT_LOGPROBS
    | generation_deltas()
    | st.builds(m.GenerationFinished, reason=st.sampled_from(FinishReason), usage=USAGES, speculation=STATS)
)
