"""Tests of the replica plane's log: each fault once per episode, and its end."""

import logging

import pytest

from select_service.adapters.logs.log_throttle import QUIET_S
from select_service.adapters.replicas.replica_log import UNREACHABLE_S, PublisherLog, ReplicaPeerLog
from select_service.core.identity import PartitionKey
from select_service.core.replication.digest import Digest, LoadDifference
from select_service.core.replication.peer_agreement import PERSISTENT_DIGESTS, PeerAgreement
from select_service.core.replication.repair import RepairResult

PEER = "tcp://b:1"


@pytest.fixture
def lines(caplog):
    """Return a function for the lines since the last call: level, message and fields."""
    caplog.set_level(logging.INFO, "select_service.replicas")

    def take_lines():
        records = [(r.levelname, r.getMessage(), r.fields) for r in caplog.records]
        caplog.clear()
        return records

    return take_lines


@pytest.fixture
def peer():
    return ReplicaPeerLog(PEER, now=0.0)


def test_a_connection_is_logged_when_it_begins_and_when_it_ends(peer, lines):
    for connected in (False, True, True, False, False, True):
        peer.log_connection(connected, now=1.0)
    assert lines() == [
        ("INFO", "replica peer connected", {"endpoint": PEER}),
        ("WARNING", "replica peer disconnected", {"endpoint": PEER}),
        ("INFO", "replica peer connected", {"endpoint": PEER}),
    ]


def test_a_peer_that_never_connects_is_named_once(peer, lines):
    peer.log_connection(False, now=UNREACHABLE_S - 1)
    assert lines() == []
    for now in range(3):
        peer.log_connection(False, now=UNREACHABLE_S + now)
    ((level, message, _),) = lines()
    assert (level, message) == ("WARNING", "replica peer unreachable")
    peer.log_connection(True, now=99.0)
    assert lines()[0][1] == "replica peer connected"


def test_a_reason_to_drop_is_logged_once_per_episode(peer, lines):
    fields = {"endpoint": PEER, "reason": "unknown_rank"}
    peer.log_drops({"unknown_rank": 3}, None, now=0.0)
    peer.log_drops({"unknown_rank": 5}, None, now=QUIET_S - 1)
    peer.log_drops({"unknown_rank": 6}, None, now=2 * QUIET_S - 2)
    peer.log_drops({"unknown_rank": 6}, None, now=2 * QUIET_S)
    assert lines() == [("WARNING", "replica messages dropped", {**fields, "count": 3})]
    peer.log_drops({"unknown_rank": 8}, None, now=4 * QUIET_S)
    assert lines() == [("WARNING", "replica messages dropped", {**fields, "count": 2})]


def test_each_reason_has_its_own_line_and_unreadable_data_is_explained(peer, lines):
    peer.log_drops({"decode": 1, "known": 2, "own": 1}, "expected a structure", now=0.0)
    assert [(level, fields["reason"], fields.get("detail")) for level, _, fields in lines()] == [
        ("WARNING", "decode", "expected a structure"),
        ("INFO", "known", None),
    ]


def a_digest(number):
    return Digest(router_id=7, number=number, sent=0, port=1, lines=[])


def test_a_difference_is_logged_when_it_persists_and_when_it_is_gone(peer, lines):
    agreement = PeerAgreement()
    found = {PartitionKey("m", "t"): LoadDifference(2, 64)}
    for number in range(PERSISTENT_DIGESTS + 3):
        agreement.record_digest(a_digest(number), found)
        peer.log_divergence(agreement)
        assert bool(lines()) is (number == PERSISTENT_DIGESTS - 1)
    agreement.record_digest(a_digest(9), {})
    peer.log_divergence(agreement)
    peer.log_divergence(agreement)
    assert lines() == [("INFO", "replica divergence ended", {"endpoint": PEER})]


def test_a_difference_names_its_size_and_partitions(peer, lines):
    agreement = PeerAgreement()
    for number in range(PERSISTENT_DIGESTS):
        agreement.record_digest(a_digest(number), {PartitionKey("m", "t"): LoadDifference(2, 64)})
    peer.log_divergence(agreement)
    assert lines() == [
        (
            "WARNING",
            "replica diverges",
            {"endpoint": PEER, "reservations": 2, "prefill_tokens": 64, "partitions": ["m:t"]},
        )
    ]


def test_a_difference_that_comes_and_goes_is_not_logged(peer, lines):
    agreement = PeerAgreement()
    for number in range(4 * PERSISTENT_DIGESTS):
        found = (
            {PartitionKey("m", "t"): LoadDifference(1, 0)} if number % PERSISTENT_DIGESTS else {}
        )
        agreement.record_digest(a_digest(number), found)
        peer.log_divergence(agreement)
    assert lines() == []


def test_failed_repairs_are_logged_once_with_the_reason_until_one_succeeds(peer, lines):
    peer.log_repair_failure("http://b:1: Connection refused")
    peer.log_repair_failure("http://b:1: timed out")
    assert lines() == [
        (
            "WARNING",
            "replica repair failed",
            {"endpoint": PEER, "error": "http://b:1: Connection refused"},
        )
    ]
    peer.log_repair(RepairResult(added=2))
    peer.log_repair_failure("again")
    assert [(level, message) for level, message, _ in lines()] == [
        ("INFO", "replica repair"),
        ("WARNING", "replica repair failed"),
    ]


def test_repairs_without_changes_are_logged_once(peer, lines):
    for _ in range(3):
        peer.log_repair(RepairResult(refused=4))
    peer.log_repair(RepairResult(added=1))
    assert [fields["added"] for _, _, fields in lines()] == [0, 1]


def test_failed_publications_are_logged_once_per_episode(lines):
    out = PublisherLog()
    for dropped, now in ((0, 0.0), (5, 1.0), (9, 2.0)):
        out.log_drops(dropped, "queue is full", now)
    assert lines() == [
        ("WARNING", "replica events not published", {"count": 5, "reason": "queue is full"})
    ]
