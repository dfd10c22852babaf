"""Tests of ours and the reference selection service as replicas of each other.

Runs only where SELECT_SERVICE_REFERENCE_PYTHON names a Python that has ai-dynamo-runtime.
"""

import pytest

from tests.builders.polling import eventually
from tests.builders.reference_python import NEEDS_REFERENCE, PYTHON
from tests.process.access import OPEN, Keyed
from tests.process.replica_processes import Replica, mesh, until_equal

pytestmark = NEEDS_REFERENCE


@pytest.fixture(scope="module", params=["open", "callers of ours have keys"])
def pair(request, tmp_path_factory):
    """Yield ours and the reference after a reservation has arrived in both directions."""
    access = OPEN if request.param == "open" else Keyed(tmp_path_factory.mktemp("keys"))
    with Replica(access=access) as ours, Replica(python=PYTHON) as theirs:
        mesh(ours, theirs)
        for sender, receiver in ((ours, theirs), (theirs, ours)):
            eventually(lambda s=sender, r=receiver: comes_through(s, r))
        yield ours, theirs


def comes_through(sender, receiver):
    sender.reserve("probe", hashes=(7,))
    arrived = receiver.requests() > 0
    sender.free("probe")
    eventually(lambda: receiver.requests() == 0)
    return arrived


def both_ways(pair):
    return (pair, pair[::-1])


def test_a_selection_with_booking_leads_to_equal_loads(pair):
    for here, there in both_ways(pair):
        assert here.select_and_reserve("s", hashes=range(100, 117)) == 200
        until_equal(here, there, requests=1)
        assert sum(row[0] for row in there.loads().values()) == 68
        here.free("s")
        until_equal(here, there, requests=0)


def test_a_reservation_lives_through_all_its_states_with_equal_loads(pair):
    for here, there in both_ways(pair):
        assert here.reserve("r1", hashes=(21, 22), worker_id=1, dp_rank=1) == 201
        assert here.reserve("r2", hashes=(21, -22, 23), worker_id=1, dp_rank=1) == 201
        assert here.reserve("r3", hashes=(5, 6), worker_id=2, lora_name="ad") == 201
        until_equal(here, there, requests=3)
        assert here.complete("r1") == 200
        eventually(lambda h=here, t=there: h.loads() == t.loads())
        assert there.loads()[(1, 1)] == (12, 4, 2)
        for name in ("r1", "r2", "r3"):
            assert here.free(name) == 200
        until_equal(here, there, requests=0)


def test_a_reservation_of_the_other_can_be_completed_and_freed(pair):
    for here, there in both_ways(pair):
        assert here.reserve("shared") == 201
        until_equal(here, there, requests=1)
        assert there.complete("shared") == 200
        eventually(lambda h=here: h.loads()[(1, 0)] == (0, 3, 1))
        assert there.free("shared") == 200
        until_equal(here, there, requests=0)


def test_prompts_of_tokens_are_counted_in_the_same_blocks(pair):
    for here, there in both_ways(pair):
        tokens = list(range(1, 35))
        assert here.reserve("tokens", token_ids=tokens, effective_prefill_tokens=34) == 201
        until_equal(here, there, requests=1)
        assert there.loads()[(1, 0)] == (34, 8, 1)
        here.free("tokens")
        until_equal(here, there, requests=0)


def test_hundreds_of_reservations_from_both_sides_add_up(pair):
    ours, theirs = pair
    for number in range(150):
        for prefix, replica in (("o", ours), ("t", theirs)):
            hashes = range(100 * (number % 7), 100 * (number % 7) + 5)
            worker_id = 1 + number % 2
            assert replica.reserve(f"{prefix}{number}", hashes=hashes, worker_id=worker_id) == 201
    until_equal(ours, theirs, requests=300)
    for number in range(150):
        assert theirs.free(f"o{number}") in (200, 404)
        assert ours.free(f"t{number}") == 200
    until_equal(ours, theirs, requests=0)
