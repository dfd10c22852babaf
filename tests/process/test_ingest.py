import itertools
import logging
import socket
import threading
import time
from types import SimpleNamespace

import pytest
import zmq

from indexer.events.feed import EventFeed
from indexer.events.kv_source import KvSource
from indexer.index.prefix_index import PrefixIndex
from indexer.sockets import arrivals, dial, listener, live_connection
from indexer.sockets import ingest as ingest_module
from indexer.sockets.arrivals import Room
from indexer.sockets.ask_pace import AskPace
from indexer.sockets.dial import Sockets
from indexer.sockets.ingest import Ingest
from indexer.sockets.names import Names
from indexer.sockets.readiness import Readiness
from indexer.sockets.timers import Timers
from tests.patience import PATIENCE_S, eventually
from tests.process.fake_engine import BLOCK_SIZE, END, Chain, FakeEngine, encode
from tests.process.raw_publisher import RawPublisher, message

pytestmark = pytest.mark.process

CHAIN = Chain()


@pytest.fixture
def ingest():
    ingest = Ingest(threads=2)
    yield ingest
    close(ingest)
    assert ingest.failure() is None


def close(ingest):
    """Threads that need longer than `close` waits, on a busy machine, are waited for."""
    ingest.close()
    for thread in ingest._threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"{thread.name} does not end"
    ingest.close()


@pytest.fixture
def index():
    return PrefixIndex(1_000_000, lock=threading.Lock())


def a_source(endpoint, writer, *, replay=None, worker_id=1, dp_rank=0, siblings=None):
    return KvSource(
        worker_id=worker_id,
        dp_rank=dp_rank,
        endpoint=endpoint,
        replay_endpoint=replay,
        block_size=BLOCK_SIZE,
        is_eagle=False,
        counted=True,
        writers={dp_rank: writer, **(siblings or {})},
    )


def follow(ingest, sources):
    """Let the listeners be those of these sources and no others."""
    changed = {worker_id: [] for worker_id, _ in ingest.sources()}
    for source in sources:
        changed.setdefault(source.worker_id, []).append(source)
    ingest.follow(changed)


def listen(ingest, index, engine, **source):
    """One listener for the engine; returns its writer once the subscription has arrived."""
    writer = index.open_slot()
    source = {"replay": engine.replay_endpoint, **source}
    follow(ingest, [a_source(engine.endpoint, writer, **source)])
    engine.await_subscriber()
    return writer


def held(index, writer, n_blocks, chain=CHAIN):
    row = index.match(chain.path(n_blocks))
    return int(row[writer.slot, 0]) if writer.slot < len(row) else 0


def status(ingest, worker_id=1, dp_rank=0):
    return ingest.status_of((worker_id, dp_rank))


def publish_chain(engine, blocks, **how):
    for block in blocks:
        engine.publish(CHAIN.stored(block), **how)


def test_published_blocks_are_found(ingest, index):
    with FakeEngine() as engine:
        writer = listen(ingest, index, engine)
        assert status(ingest).state == "no_events_yet"
        publish_chain(engine, range(5))
        eventually(lambda: held(index, writer, 5) == 5)
        now = status(ingest)
        assert (now.state, now.last_sequence, now.batches, now.stored_blocks) == (
            "connected",
            4,
            5,
            5,
        )
        assert time.monotonic() - now.last_event_monotonic < PATIENCE_S


@pytest.mark.parametrize("topic", [False, True])
def test_late_joiner_is_brought_up_to_date_in_both_framings(ingest, index, topic):
    with FakeEngine(topic=topic) as engine:
        publish_chain(engine, range(50))
        writer = listen(ingest, index, engine)
        publish_chain(engine, [50])
        eventually(lambda: held(index, writer, 51) == 51)
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
        eventually(lambda: held(index, writer, 10) == 10)
        assert (engine.requests[-1], status(ingest).replayed) == (2, 5)


