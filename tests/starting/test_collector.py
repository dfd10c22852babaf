"""Garbage is not looked for during a start, and never again in what the start made."""

import gc
from contextlib import suppress

import pytest

from select_service.starting.collector import THRESHOLDS, freeze, no_collections


@pytest.fixture
def as_before():
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_collections_go_on_after_a_start_that_failed():
    with suppress(MemoryError), no_collections():
        assert not gc.isenabled()
        raise MemoryError
    assert gc.isenabled()


def test_a_full_collection_does_not_look_at_what_is_frozen(as_before):
    freeze()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    assert gc.get_threshold()[:2] == THRESHOLDS[:2]
    assert len(gc.get_objects()) < 1000
