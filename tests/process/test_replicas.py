"""Tests of two and three selector processes that share load over real sockets."""

import time

import pytest
import zmq

from select_service.core.replication import digest as replica_digest
from select_service.core.replication import load_events as replica_events
from select_service.core.replication import prefill_progress as replica_progress
from tests.builders.polling import eventually
from tests.process.replica_processes import Replica, mesh, until_equal

pytestmark = pytest.mark.process

HEARD_S = 0.2
"""Wait in which a wrongly received event would show, seconds; no other check depends on the wait.
"""


@pytest.fixture(scope="module")
def pair():
    with Replica() as a, Replica() as b:
        mesh(a, b)
        until_connected(a, b)
        yield a, b


def until_connected(*replicas):
    for one in replicas:
        for other in replicas:
            if one is not other:
                eventually(lambda one=one, other=other: one.peer(other)["digests"] > 0)


def test_the_peer_follows_the_whole_life_of_a_reservation(pair):
    a, b = pair
    assert a.select_and_reserve("life") == 200
    until_equal(a, b, requests=1)
    assert a.complete("life") == 200
    eventually(lambda: sum(row[0] for row in b.loads().values()) == 0)
    assert b.free("life") == 200
    until_equal(a, b, requests=0)


def test_an_id_that_is_booked_at_the_peer_is_a_conflict(pair):
    a, b = pair
    assert a.reserve("same") == 201
    until_equal(a, b, requests=1)
    assert b.reserve("same") == 409
    (row,) = b.get("/reservations?sequence_hashes=true")[1]["reservations"]
    assert (row["origin"], row["sequence_hashes"]) == ("peer", [1, 2, 3])
    assert b.free("same") == 200
    until_equal(a, b, requests=0)


def test_output_blocks_stay_local(pair):
    a, b = pair
    a.reserve("out")
    until_equal(a, b, requests=1)
    assert a.post("/reservations/out/output_block", {})[0] == 200
    assert a.loads()[(1, 0)][1] == 4
    assert b.loads()[(1, 0)][1] == 3
    a.free("out")
    until_equal(a, b, requests=0)


def test_hostile_frames_change_nothing_and_stop_nothing(pair):
    a, b = pair
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        endpoint = f"tcp://127.0.0.1:{port}"
        assert b.post("/replica_sync/register_peer", {"endpoint": endpoint})[0] == 201
        hostile = [
            [replica_events.EVENT_TOPIC],
            [replica_events.EVENT_TOPIC, b""],
            [replica_events.EVENT_TOPIC, b"\xc1"],
            [replica_events.EVENT_TOPIC, b"{}", b"x"],
            [replica_events.EVENT_TOPIC, b"\x91" * 100_000],
            [replica_events.EVENT_TOPIC, b"\xdd\xff\xff\xff\xff"],
            [replica_events.EVENT_TOPIC + b"x", b"\x80"],
            [replica_digest.DIGEST_TOPIC, b"\x00"],
            [replica_progress.PROGRESS_TOPIC, b"\x81"],
            [replica_events.EVENT_TOPIC] + [b"y"] * 1000,
        ]

        def has_seen_all():
            for frames in hostile:
                publisher.send_multipart(frames)
            peers = b.get("/replica_sync/status")[1]["peers"]
            (dropped,) = [peer["dropped"] for peer in peers if peer["endpoint"] == endpoint]
            return dropped.keys() >= {"frames", "decode", "topic", "digest", "progress"}

        eventually(has_seen_all)
        assert b.requests() == 0
        a.reserve("after")
        until_equal(a, b, requests=1)
        a.free("after")
        until_equal(a, b, requests=0)
        assert b.post("/replica_sync/deregister_peer", {"endpoint": endpoint})[0] == 200


def test_a_deregistered_peer_is_ignored_and_a_returning_one_repairs(pair):
    a, b = pair
    assert b.post("/replica_sync/deregister_peer", {"endpoint": a.endpoint})[0] == 200
    a.reserve("unheard")
    a.reserve("unheard2", hashes=range(10, 40))
    time.sleep(HEARD_S)
    assert b.requests() == 0
    assert b.post("/replica_sync/register_peer", {"endpoint": a.endpoint})[0] == 201
    until_equal(a, b, requests=2)
    assert b.peer(a)["repairs"]["added"] == 2
    eventually(lambda: b.peer(a)["divergence_reservations"] == 0)
    a.free("unheard")
    a.free("unheard2")
    until_equal(a, b, requests=0)


def test_a_late_or_restarted_process_gets_the_reservations_of_the_others():
    with Replica() as a, Replica() as b:
        mesh(a, b)
        until_connected(a, b)
        for number in range(20):
            assert a.reserve(f"a{number}") == 201
            assert b.reserve(f"b{number}", worker_id=2) == 201
        until_equal(a, b, requests=40)
        b.kill()
        b.start()
        mesh(a, b)
        until_equal(a, b, requests=40)
        for number in range(20):
            assert b.free(f"a{number}") == 200
            assert a.free(f"b{number}") == 200
        until_equal(a, b, requests=0)


def test_three_replicas_agree_after_one_missed_an_end():
    with Replica() as a, Replica() as b, Replica() as c:
        mesh(a, b, c)
        until_connected(a, b, c)
        a.reserve("x")
        until_equal(a, b, c, requests=1)
        for deaf in (a, c):
            body = {"endpoint": b.endpoint}
            assert deaf.post("/replica_sync/deregister_peer", body)[0] == 200
        assert b.free("x") == 200
        time.sleep(HEARD_S)
        assert (a.requests(), b.requests(), c.requests()) == (1, 0, 1)
        a.add_peers(b)
        c.add_peers(b)
        until_equal(a, b, c, requests=0)
