"""Tests of ingest listeners: received events, and changes of the followed engines."""

import itertools
import logging
import time

import msgspec
import pytest

from indexer.index.kv_cache_facts import KvCacheFacts
from indexer.sockets.ingest import Ingest
from tests.builders.polling import PATIENCE_S, eventually
from tests.process.fake_engine import FakeEngine, encode
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


def test_published_blocks_are_found(ingest, index):
    with FakeEngine() as engine:
        writer = listen(ingest, index, engine)
        assert status(ingest).state == "no_events_yet"
        publish_chain(engine, range(5))
        eventually(lambda: count_held_blocks(index, writer, 5) == 5)
        now = status(ingest)
        assert (now.state, now.last_sequence, now.batches, now.stored_blocks) == (
            "connected",
            4,
            5,
            5,
        )
        assert time.monotonic() - now.last_event_monotonic < PATIENCE_S


def test_cache_groups_of_a_rank_are_shown(ingest, index):
    with FakeEngine(replay=False) as engine:
        listen(ingest, index, engine)
        for seq, kind in enumerate(("full_attention", "chunked_local_attention")):
            engine.publish([*CHAIN.stored(0), None, None, seq, kind])
        eventually(lambda: status(ingest).batches == 2)
        found = status(ingest).cache_groups
        assert [(group.kind, group.blocks) for group in found.groups] == [
            ("full_attention", 1),
            ("chunked_local_attention", 1),
        ]
        assert found.is_bound
        assert ingest.pulse_of((1, 0)).is_bound


def test_batch_naming_a_sibling_rank_is_credited_to_it(ingest, index):
    with FakeEngine() as engine:
        sibling = index.open_slot()
        writer = listen(ingest, index, engine, siblings={1: sibling})
        publish_chain(engine, [0], rank=1)
        publish_chain(engine, [1], rank=7)
        eventually(lambda: count_held_blocks(index, sibling, 1) == 1)
        eventually(lambda: status(ingest).dropped.get("rank") == 1)
        assert count_held_blocks(index, writer, 1) == 0


@pytest.mark.parametrize("topic", [b"kv@pod@model", b"kv@pod@" + b"m" * 300])
def test_messages_of_one_burst_may_be_of_two_engines(ingest, index, topic):
    with FakeEngine(replay=False) as engine:
        writer = listen(ingest, index, engine)
        for name in (topic, topic + b"2"):
            for seq in range(300):
                engine.send([name, seq.to_bytes(8, "big"), encode(CHAIN.stored(seq))])
            if name == topic:
                continue
            eventually(lambda: status(ingest).last_sequence == 299 and status(ingest).restarts)
        now = status(ingest)
        assert (now.engine_changes, now.restarts, now.stale, now.lost) == (1, 1, 0, 0)
        eventually(lambda: count_held_blocks(index, writer, 300) == 300)
        assert now.batches == 600


@pytest.mark.parametrize("first_seq", [0, 5])
def test_another_engine_at_the_address_begins_with_nothing(ingest, index, first_seq):
    topics = [b"kv@10.0.0.7:8000@llama", b"kv@10.0.0.7:8000@qwen"]
    with FakeEngine(replay=False) as engine:
        writer = listen(ingest, index, engine)
        for seq in range(3):
            engine.send([topics[0], seq.to_bytes(8, "big"), encode(CHAIN.stored(seq))])
        eventually(lambda: count_held_blocks(index, writer, 3) == 3)
        engine.send([topics[1], first_seq.to_bytes(8, "big"), encode(CHAIN.stored(0))])
        eventually(lambda: count_held_blocks(index, writer, 3) == 1)
        now = status(ingest)
        assert (now.engine_changes, now.restarts) == (1, 1)
        assert now.engine_change == ("topic kv@10.0.0.7:8000@llama became kv@10.0.0.7:8000@qwen")


def test_topics_without_names_prove_nothing(ingest, index):
    with FakeEngine(replay=False) as engine:
        writer = listen(ingest, index, engine)
        for seq, topic in enumerate([b"", b"kv-events", b"kv@a@m", b"kv@a@m", b"other"]):
            engine.send([topic, seq.to_bytes(8, "big"), encode(CHAIN.stored(seq))])
        eventually(lambda: count_held_blocks(index, writer, 5) == 5)
        assert (status(ingest).engine_changes, status(ingest).restarts) == (0, 0)


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
        assert count_held_blocks(index, writer, 20_000) == 20_000


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
        assert count_held_blocks(index, writer, 1) == 1


