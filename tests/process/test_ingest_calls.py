"""Test of the cost of a usual KV event on its ingest thread, in calls of Python functions."""

import threading
import time

import pytest

from indexer.sockets.ingest import Ingest
from tests.builders.polling import eventually
from tests.process.fake_engine import FakeEngine
from tests.process.ingest_scenes import CHAIN, a_source, close, count_held_blocks

pytestmark = pytest.mark.process

CALLS_MAX = 40
"""Limit per turn: from the wake-up for a message to the next wait, with the change of the index."""
WARM_UP_EVENTS = 3
"""Connection, first event of its form, and the event after that."""
EVENTS = 5
APART_S = 0.05
"""Pause longer than a thread's rest between messages in quick succession, seconds."""


def test_a_usual_event_takes_few_calls(index):
    calls = []

    def note_call(frame, event, _):
        if event == "call":
            calls.append(frame.f_code.co_name)

    threading.setprofile(note_call)
    ingest = Ingest(threads=1)
    threading.setprofile(None)
    writer = index.open_slot()

    def calls_for(engine, block):
        time.sleep(APART_S)
        before = len(calls)
        engine.publish(CHAIN.stored(block))
        eventually(lambda: count_held_blocks(index, writer, block + 1) == block + 1)
        eventually(lambda: calls[-1] == "select")
        return len(calls) - before

    with FakeEngine() as engine:
        ingest.reconcile({1: [a_source(engine.endpoint, writer, replay=engine.replay_endpoint)]})
        engine.await_subscriber()
        counts = [calls_for(engine, block) for block in range(WARM_UP_EVENTS + EVENTS)]
        close(ingest)
    # The replay after a connection ends in one of these turns, so the usual count is the smallest.
    assert 0 < min(counts[WARM_UP_EVENTS:]) <= CALLS_MAX, counts
