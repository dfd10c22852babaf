"""Tests of recovery from peers that are late, slow, empty, wrong or hostile."""

import json
import os

import pytest

from select_service.adapters.persistence import index_recovery as keeping_recovery
from select_service.adapters.persistence import peer_dump_request
from tests.builders.in_thread import InThread
from tests.builders.launched_process import free_port
from tests.builders.polling import PATIENCE_S, eventually
from tests.builders.recovery_scenes import (
    EVENT,
    GOOD,
    ScriptedPeer,
    drips,
    dump,
    ended,
    head,
    recovery,
    repeats,
    sends,
    stalls,
)
from tests.builders.running import Running, complaint, run_to_end

pytestmark = pytest.mark.process

TRIED_S = 0.5
"""Time limit for unreachable peers in these tests, seconds."""

LIES = {
    "stalling": stalls,
    "dripping": drips,
    "204": sends(head(b"204 No Content")),
    "500": sends(head(b"500 Internal Server Error") + b"{}"),
    "redirecting": sends(head(b"302 Found", more=b"location: http://127.0.0.1:1/\r\n")),
    "array": sends(head() + b"[1,2]"),
    "garbage": sends(b"\xff\x00 garbage" * 100),
    "cut short": sends(head() + b'{"m:t":{"block_size":4,"events":['),
    "compact garbage": sends(head(kind=b"application/msgpack") + b"\xc6\xff\xff\xff\xff123"),
}
ENDLESS = {
    "endless spaces": repeats(b" " * 65536),
    "endless text": repeats(b"x" * 65536, b'{"'),
    "endless value": repeats(b"[" * 65536, b'{"m:t":{"x":'),
    "endless events": repeats(EVENT + b",", b'{"m:t":{"block_size":4,"events":['),
    "endless headers": sends(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 10**5),
}


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_a_lying_peer_does_not_keep_the_service_from_a_good_one(lie, monkeypatch):
    monkeypatch.setattr(peer_dump_request, "CHOICE_S_MAX", 1.5)
    good = sends(head() + json.dumps(GOOD).encode())
    with (
        ScriptedPeer(LIES[lie]) as liar,
        ScriptedPeer(good) as other,
        InThread("--indexer-peers", f"{liar.url},{other.url}") as service,
    ):
        finds_the_block_of(other, service)


@pytest.mark.parametrize("lie", ENDLESS, ids=str)
def test_a_peer_without_end_takes_no_more_memory_than_one_may(lie):
    good = sends(head() + json.dumps(GOOD).encode())
    with (
        ScriptedPeer(ENDLESS[lie]) as liar,
        ScriptedPeer(good) as other,
        Running("--indexer-peers", f"{liar.url},{other.url}") as service,
    ):
        finds_the_block_of(other, service)
        assert resident_mib(service.process.pid) < 900


def finds_the_block_of(peer, service):
    found = ended(service)
    assert (found["state"], found["peer"], found["blocks"]) == ("found", peer.url, 1)


