"""Tests of broken connections, returning engines, and addresses without an engine."""

import contextlib
import socket
import threading
import time

import pytest
import zmq

from indexer.sockets import listener, listener_status, live_connection, read_ahead, zmq_connector
from indexer.sockets.dns_resolver import Resolver
from indexer.sockets.ingest import Ingest
from tests.builders.launched_process import free_port
from tests.builders.polling import PATIENCE_S, eventually
from tests.process.fake_engine import Chain, FakeEngine
from tests.process.ingest_scenes import (
    CHAIN,
    a_source,
    close,
    count_held_blocks,
    follow,
    listen,
    publish_chain,
    status,
)

pytestmark = pytest.mark.process


def cut_off(ingest, engine):
    """Let the engine send a message that is too long; return after the listener has reconnected."""
    seq = engine.next_seq.to_bytes(8, "big")
    engine.next_seq += 1
    engine.send([b"x", seq, bytes(read_ahead.MESSAGE_BYTES_MAX + 1)])
    eventually(lambda: engine.pub.poll(0) and engine.pub.recv() == b"\x01")
    assert "protocol violation" in status(ingest).last_error
    assert status(ingest).state == "degraded"


@pytest.mark.parametrize("replay", [True, False])
def test_events_return_after_a_message_of_absurd_length(ingest, index, replay, monkeypatch, caplog):
    monkeypatch.setattr(read_ahead, "MESSAGE_BYTES_MAX", 10_000)
    with FakeEngine(replay=replay) as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, range(2))
        for blocks in ([2, 3], [4, 5]):
            eventually(lambda blocks=blocks: status(ingest).last_sequence == engine.next_seq - 1)
            cut_off(ingest, engine)
            publish_chain(engine, blocks[:1], lost=True)
            publish_chain(engine, blocks[1:])
        eventually(lambda: status(ingest).last_sequence == engine.next_seq - 1)
        now = status(ingest)
        assert count_held_blocks(index, writer, 6) == (6 if replay else 2)
        assert (now.state, now.gaps, now.lost) == ("degraded", 2, 2 if replay else 4)
        assert now.degraded.startswith("lost batches ")
        assert now.degraded_monotonic is not None
        assert now.restarts == 0
        lines = [r.getMessage() for r in caplog.records if "reconnected" in r.getMessage()]
        assert len(lines) == 1
        engine.publish(["AllBlocksCleared"])
        eventually(lambda: status(ingest).state == "connected")
        assert (status(ingest).last_error, status(ingest).degraded) == (None, None)


def test_another_protocol_at_the_endpoint_is_logged_and_tried_again(ingest, index, monkeypatch):
    monkeypatch.setattr(listener, "RECONNECT_DELAY_S", 0.05)
    with zmq.Context() as context, context.socket(zmq.PULL) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1")
        writer = index.open_slot()
        follow(ingest, [a_source(f"tcp://127.0.0.1:{port}", writer)])
        eventually(lambda: status(ingest).state == "degraded")
    with FakeEngine(port=port, replay=False) as engine:
        engine.await_subscriber()
        publish_chain(engine, [0])
        eventually(lambda: count_held_blocks(index, writer, 1) == 1)
        assert status(ingest).state == "connected"


def test_an_http_port_as_the_event_endpoint_is_reported(ingest, index):
    """Check an HTTP server's answer, which libzmq takes for messages of an old protocol."""
    head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 66\r\n"
    body = b'{"error":"Invalid HTTP request received.","code":"malformed_http"}'
    answer = head + b"connection: close\r\n\r\n" + body
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        follow(ingest, [a_source(f"tcp://127.0.0.1:{port}", index.open_slot())])
        client, _ = server.accept()
        with client, contextlib.suppress(ConnectionResetError):
            client.recv(64)
            client.sendall(answer)
            client.shutdown(socket.SHUT_WR)
            while client.recv(64):
                pass
        eventually(lambda: status(ingest).dropped.get("frames"))
    assert "messages other than KV events" in status(ingest).last_error
    assert status(ingest).state == "no_events_yet"
    follow(ingest, [])


