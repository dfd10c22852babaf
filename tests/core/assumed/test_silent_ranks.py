"""Tests of ranks with requests but no events: an assumed index bridges the silence."""

import numpy as np

from indexer.tiers import Tier
from tests.builders import a_select, a_select_and_reserve
from tests.core.assumed.scenes import (
    assuming_selector,
    book,
    overlaps,
    partition_of,
    path_of,
    register,
    writer_of,
)

PROMPT = range(20)


def watch(selector, begin, end):
    """Run the watch once a second; return the silent ranks."""
    silent = selector.followers.assumptions.silent
    for second in range(begin, end):
        while silent.run_turn(float(second)):
            pass
    return silent.silent


def a_selector(**rules):
    selector = assuming_selector(use_kv_events=True, silent_after_s=10.0, **rules)
    register(selector, 1)
    register(selector, 2)
    for worker_id in (1, 2):
        writer_of(selector, worker_id).live_at = 0.5
    return selector


def test_a_rank_with_requests_and_no_events_assumes_its_bookings():
    selector = a_selector()
    book(selector, "a", PROMPT)
    assert not watch(selector, 1, 10)
    (silent,) = watch(selector, 10, 14).values()
    assert (silent.rank.worker_id, silent.live_at) == (1, 0.5)
    book(selector, "b", PROMPT, now=14.0)
    book(selector, "c", PROMPT, worker_id=2, now=14.0)
    assert overlaps(selector, PROMPT) == {1: (5, 5), 2: (0, 0)}
    view = selector.followers.assumptions.view_assumed(selector.get_worker(1), 20.0)[0]
    assert (view.source, view.silent_s) == ("assumed", 19.5)


def test_events_end_the_assumption():
    selector = a_selector()
    book(selector, "a", PROMPT)
    watch(selector, 1, 14)
    book(selector, "b", PROMPT, now=14.0)
    writer = writer_of(selector, 1)
    writer.store(Tier.GPU, None, path_of(PROMPT)[:1], np.array([1], np.uint64))
    writer.live_at = 14.5
    assert not watch(selector, 15, 17)
    while selector.followers.assumptions.run_turn(17.0):
        pass
    assert overlaps(selector, PROMPT) == {1: (1, 0), 2: (0, 0)}


def test_the_session_of_a_silent_rank_fills_in_its_cache():
    selector = a_selector()
    book(selector, "a", range(80))
    # The last turn was before the silence, so none of its blocks is assumed.
    first = a_select_and_reserve(
        token_ids=list(range(100, 180)),
        reservation_id="s1",
        session_id="s",
        allowed_worker_ids=[1],
    )
    selector.select_and_reserve(first, 0.0)
    selector.free_reservation("s1", 1.0)
    turn = a_select(session_id="s", token_ids=first.token_ids, allowed_worker_ids=[1])
    table, slot = partition_of(selector).table, writer_of(selector, 1).slot
    version = int(table.columns.version[slot])
    assert selector.select(turn, 1.0).selection.overlap.gpu == 0
    assert watch(selector, 1, 14)
    assert selector.select(turn, 14.0).selection.overlap.gpu == 64, "0.8 of the last turn"
    assert table.columns.version[slot] > version, "the fast path keeps what it knows by version"
    version = int(table.columns.version[slot])
    writer_of(selector, 1).live_at = 14.5
    assert not watch(selector, 15, 17)
    assert selector.select(turn, 17.0).selection.overlap.gpu == 0
    assert table.columns.version[slot] > version


def test_idle_ranks_and_those_that_never_sent_an_event_are_left_alone():
    selector = a_selector()
    assert not watch(selector, 1, 60)
    writer_of(selector, 1).live_at = None
    book(selector, "a", PROMPT, now=60.0)
    assert not watch(selector, 60, 120)


def test_events_and_pauses_of_the_watch_do_not_count_as_silence():
    selector = a_selector()
    book(selector, "a", PROMPT)
    for second in range(1, 60):
        writer_of(selector, 1).live_at = second + 0.5
        assert not watch(selector, second, second + 1)
    assert not watch(selector, 1000, 1001), "the process was suspended"


def test_a_worker_that_insists_on_events_is_never_assumed():
    selector = a_selector()
    register(selector, 1, index="events")
    book(selector, "a", PROMPT)
    assert not watch(selector, 1, 60)


def test_a_registration_again_does_not_end_the_silence():
    selector = a_selector()
    book(selector, "a", PROMPT)
    watch(selector, 1, 14)
    register(selector, 1, taints=["new"])
    assert watch(selector, 14, 16)
    book(selector, "b", PROMPT, now=16.0)
    assert overlaps(selector, PROMPT)[1] == (5, 5)


def test_zero_seconds_mean_never():
    selector = assuming_selector(use_kv_events=True, silent_after_s=0.0)
    register(selector, 1)
    writer_of(selector, 1).live_at = 0.5
    book(selector, "a", PROMPT)
    assert not watch(selector, 1, 600)
