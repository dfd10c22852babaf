"""Engines that publish and replay over CURVE: a stand-in, since none offers it today."""

import contextlib

import pytest

from indexer.sockets import listener
from indexer.sockets.curve_keypairs import new_key_pair
from indexer.sockets.ingest import Ingest
from tests.builders.polling import eventually
from tests.process.fake_engine import FakeEngine
from tests.process.ingest_scenes import a_source, close, follow, held, listen, publish_chain, status

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
        eventually(lambda: held(index, writer, 21) == 21)
        now = status(ingest)
        assert (now.state, now.replayed, now.lost) == ("connected", 20, 0)


@pytest.mark.parametrize("key", [None, WRONG_KEY], ids=["plain", "another key"])
def test_an_engine_of_another_key_is_not_heard_until_the_right_one_is_given(
    index, key, monkeypatch
):
    monkeypatch.setattr(listener, "RECONNECT_DELAY_S", 0.1)
    with listening_as(OURS) as ingest, FakeEngine(pair=ENGINE, replay=False) as engine:
        writer = index.open_slot()
        follow(ingest, [a_source(engine.endpoint, writer, key=key)])
        eventually(lambda: status(ingest).connect_error)
        assert not engine.pub.poll(0)
        follow(ingest, [a_source(engine.endpoint, writer, key=KEY)])
        engine.await_subscriber()
        publish_chain(engine, [0])
        eventually(lambda: held(index, writer, 1) == 1)
        assert status(ingest).connected


def test_a_listener_that_the_engine_does_not_know_hears_nothing(index, monkeypatch):
    monkeypatch.setattr(listener, "RECONNECT_DELAY_S", 0.1)
    engine = FakeEngine(pair=ENGINE, known={OURS.public}, replay=False)
    with engine, listening_as(OTHER) as ingest:
        follow(ingest, [a_source(engine.endpoint, index.open_slot(), key=KEY)])
        eventually(lambda: status(ingest).connect_error)
        assert not status(ingest).connected
        assert not engine.pub.poll(0)


def test_who_is_plain_where_a_key_is_expected_is_not_heard(index, monkeypatch):
    monkeypatch.setattr(listener, "RECONNECT_DELAY_S", 0.1)
    with listening_as(None) as ingest, FakeEngine(replay=False) as impostor:
        writer = index.open_slot()
        follow(ingest, [a_source(impostor.endpoint, writer, key=KEY)])
        eventually(lambda: status(ingest).connect_error)
        publish_chain(impostor, [0])
        assert not impostor.pub.poll(0)
        assert held(index, writer, 1) == 0
