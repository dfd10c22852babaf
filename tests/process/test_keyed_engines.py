"""Tests of fake engines that publish and replay over CURVE, which no engine offers today."""

import contextlib

import pytest

from indexer.sockets import listener
from indexer.sockets.curve_keypairs import new_key_pair
from indexer.sockets.ingest import Ingest
from tests.builders.polling import eventually
from tests.process.fake_engine import FakeEngine
from tests.process.ingest_scenes import (
    a_source,
    close,
    count_held_blocks,
    follow,
    listen,
    publish_chain,
    status,
)

pytestmark = pytest.mark.process

ENGINE, OURS, OTHER = new_key_pair(), new_key_pair(), new_key_pair()
KEY, WRONG_KEY = ENGINE.public.decode(), OTHER.public.decode()


@contextlib.contextmanager
def listening_as(pair):
    ingest = Ingest(threads=1, own_pair=pair)
    try:
        yield ingest
    finally:
        close(ingest)
    assert ingest.failure() is None


@pytest.mark.parametrize("known", [None, {OURS.public}])
def test_events_and_replays_come_over_curve(index, known):
    own = None if known is None else OURS
    with listening_as(own) as ingest, FakeEngine(pair=ENGINE, known=known) as engine:
        publish_chain(engine, range(20))
        writer = listen(ingest, index, engine, key=KEY)
        publish_chain(engine, [20])
        eventually(lambda: count_held_blocks(index, writer, 21) == 21)
        now = status(ingest)
        assert (now.state, now.replayed, now.lost) == ("connected", 20, 0)


@pytest.mark.parametrize("key", [None, WRONG_KEY], ids=["plain", "another key"])
def test_events_of_an_engine_with_another_key_wait_for_the_right_key(index, key, monkeypatch):
    monkeypatch.setattr(listener, "RECONNECT_DELAY_S", 0.1)
    with listening_as(OURS) as ingest, FakeEngine(pair=ENGINE, replay=False) as engine:
        writer = index.open_slot()
        follow(ingest, [a_source(engine.endpoint, writer, key=key)])
        eventually(lambda: status(ingest).connect_error)
        assert not engine.pub.poll(0)
        follow(ingest, [a_source(engine.endpoint, writer, key=KEY)])
        engine.await_subscriber()
        publish_chain(engine, [0])
        eventually(lambda: count_held_blocks(index, writer, 1) == 1)
        assert status(ingest).connected


def test_a_listener_with_an_unknown_key_gets_no_events(index, monkeypatch):
    monkeypatch.setattr(listener, "RECONNECT_DELAY_S", 0.1)
    engine = FakeEngine(pair=ENGINE, known={OURS.public}, replay=False)
    with engine, listening_as(OTHER) as ingest:
        follow(ingest, [a_source(engine.endpoint, index.open_slot(), key=KEY)])
        eventually(lambda: status(ingest).connect_error)
        assert not status(ingest).connected
        assert not engine.pub.poll(0)


def test_events_of_an_engine_without_the_expected_key_are_dropped(index, monkeypatch):
    monkeypatch.setattr(listener, "RECONNECT_DELAY_S", 0.1)
    with listening_as(None) as ingest, FakeEngine(replay=False) as impostor:
        writer = index.open_slot()
        follow(ingest, [a_source(impostor.endpoint, writer, key=KEY)])
        eventually(lambda: status(ingest).connect_error)
        publish_chain(impostor, [0])
        assert not impostor.pub.poll(0)
        assert count_held_blocks(index, writer, 1) == 0