def test_connections_are_reported_while_a_recovery_holds_the_events(index):
    ingest, writer = Ingest(1, held=True), index.open_slot()
    with FakeEngine(replay=False) as engine:
        follow(ingest, [a_source(engine.endpoint, writer)])
        eventually(lambda: status(ingest).connected)
        engine.await_subscriber()
        publish_chain(engine, [0])
        port = int(engine.endpoint.rpartition(":")[2])
    eventually(lambda: status(ingest).connect_error is not None)
    assert (status(ingest).connected, status(ingest).batches) == (False, 0)
    with FakeEngine(port=port, replay=False):
        eventually(lambda: status(ingest).connected)
        ingest.start_held_listeners()
        eventually(lambda: count_held_blocks(index, writer, 1) == 1)
        assert status(ingest).connected
    close(ingest)


def test_a_rank_with_a_silent_endpoint_counts_as_unconnected(ingest, index, monkeypatch):
    writer, port = index.open_slot(), free_port()
    follow(ingest, [a_source(f"tcp://127.0.0.1:{port}", writer)])
    eventually(lambda: status(ingest).connect_error == live_connection.REFUSED)
    assert (status(ingest).state, status(ingest).unconnected_monotonic) == ("no_events_yet", None)
    monkeypatch.setattr(listener_status, "UNCONNECTED_S", 0.0)
    assert status(ingest).state == ingest.pulse_of((1, 0)).state == "unconnected"
    since = status(ingest).unconnected_monotonic
    assert since <= time.monotonic()
    with FakeEngine(port=port, replay=False) as engine:
        engine.await_subscriber()
        eventually(lambda: status(ingest).state == "no_events_yet")
        assert status(ingest).unconnected_monotonic is None
        publish_chain(engine, [0])
        eventually(lambda: status(ingest).state == "connected")
    eventually(lambda: status(ingest).state == "unconnected")
    assert status(ingest).unconnected_monotonic > since
    assert status(ingest).doubt is not None


def test_endpoint_that_zmq_refuses_leaves_a_degraded_listener(ingest, index):
    follow(ingest, [a_source("tcp://*:5557", index.open_slot())])
    eventually(lambda: status(ingest).state == "degraded")
    assert "tcp://*:5557: nothing can connect there" in status(ingest).last_error
    assert status(ingest).degraded == status(ingest).last_error
    follow(ingest, [])


def test_restarted_engine_starts_from_nothing(ingest, index):
    with FakeEngine() as engine:
        port = engine.port
        writer = listen(ingest, index, engine)
        publish_chain(engine, range(10))
        eventually(lambda: count_held_blocks(index, writer, 10) == 10)
    with FakeEngine(port=port) as engine:
        engine.await_subscriber()
        engine.publish(Chain(2).stored(0))
        eventually(lambda: count_held_blocks(index, writer, 1, Chain(2)) == 1)
        assert count_held_blocks(index, writer, 10) == 0
        assert status(ingest).restarts == 1


def test_a_silent_engine_is_learned_without_a_live_batch(ingest, index):
    with FakeEngine() as engine:
        publish_chain(engine, range(20))
        writer = listen(ingest, index, engine)
        eventually(lambda: count_held_blocks(index, writer, 20) == 20)
        now = status(ingest)
        assert (now.state, now.gaps, now.connected, now.connect_error) == (
            "connected",
            0,
            True,
            None,
        )


def reborn(engine, before, chain):
    """Return an engine at the same endpoints that has published `before` batches of `chain`."""
    engine.close()
    replay = engine.replay_endpoint
    return FakeEngine(
        port=engine.port,
        replay=replay is not None,
        replay_port=replay and int(replay.rpartition(":")[2]),
        past=[chain.stored(block) for block in range(before)],
    )


@pytest.mark.parametrize("numbers", ["below", "above", "equal"])
def test_a_new_life_is_noticed_without_a_live_batch(ingest, index, numbers):
    other = Chain(2)
    engine = FakeEngine()
    writer = listen(ingest, index, engine)
    publish_chain(engine, range(10))
    eventually(lambda: count_held_blocks(index, writer, 10) == 10)
    before = {"below": 3, "above": 30, "equal": 10}[numbers]
    engine = reborn(engine, before, other)
    try:
        eventually(lambda: count_held_blocks(index, writer, before, other) == before)
        assert count_held_blocks(index, writer, 10) == 0
        eventually(lambda: status(ingest).state == "connected")
        assert (status(ingest).restarts, status(ingest).lost) == (1, 0)
    finally:
        engine.close()


