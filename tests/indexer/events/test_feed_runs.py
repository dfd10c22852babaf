"""Tests of runs of usual messages, which are applied like single messages."""

from itertools import accumulate, pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.events import batch_scratch, common_form_kernels
from indexer.events.event_feed import EventFeed
from indexer.events.kv_event_source import KvSource
from indexer.index import header_kernels as state
from indexer.index.prefix_index import PrefixIndex
from tests.indexer.events.feed_scenes import finish
from tests.indexer.events.runs import a_run, take

BLOCK_SIZE = 2
GROUPS = [(), ("GPU",), ("CPU",), ("tape",), ("GPU", None, None, 0), ("GPU", None, None, 1)]
"""Fields behind the block size of a stored event: a medium, a LoRA name, keys, a group."""
NAMES = st.integers(1, 12)


def stored(names, parent, rest=(), block_size=BLOCK_SIZE, surplus=0):
    tokens = [token for name in names for token in (name % 5 if name < 50 else name, name % 3)] + [
        7
    ] * surplus
    rest = [*rest, None, None, None, None][:4] if len(rest) > 1 else [*rest]
    lora = [None] if rest else []
    return ["BlockStored", names, parent, tokens, block_size, *lora, *rest]


def removed(names, medium=()):
    return ["BlockRemoved", names, *medium]


def chain(first, length):
    return [first + i for i in range(length)]


STORES = st.builds(
    stored,
    st.builds(chain, NAMES, st.integers(1, 4)),
    st.none() | st.integers(-1, 0) | st.integers(20, 23),
    st.sampled_from(GROUPS),
    st.sampled_from([BLOCK_SIZE] * 6 + [3]),
    st.sampled_from([0, 0, 0, 1, -1]),
)


def keyed_event(names, parent, fields):
    """Return a map event with its own keys, or without the keys of its sequence."""
    event = stored(names, parent)
    fixed = dict(
        zip(("type", "block_hashes", "parent_block_hash", "token_ids"), event, strict=False)
    )
    return {**fixed, "block_size": BLOCK_SIZE, **fields}


KEYS = st.sampled_from(
    [
        {},
        {"medium": "CPU"},
        {"cache_salt": "s"},
        {"extra_keys": [["s"]]},
        {"lora_id": 1, "medium": "CPU"},
        {"lora_name": "ad", "medium": "GPU"},
        {"extra_keys": [[["image", 0]]]},
        {"lookahead_token_ids": None, "flavour": 1},
        {"block_hashes": [9]},
    ]
)
KEYED = st.builds(
    keyed_event, st.builds(chain, NAMES, st.integers(1, 4)), st.none() | st.integers(1, 12), KEYS
)
LIKELY = st.builds(
    lambda first, length: stored(chain(first, length), first - 1 if first > 1 else None, ("GPU",)),
    NAMES,
    st.integers(1, 4),
)
REMOVALS = st.builds(
    removed, st.lists(NAMES, max_size=5), st.sampled_from([(), ("GPU",), ("CPU",), ("tape",)])
)
EVENTS = st.one_of(LIKELY, LIKELY, LIKELY, STORES, REMOVALS, REMOVALS)
RARE = st.sampled_from([["AllBlocksCleared"], ["Ignored"], ["BlockStored", 1], "nonsense"])
BATCHES = st.builds(
    lambda events, rank: msgspec.msgpack.encode([1.0, events, rank]),
    st.lists(EVENTS | EVENTS | EVENTS | KEYED | RARE, max_size=4),
    st.sampled_from([None, None, None, 0, 1, 2]),
)
PAYLOADS = st.one_of(BATCHES, BATCHES, BATCHES, BATCHES, BATCHES, st.binary(max_size=4))


class Side:
    """Index with two slots, and the feed of the first slot."""

    def __init__(self, **source):
        self.index = PrefixIndex(source.pop("blocks_max", 1000), orphan_blocks_max=20)
        # The records of a snapshot are in the order of their table.
        self.index._tree.memory.header[state.HASH_SEED] = 1
        self.writers = {0: self.index.open_slot(), 1: self.index.open_slot()}
        given = {"is_eagle": False, "counted": True, **source}
        self.feed = EventFeed(
            KvSource(1, 0, "tcp://e:1", None, BLOCK_SIZE, writers=self.writers, **given)
        )
        self.feed.begin(0.0, nothing_older_comes=True)

    def visible_state(self):
        """Return the whole visible state."""
        feed, indexed = self.feed, self.feed.indexed
        applier, snapshot = indexed.applier, self.index.snapshot()
        self.index.check_invariants()
        arrays = [each.tolist() for each in snapshot if isinstance(each, np.ndarray)]
        counters = (feed.gaps, feed.lost, feed.stale, feed.restarts, feed.inflations)
        return {
            "index": (arrays, snapshot.orphans, snapshot.slots, self.index.stats()),
            "places": (
                snapshot.positions,
                snapshot.live_at,
                indexed.last_batch,
                feed.last_event_at,
            ),
            "cursor": vars(feed.cursor),
            "counters": (*counters, indexed.batches, indexed.decode_errors),
            "unknown": (indexed.unknown_fields, applier.lookahead_events),
            "eagle": applier.plain_eagle_events,
            "keys": snapshot.keyed_roots and snapshot.keyed_roots.rows.tolist(),
            "applied": (applier.stored_blocks, applier.removed_blocks, applier.drops.counts),
            "state": (bool(feed.degraded), feed.doubt, applier.copies.is_counted, feed.wake_at),
            "copies": applier.copies._copies,
        }


