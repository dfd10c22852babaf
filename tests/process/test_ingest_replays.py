"""Tests of gaps in a stream, and of replay endpoints that do or do not close them."""

import itertools
import threading
import time

import pytest
import zmq

from indexer.events.event_feed import EventFeed
from indexer.sockets import listener, read_ahead, replay_connection
from tests.builders.polling import PATIENCE_S, eventually
from tests.process.fake_engine import END, Chain, FakeEngine, encode
from tests.process.ingest_scenes import (
    CHAIN,
    a_source,
    count_held_blocks,
    follow,
    listen,
    publish_chain,
    status,
)

pytestmark = pytest.mark.process


@pytest.mark.parametrize("topic", [False, True])
def test_late_joiner_is_brought_up_to_date_in_both_framings(ingest, index, topic):
    with FakeEngine(topic=topic) as engine:
        publish_chain(engine, range(50))
        writer = listen(ingest, index, engine)
        publish_chain(engine, [50])
        eventually(lambda: count_held_blocks(index, writer, 51) == 51)
        now = status(ingest)
        assert (now.state, now.gaps, now.replayed, now.lost) == ("connected", 1, 50, 0)
        assert engine.requests == [0]


@pytest.mark.parametrize("topic", [False, True])
def test_gap_is_closed_from_its_first_missing_batch(ingest, index, topic):
    with FakeEngine(topic=topic) as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, range(3))
        publish_chain(engine, range(3, 8), lost=True)
        publish_chain(engine, range(8, 10))
        eventually(lambda: count_held_blocks(index, writer, 10) == 10)
        assert (engine.requests[-1], status(ingest).replayed) == (2, 5)


def test_gap_beyond_the_ring_leaves_the_rank_degraded_until_it_is_cleared(ingest, index):
    with FakeEngine(ring_max=4) as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, range(10), lost=True)
        publish_chain(engine, [10])
        eventually(lambda: status(ingest).state == "degraded")
        assert (status(ingest).lost, status(ingest).last_sequence) == (7, 10)
        engine.publish(["AllBlocksCleared"], CHAIN.stored(0))
        eventually(lambda: count_held_blocks(index, writer, 1) == 1)
        assert (status(ingest).state, status(ingest).lost) == ("connected", 7)


def test_dead_replay_endpoint_delays_live_events_once_and_is_not_used_again(ingest, index):
    with FakeEngine(replay=False) as engine:
        writer = listen(ingest, index, engine, replay="tcp://127.0.0.1:1")
        publish_chain(engine, [0], seq=5)
        publish_chain(engine, [1], seq=6)
        eventually(lambda: count_held_blocks(index, writer, 2) == 2)
        assert status(ingest).state == "degraded"
        publish_chain(engine, [2], seq=9)
        eventually(lambda: count_held_blocks(index, writer, 3) == 3)
        assert status(ingest).lost == 7


def test_silent_replay_endpoint_does_not_delay_other_ranks(ingest, index):
    with FakeEngine(answer=lambda *_: ()) as silent, FakeEngine() as engine:
        writers = [index.open_slot(), index.open_slot()]
        follow(
            ingest,
            [
                a_source(silent.endpoint, writers[0], replay=silent.replay_endpoint, worker_id=1),
                a_source(engine.endpoint, writers[1], replay=engine.replay_endpoint, worker_id=2),
            ],
        )
        silent.await_subscriber()
        engine.await_subscriber()
        publish_chain(silent, [0], seq=5)
        eventually(lambda: status(ingest).state == "catching_up")
        publish_chain(engine, range(10))
        eventually(lambda: count_held_blocks(index, writers[1], 10) == 10)
        assert status(ingest).state == "catching_up"
        eventually(lambda: count_held_blocks(index, writers[0], 1) == 1)


def test_replay_that_never_ends_is_left_as_soon_as_the_gap_is_closed(ingest, index):
    def answer(start, ring):
        yield from ([b"", seq.to_bytes(8, "big"), what] for seq, what in ring if seq >= start)
        yield from itertools.repeat([b"", ring[0][0].to_bytes(8, "big"), ring[0][1]], 100_000)

    with FakeEngine(answer=answer) as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, range(9), lost=True)
        publish_chain(engine, [9])
        eventually(lambda: count_held_blocks(index, writer, 10) == 10)
        assert status(ingest).state == "connected"


def test_replay_that_never_helps_and_never_ends_is_given_up(ingest, index):
    def answer(start, ring):
        for _ in range(2000):
            time.sleep(0.01)  # simulates a slow server
            yield [b"", (7).to_bytes(8, "big"), encode(rank=6)]

    with FakeEngine(answer=answer) as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, [0], seq=3)
        eventually(lambda: count_held_blocks(index, writer, 1) == 1)
        assert status(ingest).dropped["replay_of_other_rank"] > 10


