"""Feed for tests, and the messages that reach the feed from the wire."""

from indexer.events.event_feed import EventFeed
from indexer.events.kv_event_source import KvSource
from tests.models.event_feed_model import RANK, RecordingWriter, identified

REPLAY = "tcp://127.0.0.1:5558"


def a_feed(*, replay=True, writers=None, **source):
    writers = {RANK: RecordingWriter()} if writers is None else writers
    given = {"block_size": 4, "is_eagle": False, "counted": True, **source}
    return EventFeed(
        KvSource(
            worker_id=1,
            dp_rank=RANK,
            endpoint="tcp://127.0.0.1:5557",
            replay_endpoint=REPLAY if replay else None,
            writers=writers,
            **given,
        )
    )


def finish(feed, action=None, now=0.0):
    """Finish the pending work of a method call, and return the final action."""
    while feed.is_busy:
        action = feed.continue_work(now)
    return action


def live(feed, seq, payload, now):
    return finish(feed, feed.receive(seq, payload, now), now)


def replayed(feed, seq, payload, now):
    return finish(feed, feed.receive_replayed(seq, payload, now), now)


def replay_failed(feed, reason, now):
    return finish(feed, feed.replay_failed(reason, now), now)


def tick(feed, now):
    return finish(feed, feed.tick(now), now)


def send(feed, *seqs, now=0.0, life=1):
    """Receive live batches, and return the last action that is not None."""
    last = None
    for seq in seqs:
        action = live(feed, seq, identified(life, seq), now)
        last = action or last
        feed.check_invariants()
    return last


def reply(feed, *seqs, now=0.0, life=1, rank=None):
    last = None
    for seq in seqs:
        action = replayed(feed, seq, identified(life, seq, rank), now)
        last = action or last
        feed.check_invariants()
    return last


def end(feed, now=0.0):
    return replayed(feed, 2**64 - 1, b"", now)


def applied(feed, rank=RANK):
    return [seq for _, seq in feed.indexed.writers[rank].identities()]
