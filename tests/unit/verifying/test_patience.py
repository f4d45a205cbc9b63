"""How long a proposal is worth waiting for. The clock is a number."""

from outrider.verifying.patience import Patience


def make() -> Patience:
    return Patience(limit_s=0.25, max_misses=3, rest_s=1.0)


def test_a_new_drafter_gets_all_the_patience_there_is() -> None:
    assert make().wait_s(0.0) == 0.25


def test_patience_follows_the_latency_within_bounds() -> None:
    patience = make()
    patience.observe(0.020)
    assert patience.wait_s(0.0) == 0.080
    patience.observe(10.0)
    assert patience.wait_s(0.0) == 0.25
    quick = make()
    quick.observe(0.0001)
    assert quick.wait_s(0.0) == 0.020


def test_misses_in_a_row_rest_the_drafter_and_a_proposal_breaks_the_row() -> None:
    patience = make()
    for _ in range(2):
        patience.miss(0.0)
    assert not patience.hit()
    for _ in range(2):
        patience.miss(0.0)
    assert patience.wait_s(0.0) > 0
    patience.miss(0.0)
    assert patience.resting(0.5) and patience.wait_s(0.5) == 0


def test_a_missed_probe_doubles_the_rest_up_to_a_bound() -> None:
    patience = make()
    for _ in range(3):
        patience.miss(0.0)
    now, rests = 1.0, []
    for _ in range(8):
        assert not patience.resting(now)
        patience.miss(now)
        end = now
        while patience.resting(end):
            end += 0.5
        rests.append(end - now)
        now = end
    assert rests == [2, 4, 8, 16, 32, 32, 32, 32]


def test_a_proposal_in_time_ends_the_probing() -> None:
    patience = make()
    for _ in range(3):
        patience.miss(0.0)
    assert patience.hit()
    patience.miss(2.0)
    assert not patience.resting(2.0)


def test_patience_grows_with_misses_so_that_a_slower_drafter_is_not_missed_for_ever() -> None:
    patience = Patience(limit_s=0.25, max_misses=100, rest_s=1.0)
    patience.observe(0.001)
    for _ in range(10):
        patience.miss(0.0)
    assert patience.wait_s(0.0) == 0.25


def test_a_wait_that_began_before_the_rest_is_no_probe() -> None:
    patience = make()
    for _ in range(3):
        patience.miss(0.0)
    for _ in range(5):  # other sessions waited too
        patience.miss(0.1)
    assert patience.resting(0.9) and not patience.resting(1.0)