def test_replay_of_another_rank_is_not_taken_and_the_own_stream_goes_on(ingest, index):
    def answer(start, ring):
        for seq in range(start, 100):
            yield [b"", seq.to_bytes(8, "big"), encode(CHAIN.stored(seq), rank=0)]
        yield END

    with FakeEngine(answer=answer) as engine:
        writers = {rank: index.open_slot() for rank in (0, 1)}
        follow(
            ingest,
            [
                a_source(
                    engine.endpoint,
                    writers[1],
                    replay=engine.replay_endpoint,
                    dp_rank=1,
                    siblings=writers,
                )
            ],
        )
        engine.await_subscriber()
        publish_chain(engine, [0], seq=5, rank=1)
        publish_chain(engine, [1], seq=6, rank=1)
        eventually(lambda: count_held_blocks(index, writers[1], 2) == 2)
        assert count_held_blocks(index, writers[0], 1) == 0
        assert status(ingest, dp_rank=1).last_sequence == 6


def test_two_ranks_replay_from_their_own_endpoints(ingest, index):
    with FakeEngine() as first, FakeEngine() as second:
        engines, chains = (first, second), (Chain(1), Chain(2))
        writers = {rank: index.open_slot() for rank in (0, 1)}
        for rank in (0, 1):
            for block in range(5):
                engines[rank].publish(chains[rank].stored(block), rank=rank)
        follow(
            ingest,
            [
                a_source(
                    engines[rank].endpoint,
                    writers[rank],
                    replay=engines[rank].replay_endpoint,
                    dp_rank=rank,
                    siblings=writers,
                )
                for rank in (0, 1)
            ],
        )
        for rank in (0, 1):
            engines[rank].await_subscriber()
            engines[rank].publish(chains[rank].stored(5), rank=rank)
        for rank in (0, 1):
            eventually(
                lambda rank=rank: count_held_blocks(index, writers[rank], 6, chains[rank]) == 6
            )
            assert count_held_blocks(index, writers[1 - rank], 6, chains[rank]) == 0


def test_garbage_in_a_replay_is_skipped(ingest, index):
    def answer(start, ring):
        yield [b""]
        yield [b"x", b"y", b"z"]
        yield [b"", b"short", b"payload"]
        yield [b""] * 9
        yield from FakeEngine._answer_plainly(start, ring)

    with FakeEngine(answer=answer) as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, range(3), lost=True)
        publish_chain(engine, [3])
        eventually(lambda: count_held_blocks(index, writer, 4) == 4)
        assert status(ingest).dropped["replay_frames"] == 4


def test_replay_endpoint_that_zmq_refuses_only_loses_the_gap(ingest, index):
    with FakeEngine(replay=False) as engine:
        writer = listen(ingest, index, engine, replay="tcp://*:5557")
        publish_chain(engine, [0], seq=3)
        eventually(lambda: count_held_blocks(index, writer, 1) == 1)
        assert (status(ingest).lost, status(ingest).state) == (3, "degraded")


def test_a_replay_that_cannot_be_sent_only_loses_the_gap(ingest, index, monkeypatch):
    class Mute(zmq.Socket):
        def send_multipart(self, *_, **__):
            raise zmq.Again

    def mute_socket(context, kind, *_):
        return Mute(context, kind, copy_threshold=0)

    monkeypatch.setattr(replay_connection, "reading_socket", mute_socket)
    with FakeEngine() as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, [0], seq=3)
        eventually(lambda: count_held_blocks(index, writer, 1) == 1)
        assert (status(ingest).lost, status(ingest).state) == (3, "degraded")
        assert ingest.failure() is None


def test_message_of_absurd_length_in_a_replay_only_loses_the_gap(ingest, index, monkeypatch):
    monkeypatch.setattr(read_ahead, "MESSAGE_BYTES_MAX", 10_000)
    with FakeEngine() as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, [0])
        engine.ring.append((1, bytes(10_001)))
        engine.next_seq = 2
        publish_chain(engine, [1])
        eventually(lambda: status(ingest).last_sequence == 2)
        publish_chain(engine, [2])
        eventually(lambda: count_held_blocks(index, writer, 3) == 3)
        assert (status(ingest).state, status(ingest).lost) == ("degraded", 1)


def test_batches_held_for_a_replay_are_applied_between_commands(ingest, index, monkeypatch):
    steps = []

    class Counting(EventFeed):
        def go_on(self, now):
            before = self.indexed.batches
            action = super().go_on(now)
            steps.append(self.indexed.batches - before)
            return action

    monkeypatch.setattr(listener, "EventFeed", Counting)
    release = threading.Event()

    def answer(start, ring):
        if start == 0 and ring:
            release.wait(PATIENCE_S)
        return FakeEngine._answer_plainly(start, ring)

    with FakeEngine(answer=answer) as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, [0], lost=True)
        publish_chain(engine, range(1, 3000))
        release.set()
        eventually(lambda: count_held_blocks(index, writer, 3000) == 3000)
        assert all(batches <= 100 for batches in steps)
