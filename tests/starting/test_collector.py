"""Garbage is not looked for during a start, nor again and again in what stays."""

import gc
from contextlib import suppress

import pytest

from select_service.starting import collector
from select_service.starting.collector import GROWTH, THRESHOLDS, Freezing, no_collections


@pytest.fixture
def freezing():
    thresholds = gc.get_threshold()
    freezing = Freezing()
    yield freezing
    freezing.end()
    gc.set_threshold(*thresholds)


def test_collections_go_on_after_a_start_that_failed():
    with suppress(MemoryError), no_collections():
        assert not gc.isenabled()
        raise MemoryError
    assert gc.isenabled()


def test_no_collection_looks_at_what_a_start_has_made(freezing):
    assert freezing.frozen > 10_000
    assert gc.get_threshold()[:2] == THRESHOLDS[:2]
    assert len(gc.get_objects()) < 1000


def test_what_a_long_collection_leaves_is_not_looked_at_again(freezing, monkeypatch):
    monkeypatch.setattr(collector, "LONG_S", 0.0)
    frozen = freezing.frozen
    fleet = [[] for _ in range(frozen // GROWTH + 1000)]
    gc.collect()
    assert freezing.frozen >= frozen + len(fleet)
    assert len(gc.get_objects()) < 1000


def test_little_is_not_frozen_however_long_it_takes(freezing, monkeypatch):
    monkeypatch.setattr(collector, "LONG_S", 0.0)
    frozen = freezing.frozen
    some = [[] for _ in range(frozen // GROWTH // 2)]
    gc.collect()
    assert freezing.frozen == frozen
    assert len(gc.get_objects()) >= len(some)