def test_gap_beyond_the_ring_leaves_the_rank_degraded_until_it_is_cleared(ingest, index):
    with FakeEngine(ring_max=4) as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, range(10), lost=True)
        publish_chain(engine, [10])
        eventually(lambda: status(ingest).state == "degraded")
        assert (status(ingest).lost, status(ingest).last_sequence) == (7, 10)
        engine.publish(["AllBlocksCleared"], CHAIN.stored(0))
        eventually(lambda: held(index, writer, 1) == 1)
        assert (status(ingest).state, status(ingest).lost) == ("connected", 7)


def test_dead_replay_endpoint_delays_live_events_for_a_while_and_is_not_asked_again(ingest, index):
    with FakeEngine(replay=False) as engine:
        writer = listen(ingest, index, engine, replay="tcp://127.0.0.1:1")
        publish_chain(engine, [0], seq=5)
        publish_chain(engine, [1], seq=6)
        eventually(lambda: held(index, writer, 2) == 2)
        assert status(ingest).state == "degraded"
        publish_chain(engine, [2], seq=9)
        eventually(lambda: held(index, writer, 3) == 3)
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
        eventually(lambda: held(index, writers[1], 10) == 10)
        assert status(ingest).state == "catching_up"
        eventually(lambda: held(index, writers[0], 1) == 1)


def test_replay_that_never_ends_is_left_as_soon_as_the_gap_is_closed(ingest, index):
    def answer(start, ring):
        yield from ([b"", seq.to_bytes(8, "big"), what] for seq, what in ring if seq >= start)
        yield from itertools.repeat([b"", ring[0][0].to_bytes(8, "big"), ring[0][1]], 100_000)

    with FakeEngine(answer=answer) as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, range(9), lost=True)
        publish_chain(engine, [9])
        eventually(lambda: held(index, writer, 10) == 10)
        assert status(ingest).state == "connected"


def test_replay_that_never_helps_and_never_ends_is_given_up(ingest, index):
    def answer(start, ring):
        for _ in range(2000):
            time.sleep(0.01)  # a slow server is what this is about
            yield [b"", (7).to_bytes(8, "big"), encode(rank=6)]

    with FakeEngine(answer=answer) as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, [0], seq=3)
        eventually(lambda: held(index, writer, 1) == 1)
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
        eventually(lambda: held(index, writers[1], 2) == 2)
        assert held(index, writers[0], 1) == 0
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
            eventually(lambda rank=rank: held(index, writers[rank], 6, chains[rank]) == 6)
            assert held(index, writers[1 - rank], 6, chains[rank]) == 0


def test_batch_naming_a_sibling_rank_is_credited_to_it(ingest, index):
    with FakeEngine() as engine:
        sibling = index.open_slot()
        writer = listen(ingest, index, engine, siblings={1: sibling})
        publish_chain(engine, [0], rank=1)
        publish_chain(engine, [1], rank=7)
        eventually(lambda: held(index, sibling, 1) == 1)
        eventually(lambda: status(ingest).dropped.get("rank") == 1)
        assert held(index, writer, 1) == 0


def test_burst_of_20000_batches_is_indexed_without_loss(ingest, index):
    with FakeEngine(replay=False) as engine:
        writer = listen(ingest, index, engine)
        messages = [
            [b"", seq.to_bytes(8, "big"), encode(CHAIN.stored(seq))] for seq in range(20_000)
        ]
        for message in messages:
            engine.send(message)
        eventually(lambda: status(ingest).last_sequence == 19_999)
        now = status(ingest)
        assert (now.batches, now.lost, now.gaps) == (20_000, 0, 0)
        assert held(index, writer, 20_000) == 20_000


