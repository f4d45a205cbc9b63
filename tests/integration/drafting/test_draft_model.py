"""A draft model through the real engine proposes exactly what the plain forward would."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.config.schema import DrafterConfig
from outrider.core.params import SamplingParams
from outrider.core.rounds import Proposal, StaleReason
from outrider.drafting.factory import build_method
from outrider.drafting.model.draft_model import DraftModel
from outrider.drafting.scheduler import DraftScheduler
from outrider.wire.messages import AdvanceDraft, CloseDraft, OpenDraft, Stale
from tests.integration.drafting.oracle import Oracle
from tests.tiny_models import make_tiny

VOCAB = 300
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=7),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.9, min_p=0.01, seed=2**64 - 1),
)
PROMPT = tuple(3 + (7 * i * i + i) % (VOCAB - 3) for i in range(100))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("draft"), vocab_size=VOCAB, max_position=160)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle(folder)


def load(folder: Path, **fields: object) -> DraftModel:
    values = {"dtype": "float32", "pool_tokens": 1024, "block_size": 8, "prefill_chunk": 16} | fields
    method = build_method(DrafterConfig(model=str(folder), **values), str(folder))  # type: ignore[arg-type]
    assert isinstance(method, DraftModel)
    return method


class Driver:
    """A scheduler with its method, driven by hand, and what each session holds."""

    def __init__(
        self, method: DraftModel, *, run_ahead: int = 0, max_sessions: int = 8, evicted_rest_s: float = 0.0
    ) -> None:
        self.scheduler = DraftScheduler(
            method,
            max_sessions=max_sessions,
            max_draft_tokens=6,
            run_ahead=run_ahead,
            evicted_rest_s=evicted_rest_s,
        )
        self.method = method
        self.evicted = 0

    def put(self, command: OpenDraft | AdvanceDraft | CloseDraft) -> None:
        self.scheduler.apply(1, command, time.perf_counter_ns())

    def step(self) -> list[Proposal | Stale]:
        self.scheduler.step()
        happened = self.scheduler.take()
        self.evicted += happened.evicted
        return [answer.event for answer in happened.answers]

    def rest(self) -> list[Proposal | Stale]:
        events = self.step()
        for _ in range(2000):
            if not self.scheduler.has_work:
                return events
            events += self.step()
        raise AssertionError("the scheduler does not come to rest")

    def ask(self, command: OpenDraft | AdvanceDraft) -> Proposal | Stale:
        self.put(command)
        (event,) = self.rest()
        return event

    def close(self) -> None:
        self.scheduler.drop_stream(1)
        assert self.method.usage == 0


def tokens_of(event: Proposal | Stale) -> tuple[int, ...]:
    assert isinstance(event, Proposal), event
    return event.tree.token_ids


@pytest.mark.parametrize("params", PARAMS)
def test_all_is_accepted_when_the_draft_is_the_target(
    folder: Path, oracle: Oracle, params: SamplingParams
) -> None:
    driver = Driver(load(folder), run_ahead=6)
    tokens = PROMPT[:40]
    draft = tokens_of(driver.ask(OpenDraft("a", 1, tokens, params, 4)))
    hits = 0
    for _ in range(6):
        emitted = oracle.propose(tokens, params, 5)
        assert draft == emitted[:4]
        event = driver.ask(AdvanceDraft("a", 1, len(tokens), emitted, 4, 4))
        tokens += emitted
        draft = tokens_of(event)
        hits += isinstance(event, Proposal) and event.run_ahead_hit
    assert hits == 6
    driver.close()


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("run_ahead", [0, 6])
@pytest.mark.parametrize("accepted", [0, 1, 3])
@pytest.mark.parametrize("more", [0, 4])
def test_what_was_drafted_otherwise_is_rolled_back(
    methods: Callable[[int, bool], DraftModel],
    oracle: Oracle,
    params: SamplingParams,
    run_ahead: int,
    accepted: int,
    more: int,
) -> None:
    """`accepted` draft tokens, one that was drafted otherwise, and `more` that were not drafted at all."""
    driver = Driver(methods(1024, False), run_ahead=run_ahead)
    tokens = PROMPT[:40]
    draft = tokens_of(driver.ask(OpenDraft("a", 1, tokens, params, 5)))
    for _ in range(2):
        other = (draft[accepted] + 1) % VOCAB
        committed = (*draft[:accepted], other, *PROMPT[:more])
        event = driver.ask(AdvanceDraft("a", 1, len(tokens), committed, accepted, 5))
        tokens += committed
        draft = tokens_of(event)
        assert draft == oracle.propose(tokens, params, 5)
    driver.close()


def test_reduced_vocabulary(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    reduced = tmp_path / "reduced"
    reduced.mkdir()
    for path in folder.iterdir():
        (reduced / path.name).write_bytes(path.read_bytes())
    ids = torch.arange(5, VOCAB, 3, dtype=torch.int32)
    save_file({"draft_vocabulary": ids}, reduced / "draft_vocabulary.safetensors")
    driver = Driver(load(reduced))
    oracle = Oracle(folder, ids.long())
    for index, params in enumerate(PARAMS):
        draft = tokens_of(driver.ask(OpenDraft(f"s{index}", 1, PROMPT[:30], params, 5)))
        assert draft == oracle.propose(PROMPT[:30], params, 5)
        assert set(draft) <= set(ids.tolist())
    driver.close()


@pytest.mark.parametrize("kind", ["qwen2", "gpt2", "gemma2"])
def test_other_architectures(tmp_path: Path, kind: str) -> None:
    folder = make_tiny(kind, tmp_path, vocab_size=VOCAB)
    draft = tokens_of(Driver(load(folder)).ask(OpenDraft("a", 1, PROMPT[:50], PARAMS[1], 5)))
    assert draft == Oracle(folder).propose(PROMPT[:50], PARAMS[1], 5)


def test_a_long_prefill_does_not_hold_up_others(folder: Path) -> None:
    driver = Driver(load(folder))
    driver.put(OpenDraft("long", 1, PROMPT, PARAMS[0], 2))
    driver.put(OpenDraft("short", 1, PROMPT[:9], PARAMS[0], 3))
    order = [event.session_id for event in driver.rest()]
    assert order == ["short", "long"]
    driver.close()


def test_sessions_share_each_forward(folder: Path) -> None:
    driver = Driver(load(folder))
    for index in range(5):
        driver.put(OpenDraft(f"s{index}", 1, PROMPT[: 5 + index], PARAMS[1], 1 + index))
    lengths = []
    batches: list[int] = []
    while driver.scheduler.has_work:
        driver.scheduler.step()
        happened = driver.scheduler.take()
        batches += happened.batches
        lengths += [len(tokens_of(answer.event)) for answer in happened.answers]
    assert lengths == [1, 2, 3, 4, 5]
    assert batches == [5, 4, 3, 2, 1]
    driver.close()


def test_run_ahead_waits_for_those_who_wait(folder: Path, oracle: Oracle) -> None:
    driver = Driver(load(folder), run_ahead=6)
    driver.put(OpenDraft("a", 1, PROMPT[:9], PARAMS[0], 1))
    driver.step()
    assert driver.scheduler.has_work  # run-ahead is left
    driver.put(OpenDraft("b", 1, PROMPT[:7], PARAMS[0], 2))
    driver.scheduler.step()
    assert driver.scheduler.take().batches == [1]  # b alone
    (event,) = driver.rest()
    assert tokens_of(event) == oracle.propose(PROMPT[:7], PARAMS[0], 2)
    driver.close()


def test_keeping_up_leaves_little_to_do(folder: Path) -> None:
    method = load(folder, prefill_chunk=256)
    driver = Driver(method)
    driver.put(OpenDraft("a", 1, PROMPT, PARAMS[0], 0))
    assert driver.rest() == []
    driver.put(AdvanceDraft("a", 1, len(PROMPT), (5, 6), 0, 1))
    assert len(driver.step()) == 1  # one forward
    driver.close()


def test_context_of_the_draft_model(folder: Path, oracle: Oracle) -> None:
    driver = Driver(load(folder))
    tokens = (PROMPT * 2)[:158]
    draft = tokens_of(driver.ask(OpenDraft("a", 1, tokens, PARAMS[0], 6)))
    assert draft == oracle.propose(tokens, PARAMS[0], 3)  # the last one stands past the 160th position
    event = driver.ask(AdvanceDraft("a", 1, 158, (9, 9, 9), 0, 4))
    assert isinstance(event, Stale) and event.reason is StaleReason.TOO_LONG
    event = driver.ask(OpenDraft("a", 1, (*tokens, 9, 9, 9), PARAMS[0], 4))
    assert isinstance(event, Stale) and event.reason is StaleReason.TOO_LONG
    driver.close()


def test_full_pool(folder: Path, oracle: Oracle) -> None:
    driver = Driver(load(folder, pool_tokens=256, prefix_cache=False), run_ahead=4)
    for name in ("a", "b", "c"):
        tokens_of(driver.ask(OpenDraft(name, 1, (ord(name), *PROMPT), PARAMS[1], 3)))
    event = driver.ask(AdvanceDraft("a", 1, 101, (1,), 0, 3))
    assert isinstance(event, Stale) and event.reason is StaleReason.UNKNOWN
    tokens = (ord("a"), *PROMPT, 1)
    draft = tokens_of(driver.ask(OpenDraft("a", 1, tokens, PARAMS[1], 3)))  # drops b
    assert draft == oracle.propose(tokens, PARAMS[1], 3)
    assert isinstance(driver.ask(AdvanceDraft("b", 1, 101, (1,), 0, 3)), Stale)
    driver.close()


def test_more_sessions_than_fit_do_not_push_each_other_out_for_ever(folder: Path, oracle: Oracle) -> None:
    """Three sessions take turns in a pool for two, each opened again as soon as it is not known."""
    method = load(folder, pool_tokens=256, prefix_cache=False)
    driver = Driver(method, evicted_rest_s=3600.0)
    tokens = {name: (ord(name), *PROMPT) for name in ("a", "b", "c")}
    held: set[str] = set()
    outcomes: dict[str, list[object]] = {name: [] for name in tokens}
    for _ in range(8):
        for name, mine in tokens.items():
            if name in held:
                tokens[name] = (*mine, 1)
                event = driver.ask(AdvanceDraft(name, 1, len(mine), (1,), 0, 2))
                if isinstance(event, Stale) and event.reason is StaleReason.UNKNOWN:
                    event = driver.ask(OpenDraft(name, 1, tokens[name], PARAMS[0], 2))
            else:
                event = driver.ask(OpenDraft(name, 1, mine, PARAMS[0], 2))
            (held.discard if isinstance(event, Stale) else held.add)(name)
            if isinstance(event, Proposal):
                assert event.tree.token_ids == oracle.propose(tokens[name], PARAMS[0], 2)
            outcomes[name].append(getattr(event, "reason", "drafts"))
    assert driver.evicted == 1
    assert outcomes == {
        "a": ["drafts", *[StaleReason.FULL] * 7],
        "b": ["drafts"] * 8,
        "c": ["drafts"] * 8,
    }
    driver.put(CloseDraft("b", 1))  # there is room again
    assert isinstance(driver.ask(OpenDraft("a", 1, tokens["a"], PARAMS[0], 2)), Proposal)
    driver.close()


def test_a_session_larger_than_the_pool(tmp_path: Path) -> None:
    folder = make_tiny("llama", tmp_path, vocab_size=VOCAB)
    driver = Driver(load(folder, pool_tokens=256))
    event = driver.ask(OpenDraft("a", 1, PROMPT * 3, PARAMS[0], 2))
    assert isinstance(event, Stale) and event.reason is StaleReason.TOO_LONG
    driver.close()


NAMES = st.sampled_from("abbbcd")
ACTIONS = st.one_of(
    st.tuples(st.just("open"), NAMES, st.integers(1, 90), st.sampled_from(PARAMS), st.integers(0, 7)),
    st.tuples(st.just("advance"), NAMES, st.integers(0, 6), st.booleans(), st.integers(0, 7)),
    st.tuples(st.just("advance"), NAMES, st.integers(0, 6), st.booleans(), st.integers(0, 7)),
    st.tuples(st.just("advance"), NAMES, st.integers(0, 6), st.booleans(), st.integers(0, 7)),
    st.tuples(st.just("close"), NAMES),
    st.tuples(st.just("step"), st.integers(1, 4)),
    st.tuples(st.just("step"), st.integers(4, 12)),
    st.tuples(st.just("step"), st.integers(4, 12)),
)


@pytest.fixture(scope="module")
def methods(folder: Path) -> Callable[[int, bool], DraftModel]:
    loaded: dict[tuple[int, bool], DraftModel] = {}

    def get(pool: int, prefix_cache: bool) -> DraftModel:
        key = (pool, prefix_cache)
        if key not in loaded:
            loaded[key] = load(folder, pool_tokens=pool, prefix_cache=prefix_cache)
        return loaded[key]

    return get


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    actions=st.lists(ACTIONS, min_size=15, max_size=40),
    run_ahead=st.sampled_from([0, 3, 8]),
    pool=st.sampled_from([256, 1024]),
    prefix_cache=st.booleans(),
)
def test_any_interleaving(
    methods: Callable[[int, bool], DraftModel],
    oracle: Oracle,
    actions: list[tuple[object, ...]],
    run_ahead: int,
    pool: int,
    prefix_cache: bool,
) -> None:
    """Whatever was opened, committed, rolled back, dropped or run ahead: the same proposals."""
    world = World(Driver(methods(pool, prefix_cache), run_ahead=run_ahead, max_sessions=3), oracle)
    try:
        for action, *values in actions:
            getattr(world, f"do_{action}")(*values)
        world.see(world.driver.rest())
        assert not world.wanted, "proposals are owed for ever"
    finally:
        world.driver.close()


class World:
    """The verifier's side of several sessions, checking each proposal against the oracle."""

    def __init__(self, driver: Driver, oracle: Oracle) -> None:
        self.driver = driver
        self.oracle = oracle
        self.tokens: dict[str, tuple[int, ...]] = {}
        self.params: dict[str, SamplingParams] = {}
        self.wanted: dict[str, int] = {}

    def do_open(self, name: str, length: int, params: SamplingParams, draft: int) -> None:
        self.tokens[name] = PROMPT[:length]
        self.params[name] = params
        self._ask(name, draft)
        self.driver.put(OpenDraft(name, 1, self.tokens[name], params, draft))

    def do_advance(self, name: str, accepted: int, agrees: bool, draft: int) -> None:
        """`accepted` tokens that the draft model would have picked, then one that it would or would not."""
        if name not in self.tokens or len(self.tokens[name]) > 140:
            self.do_open(name, 30 + accepted, PARAMS[accepted % 3], draft)
            return
        base = self.tokens[name]
        picks = self.oracle.propose(base, self.params[name], accepted + 1)
        committed = picks if agrees else (*picks[:-1], (picks[-1] + 1) % VOCAB)
        self.tokens[name] = base + committed
        self._ask(name, draft)
        self.driver.put(AdvanceDraft(name, 1, len(base), committed, accepted, draft))

    def do_close(self, name: str) -> None:
        self.tokens.pop(name, None)
        self.wanted.pop(name, None)
        self.driver.put(CloseDraft(name, 1))

    def do_step(self, count: int) -> None:
        for _ in range(count):
            self.see(self.driver.step())

    def see(self, events: list[Proposal | Stale]) -> None:
        for event in events:
            name = event.session_id
            if isinstance(event, Stale):
                assert event.reason in (StaleReason.UNKNOWN, StaleReason.FULL)
                assert "failed" not in event.detail  # nothing but room was missing
                self.tokens.pop(name, None)
                self.wanted.pop(name, None)
            elif event.base_len == len(self.tokens.get(name, ())):  # it may be opened again after the Stale
                expected = self.oracle.propose(self.tokens[name], self.params[name], self.wanted.pop(name))
                assert event.tree.token_ids == expected

    def _ask(self, name: str, draft: int) -> None:
        self.wanted.pop(name, None)
        if draft:
            self.wanted[name] = min(draft, 6)
