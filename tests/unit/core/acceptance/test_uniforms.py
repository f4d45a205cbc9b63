"""The random numbers of the rules: separate for each purpose, fresh each round, the same when taken again."""

from __future__ import annotations

import torch

from outrider.core.acceptance import Round, draft_uniforms, round_uniforms
from outrider.core.acceptance.uniforms import (
    DOMAIN_ACCEPT,
    DOMAIN_BONUS,
    DOMAIN_DRAFT,
    DOMAIN_RESIDUAL,
    RoundUniforms,
)
from outrider.core.noise import DOMAIN_GROUP, DOMAIN_TOKEN
from tests.unit.core.reference_noise import numerator, philox

BIG = 2**63 + 12345


def all_of(own: RoundUniforms, nodes: int) -> list[float]:
    return [own.residual(), own.bonus(), *(own.accept(node) for node in range(nodes))]


def test_domains_are_different_from_each_other_and_from_the_coupled_noise() -> None:
    domains = [DOMAIN_GROUP, DOMAIN_TOKEN, DOMAIN_DRAFT, DOMAIN_ACCEPT, DOMAIN_RESIDUAL, DOMAIN_BONUS]
    assert len(set(domains)) == len(domains)


def test_no_number_is_there_twice() -> None:
    rounds = [Round(seed, base_len, 4) for seed in (0, 1, BIG) for base_len in range(1, 40)]
    values = [value for own in round_uniforms(rounds) for value in all_of(own, 4)]
    values += draft_uniforms(
        [(seed, since, at) for seed, since, _ in rounds for at in range(since, since + 5)]
    )
    assert len(set(values)) == len(values)
    assert all(0.0 < value < 1.0 for value in values)


def test_a_round_taken_again_sees_the_same_in_any_batch() -> None:
    one, other = Round(BIG, 17, 3), Round(5, 900, 8)
    alone = all_of(round_uniforms([one])[0], 3)
    assert all_of(round_uniforms([other, one])[1], 3) == alone
    assert all_of(round_uniforms([Round(BIG, 17, 8)])[0], 3) == alone  # nor does the proposal's length matter
    assert draft_uniforms([(BIG, 17, 20), (BIG, 17, 21)])[1:] == draft_uniforms([(BIG, 17, 21)])


def test_nothing_to_draw() -> None:
    assert round_uniforms([]) == []
    assert draft_uniforms([]) == []
    assert len(all_of(round_uniforms([Round(1, 2, 0)])[0], 0)) == 2


def test_they_look_uniform() -> None:
    """Not the law (that is Philox's), only that no bits are lost on the way."""
    values = torch.tensor(draft_uniforms([(7, 1, position) for position in range(4096)]), dtype=torch.float64)
    assert abs(float(values.mean()) - 0.5) < 0.02
    assert float(values.min()) < 0.002 and float(values.max()) > 0.998


def test_they_are_what_the_page_says() -> None:
    """docs/acceptance.md, in plain integers."""
    seed, base_len = BIG, 2**32 + 3
    key = (seed & 0xFFFFFFFF, seed >> 32)

    def value(domain: int, number: int, begin: int) -> float:
        return numerator(philox((number, domain, begin & 0xFFFFFFFF, begin >> 32), key)) / 2**50

    (own,) = round_uniforms([Round(seed, base_len, 2)])
    assert own.accept(1) == value(DOMAIN_ACCEPT, 1, base_len)
    assert own.residual() == value(DOMAIN_RESIDUAL, 0, base_len)
    assert own.bonus() == value(DOMAIN_BONUS, 0, base_len)
    assert draft_uniforms([(seed, base_len, 77)]) == [value(DOMAIN_DRAFT, 77, base_len)]
