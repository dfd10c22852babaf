"""Tests of changes of some workers, which lead to the listeners of the whole catalog."""

import threading
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from indexer.events.kv_event_source import KvSource
from indexer.index.prefix_index import PrefixIndex
from indexer.sockets import ingest as ingest_module
from indexer.sockets.ingest import Ingest
from indexer.sockets.listener import RankListener
from tests.builders.hypothesis_profiles import explores
from tests.builders.polling import eventually

WORKERS = st.integers(0, 4)
RANKS = st.dictionaries(
    st.integers(0, 2),
    st.tuples(
        st.sampled_from(["a", "b"]),  # endpoint
        st.sampled_from([None, "r"]),  # replay endpoint
        st.sampled_from([0, 1]),  # writer of the rank
    ),
)
DELTAS = st.lists(st.dictionaries(WORKERS, RANKS, max_size=3), max_size=8)


class Scene:
    """Sources of workers, as a catalog lists the sources."""

    def __init__(self):
        self.index = PrefixIndex(100)
        self.writers = {}

    def sources(self, worker_id, ranks):
        writers = {rank: self.writer(worker_id, rank, n) for rank, (_, _, n) in ranks.items()}
        return [
            KvSource(worker_id, rank, ipc(endpoint), ipc(replay), 4, False, True, writers)
            for rank, (endpoint, replay, _) in ranks.items()
        ]

    def writer(self, *key):
        if key not in self.writers:
            self.writers[key] = self.index.open_slot()
        return self.writers[key]


def ipc(name):
    return name and f"ipc:///nowhere/{name}"


def listeners(ingest):
    """Return endpoints and the worker's writers of each listener, by rank."""
    return {
        (worker_id, dp_rank): (
            listener.source.endpoint,
            listener.source.replay_endpoint,
            listener.feed.indexed.writers,
        )
        for worker_id, ranks in ingest._listeners.items()
        for dp_rank, (_, listener) in ranks.items()
    }


def expected_listeners(scene, catalog):
    return {
        (source.worker_id, source.dp_rank): (
            source.endpoint,
            source.replay_endpoint,
            source.writers,
        )
        for worker_id, ranks in catalog.items()
        for source in scene.sources(worker_id, ranks)
    }


@given(DELTAS)
@explores(40)
def test_any_sequence_of_changes_leads_to_the_listeners_of_the_whole(deltas):
    scene, catalog, ingest = Scene(), {}, Ingest(threads=2)
    try:
        for delta in deltas:
            catalog |= delta
            ingest.reconcile({w: scene.sources(w, ranks) for w, ranks in delta.items()})
            assert listeners(ingest) == expected_listeners(scene, catalog)
            assert set(ingest.sources()) == set(expected_listeners(scene, catalog))
            assert sum(t.n_listeners for t in ingest._threads) == len(ingest.sources())
        assert ingest.failure() is None
    finally:
        ingest.close()


def test_equal_sources_and_other_workers_are_left_alone():
    scene, ingest = Scene(), Ingest(threads=1)
    both = {0: ("a", None, 0), 1: ("a", None, 0)}
    try:
        ingest.reconcile({1: scene.sources(1, both), 2: scene.sources(2, both)})
        before = {key: ingest._listeners[key[0]][key[1]] for key in ingest.sources()}
        changed = both | {1: ("b", None, 0)}
        ingest.reconcile({1: scene.sources(1, changed), 3: []})
        after = {key: ingest._listeners[key[0]][key[1]] for key in ingest.sources()}
        assert {key for key in before if before[key] is not after[key]} == {(1, 1)}
        ingest.reconcile({1: [], 2: scene.sources(2, {0: both[0]})})
        assert list(ingest.sources()) == [(2, 0)]
        assert ingest._listeners[2][0] is before[2, 0]
    finally:
        ingest.close()


