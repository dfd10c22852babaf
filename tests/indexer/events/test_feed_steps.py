"""Tests of work in steps after a batch, which continues when its listener is closed."""

import msgspec
import numpy as np
import pytest

from indexer.events.batch_applier import STEP_BLOCKS_MAX
from indexer.events.event_feed import EventFeed
from indexer.events.kv_event_source import KvSource
from indexer.index.block_tree import ADOPT_STEP_MAX, BlockTree
from indexer.index.index_snapshot import StreamPosition
from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier

N_LARGE = 5 * STEP_BLOCKS_MAX


def batch(*events):
    return msgspec.msgpack.encode([0.0, list(events), None])


def stored(names, parent=None):
    return ["BlockStored", names, parent, names, 1]


def removed(names):
    return ["BlockRemoved", names]


class Scene:
    """Index with a slot, and the successive feeds of this slot."""

    def __init__(self):
        self.index = PrefixIndex(100_000)
        self.writer = self.index.open_slot()
        self.seq = 0
        self.feed = self.next_feed()

    def next_feed(self):
        self.feed = EventFeed(KvSource(1, 0, "tcp://e:1", None, 1, False, True, {0: self.writer}))
        self.feed.begin(0.0, nothing_older_comes=True)
        return self.feed

    def receive(self, *events):
        self.feed.receive(self.seq, batch(*events), 0.0)
        self.seq += 1

    def receive_some(self, *events):
        """Receive events until a part of the work is applied."""
        held = self.n_blocks
        self.receive(*events)
        while self.n_blocks == held:
            self.feed.continue_work(0.0)

    def finish(self):
        while self.feed.is_busy:
            self.feed.continue_work(0.0)

    def send(self, *events):
        self.receive(*events)
        self.finish()

    @property
    def n_blocks(self):
        return self.index.stats().memberships


def count_calls(monkeypatch, name):
    calls, real = [], getattr(BlockTree, name)
    monkeypatch.setattr(BlockTree, name, lambda *given: calls.append(1) or real(*given))
    return calls


def test_the_parent_of_many_orphans_takes_a_few_of_them_at_a_time(monkeypatch):
    scene = Scene()
    for first in range(2, 2002, 100):
        scene.send(stored(list(range(first, first + 100)), first - 1))
    assert scene.index.stats().orphans == 2000
    adoptions, steps = count_calls(monkeypatch, "adopt_orphans"), 0
    scene.receive(stored([1]))
    while True:
        steps += 1
        assert len(adoptions) <= steps
        if not scene.feed.is_busy:
            break
        scene.feed.continue_work(0.0)
    assert steps > 2000 / ADOPT_STEP_MAX
    assert (scene.n_blocks, scene.index.stats().orphans) == (2001, 0)
    scene.index.check_invariants()


def test_orphans_come_home_before_the_next_event_of_the_batch():
    scene = Scene()
    scene.send(stored([2], 1))
    scene.send(stored([1]), removed([1]), stored([5]))
    scene.index.check_invariants()
    assert (scene.n_blocks, scene.index.stats().orphans) == (2, 0)
    assert scene.feed.indexed.batches == 2
    assert scene.writer.position.next_seq == 2


def test_a_closed_listener_leaves_orphans_to_the_next_one():
    scene = Scene()
    scene.send(stored(list(range(2, 2002)), 1))
    scene.receive(stored([1]))
    assert scene.feed.is_busy
    scene.feed.close()
    assert scene.index.stats().orphans > 0
    scene.next_feed()
    scene.finish()
    assert scene.index.stats().orphans == 0
    scene.index.check_invariants()


@pytest.mark.parametrize("times", [1, 3])
def test_a_listener_closed_in_the_midst_of_an_event_leaves_the_rest_to_the_next(times):
    """Every part is applied once, and the final place is behind the event."""
    scene, names = Scene(), list(range(1, N_LARGE + 1))
    scene.send(stored(names))
    scene.receive_some(removed(names))
    for _ in range(times):
        held = scene.n_blocks
        assert scene.feed.is_busy
        assert held > 0
        scene.feed.close()
        assert (scene.n_blocks, scene.writer.is_whole) == (held, False)
        assert scene.writer.position == StreamPosition(1, 0, scene.writer.position.digest)
        scene.next_feed()
    scene.finish()
    assert (scene.n_blocks, scene.writer.is_whole, scene.writer.pending_steps) == (0, True, None)
    assert (scene.writer.position.next_seq, scene.writer.position.events) == (1, 1)
    assert scene.feed.cursor.next_seq == 1
    scene.send(removed(names), stored([7]))  # a replayed batch is skipped
    assert scene.n_blocks == 1
    scene.index.check_invariants()


@pytest.mark.parametrize("end", ["clear", "close"])
def test_the_rest_of_an_event_is_forgotten_with_the_slot(end):
    scene, names = Scene(), list(range(1, N_LARGE + 1))
    scene.receive_some(stored(names))
    scene.feed.close()
    assert scene.n_blocks > 0
    getattr(scene.writer, end)()
    assert scene.writer.pending_steps is None
    if end == "clear":
        assert scene.writer.is_whole
        scene.next_feed()
        scene.send(stored([1]))
    assert scene.n_blocks == (end == "clear")
    scene.index.check_invariants()


@pytest.mark.parametrize("after", [[], [stored([5])]], ids=["last event", "one more"])
def test_a_slot_that_starts_over_does_so_in_steps(after, monkeypatch):
    """A removal without memory is simulated, because a real shortage needs too much memory."""
    scene = Scene()
    scene.send(stored([1, 2, 3]))
    real = BlockTree.remove_blocks

    def remove(tree, holder, engines, **given):
        tree.slots_to_clear.add(holder >> 3)
        return real(tree, holder, engines[1:], **given)

    monkeypatch.setattr(BlockTree, "remove_blocks", remove)
    sweeps = []
    sweep = BlockTree.sweep_slot
    monkeypatch.setattr(BlockTree, "sweep_slot", lambda *given: sweeps.append(1) or sweep(*given))
    scene.receive(removed([1, 2]), *after)
    scene.finish()
    assert len(sweeps) == 1
    assert (scene.n_blocks, scene.writer.is_half_cleared) == (len(after), False)
    assert scene.index.stats().refused_blocks == 2
    assert scene.writer.position.next_seq == 2
    scene.index.check_invariants()
    assert np.all(scene.index.match(np.array([1], np.uint64)) == 0)


def test_removing_by_hand_starts_over_at_once(monkeypatch):
    scene = Scene()
    scene.send(stored([1, 2, 3]))
    monkeypatch.setattr(
        BlockTree,
        "remove_blocks",
        lambda tree, holder, *_, **__: tree.slots_to_clear.add(holder >> 3) or 0,
    )
    assert scene.writer.remove(Tier.GPU, np.array([1], np.uint64)) == 0
    assert (scene.n_blocks, scene.writer.is_half_cleared) == (0, False)
