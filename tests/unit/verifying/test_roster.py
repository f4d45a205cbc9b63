"""Who runs, waits and gives way, over a real block pool: everybody's turn comes, and everybody ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.params import SamplingParams, SpeculationParams, StopParams
from outrider.core.sessions import SessionRecord
from outrider.engine.api import PoolUsage
from outrider.engine.pool import BlockPool
from outrider.engine.sequence import Sequence
from outrider.verifying.roster import Roster
from outrider.verifying.session import Drafting, Session

BLOCK = 4


class Pool:
    """The part of an engine that the roster uses; nothing is computed."""

    def __init__(self, blocks: int) -> None:
        self.blocks = BlockPool(blocks, BLOCK)

    @property
    def pool(self) -> PoolUsage:
        return PoolUsage(self.blocks.total, self.blocks.used, self.blocks.cached)

    def open(self, token_ids: list[int], *, reuse: int | None = None, salt: str = "") -> Sequence:
        return Sequence(self.blocks, token_ids, reuse=reuse, salt=salt)

    def reserve(self, sequence: Sequence, count: int) -> bool:
        return sequence.grow(count) is not None

    def release(self, sequence: Sequence) -> None:
        sequence.close()


@dataclass
class Machine:
    """Steps that give each running session one token."""

    blocks: int = 16
    max_sessions: int = 4
    preemptions: int = 0
    starts: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = Pool(self.blocks)
        self.roster = Roster(
            self.engine,  # type: ignore[arg-type]
            max_sessions=self.max_sessions,
            block_size=BLOCK,
            preempted=self.preempt,
        )
        self.lengths: dict[str, int] = {}  # after how many tokens each session ends

    def preempt(self) -> None:
        self.preemptions += 1

    def arrive(
        self, tenant: str, prompt: int = 4, most: int = 4, *, ends: int | None = None, epoch: int = 1
    ) -> str:
        order = len(self.lengths) + 1
        record = SessionRecord(
            f"{tenant}{order}",
            tuple(range(100 * order, 100 * order + prompt)),
            SamplingParams(),
            StopParams(most, frozenset()),
            SpeculationParams(),
            epoch=epoch,
            tenant=tenant,
        )
        self.lengths[record.session_id] = most if ends is None else ends
        self.roster.add(Session.admitted(record, order, Drafting()))
        return record.session_id

    def step(self) -> None:
        roster = self.roster
        roster.start_waiting()
        for session in list(roster.running):
            if session.session_id not in self.starts:
                self.starts.append(session.session_id)
        assert len(roster.running) <= self.max_sessions
        assert bool(roster.running) == bool(len(roster)), "somebody runs while somebody is here"
        oldest = roster.running[0] if roster.running else None
        for session in list(roster.running):
            if session.sequence is not None and roster.make_room(session, session.missing, 0) is not None:
                self._advance(session)
        assert oldest is None or oldest.generated or oldest.session_id in self.ended

    def _advance(self, session: Session) -> None:
        assert isinstance(session.sequence, Sequence)
        session.sequence.append(session.tokens[session.sequence.kv_len :])
        session.tokens.append(7)
        if session.generated == self.lengths[session.session_id]:
            self.roster.remove(session)
            self.ended.append(session.session_id)

    def run(self) -> None:
        while len(self.roster):
            self.step()
        assert self.engine.pool.used == 0


def test_one_tenants_flood_does_not_keep_anothers_single_request_waiting() -> None:
    """It starts as soon as one of those that ran when it came has ended."""
    machine = Machine()
    for _ in range(1000):
        machine.arrive("flood")
    for _ in range(30):
        machine.step()
    ran = len(machine.starts)
    single = machine.arrive("single")
    while single not in machine.starts:
        machine.step()
    assert machine.starts.index(single) == ran
    machine.run()
    assert len(machine.ended) == 1001


def test_it_does_not_wait_either_while_the_floods_sessions_fill_the_pool_and_give_way() -> None:
    machine = Machine(blocks=16, max_sessions=8)
    for _ in range(100):
        machine.arrive("flood", prompt=4, most=40)
    for _ in range(60):
        machine.step()
    assert machine.preemptions > 0
    ended = len(machine.ended)
    single = machine.arrive("single")
    while single not in machine.starts:
        machine.step()
    assert len(machine.ended) <= ended + 1


def test_a_session_that_gave_way_pays_once() -> None:
    """Equal requests of two tenants get equal shares although sessions are preempted again and again."""
    machine = Machine(blocks=8, max_sessions=4)
    for _ in range(40):
        machine.arrive("a", prompt=4, most=20)
        machine.arrive("b", prompt=4, most=20)
    while len(machine.ended) < 40:
        machine.step()
    assert machine.preemptions > 10
    counts = Counter(session_id[0] for session_id in machine.ended)
    assert abs(counts["a"] - counts["b"]) <= 2
    machine.run()


def test_a_session_from_elsewhere_goes_before_its_tenants_new_ones() -> None:
    machine = Machine(max_sessions=1)
    machine.arrive("a")
    machine.step()
    machine.arrive("a")
    taken_over = machine.arrive("a", epoch=2)
    machine.run()
    assert machine.starts[1] == taken_over


def test_one_that_ends_before_its_first_turn_costs_its_tenant_nothing() -> None:
    machine = Machine(max_sessions=1)
    machine.arrive("b")
    machine.step()
    gone = machine.arrive("a", most=40)
    session = machine.roster.get(gone)
    assert session is not None
    machine.roster.remove(session)
    next_of_a, next_of_b = machine.arrive("a"), machine.arrive("b")
    machine.run()
    assert machine.starts.index(next_of_a) < machine.starts.index(next_of_b)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(1, 30),  # prompt
            st.integers(1, 30),  # most tokens
            st.integers(1, 30),  # after how many it ends
            st.integers(0, 8),  # steps until the next arrival
        ),
        max_size=40,
    ),
    st.integers(15, 40),
    st.integers(1, 8),
)
def test_every_session_starts_and_ends(
    arrivals: list[tuple[str, int, int, int, int]], blocks: int, max_sessions: int
) -> None:
    """Whatever comes, and however small the pool: 15 blocks hold the longest one alone."""
    machine = Machine(blocks, max_sessions)
    for tenant, prompt, most, ends, pause in arrivals:
        machine.arrive(tenant, prompt, most, ends=min(ends, most))
        for _ in range(pause):
            machine.step()
    machine.run()
    assert Counter(machine.ended) == Counter(machine.lengths.keys())
    for tenant in "abc":
        firsts = [int(one[1:]) for one in machine.starts if one[0] == tenant]
        assert firsts == sorted(firsts), "in turn within a tenant"
