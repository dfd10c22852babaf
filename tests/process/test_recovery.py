"""Tests of recovery from peers by real processes, over real sockets."""

import socket
import threading
import time
from itertools import count

import pytest

from tests.builders.polling import eventually
from tests.builders.recovery_scenes import (
    KV,
    ScriptedPeer,
    a_peer_url,
    dump,
    ended,
    fill,
    head,
    overlap,
    raw_dump,
    register,
)
from tests.builders.running import Running
from tests.process.fake_engine import Chain, FakeEngine

pytestmark = pytest.mark.process

LATER_S = 1.5
"""Pause between two sources, seconds; times closer than a second count as equal."""


def test_a_second_service_begins_with_the_index_of_the_first():
    chain = Chain()
    with FakeEngine(replay=False) as engine, Running(**KV) as first:
        register(first, 1, engine, "llama3:8b")
        fill(first, engine, chain, 5, "llama3:8b")
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
    """Check a chain of services, each recovered from the previous; the last has both workers."""
    chains = Chain(1), Chain(2)
    with FakeEngine(replay=False) as one, FakeEngine(replay=False) as two, Running(**KV) as first:
        for worker_id, engine in ((1, one), (2, two)):
            register(first, worker_id, engine)
            engine.await_subscriber()
            engine.publish(chains[worker_id - 1].stored(0, 5))
        eventually(lambda: overlap(first, chains[1], 5)[2] == 5)
        eventually(lambda: overlap(first, chains[0], 5)[1] == 5)
        with (
            ScriptedPeer(relays(first, accept)) as peer,
            Running("--indexer-peers", peer.url) as second,
        ):
            assert (ended(second)["state"], ended(second)["blocks"]) == ("found", 10)
            assert blocks_by_worker(dump(second)) == {1: 5, 2: 5}
            assert dump(second)["m:default"]["watermarks"] == {"1:0": 0, "2:0": 0}
            register(second, 1, one)
            assert blocks_by_worker(dump(second)) == {1: 5, 2: 5}
            with (
                ScriptedPeer(relays(second, accept)) as peer,
                Running("--indexer-peers", peer.url, **KV) as third,
            ):
                assert ended(third)["blocks"] == 10
                for worker_id, engine in ((1, one), (2, two)):
                    register(third, worker_id, engine)
                for worker_id in (1, 2):
                    found = overlap(third, chains[worker_id - 1], 5)
                    assert found == {worker_id: 5, 3 - worker_id: 0}


def relays(service, accept):
    """Return a handler that sends the service's dump in this form, whatever the client accepts."""

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
    """Check an engine without replays: blocks missing in the dump come from the listener."""
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
    """Pass one request on to `port` after 0.5 s, in which the recovering service listens."""
    connection, _ = gate.accept()
    connection.recv(65536)
    time.sleep(0.5)
    with socket.create_connection(("127.0.0.1", port)) as source:
        source.sendall(b"GET /dump HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        while data := source.recv(65536):
            connection.sendall(data)
    connection.close()


def test_a_restarted_engine_is_noticed_after_a_recovery():
    old, new = Chain(1), Chain(2)
    with FakeEngine() as engine, Running(**KV) as first:
        register(first, 1, engine)
        fill(first, engine, old, 5)
        with Running("--indexer-peers", a_peer_url(first), **KV) as second:
            ended(second)
            register(second, 1, engine)
            assert overlap(second, old, 5) == {1: 5}
            more = count(5)

            def listens():  # earlier batches come by replay
                engine.publish(old.stored(next(more)))
                return overlap(second, old, 6) == {1: 6}

            eventually(listens)
            engine.ring.clear()
            engine.publish(new.stored(0), seq=0)
            eventually(lambda: overlap(second, new, 1) == {1: 1})
            assert overlap(second, old, 5) == {1: 0}


@pytest.mark.parametrize("accept", ["application/json", "application/msgpack"])
def test_a_peer_with_an_engines_new_life_beats_a_file_of_the_old_life(accept, tmp_path):
    """Check that all blocks of the file are dropped, although the file is ahead and has more."""
    old, new = Chain(1), Chain(2)
    file = ("--snapshot-path", str(tmp_path / "index"))
    with FakeEngine(replay=False) as engine:
        with Running(*file, **KV) as service:
            ended(service)
            register(service, 1, engine)
            fill(service, engine, old, 100)
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
                ScriptedPeer(relays(peer, accept)) as source,
                Running(*file, "--indexer-peers", source.url, **KV) as service,
            ):
                assert ended(service)["blocks"] == 40
                register(service, 1, engine)
                assert overlap(service, new, 40) == {1: 40}

                def listens():  # a repeated batch is applied once
                    engine.publish(new.stored(40), seq=40)
                    return overlap(service, new, 41) == {1: 41}

                eventually(listens)
                assert overlap(service, old, 100) == {1: 0}


def test_a_replay_after_a_recovery_begins_with_the_last_batch_of_the_dump():
    chain = Chain()
    with FakeEngine() as engine, Running(**KV) as first:
        register(first, 1, engine)
        fill(first, engine, chain, 5)
        with Running("--indexer-peers", a_peer_url(first), **KV) as second:
            ended(second)
            engine.publish(chain.stored(5))
            requests = len(engine.requests)
            register(second, 1, engine)
            # Batches sent without a listener come by replay, without waiting for a live batch.
            eventually(lambda: overlap(second, chain, 6) == {1: 6})
            assert set(engine.requests[requests:]) == {4}
            engine.publish(chain.stored(6))
            eventually(lambda: overlap(second, chain, 7) == {1: 7})