def test_garbage_is_counted_and_the_listener_goes_on(ingest, index):
    seq = (0).to_bytes(8, "big")
    with FakeEngine() as engine:
        writer = listen(ingest, index, engine)
        for frames in (
            [b"x"],
            [b"x", seq],
            [b"x", seq, b"y", b"z"],
            [b"x", seq[:7], encode()],
            [b"x", seq + b"1", encode()],
            [b"x"] * 500,
        ):
            engine.send(frames)
        engine.publish("nonsense", ["BlockRemoved", "x"], CHAIN.stored(0))
        engine.send([b"x", (1).to_bytes(8, "big"), b"\xc1\xc1"])
        engine.next_seq = 2
        publish_chain(engine, [2])
        eventually(lambda: status(ingest).last_sequence == 2)
        now = status(ingest)
        assert (now.dropped["frames"], now.decode_errors, now.gaps) == (6, 3, 0)
        assert now.last_error
        assert held(index, writer, 1) == 1


def a_live_batch(seq):
    """Number and payload, which stores one block."""
    return [seq.to_bytes(8, "big"), encode(CHAIN.stored(seq))]


def cut_off(ingest, engine):
    """The engine sends a message that is too long; returns once the listener is connected anew."""
    seq = engine.next_seq.to_bytes(8, "big")
    engine.next_seq += 1
    engine.send([b"x", seq, bytes(arrivals.MESSAGE_BYTES_MAX + 1)])
    eventually(lambda: engine.pub.poll(0) and engine.pub.recv() == b"\x01")
    assert "broken off" in status(ingest).last_error
    assert status(ingest).state == "degraded"


@pytest.mark.parametrize("replay", [True, False])
def test_engine_that_sent_a_message_of_absurd_length_is_heard_again(
    ingest, index, replay, monkeypatch, caplog
):
    monkeypatch.setattr(arrivals, "MESSAGE_BYTES_MAX", 10_000)
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
        assert held(index, writer, 6) == (6 if replay else 2)
        assert (now.state, now.gaps, now.lost) == ("degraded", 2, 2 if replay else 4)
        assert now.restarts == 0
        lines = [r.getMessage() for r in caplog.records if "connected anew" in r.getMessage()]
        assert len(lines) == 1
        engine.publish(["AllBlocksCleared"])
        eventually(lambda: status(ingest).state == "connected")
        assert status(ingest).last_error is None


def test_message_of_absurd_length_in_a_replay_only_loses_the_gap(ingest, index, monkeypatch):
    monkeypatch.setattr(arrivals, "MESSAGE_BYTES_MAX", 10_000)
    with FakeEngine() as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, [0])
        engine.ring.append((1, bytes(10_001)))
        engine.next_seq = 2
        publish_chain(engine, [1])
        eventually(lambda: status(ingest).last_sequence == 2)
        publish_chain(engine, [2])
        eventually(lambda: held(index, writer, 3) == 3)
        assert (status(ingest).state, status(ingest).lost) == ("degraded", 1)


@pytest.mark.parametrize("why", ["recovery", "stuck"])
def test_what_waits_for_a_held_thread_is_bounded_in_bytes_and_its_loss_is_noticed(
    index, monkeypatch, why
):
    """The engine sends as much as is taken, and drops three batches then."""
    monkeypatch.setattr(arrivals, "AHEAD_BYTES_MAX", 16 * 2**20)
    ingest, stuck, engine = Ingest(1, held=why == "recovery"), threading.Event(), RawPublisher()
    writer = index.open_slot()
    follow(ingest, [a_source(engine.endpoint, writer)])
    engine.accept()
    if why == "stuck":
        ingest._threads[0].call(stuck.wait)
    taken = 0
    for seq in range(400):
        frames = [bytes(256 * 1024), *a_live_batch(seq)]
        part = engine.offer(frames)
        taken += part
        if part < len(message(frames)):
            break
    assert taken < 64 * 2**20
    stuck.set()
    ingest.release()
    engine.send([b"", *a_live_batch(seq + 4)])
    eventually(lambda: status(ingest).last_sequence == seq + 4)
    assert (status(ingest).lost, status(ingest).state) == (3, "degraded")
    assert ingest._threads[0].room.used == 0
    assert held(index, writer, seq + 1) == seq + 1
    engine.close()
    close(ingest)


