"""Tests of prices between link groups against the price of each pair, to the last bit."""

from math import inf
from random import Random

import numpy as np
import pytest

from select_service.core.pairs.link_groups import GROUPS_MAX, compute_prices, make_link_groups
from select_service.core.workers.transfer_prices import DomainRule, LinkPosition, price_between

KINDS = ["rack", "zone", "row"]
FLEETS, POSITIONS = 200, 12


def random_position(rng):
    names = {kind: f"{kind}{rng.randrange(3)}" for kind in KINDS if rng.random() < 0.6}
    return LinkPosition(
        host=rng.choice([None, "a", "b", "c", "d"]),
        bytes_per_token=rng.choice([None, 131_072.0, 70_000.0]),
        link_gbps=rng.choice([None, 25.0, 400.0]),
        domains=tuple(sorted(names.items())),
        domain=rng.choice([None, *KINDS, "unheard"]),
        is_required=rng.random() < 0.3,
        preference=rng.choice([0.0, 0.5, 0.85, 1.0]),
    )


def random_rule(rng):
    preference = rng.choice([0.0, 0.3, 1.0])
    return DomainRule(rng.choice([*KINDS, "unheard"]), rng.random() < 0.5, preference)


def check_prices(groups, rule):
    found = compute_prices(groups, rule)
    positions = groups.positions
    expected = [[price_between(p, d, groups.speed, rule) for d in positions] for p in positions]
    assert found.price.reshape(len(positions), -1).tolist() == expected
    for decode, into in enumerate(positions):
        prices = [
            expected[prefill][decode]
            for prefill, out in enumerate(positions)
            if out.host is None or out.host != into.host
        ]
        assert found.least[decode] == min(prices, default=inf)


@pytest.mark.parametrize("seed", range(FLEETS))
def test_prices_agree_with_each_pair_of_positions(seed):
    rng = Random(seed)
    positions = {slot: random_position(rng) for slot in range(rng.randrange(POSITIONS + 1))}
    groups = make_link_groups(positions, POSITIONS, rng.choice([None, 1000.0, 30_000.0]))
    check_prices(groups, None)
    check_prices(groups, random_rule(rng))


def test_groups_beyond_the_limit_count_as_unknown_positions():
    positions = {slot: LinkPosition(host=f"h{slot}") for slot in range(GROUPS_MAX + 9)}
    groups = make_link_groups(positions, len(positions), None)
    assert len(groups.positions) == GROUPS_MAX
    beyond = np.flatnonzero(groups.group == 0)
    assert beyond.tolist() == list(range(GROUPS_MAX - 1, GROUPS_MAX + 9))
    assert compute_prices(groups).price.shape == (GROUPS_MAX**2,)