def both(messages, cuts=(), **source):
    """Return the side fed one by one, the side fed in runs, and the number of unusual messages.

    cuts: positions at which runs begin
    """
    alone, together = Side(**source), Side(**source)
    for number, payload in messages:
        finish(alone.feed, alone.feed.receive(number, payload, 0.0))
    bounds = sorted({0, len(messages), *(cut for cut in cuts if cut < len(messages))})
    runs = [a_run(messages[begin:end]) for begin, end in pairwise(bounds)]
    unusual = sum(take(together.feed, run) for run in runs)
    return alone, together, unusual


def number_payloads(payloads, steps):
    """Return (number, payload) of each; steps other than 1 make gaps or go back."""
    numbers = accumulate(steps[: len(payloads)], initial=0)
    return [(max(0, number), payload) for number, payload in zip(numbers, payloads, strict=False)]


STEPS = st.lists(st.sampled_from([1] * 30 + [0, 2, -3]), min_size=40, max_size=40)


@given(
    st.lists(PAYLOADS, max_size=40),
    STEPS,
    st.sets(st.integers(1, 40)),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 3]),
    st.sampled_from([1000, 12]),
)
def test_a_run_is_applied_as_its_messages(
    payloads, steps, cuts, is_eagle, counted, total_blocks, blocks_max
):
    alone, together, _ = both(
        number_payloads(payloads, steps),
        cuts,
        is_eagle=is_eagle,
        counted=counted,
        total_blocks=total_blocks,
        blocks_max=blocks_max,
    )
    assert together.visible_state() == alone.visible_state()


def usual_payloads(count, events_each=1):
    """Return payloads that store chains and remove the chains again."""
    payloads = []
    for number in range(count):
        names = chain(100 * (number % 7) + 1, 3)
        event = removed(names, ("GPU",)) if number % 14 >= 7 else stored(names, None, ("GPU",))
        payloads.append(msgspec.msgpack.encode([1.0, [event] * events_each, 0]))
    return payloads


def test_repeated_messages_are_usual():
    messages = list(enumerate(usual_payloads(200)))
    alone, together, unusual = both(messages, range(0, 200, 32))
    assert together.visible_state() == alone.visible_state()
    assert unusual == 2  # the first store and the first removal


def test_a_run_stops_at_a_message_that_is_not_usual():
    payloads = usual_payloads(30)
    payloads[20] = msgspec.msgpack.encode([1.0, [["AllBlocksCleared"]], 0])
    payloads[25] = b"nonsense"
    alone, together, _ = both(list(enumerate(payloads)), [8])
    assert together.visible_state() == alone.visible_state()
    assert together.feed.indexed.decode_errors == 1


@pytest.mark.parametrize("bound", ["NAMES_MAX", "MESSAGES_MAX", "EVENTS_MAX"])
def test_a_single_read_is_bounded(monkeypatch, bound):
    if bound != "NAMES_MAX":
        monkeypatch.setattr(batch_scratch, bound, 4)
    payloads = usual_payloads(14)
    side = Side()
    for number, payload in enumerate(payloads):
        side.feed.receive(number, payload, 0.0)
    names = chain(1, 600 if bound == "NAMES_MAX" else 3)
    events = 3 if bound == "EVENTS_MAX" else 1
    payload = msgspec.msgpack.encode([1.0, [removed(names, ("GPU",))] * events, 0])
    run = a_run([(14 + k, payload) for k in range(10)])
    most = {
        "NAMES_MAX": common_form_kernels.NAMES_MAX // 600 + 1,
        "MESSAGES_MAX": 4,
        "EVENTS_MAX": 2,
    }
    assert side.feed.receive_run(run, 0.0) == most[bound]


def test_an_index_that_grows_and_fills_is_the_same():
    payloads = [
        msgspec.msgpack.encode([1.0, [stored(chain(60 * n + 1, 60), None, ("GPU",))], 0])
        for n in range(80)
    ]
    alone, together, unusual = both(list(enumerate(payloads)), [10, 40], blocks_max=4000)
    assert together.visible_state() == alone.visible_state()
    assert together.index.stats().refused_blocks == 800
    assert unusual == 1