def test_another_protocol_at_the_endpoint_is_told_of_and_tried_again(ingest, index, monkeypatch):
    monkeypatch.setattr(listener, "CONNECT_ANEW_S", 0.05)
    with zmq.Context() as context, context.socket(zmq.PULL) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1")
        writer = index.open_slot()
        follow(ingest, [a_source(f"tcp://127.0.0.1:{port}", writer)])
        eventually(lambda: status(ingest).state == "degraded")
    with FakeEngine(port=port, replay=False) as engine:
        engine.await_subscriber()
        publish_chain(engine, [0])
        eventually(lambda: held(index, writer, 1) == 1)
        assert status(ingest).state == "connected"


def test_closing_twice_and_reconciling_afterwards_do_no_harm(index):
    ingest = Ingest(threads=1)
    ingest.close()
    ingest.close()
    follow(ingest, [a_source("tcp://127.0.0.1:1", index.open_slot())])
    assert ingest.failure() is None


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
        eventually(lambda: held(index, writer, 4) == 4)
        assert status(ingest).dropped["replay_frames"] == 4


def test_restarted_engine_starts_from_nothing(ingest, index):
    with FakeEngine() as engine:
        port = engine.port
        writer = listen(ingest, index, engine)
        publish_chain(engine, range(10))
        eventually(lambda: held(index, writer, 10) == 10)
    with FakeEngine(port=port) as engine:
        engine.await_subscriber()
        engine.publish(Chain(2).stored(0))
        eventually(lambda: held(index, writer, 1, Chain(2)) == 1)
        assert held(index, writer, 10) == 0
        assert status(ingest).restarts == 1


def test_engine_that_appears_after_its_registration_is_heard(ingest, index):
    with FakeEngine() as gone:
        port = gone.port
    writer = index.open_slot()
    follow(ingest, [a_source(f"tcp://127.0.0.1:{port}", writer)])
    assert status(ingest).state == "no_events_yet"
    with FakeEngine(port=port, replay=False) as engine:
        engine.await_subscriber()
        publish_chain(engine, [0])
        eventually(lambda: held(index, writer, 1) == 1)


def test_a_change_leaves_equal_sources_alone_and_refreshes_their_siblings(ingest, index):
    with FakeEngine() as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, [0])
        eventually(lambda: status(ingest).batches == 1)
        sibling = index.open_slot()
        follow(
            ingest,
            [
                a_source(
                    engine.endpoint,
                    writer,
                    replay=engine.replay_endpoint,
                    siblings={1: sibling},
                )
            ],
        )
        assert status(ingest).batches == 1
        publish_chain(engine, [0], rank=1)
        eventually(lambda: held(index, sibling, 1) == 1)
        assert status(ingest).gaps == 0


def test_a_change_reopens_a_source_whose_writer_changed(ingest, index):
    with FakeEngine() as engine:
        old = listen(ingest, index, engine)
        publish_chain(engine, [0])
        eventually(lambda: held(index, old, 1) == 1)
        new = index.open_slot()
        follow(ingest, [a_source(engine.endpoint, new, replay=engine.replay_endpoint)])
        assert status(ingest).batches == 0
        # Whether the engine sees a second subscription depends on which message is first, so
        # it goes on until it is heard.
        blocks = itertools.count(1)
        eventually(lambda: publish_chain(engine, [next(blocks)]) or held(index, new, 2) == 2)


