"""Test of a client over three selectors killed in turn: every caller gets an answer."""

import asyncio
from contextlib import ExitStack

import pytest

from tests.process.access import access
from tests.process.client_outage import FLAGS, outage
from tests.process.replica_processes import Replica, mesh

pytestmark = pytest.mark.process
LEASES = 300


@pytest.mark.parametrize("is_secured", [False, True])
def test_every_caller_gets_a_rank_or_an_error_and_no_reservation_stays(is_secured):
    with ExitStack() as kept:
        how = kept.enter_context(access(is_secured))
        replicas = [Replica(*FLAGS, access=how) for _ in range(3)]
        for each in replicas:
            kept.enter_context(each)
        mesh(*replicas)
        seen = asyncio.run(outage(replicas, LEASES, 10, lease_s=0.4, every_s=2.0, access=how))
    assert seen.served + seen.told.total() == LEASES
    assert seen.served >= 0.9 * LEASES
    assert seen.kills >= 2
    assert (seen.double, seen.left) == (0, 0)
    assert seen.slowest_s < 6.0