def test_closing_twice_and_reconciling_afterwards_do_no_harm(index):
    ingest = Ingest(threads=1)
    ingest.close()
    ingest.close()
    follow(ingest, [a_source("tcp://127.0.0.1:1", index.open_slot())])
    assert ingest.failure() is None


def test_events_of_an_engine_that_starts_after_its_registration_arrive(ingest, index):
    with FakeEngine() as gone:
        port = gone.port
    writer = index.open_slot()
    follow(ingest, [a_source(f"tcp://127.0.0.1:{port}", writer)])
    assert status(ingest).state == "no_events_yet"
    with FakeEngine(port=port, replay=False) as engine:
        engine.await_subscriber()
        publish_chain(engine, [0])
        eventually(lambda: count_held_blocks(index, writer, 1) == 1)


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
                    engine.endpoint, writer, replay=engine.replay_endpoint, siblings={1: sibling}
                )
            ],
        )
        assert status(ingest).batches == 1
        publish_chain(engine, [0], rank=1)
        eventually(lambda: count_held_blocks(index, sibling, 1) == 1)
        assert status(ingest).gaps == 0


def test_a_change_reopens_a_source_with_a_new_writer(ingest, index):
    with FakeEngine() as engine:
        old = listen(ingest, index, engine)
        publish_chain(engine, [0])
        eventually(lambda: count_held_blocks(index, old, 1) == 1)
        new = index.open_slot()
        follow(ingest, [a_source(engine.endpoint, new, replay=engine.replay_endpoint)])
        assert status(ingest).batches == 0
        # Whether the engine sees a second subscription depends on which message is first, so
        # publish until an event arrives.
        blocks = itertools.count(1)
        eventually(
            lambda: publish_chain(engine, [next(blocks)]) or count_held_blocks(index, new, 2) == 2
        )


@pytest.mark.parametrize("replay", [True, False])
def test_other_facts_about_the_cache_apply_to_the_blocks_that_are_there(ingest, index, replay):
    with FakeEngine(replay=replay) as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, range(5))
        eventually(lambda: count_held_blocks(index, writer, 5) == 5)
        source = a_source(engine.endpoint, writer, replay=engine.replay_endpoint)
        for drops in (True, False):
            changed = msgspec.structs.replace(source, facts=KvCacheFacts(eagle_drop=drops))
            ingest.reconcile({1: [changed]})
            eventually(lambda: status(ingest).connected)
            eventually(lambda drops=drops: count_held_blocks(index, writer, 5) == 5 - drops)
        index.check_invariants()


def test_reopened_listener_replays_missed_batches_and_counts_none_twice(ingest, index):
    with FakeEngine() as engine:
        writer = listen(ingest, index, engine)
        publish_chain(engine, [0, 1])
        eventually(lambda: count_held_blocks(index, writer, 2) == 2)
        # As a PATCH of the replay endpoint does: same slot, new listener.
        replay = engine.replay_endpoint.replace("127.0.0.1", "localhost")
        follow(ingest, [a_source(engine.endpoint, writer, replay=replay)])
        publish_chain(engine, [2], lost=True)
        blocks = itertools.count(3)
        eventually(
            lambda: (
                publish_chain(engine, [next(blocks)]) or count_held_blocks(index, writer, 4) == 4
            )
        )
        last = next(blocks)
        eventually(lambda: count_held_blocks(index, writer, last) == last)
        names = [CHAIN.engine_hash(block) for block in range(last)]
        engine.publish(["BlockRemoved", names, "GPU"])
        eventually(lambda: count_held_blocks(index, writer, 1) == 0)
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


def test_many_listeners_are_spread_over_the_threads_and_all_get_events(ingest, index):
    with FakeEngine(replay=False) as engine:
        writers = [index.open_slot() for _ in range(300)]
        follow(
            ingest,
            [a_source(engine.endpoint, writer, worker_id=n) for n, writer in enumerate(writers)],
        )
        assert [thread.n_listeners for thread in ingest._threads] == [150, 150]
        publish_until_received(engine, index, writers)


def publish_until_received(engine, index, writers):
    """XPUB reports the first subscription only, so publish until all writers have a block."""
    blocks = itertools.count()

    def all_hold_something():
        engine.publish(CHAIN.stored(0), seq=next(blocks))
        return all(index.match(CHAIN.path(1))[writer.slot, 0] for writer in writers)

    eventually(all_hold_something)


def test_an_error_is_logged_once_with_the_rank(ingest, index, caplog):
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
