"""Recovery of real processes from peers, over real sockets."""

import http.client
import json
import os
import socket
import threading
import time
from itertools import count

import pytest

from select_service.edge.keeping import asked_peer
from select_service.edge.keeping import recovery as keeping_recovery
from tests.patience import PATIENCE_S, eventually
from tests.process.fake_engine import Chain, FakeEngine
from tests.process.in_thread import InThread
from tests.process.launched import ANSWER_S_MAX, free_port
from tests.process.running import Running, complaint, run_to_end

pytestmark = pytest.mark.process

KV = {"DYN_USE_KV_EVENTS": "true"}
TRIED_S = 0.5
"""How long peers that cannot be reached are tried here."""
LATER_S = 1.5
"""Times of two sources that are closer than a second count as equal."""


def register(service, worker_id, engine, model_name="m", **fields):
    body = {
        "worker_id": worker_id,
        "model_name": model_name,
        "endpoint": "http://w",
        "block_size": 4,
        "kv_events_endpoint": engine.endpoint,
        "replay_endpoint": engine.replay_endpoint,
    }
    assert service.call("POST", "/workers", body | fields).status == 201


def overlap(service, chain, n_blocks, model_name="m"):
    tokens = [token for block in range(n_blocks) for token in chain.tokens(block)]
    body = {"model_name": model_name, "token_ids": tokens}
    answer = service.call("POST", "/overlap_scores", body)
    return {row["worker_id"]: row["device_blocks"] for row in answer.body["workers"]}


def dump(service):
    return json.loads(raw_dump(service, "application/json"))