def test_reopened_listener_replays_what_it_missed_and_counts_nothing_twice(ingest, index):
    with FakeEngine() as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, [0, 1])
        eventually(lambda: held(index, writer, 2) == 2)
        # As a PATCH of the replay endpoint does: same slot, new listener.
        replay = engine.replay_endpoint.replace("127.0.0.1", "localhost")
        follow(ingest, [a_source(engine.endpoint, writer, replay=replay)])
        publish_chain(engine, [2], lost=True)
        blocks = itertools.count(3)
        eventually(lambda: publish_chain(engine, [next(blocks)]) or held(index, writer, 4) == 4)
        last = next(blocks)
        eventually(lambda: held(index, writer, last) == last)
        names = [CHAIN.engine_hash(block) for block in range(last)]
        engine.publish(["BlockRemoved", names, "GPU"])
        eventually(lambda: held(index, writer, 1) == 0)
        assert index.stats().blocks == 0
        assert status(ingest).lost == 0


def test_nothing_is_written_once_a_listener_has_been_closed(ingest, index):
    with FakeEngine() as engine:
        listen(ingest, index, engine)
        for block in range(3000):
            publish_chain(engine, [block])
        eventually(lambda: status(ingest).batches > 0)
        follow(ingest, [])
        assert ingest.sources() == {}
        blocks = index.stats()
        for _ in range(5):
            assert index.stats() == blocks


def test_many_listeners_are_spread_over_the_threads_and_all_are_heard(ingest, index):
    with FakeEngine(replay=False) as engine:
        writers = [index.open_slot() for _ in range(300)]
        follow(
            ingest,
            [a_source(engine.endpoint, writer, worker_id=n) for n, writer in enumerate(writers)],
        )
        assert [thread.n_listeners for thread in ingest._threads] == [150, 150]
        publish_until_heard(engine, index, writers)


def publish_until_heard(engine, index, writers):
    """XPUB tells of the first subscription only, so the chain is grown until all have it."""
    blocks = itertools.count()

    def all_hold_something():
        engine.publish(CHAIN.stored(0), seq=next(blocks))
        return all(index.match(CHAIN.path(1))[writer.slot, 0] for writer in writers)

    eventually(all_hold_something)


def test_endpoint_that_zmq_refuses_leaves_a_degraded_listener(ingest, index):
    follow(ingest, [a_source("tcp://*:5557", index.open_slot())])
    eventually(lambda: status(ingest).state == "degraded")
    assert "tcp://*:5557" in status(ingest).last_error
    follow(ingest, [])


def test_replay_endpoint_that_zmq_refuses_only_loses_the_gap(ingest, index):
    with FakeEngine(replay=False) as engine:
        writer = listen(ingest, index, engine, replay="tcp://*:5557")
        publish_chain(engine, [0], seq=3)
        eventually(lambda: held(index, writer, 1) == 1)
        assert (status(ingest).lost, status(ingest).state) == (3, "degraded")


def test_operator_is_told_once_and_with_the_rank(ingest, index, caplog):
    caplog.set_level(logging.INFO, "indexer.listener")
    with FakeEngine(replay=False) as engine:
        listen(ingest, index, engine, worker_id=2**64 - 1, dp_rank=6)
        for seq in range(2, 40, 2):
            publish_chain(engine, [0], seq=seq)
        eventually(lambda: status(ingest, 2**64 - 1, 6).last_sequence == 38)
        eventually(lambda: len(caplog.records) > 1)
    follow(ingest, [])
    lines = [record.getMessage() for record in caplog.records]
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]
    ranks = {(r.fields["worker_id"], r.fields["dp_rank"]) for r in caplog.records}
    assert ranks == {(2**64 - 1, 6)}
    assert lines[1].startswith("KV events lost")


def test_status_waits_neither_for_a_stuck_thread_nor_for_those_who_do(ingest, index, monkeypatch):
    monkeypatch.setattr(ingest_module, "FOLLOW_S_MAX", 10 * PATIENCE_S)
    stuck, go_on = threading.Event(), threading.Event()

    class Stuck:
        slot, place, upcoming, live_at, rest, unplaced_blocks = 0, None, None, None, None, False
        is_half_cleared = False

        def settling(self):
            return iter(())

        def store_at_once(self, *_, **__):
            stuck.set()
            go_on.wait(10 * PATIENCE_S)
            return 0

    with FakeEngine(replay=False) as engine:
        follow(ingest, [a_source(engine.endpoint, Stuck())])
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


