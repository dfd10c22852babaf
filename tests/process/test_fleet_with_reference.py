"""Tests of two replicas of ours and a reference replica: loads and sessions from all sides.

Runs only where SELECT_SERVICE_REFERENCE_PYTHON names a Python that has ai-dynamo-runtime.
"""

import itertools

import pytest

from tests.builders.polling import eventually
from tests.builders.reference_python import HAS_SESSIONS, NEEDS_REFERENCE, PYTHON
from tests.process.replica_processes import TENANT, Replica, mesh, until_equal

pytestmark = NEEDS_REFERENCE
BOOKINGS = 60
"""Number of concurrent bookings at each replica."""
TURN_BLOCKS = 50
NEW_HASHES = itertools.count(10**6)
SESSIONS = ("--session-affinity-ttl-secs", "600") if HAS_SESSIONS else ()
HARD = (*SESSIONS, "--session-affinity-mode", "hard")
needs_sessions = pytest.mark.skipif(not HAS_SESSIONS, reason="this version has no sessions")


@pytest.fixture(scope="module")
def fleet():
    """Yield our two replicas and the reference's, after a reservation of each has reached all."""
    with (
        Replica(*HARD) as first,
        Replica(*HARD) as second,
        Replica(*SESSIONS, python=PYTHON) as theirs,
    ):
        replicas = (first, second, theirs)
        mesh(*replicas)
        connect(replicas)
        yield replicas


def connect(replicas):
    for sender, receiver in itertools.permutations(replicas, 2):
        eventually(lambda s=sender, r=receiver: comes_through(s, r))
    until_equal(*replicas, requests=0)


def comes_through(sender, receiver):
    sender.reserve("probe", hashes=(7,))
    arrived = receiver.requests() > 0
    sender.free("probe")
    eventually(lambda: receiver.requests() == 0)
    return arrived


def turns(fleet):
    """Yield each replica of the fleet with the other two."""
    for number in range(len(fleet)):
        yield fleet[number], fleet[number - 1], fleet[number - 2]


def test_all_replicas_show_the_load_of_calls_at_any_replica(fleet):
    for here, there, elsewhere in turns(fleet):
        assert here.reserve("a", hashes=(21, -22, 23), worker_id=1) == 201
        assert here.reserve("b", hashes=(21, -22), worker_id=1) == 201
        assert here.select_and_reserve("c", hashes=(31, 32, 33)) == 200
        until_equal(*fleet, requests=3)
        assert there.complete("a") == 200
        eventually(lambda: len({str(sorted(each.loads().items())) for each in fleet}) == 1)
        for name in ("a", "b", "c"):
            assert elsewhere.free(name) == 200
        until_equal(*fleet, requests=0)


def test_hundreds_of_reservations_from_all_sides_add_up(fleet):
    for number in range(BOOKINGS):
        hashes = range(100 * (number % 7), 100 * (number % 7) + 5)
        for place, replica in enumerate(fleet):
            name = f"{place}-{number}"
            assert replica.reserve(name, hashes=hashes, worker_id=1 + number % 2) == 201
    until_equal(*fleet, requests=len(fleet) * BOOKINGS)
    for number in range(BOOKINGS):
        for place in range(len(fleet)):
            assert fleet[place - 1].free(f"{place}-{number}") == 200
    until_equal(*fleet, requests=0)


def book_session(replica, name, session_id, **fields):
    """Book a turn of a session with an uncached prompt; return (status, rank)."""
    hashes = [next(NEW_HASHES) for _ in range(TURN_BLOCKS)]
    body = {
        "selection_id": name,
        "model_name": "m",
        **TENANT,
        "block_hashes": hashes,
        "sequence_hashes": hashes,
        "isl_tokens": 4 * TURN_BLOCKS,
        "session_id": session_id,
        **fields,
    }
    status, answer = replica.post("/select_and_reserve", body)
    return status, (answer.get("worker_id"), answer.get("dp_rank"))


