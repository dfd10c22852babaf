"""Tests of the ingest threads: bounds, bugs, blocking between threads, and the order of drains."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import zmq

from indexer.events.message_batch import MessageBatch
from indexer.sockets import ingest as ingest_module
from indexer.sockets import listener
from indexer.sockets import read_ahead as arrivals
from indexer.sockets.dns_resolver import Resolver
from indexer.sockets.ingest import Ingest
from indexer.sockets.listener_timers import ListenerTimers
from indexer.sockets.read_ahead import ReceiveBudget
from indexer.sockets.replay_rate_limiter import ReplayRateLimiter
from indexer.sockets.socket_poller import SocketPoller
from indexer.sockets.zmq_connector import SocketSettings
from tests.builders.polling import PATIENCE_S, eventually
from tests.process.fake_engine import FakeEngine, encode
from tests.process.ingest_scenes import (
    CHAIN,
    a_source,
    close,
    count_held_blocks,
    follow,
    publish_chain,
    status,
)
from tests.process.raw_publisher import RawPublisher, message

pytestmark = pytest.mark.process


def a_live_batch(seq):
    """Return the number and payload of a batch that stores one block."""
    return [seq.to_bytes(8, "big"), encode(CHAIN.stored(seq))]


@pytest.mark.parametrize("why", ["recovery", "stuck"])
def test_the_backlog_of_a_held_thread_is_bounded_in_bytes_and_its_loss_noticed(
    index, monkeypatch, why
):
    """Let the engine send as much as the socket accepts, then drop three batches."""
    monkeypatch.setattr(arrivals, "AHEAD_BYTES_MAX", 16 * 2**20)
    ingest, stuck, engine = Ingest(1, held=why == "recovery"), threading.Event(), RawPublisher()
    writer = index.open_slot()
    follow(ingest, [a_source(engine.endpoint, writer)])
    engine.accept()
    if why == "stuck":
        ingest._threads[0].call_soon(stuck.wait)
    taken = 0
    for seq in range(400):
        frames = [bytes(256 * 1024), *a_live_batch(seq)]
        part = engine.offer(frames)
        taken += part
        if part < len(message(frames)):
            break
    assert taken < 64 * 2**20
    stuck.set()
    ingest.start_held_listeners()
    engine.send([b"", *a_live_batch(seq + 4)])
    eventually(lambda: status(ingest).last_sequence == seq + 4)
    assert (status(ingest).lost, status(ingest).state) == (3, "degraded")
    assert ingest._threads[0].budget.used_bytes == 0
    assert count_held_blocks(index, writer, seq + 1) == seq + 1
    engine.close()
    close(ingest)


def test_status_waits_neither_for_a_stuck_thread_nor_for_its_callers(ingest, index, monkeypatch):
    monkeypatch.setattr(ingest_module, "RECONCILE_S_MAX", 10 * PATIENCE_S)
    stuck, go_on = threading.Event(), threading.Event()

    def store_slowly(*_, **__):
        stuck.set()
        go_on.wait(10 * PATIENCE_S)
        return 0

    writer = index.open_slot()
    writer.store_in_one_step = store_slowly
    with FakeEngine(replay=False) as engine:
        follow(ingest, [a_source(engine.endpoint, writer)])
        engine.await_subscriber()
        publish_chain(engine, [0])
        assert stuck.wait(PATIENCE_S)
        assert set(ingest.sources()) == {(1, 0)}
        reconciling = threading.Thread(target=follow, args=(ingest, []))
        reconciling.start()
        try:
            eventually(lambda: ingest.sources() == {})
            assert reconciling.is_alive()
        finally:
            go_on.set()
            reconciling.join()


def test_a_bug_ends_one_listener_with_a_log_line_and_the_thread_goes_on(index, caplog):
    def store_wrongly(*_, **__):
        raise ZeroDivisionError

    broken = index.open_slot()
    broken.store_in_one_step = store_wrongly
    ingest = Ingest(threads=1)
    with FakeEngine() as first, FakeEngine() as second:
        writer = index.open_slot()
        follow(
            ingest,
            [
                a_source(first.endpoint, broken, worker_id=1),
                a_source(second.endpoint, writer, worker_id=2),
            ],
        )
        first.await_subscriber()
        second.await_subscriber()
        publish_chain(first, [0])
        eventually(lambda: status(ingest).state == "degraded")
        assert "ZeroDivisionError" in status(ingest).last_error
        publish_chain(second, [0])
        eventually(lambda: count_held_blocks(index, writer, 1) == 1)
        follow(ingest, [])
        assert ingest.failure() is None
        ingest.close()
    assert any(record.exc_info for record in caplog.records)


def test_a_message_seen_by_a_tick_is_drained_in_the_next_turn(index):
    """Check the next turn after a poll, which clears the event of the socket's file descriptor."""
    readiness = SocketPoller()
    with FakeEngine() as engine, zmq.Context() as context:
        source = a_source(engine.endpoint, index.open_slot(), replay=engine.replay_endpoint)
        sockets = SocketSettings(context, Resolver(), lambda what: what())
        alone = listener.RankListener(
            source, sockets, readiness, ListenerTimers(), ReplayRateLimiter(), ReceiveBudget()
        )
        alone.open()
        alone.start(opened_just_now=True)

        def has_drain_next():
            for drain in readiness.wait_for_drains(0.01):
                if drain():
                    readiness.call_again(drain)
            return alone.feed.wake_at is not None and engine.pub.poll(0)

        eventually(has_drain_next)
        publish_chain(engine, [0])
        eventually(lambda: alone._live.queue.has_messages)
        alone.tick(alone.feed.wake_at)
        assert alone.drain_live in readiness.wait_for_drains(0)
        alone.close()
    readiness.close()


class Endless:
    """Endless supply of useless messages."""

    is_drained = has_messages = has_news = False

    def __init__(self):
        self.times_read_ahead = 0

    def next_messages(self):
        return MessageBatch(np.zeros(1, np.uint8), np.array([[1, 0, 0, 0, 1, 0, 0, 0, 0, 0]]))

    def mark_done(self, messages):
        assert messages == 1

    def read_ahead(self):
        self.times_read_ahead += 1
        return True


@pytest.mark.parametrize("which", [0, 1])
def test_draining_one_socket_leaves_the_other_alone(index, which):
    """Check both sockets: polling one clears the event of its descriptor and could block drains."""
    source = a_source("tcp://127.0.0.1:1", index.open_slot())
    readiness = SocketPoller()
    alone = listener.RankListener(
        source, None, readiness, ListenerTimers(), ReplayRateLimiter(), ReceiveBudget()
    )
    alone._started = True
    both = Endless(), Endless()
    alone._live, alone._replay = [SimpleNamespace(queue=each) for each in both]
    drain = (alone.drain_live, alone.drain_replay)[which]
    assert drain()
    assert [each.times_read_ahead for each in both] == [1 - which, which]
    readiness.close()