def test_a_bug_ends_one_listener_and_says_so_and_its_thread_goes_on(index, caplog):
    class Broken:
        slot, place, upcoming, rest, unplaced_blocks = 0, None, None, None, False
        is_half_cleared = False

        def settling(self):
            return iter(())

        def store_at_once(self, *_, **__):
            raise ZeroDivisionError

    ingest = Ingest(threads=1)
    with FakeEngine() as first, FakeEngine() as second:
        writer = index.open_slot()
        follow(
            ingest,
            [
                a_source(first.endpoint, Broken(), worker_id=1),
                a_source(second.endpoint, writer, worker_id=2),
            ],
        )
        first.await_subscriber()
        second.await_subscriber()
        publish_chain(first, [0])
        eventually(lambda: status(ingest).state == "degraded")
        assert "ZeroDivisionError" in status(ingest).last_error
        publish_chain(second, [0])
        eventually(lambda: held(index, writer, 1) == 1)
        follow(ingest, [])
        assert ingest.failure() is None
        ingest.close()
    assert any(record.exc_info for record in caplog.records)


def test_a_replay_that_cannot_be_sent_only_loses_the_gap(ingest, index, monkeypatch):
    class Mute(zmq.Socket):
        def send_multipart(self, *_, **__):
            raise zmq.Again

    def mute_socket(context, kind, endpoint, bounds):
        return Mute(context, kind, copy_threshold=0)

    monkeypatch.setattr(listener, "reading_socket", mute_socket)
    with FakeEngine() as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, [0], seq=3)
        eventually(lambda: held(index, writer, 1) == 1)
        assert (status(ingest).lost, status(ingest).state) == (3, "degraded")
        assert ingest.failure() is None


# --- where the engine is


def test_a_silent_engine_is_learned_without_a_live_batch(ingest, index):
    with FakeEngine() as engine:
        publish_chain(engine, range(20))
        writer = listen(ingest, index, engine)
        eventually(lambda: held(index, writer, 20) == 20)
        now = status(ingest)
        assert (now.state, now.gaps, now.connected, now.connect_error) == (
            "connected",
            0,
            True,
            None,
        )


def reborn(engine, before, chain):
    """An engine at the same endpoints that has published `before` batches of `chain` already."""
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
    eventually(lambda: held(index, writer, 10) == 10)
    before = {"below": 3, "above": 30, "equal": 10}[numbers]
    engine = reborn(engine, before, other)
    try:
        eventually(lambda: held(index, writer, before, other) == before)
        assert held(index, writer, 10) == 0
        eventually(lambda: status(ingest).state == "connected")
        assert (status(ingest).restarts, status(ingest).lost) == (1, 0)
    finally:
        engine.close()


def test_a_lost_connection_is_shown_and_what_was_published_meanwhile_is_caught_up(ingest, index):
    engine = FakeEngine()
    writer = listen(ingest, index, engine)
    publish_chain(engine, range(10))
    eventually(lambda: held(index, writer, 10) == 10)
    engine.close()
    eventually(lambda: status(ingest).state == "unverified")
    now = status(ingest)
    assert "interrupted" in now.doubt
    assert (now.connected, now.doubted_monotonic <= time.monotonic()) == (False, True)
    eventually(lambda: status(ingest).connect_error == live_connection.REFUSED)
    engine = reborn(engine, 14, CHAIN)  # the same batches: a connection that was away for a while
    try:
        eventually(lambda: held(index, writer, 14) == 14)
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
    eventually(lambda: held(index, writer, 3) == 3)
    engine = reborn(engine, 3, CHAIN)
    try:
        engine.await_subscriber()
        assert status(ingest).state == "unverified"
        publish_chain(engine, [3])
        eventually(lambda: held(index, writer, 4) == 4)
        assert status(ingest).state == "connected"
    finally:
        engine.close()