def raw_dump(service, accept):
    """Chunked answers are read with a client that knows them."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=ANSWER_S_MAX)
    connection.request("GET", "/dump", headers={"accept": accept})
    body = connection.getresponse().read()
    connection.close()
    return body


def recovery(service):
    return service.call("GET", "/ready").body["recovery"]


def ended(service):
    eventually(lambda: recovery(service)["state"] != "running")
    return recovery(service)


def a_peer_url(service):
    return f"http://127.0.0.1:{service.port}"


def test_a_second_service_begins_with_the_index_of_the_first():
    chain = Chain()
    with FakeEngine(replay=False) as engine, Running(**KV) as first:
        register(first, 1, engine, "llama3:8b")
        engine.await_subscriber()
        for block in range(5):
            engine.publish(chain.stored(block))
        eventually(lambda: overlap(first, chain, 5, "llama3:8b") == {1: 5})
        with Running("--indexer-peers", a_peer_url(first), **KV) as second:
            found = ended(second)
            assert (found["state"], found["peer"]) == ("found", a_peer_url(first))
            assert (found["partitions"], found["blocks"]) == (1, 5)
            assert second.call("GET", "/ready").status == 503
            register(second, 1, engine, "llama3:8b")
            assert second.call("GET", "/ready").status == 200
            assert overlap(second, chain, 5, "llama3:8b") == {1: 5}


@pytest.mark.parametrize("accept", ["application/json", "application/msgpack"])
def test_a_chain_of_services_without_workers_loses_nothing(accept):
    """Each has the index of the one before; workers come only to the last, one of two earlier."""
    chains = Chain(1), Chain(2)
    with (
        FakeEngine(replay=False) as one,
        FakeEngine(replay=False) as two,
        Running(**KV) as first,
    ):
        for worker_id, engine in ((1, one), (2, two)):
            register(first, worker_id, engine)
            engine.await_subscriber()
            engine.publish(chains[worker_id - 1].stored(0, 5))
        eventually(lambda: overlap(first, chains[1], 5)[2] == 5)
        eventually(lambda: overlap(first, chains[0], 5)[1] == 5)
        with Liar(relays(first, accept)) as peer, Running("--indexer-peers", peer.url) as second:
            assert (ended(second)["state"], ended(second)["blocks"]) == ("found", 10)
            assert blocks_by_worker(dump(second)) == {1: 5, 2: 5}
            assert dump(second)["m:default"]["watermarks"] == {"1:0": 0, "2:0": 0}
            register(second, 1, one)
            assert blocks_by_worker(dump(second)) == {1: 5, 2: 5}
            with (
                Liar(relays(second, accept)) as peer,
                Running("--indexer-peers", peer.url, **KV) as third,
            ):
                assert ended(third)["blocks"] == 10
                for worker_id, engine in ((1, one), (2, two)):
                    register(third, worker_id, engine)
                for worker_id in (1, 2):
                    found = overlap(third, chains[worker_id - 1], 5)
                    assert found == {worker_id: 5, 3 - worker_id: 0}


def relays(service, accept):
    """What the service dumps in this form, whatever the client prefers."""

    def talk(connection, stop):
        connection.sendall(head(kind=accept.encode()) + bytes(raw_dump(service, accept)))

    return talk


def blocks_by_worker(document):
    counts = {}
    for event in document["m:default"]["events"]:
        rows = event["event"]["data"]["stored"]["blocks"]
        counts[event["worker_id"]] = counts.get(event["worker_id"], 0) + len(rows)
    return counts


def test_nothing_is_lost_or_counted_twice_while_the_engine_goes_on():
    """No replay endpoint: what the dump has not must come from the waiting listener."""
    chain = Chain()
    stop = threading.Event()
    with FakeEngine(replay=False) as engine, Running(**KV) as first:
        register(first, 1, engine)
        engine.await_subscriber()

        def publish():
            block = 0
            while not stop.is_set():
                engine.publish(chain.stored(block), chain.stored(block))
                block += 1
                time.sleep(0.002)

        publisher = threading.Thread(target=publish)
        publisher.start()
        gate = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{gate.getsockname()[1]}"
        forward = threading.Thread(target=serve_late, args=(gate, first.port))
        forward.start()
        with Running("--indexer-peers", url, **KV) as second:
            register(second, 1, engine)
            assert ended(second)["state"] == "found"
            more = engine.next_seq + 20
            eventually(lambda: engine.next_seq > more)
            stop.set()
            publisher.join()
            forward.join()
            blocks = engine.next_seq
            eventually(lambda: overlap(first, chain, blocks) == {1: blocks})
            eventually(lambda: overlap(second, chain, blocks) == {1: blocks})
            events = second.call("GET", "/workers").body[0]["kv_events"]["0"]
            assert (events["lost"], events["restarts"]) == (0, 0)
            for service in (first, second):
                for event in dump(service)["m:default"]["events"]:
                    rows = event["event"]["data"]["stored"]["blocks"]
                    assert {row["copies"] for row in rows} == {2}
            names = [chain.engine_hash(block) for block in range(blocks)]
            engine.publish(["BlockRemoved", names, "GPU"])
            engine.publish(["BlockRemoved", names[blocks // 2 :], "GPU"])
            for service in (first, second):
                eventually(
                    lambda service=service: overlap(service, chain, blocks) == {1: blocks // 2}
                )
            gate.close()


def serve_late(gate, port):
    """Pass one request on to `port`, after a while in which the asking service has listened."""
    connection, _ = gate.accept()
    connection.recv(65536)
    time.sleep(0.5)
    with socket.create_connection(("127.0.0.1", port)) as source:
        source.sendall(b"GET /dump HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        while data := source.recv(65536):
            connection.sendall(data)
    connection.close()


def test_a_restarted_engine_is_noticed_after_a_recovery():
    old, new = Chain(1), Chain(2)
    with FakeEngine() as engine, Running(**KV) as first:
        register(first, 1, engine)
        engine.await_subscriber()
        for block in range(5):
            engine.publish(old.stored(block))
        eventually(lambda: overlap(first, old, 5) == {1: 5})
        with Running("--indexer-peers", a_peer_url(first), **KV) as second:
            ended(second)
            register(second, 1, engine)
            assert overlap(second, old, 5) == {1: 5}
            more = count(5)

            def listens():  # what was sent before it did comes by replay
                engine.publish(old.stored(next(more)))
                return overlap(second, old, 6) == {1: 6}

            eventually(listens)
            engine.ring.clear()
            engine.publish(new.stored(0), seq=0)
            eventually(lambda: overlap(second, new, 1) == {1: 1})
            assert overlap(second, old, 5) == {1: 0}


@pytest.mark.parametrize("accept", ["application/json", "application/msgpack"])
def test_a_peer_that_knows_the_new_life_of_an_engine_beats_a_file_of_the_old_one(accept, tmp_path):
    """The file's stream had come further, and it has more blocks; all of them are gone."""
    old, new = Chain(1), Chain(2)
    file = ("--snapshot-path", str(tmp_path / "index"))
    with FakeEngine(replay=False) as engine:
        with Running(*file, **KV) as service:
            ended(service)
            register(service, 1, engine)
            engine.await_subscriber()
            for block in range(100):
                engine.publish(old.stored(block))
            eventually(lambda: overlap(service, old, 100) == {1: 100})
            service.stop()
        with Running(**KV) as peer:
            engine.await_no_subscriber()
            register(peer, 1, engine)
            engine.await_subscriber()
            time.sleep(LATER_S)
            engine.next_seq = 0
            for block in range(40):
                engine.publish(new.stored(block))
            eventually(lambda: overlap(peer, new, 40) == {1: 40})
            with (
                Liar(relays(peer, accept)) as source,
                Running(*file, "--indexer-peers", source.url, **KV) as service,
            ):
                assert ended(service)["blocks"] == 40
                register(service, 1, engine)
                assert overlap(service, new, 40) == {1: 40}

                def listens():  # a batch that comes again is applied once
                    engine.publish(new.stored(40), seq=40)
                    return overlap(service, new, 41) == {1: 41}

                eventually(listens)
                assert overlap(service, old, 100) == {1: 0}