def test_a_lost_connection_is_shown_and_missed_batches_are_replayed(ingest, index):
    engine = FakeEngine()
    writer = listen(ingest, index, engine)
    publish_chain(engine, range(10))
    eventually(lambda: count_held_blocks(index, writer, 10) == 10)
    engine.close()
    eventually(lambda: status(ingest).state == "unverified")
    now = status(ingest)
    assert "interrupted" in now.doubt
    assert (now.connected, now.doubted_monotonic <= time.monotonic()) == (False, True)
    eventually(lambda: status(ingest).connect_error == live_connection.REFUSED)
    engine = reborn(engine, 14, CHAIN)  # the same batches: the connection was merely interrupted
    try:
        eventually(lambda: count_held_blocks(index, writer, 14) == 14)
        eventually(lambda: status(ingest).state == "connected")
        assert (status(ingest).restarts, status(ingest).lost, status(ingest).gaps) == (0, 0, 0)
        assert status(ingest).connect_error is None
    finally:
        engine.close()


def test_without_a_replay_endpoint_a_reconnected_rank_is_unverified_until_a_batch_connects(
    ingest, index
):
    engine = FakeEngine(replay=False)
    writer = listen(ingest, index, engine)
    publish_chain(engine, range(3))
    eventually(lambda: count_held_blocks(index, writer, 3) == 3)
    engine = reborn(engine, 3, CHAIN)
    try:
        engine.await_subscriber()
        assert status(ingest).state == "unverified"
        publish_chain(engine, [3])
        eventually(lambda: count_held_blocks(index, writer, 4) == 4)
        assert status(ingest).state == "connected"
    finally:
        engine.close()


def test_an_unknown_name_differs_from_a_refused_connection(ingest, index):
    follow(ingest, [a_source("tcp://no-such-host.invalid:5557", index.open_slot())])
    eventually(lambda: status(ingest).connect_error == live_connection.NOT_FOUND)
    assert not status(ingest).connected


def test_a_name_that_is_never_answered_keeps_neither_other_ranks_nor_the_end_waiting(index):
    over = threading.Event()

    def look_up(*_, **__):
        over.wait(10 * PATIENCE_S)
        raise OSError("over")

    ingest = Ingest(threads=1)
    ingest.resolver = Resolver(look_up)
    with FakeEngine() as engine:
        writers = [index.open_slot() for _ in range(40)]
        sources = [
            a_source(f"tcp://host{n}.example:1", writer, replay="tcp://x.example:1", worker_id=n)
            for n, writer in enumerate(writers)
        ]
        heard = index.open_slot()
        follow(ingest, [*sources, a_source(engine.endpoint, heard, worker_id=99)])
        engine.await_subscriber()
        publish_chain(engine, [0])
        eventually(lambda: count_held_blocks(index, heard, 1) == 1)
        follow(ingest, [])
        ingest.close()
    assert not over.is_set()
    assert not [each for each in threading.enumerate() if each.name.startswith("ingest-")]
    over.set()


@pytest.mark.parametrize("answers", [[None, "127.0.0.1"], ["127.0.0.9 127.0.0.1"]])
def test_an_engine_and_its_replay_are_found_by_name_after_failed_lookups(
    ingest, index, answers, monkeypatch
):
    monkeypatch.setattr(zmq_connector, "LOOKUP_INTERVAL_S", 0.01)
    monkeypatch.setattr(zmq_connector, "NOT_FOUND_RETRY_S", 0.01)
    left = list(answers)

    def look_up(host, *rest, **how):
        if host != "engine.example":
            return socket.getaddrinfo(host, *rest, **how)
        found = left.pop(0) if len(left) > 1 else left[0]
        if found is None:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, 1, 6, "", (address, 0)) for address in found.split()]

    with FakeEngine() as engine:
        publish_chain(engine, range(5))
        writer = index.open_slot()
        endpoint = engine.endpoint.replace("127.0.0.1", "engine.example")
        replay = engine.replay_endpoint.replace("127.0.0.1", "localhost")
        ingest.resolver = Resolver(look_up)
        follow(ingest, [a_source(endpoint, writer, replay=replay)])
        engine.await_subscriber()
        publish_chain(engine, [5])
        eventually(lambda: count_held_blocks(index, writer, 6) == 6)