def resident_mib(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def test_the_answer_with_most_blocks_is_taken_and_an_empty_one_is_no_reason_to_stop():
    more = json.loads(json.dumps(GOOD))
    rows = more["m:default"]["events"][0]["event"]["data"]["stored"]["blocks"]
    rows.append({"block_hash": 2, "tokens_hash": 3})
    answers = [sends(head() + json.dumps(body).encode()) for body in ({}, GOOD, more)]
    with (
        ScriptedPeer(answers[0]) as empty,
        ScriptedPeer(answers[1]) as small,
        ScriptedPeer(answers[2]) as large,
    ):
        peers = f"{empty.url},{small.url},{large.url}"
        with InThread("--indexer-peers", peers) as service:
            found = ended(service)
            assert (found["peer"], found["blocks"]) == (large.url, 2)


def test_only_empty_peers_end_the_recovery_at_once(monkeypatch):
    monkeypatch.setattr(keeping_recovery, "RETRY_S_MAX", 10 * PATIENCE_S)
    monkeypatch.setattr(keeping_recovery, "TOTAL_S_MAX", 10 * PATIENCE_S)
    with (
        ScriptedPeer(sends(head() + b"{}")) as empty,
        InThread("--indexer-peers", empty.url) as service,
    ):
        assert ended(service)["state"] == "empty"


def test_without_any_peer_the_service_starts_after_a_bounded_time(monkeypatch):
    monkeypatch.setattr(keeping_recovery, "RETRY_S_MAX", TRIED_S)
    with InThread("--indexer-peers", "http://127.0.0.1:1") as service:
        found = ended(service)
        assert found["state"] == "failed"
        assert found["elapsed_s"] >= TRIED_S
        body = {"worker_id": 1, "model_name": "m", "endpoint": "http://w", "block_size": 4}
        service.call("POST", "/workers", body)
        assert service.call("GET", "/ready").status == 200


def test_an_impossible_peer_ends_the_start_with_one_line():
    status, _, errors = run_to_end("--port", "0", "--indexer-peers", "http://a..b:80")
    assert status == 2
    assert "--indexer-peers" in complaint(errors)
    assert "`a..b` is not a host name" in complaint(errors)


def test_a_peer_that_starts_late_is_still_used():
    good = sends(head() + json.dumps(GOOD).encode())
    port = free_port()
    with Running("--indexer-peers", f"http://127.0.0.1:{port}") as service:
        eventually(lambda: service.lines("dump download failed"))
        with ScriptedPeer(good, port):
            assert ended(service)["state"] == "found"


def test_each_distinct_failure_of_a_peer_is_logged_once():
    answers = iter([b"500 Oops", b"500 Oops", b"404 Not Found", b"500 Oops"])

    def fails(connection, stop):
        connection.sendall(head(next(answers, b"200 OK")) + b"{}")

    with ScriptedPeer(fails) as peer, Running("--indexer-peers", peer.url) as service:
        assert ended(service)["state"] == "empty"
        service.stop()
        log = service.log()
    told = [x for x in log if x["message"] == "dump download failed"]
    assert [(x["level"], x["peer"], x["error"], x["attempt"]) for x in told] == [
        ("WARNING", peer.url, "status 500", 1),
        ("WARNING", peer.url, "status 404", 3),
    ]
    (line,) = [x for x in log if x["message"] == "dump downloaded"]
    assert (line["peer"], line["form"], line["bytes"], line["blocks"]) == (peer.url, "json", 2, 0)


def test_a_download_under_way_is_shown_in_ready_and_in_the_log():
    def slowly(connection, stop):
        connection.sendall(head() + b'{"m:default":{"block_size":4,"events":[' + EVENT)
        while not stop.wait(0.5):
            connection.sendall(b" ")

    with ScriptedPeer(slowly) as peer, Running("--indexer-peers", peer.url) as service:
        eventually(lambda: recovery(service)["bytes"] > 100)
        seen = recovery(service)
        assert (seen["state"], seen["peer"]) == ("running", peer.url)
        line = service.line("recovery in progress")
        assert (line["level"], line["state"], line["peer"]) == ("INFO", "running", peer.url)
        assert line["bytes"] > 100
        assert line["elapsed_s"] >= 5


def test_a_signal_during_the_recovery_is_no_failure():
    with ScriptedPeer(stalls) as peer, Running("--indexer-peers", peer.url) as service:
        assert recovery(service)["state"] == "running"
        assert service.call("GET", "/ready").status == 503
        assert service.stop() == 0
        assert service.line("recovery ended")["state"] == "cancelled"


def test_blocks_with_another_block_size_are_dropped():
    answer = sends(head() + json.dumps(GOOD).encode())
    with ScriptedPeer(answer) as peer, InThread("--indexer-peers", peer.url) as service:
        ended(service)
        body = {"worker_id": 1, "model_name": "m", "endpoint": "http://w", "block_size": 8}
        assert service.call("POST", "/workers", body).body["lifecycle"] == "schedulable"
        assert dump(service) == {"m:default": {"block_size": 8, "events": []}}