def test_a_replay_after_a_recovery_begins_with_the_last_batch_of_the_dump():
    chain = Chain()
    with FakeEngine() as engine, Running(**KV) as first:
        register(first, 1, engine)
        engine.await_subscriber()
        for block in range(5):
            engine.publish(chain.stored(block))
        eventually(lambda: overlap(first, chain, 5) == {1: 5})
        with Running("--indexer-peers", a_peer_url(first), **KV) as second:
            ended(second)
            engine.publish(chain.stored(5))
            requests = len(engine.requests)
            register(second, 1, engine)
            # What nobody listened to comes by replay, without waiting for a live batch.
            eventually(lambda: overlap(second, chain, 6) == {1: 6})
            assert set(engine.requests[requests:]) == {4}
            engine.publish(chain.stored(6))
            eventually(lambda: overlap(second, chain, 7) == {1: 7})


# --- peers that lie


class Liar:
    """A peer that answers every connection with `talk`."""

    def __init__(self, talk, port=0):
        self._talk = talk
        self._stop = threading.Event()
        self._server = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._server.close()

    def _serve(self):
        while not self._stop.is_set():
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection):
        try:
            connection.recv(65536)
            self._talk(connection, self._stop)
        except OSError:
            pass
        finally:
            connection.close()


def says(data):
    return lambda connection, stop: connection.sendall(data)


def head(status=b"200 OK", kind=b"application/json", more=b""):
    return b"HTTP/1.1 " + status + b"\r\ncontent-type: " + kind + b"\r\n" + more + b"\r\n"


def stalls(connection, stop):
    stop.wait(60)


def drips(connection, stop):
    connection.sendall(head())
    while not stop.wait(0.5):
        connection.sendall(b" ")


def repeats(piece, begin=b""):
    def talk(connection, stop):
        connection.sendall(head() + begin)
        while not stop.is_set():
            connection.sendall(piece)

    return talk


GOOD = {
    "m:default": {
        "block_size": 4,
        "events": [
            {
                "worker_id": 1,
                "event": {
                    "data": {"stored": {"blocks": [{"block_hash": 1, "tokens_hash": 2}]}},
                },
            }
        ],
    }
}
EVENT = json.dumps(GOOD["m:default"]["events"][0]).encode()
LIES = {
    "stalling": stalls,
    "dripping": drips,
    "204": says(head(b"204 No Content")),
    "500": says(head(b"500 Internal Server Error") + b"{}"),
    "redirecting": says(head(b"302 Found", more=b"location: http://127.0.0.1:1/\r\n")),
    "array": says(head() + b"[1,2]"),
    "garbage": says(b"\xff\x00 garbage" * 100),
    "cut short": says(head() + b'{"m:t":{"block_size":4,"events":['),
    "compact garbage": says(head(kind=b"application/msgpack") + b"\xc6\xff\xff\xff\xff123"),
}
ENDLESS = {
    "endless spaces": repeats(b" " * 65536),
    "endless text": repeats(b"x" * 65536, b'{"'),
    "endless value": repeats(b"[" * 65536, b'{"m:t":{"x":'),
    "endless events": repeats(EVENT + b",", b'{"m:t":{"block_size":4,"events":['),
    "endless headers": says(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 10**5),
}


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_a_lying_peer_does_not_keep_the_service_from_a_good_one(lie, monkeypatch):
    monkeypatch.setattr(asked_peer, "CHOICE_S_MAX", 1.5)
    good = says(head() + json.dumps(GOOD).encode())
    with (
        Liar(LIES[lie]) as liar,
        Liar(good) as other,
        InThread("--indexer-peers", f"{liar.url},{other.url}") as service,
    ):
        finds_the_block_of(other, service)