def test_a_name_that_is_not_known_is_told_apart_from_a_refusal(ingest, index):
    follow(ingest, [a_source("tcp://no-such-host.invalid:5557", index.open_slot())])
    eventually(lambda: status(ingest).connect_error == live_connection.NOT_FOUND)
    assert not status(ingest).connected


def test_what_waits_for_a_replay_is_applied_between_looks_at_commands(ingest, index, monkeypatch):
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
        eventually(lambda: held(index, writer, 3000) == 3000)
        assert all(batches <= 100 for batches in steps)


def test_a_name_that_is_never_answered_keeps_neither_other_ranks_nor_the_end_waiting(index):
    over = threading.Event()

    def look_up(*_, **__):
        over.wait(10 * PATIENCE_S)
        raise OSError("over")

    ingest = Ingest(threads=1)
    ingest.names = Names(look_up)
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
        eventually(lambda: held(index, heard, 1) == 1)
        follow(ingest, [])
        ingest.close()
    assert not over.is_set()
    assert not [each for each in threading.enumerate() if each.name.startswith("ingest-")]
    over.set()


@pytest.mark.parametrize("answers", [[None, "127.0.0.1"], ["127.0.0.9 127.0.0.1"]])
def test_an_engine_and_its_replay_are_found_by_name_whatever_it_takes(
    ingest, index, answers, monkeypatch
):
    monkeypatch.setattr(dial, "LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(dial, "NOT_FOUND_S", 0.01)
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
        ingest.names = Names(look_up)
        follow(ingest, [a_source(endpoint, writer, replay=replay)])
        engine.await_subscriber()
        publish_chain(engine, [5])
        eventually(lambda: held(index, writer, 6) == 6)


def test_a_message_that_a_tick_has_seen_is_drained_in_the_next_turn(index):
    """To look at a socket takes the news from its file descriptor."""
    readiness = Readiness()
    with FakeEngine() as engine, zmq.Context() as context:
        source = a_source(engine.endpoint, index.open_slot(), replay=engine.replay_endpoint)
        sockets = Sockets(context, Names(), lambda what: what())
        alone = listener.Listener(source, sockets, readiness, Timers(), AskPace(), Room())
        alone.open()
        alone.start(opened_just_now=True)

        def is_asked_about_next():
            for drain in readiness.wait(0.01):
                if drain():
                    readiness.again(drain)
            return alone.feed.wake_at is not None and engine.pub.poll(0)

        eventually(is_asked_about_next)
        publish_chain(engine, [0])
        eventually(lambda: alone._live.arrivals.has_some)
        alone.tick(alone.feed.wake_at)
        assert alone.drain_live in readiness.wait(0)
        alone.close()
    readiness.close()


class Endless:
    """Messages that are of no use, without end."""

    def __init__(self):
        self.times_read_ahead = 0

    def take(self):
        return [b"x"]

    def read_ahead(self):
        self.times_read_ahead += 1
        return True


@pytest.mark.parametrize("which", [0, 1])
def test_whoever_drains_one_socket_leaves_the_other_alone(index, which):
    """To look at a socket takes the news from its file descriptor: it would not be drained."""
    source = a_source("tcp://127.0.0.1:1", index.open_slot())
    readiness = Readiness()
    alone = listener.Listener(source, None, readiness, Timers(), AskPace(), Room())
    alone._started = True
    both = Endless(), Endless()
    alone._live, alone._replayed = SimpleNamespace(arrivals=both[0]), both[1]
    drain = (alone.drain_live, alone.drain_replay)[which]
    assert drain()
    assert [each.times_read_ahead for each in both] == [1 - which, which]
    readiness.close()
