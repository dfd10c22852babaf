"""Tests that the garbage collector neither runs during a start nor revisits lasting objects."""

import gc
import sys
from contextlib import suppress

import pytest

from select_service.server.gc_tuning import LEFT_MAX, OLDEST, THRESHOLDS, GcFreezer, gc_disabled


@pytest.fixture
def freezing():
    thresholds = gc.get_threshold()
    freezing = GcFreezer()
    yield freezing
    freezing.unfreeze()
    gc.set_threshold(*thresholds)


def test_collections_go_on_after_a_start_that_failed():
    with suppress(MemoryError), gc_disabled():
        assert not gc.isenabled()
        raise MemoryError
    assert gc.isenabled()


def test_no_collection_visits_objects_of_the_start(freezing):
    assert gc.get_freeze_count() > 10_000
    assert gc.get_threshold()[:2] == THRESHOLDS[:2]
    assert len(gc.get_objects()) < 1000


def test_survivors_of_a_collection_are_not_visited_again(freezing):
    frozen = gc.get_freeze_count()
    fleet = [[] for _ in range(2 * LEFT_MAX)]
    gc.collect()
    assert gc.get_freeze_count() >= frozen + len(fleet)
    assert len(gc.get_objects()) < 1000


def test_little_is_not_frozen(freezing):
    frozen = gc.get_freeze_count()
    some = [[] for _ in range(LEFT_MAX // 2)]
    gc.collect()
    assert gc.get_freeze_count() == frozen
    assert len(gc.get_objects()) >= len(some)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="there are no generations")
def test_collections_stay_small_however_many_objects_come(freezing):
    """Full collections are counted by the objects found; in the end all objects are frozen."""
    looked_at = []

    def note(phase, info):
        if phase == "start" and info["generation"] == OLDEST:
            looked_at.append(len(gc.get_objects()))

    gc.callbacks.insert(0, note)
    try:
        fleet = [[[] for _ in range(50)] for _ in range(2000)]
    finally:
        gc.callbacks.remove(note)
    assert len(looked_at) > 10
    assert max(looked_at) < 2 * (1 + THRESHOLDS[1]) * THRESHOLDS[0]
    assert len(gc.get_objects()) < 2 * (1 + THRESHOLDS[1]) * THRESHOLDS[0] < len(fleet) * 51


def test_frozen_objects_are_freed_without_references(freezing):
    fleet = [[] for _ in range(20 * LEFT_MAX)]
    gc.collect()
    frozen = gc.get_freeze_count()
    fleet.clear()
    assert gc.get_freeze_count() <= frozen - 20 * LEFT_MAX


def test_cycles_that_do_not_live_long_are_found(freezing):
    frozen = gc.get_freeze_count()
    for _ in range(100_000):
        cycle = []
        cycle.append(cycle)
    assert gc.get_freeze_count() < frozen + LEFT_MAX
    assert len(gc.get_objects()) < 2 * (1 + THRESHOLDS[1]) * THRESHOLDS[0]
