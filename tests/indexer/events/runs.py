"""Batches of messages for tests."""

import numpy as np

from indexer.events.message_batch import MessageBatch
from indexer.events.message_batch_layout import ROW_LENGTH
from tests.indexer.events.feed_scenes import finish


def a_run(messages):
    """Return a batch of (number, payload) messages, as if received together."""
    rows, at = np.zeros((len(messages), ROW_LENGTH), np.int64), 3
    for row, (number, payload) in zip(rows, messages, strict=True):
        end = at + len(payload)
        row[:] = 3, 1, np.uint64(number).astype(np.int64), at, end, at, at, at, 0, 0
        at = end
    content = b"xyz" + b"".join(payload for _, payload in messages)
    return MessageBatch(np.frombuffer(content, np.uint8), rows)


def take(feed, run, now=0.0):
    """Receive a run as a listener does, and return the number of messages that needed `receive`."""
    alone = 0
    while run:
        usual = feed.receive_run(run, now)
        if not usual:
            alone += 1
            feed.receive(run.sequence_number, run.payload_ahead().tobytes(), now)
        run.first += usual or 1
        finish(feed, now=now)
        feed.check_invariants()
    return alone