@pytest.mark.parametrize("lie", ENDLESS, ids=str)
def test_a_peer_without_end_takes_no_more_memory_than_one_may(lie):
    good = says(head() + json.dumps(GOOD).encode())
    with (
        Liar(ENDLESS[lie]) as liar,
        Liar(good) as other,
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
    answers = [says(head() + json.dumps(body).encode()) for body in ({}, GOOD, more)]
    with Liar(answers[0]) as empty, Liar(answers[1]) as small, Liar(answers[2]) as large:
        peers = f"{empty.url},{small.url},{large.url}"
        with InThread("--indexer-peers", peers) as service:
            found = ended(service)
            assert (found["peer"], found["blocks"]) == (large.url, 2)


def test_only_empty_peers_end_the_recovery_at_once(monkeypatch):
    monkeypatch.setattr(keeping_recovery, "RETRY_S_MAX", 10 * PATIENCE_S)
    monkeypatch.setattr(keeping_recovery, "TOTAL_S_MAX", 10 * PATIENCE_S)
    with Liar(says(head() + b"{}")) as empty, InThread("--indexer-peers", empty.url) as service:
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
    assert "`a..b` is no host name" in complaint(errors)


def test_a_peer_that_comes_late_is_still_asked():
    good = says(head() + json.dumps(GOOD).encode())
    port = free_port()
    with Running("--indexer-peers", f"http://127.0.0.1:{port}") as service:
        eventually(lambda: service.lines("a download of a dump failed"))
        with Liar(good, port):
            assert ended(service)["state"] == "found"


def test_each_distinct_failure_of_a_peer_is_told_once():
    answers = iter([b"500 Oops", b"500 Oops", b"404 Not Found", b"500 Oops"])

    def fails(connection, stop):
        connection.sendall(head(next(answers, b"200 OK")) + b"{}")

    with Liar(fails) as peer, Running("--indexer-peers", peer.url) as service:
        assert ended(service)["state"] == "empty"
        service.stop()
        log = service.log()
    told = [x for x in log if x["message"] == "a download of a dump failed"]
    assert [(x["level"], x["peer"], x["error"], x["attempt"]) for x in told] == [
        ("WARNING", peer.url, "status 500", 1),
        ("WARNING", peer.url, "status 404", 3),
    ]
    (line,) = [x for x in log if x["message"] == "a dump was downloaded"]
    assert (line["peer"], line["form"], line["bytes"], line["blocks"]) == (peer.url, "json", 2, 0)


def test_a_download_under_way_is_seen_in_ready_and_in_the_log():
    def slowly(connection, stop):
        connection.sendall(head() + b'{"m:default":{"block_size":4,"events":[' + EVENT)
        while not stop.wait(0.5):
            connection.sendall(b" ")

    with Liar(slowly) as peer, Running("--indexer-peers", peer.url) as service:
        eventually(lambda: recovery(service)["bytes"] > 100)
        seen = recovery(service)
        assert (seen["state"], seen["peer"]) == ("running", peer.url)
        line = service.line("recovery goes on")
        assert (line["level"], line["state"], line["peer"]) == ("INFO", "running", peer.url)
        assert line["bytes"] > 100
        assert line["elapsed_s"] >= 5


def test_a_signal_during_the_recovery_is_no_failure():
    with Liar(stalls) as peer, Running("--indexer-peers", peer.url) as service:
        assert recovery(service)["state"] == "running"
        assert service.call("GET", "/ready").status == 503
        assert service.stop() == 0
        assert service.line("recovery ended")["state"] == "cancelled"


def test_blocks_with_another_block_size_are_dropped():
    answer = says(head() + json.dumps(GOOD).encode())
    with Liar(answer) as peer, InThread("--indexer-peers", peer.url) as service:
        ended(service)
        body = {"worker_id": 1, "model_name": "m", "endpoint": "http://w", "block_size": 8}
        assert service.call("POST", "/workers", body).body["lifecycle"] == "schedulable"
        assert dump(service) == {"m:default": {"block_size": 8, "events": []}}