def bind_session(replica, name, session_id):
    """Book a session's first turn on the second worker; return the rank.

    Other requests never take this rank.
    """
    status, rank = book_session(replica, name, session_id, allowed_worker_ids=[2])
    assert (status, rank[0]) == (200, 2)
    assert rank_of(replica, "unknown") != rank
    return rank


def rank_of(replica, session_id):
    """Return the rank that a turn of the session would get."""
    body = {"model_name": "m", **TENANT, "token_ids": [1], "session_id": session_id}
    status, answer = replica.post("/select", body)
    assert status == 200
    return answer["worker_id"], answer["dp_rank"]


def known_sessions(replica):
    """Return the ids of the sessions that a replica of ours has."""
    return {each["session_id"] for each in replica.get("/sessions")[1]["sessions"]}


@needs_sessions
def test_a_session_stays_on_its_rank_at_every_replica(fleet):
    for number, (here, *others) in enumerate(turns(fleet)):
        session_id = f"stays-{number}"
        rank = bind_session(here, "s1", session_id)
        for other in others:
            eventually(lambda o=other, s=session_id, r=rank: rank_of(o, s) == r)
        assert book_session(others[0], "s2", session_id) == (200, rank)
        until_equal(*fleet, requests=2)
        for replica in fleet:
            assert rank_of(replica, session_id) == rank
        assert others[1].free("s1") == 200
        assert here.free("s2") == 200
        until_equal(*fleet, requests=0)
        # The session is idle now, and bound until its time to live ends.
        here.reserve("load", hashes=range(500, 550), worker_id=rank[0], dp_rank=rank[1])
        until_equal(*fleet, requests=1)
        assert [rank_of(replica, session_id) for replica in fleet] == [rank] * len(fleet)
        here.free("load")
        until_equal(*fleet, requests=0)


@needs_sessions
def test_a_contradiction_at_one_replica_moves_no_session_of_ours(fleet):
    ours, also_ours, theirs = fleet
    rank = bind_session(ours, "c1", "contradicted")
    for other in (also_ours, theirs):
        eventually(lambda o=other: rank_of(o, "contradicted") == rank)
    for number, replica in enumerate(fleet):
        status, _ = book_session(replica, f"no-{number}", "contradicted", allowed_worker_ids=[1])
        assert status == 400
    assert [rank_of(replica, "contradicted") for replica in (ours, also_ours)] == [rank, rank]
    # The reference has forgotten the session, and learns of it with the next turn elsewhere.
    assert rank_of(theirs, "contradicted") != rank
    assert book_session(also_ours, "c2", "contradicted") == (200, rank)
    eventually(lambda: rank_of(theirs, "contradicted") == rank)
    for name in ("c1", "c2"):
        ours.free(name)
    until_equal(*fleet, requests=0)


@needs_sessions
def test_a_restarted_replica_of_ours_moves_no_session(fleet):
    ours, restarted, theirs = fleet
    ranks = {
        "of-theirs": bind_session(theirs, "r1", "of-theirs"),
        "of-ours": bind_session(ours, "r2", "of-ours"),
    }
    for replica, (session_id, rank) in itertools.product(fleet, ranks.items()):
        eventually(lambda o=replica, s=session_id, r=rank: rank_of(o, s) == r)
    restarted.kill()
    restarted.start()
    restarted.add_workers()
    restarted.add_peers(ours, theirs)
    # The other replica of ours repairs the missed events, including the reference's bindings.
    eventually(lambda: known_sessions(restarted) >= ranks.keys())
    for session_id, rank in ranks.items():
        assert book_session(restarted, f"again-{session_id}", session_id) == (200, rank)
    for replica, (session_id, rank) in itertools.product(fleet, ranks.items()):
        assert rank_of(replica, session_id) == rank
    for name in ("r1", "r2", "again-of-theirs", "again-of-ours"):
        ours.free(name)