@given(DELTAS)
@explores(20)
def test_changes_that_a_stuck_thread_has_not_made_yet_are_made_in_the_end(deltas):
    scene, catalog, ingest, stuck = Scene(), {}, Ingest(threads=1), threading.Event()
    (thread,) = ingest._threads
    try:
        with mock.patch.object(ingest_module, "RECONCILE_S_MAX", 0.0):
            thread.call_soon(stuck.wait)
            for delta in deltas:
                catalog |= delta
                ingest.reconcile({w: scene.sources(w, ranks) for w, ranks in delta.items()})
        assert len(thread._changes._next.open) <= len(ingest.sources())
        stuck.set()
        eventually(lambda: not thread._changes)
        eventually(lambda: len(thread._open) == len(ingest.sources()))
        assert {(e.source.worker_id, e.source.dp_rank) for e in thread._open} == set(
            expected_listeners(scene, catalog)
        )
        assert set(thread._open) == {e for r in ingest._listeners.values() for _, e in r.values()}
        assert ingest.failure() is None
    finally:
        stuck.set()
        ingest.close()


def test_a_stuck_thread_may_be_any_number_of_changes_behind():
    scene, ingest, stuck = Scene(), Ingest(threads=1), threading.Event()
    (thread,) = ingest._threads
    try:
        with mock.patch.object(ingest_module, "RECONCILE_S_MAX", 0.0):
            thread.call_soon(stuck.wait)
            for n in range(200):
                ingest.reconcile({1: scene.sources(1, {0: ("ab"[n % 2], None, 0)})})
        assert len(thread._changes._next.open) == 1
        stuck.set()
        eventually(lambda: len(thread._open) == 1)
        assert ingest.sources()[1, 0].endpoint == ipc("b")
    finally:
        stuck.set()
        ingest.close()


def test_a_thread_looks_at_its_commands_between_a_few_listeners(monkeypatch):
    """The thread opens, starts or closes only a few listeners between two checks for commands."""
    scene, done, most = Scene(), [], []
    for name in ("open", "start", "close"):
        real = getattr(RankListener, name)
        monkeypatch.setattr(
            RankListener,
            name,
            lambda *given, real=real, **more: done.append(1) or real(*given, **more),
        )
    make = ingest_module._IngestThread._make_changes

    def make_counted_changes(thread):
        before = len(done)
        make(thread)
        most.append(len(done) - before)

    monkeypatch.setattr(ingest_module._IngestThread, "_make_changes", make_counted_changes)
    ingest = Ingest(threads=1, held=True)
    try:
        ranks = dict.fromkeys(range(40), ("a", None, 0))
        ingest.reconcile({1: scene.sources(1, ranks)})
        ingest.start_held_listeners()
        ingest.reconcile({2: scene.sources(2, ranks)})
        (thread,) = ingest._threads
        eventually(lambda: len(thread._open) == 80)
        ingest.reconcile({1: [], 2: []})
        assert not thread._open
        assert len(done) >= 2 * 40 + 40 + 2 * 40
        assert max(most) <= 2 * ingest_module.LISTENERS_AT_ONCE
        assert ingest.failure() is None
    finally:
        ingest.close()


def test_closings_are_waited_for_and_openings_are_not(monkeypatch):
    """A listener that is closed before its turn to be opened is never opened."""
    scene, opened, gate = Scene(), [], threading.Semaphore(0)
    real = RankListener.open
    monkeypatch.setattr(
        RankListener, "open", lambda each: (gate.acquire() and opened.append(each)) or real(each)
    )
    ingest = Ingest(threads=1)
    try:
        ranks = dict.fromkeys(range(40), ("a", None, 0))
        ingest.reconcile({1: scene.sources(1, ranks)})
        closing = threading.Thread(target=ingest.reconcile, args=({1: []},))
        closing.start()
        (thread,) = ingest._threads
        eventually(lambda: thread._changes.has_new)
        for _ in range(ingest_module.LISTENERS_AT_ONCE):
            gate.release()
        closing.join()
        assert len(opened) <= ingest_module.LISTENERS_AT_ONCE
        assert not thread._open
        assert ingest.failure() is None
    finally:
        for _ in range(100):
            gate.release()
        ingest.close()
