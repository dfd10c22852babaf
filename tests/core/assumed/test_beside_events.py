"""Tests of assumptions beside events: each ends with an announcement, removal or clear."""

import numpy as np

from indexer.tiers import Tier
from select_service.core.assumed import pending_prompts
from tests.builders import a_select
from tests.core.assumed.scenes import (
    assuming_selector,
    book,
    overlaps,
    partition_of,
    path_of,
    register,
    run_turns,
    writer_of,
)

PROMPT = range(20)
NAMES = np.arange(1, 6, dtype=np.uint64)


def predicting_selector():
    selector = assuming_selector(use_kv_events=True, beside_events_s=2.0)
    register(selector, 1)
    register(selector, 2)
    return selector


def store(selector, first, end, worker_id=1):
    parent = None if first == 0 else int(NAMES[first - 1])
    path = np.ascontiguousarray(path_of(PROMPT)[first:end])
    writer_of(selector, worker_id).store(Tier.GPU, parent, path, NAMES[first:end])


def pending(selector):
    return selector.followers.assumptions.follower.pending


def test_the_longer_of_both_counts_until_the_engine_has_announced_all():
    selector = predicting_selector()
    book(selector, "a", PROMPT)
    assert overlaps(selector, PROMPT) == {1: (5, 5), 2: (0, 0)}
    store(selector, 0, 3)
    run_turns(selector, 0.1)
    assert overlaps(selector, PROMPT)[1] == (5, 2)
    store(selector, 3, 5)
    assert overlaps(selector, PROMPT)[1] == (5, 0)
    run_turns(selector, 0.2)
    assert partition_of(selector).assumed.count_blocks(0) == 0
    assert pending(selector).n_confirmed == 1


def test_a_removal_after_the_booking_ends_the_assumption():
    selector = predicting_selector()
    book(selector, "a", PROMPT)
    store(selector, 0, 3)
    run_turns(selector, 0.1)
    writer_of(selector, 1).remove(Tier.GPU, NAMES[2:3])
    run_turns(selector, 0.2)
    assert overlaps(selector, PROMPT)[1] == (2, 0)
    assert pending(selector).n_withdrawn == 1


def test_a_clear_after_the_booking_ends_the_assumption():
    selector = predicting_selector()
    book(selector, "a", PROMPT)
    writer_of(selector, 1).clear()
    run_turns(selector, 0.1)
    assert overlaps(selector, PROMPT)[1] == (0, 0)
    book(selector, "b", PROMPT, now=0.2)
    run_turns(selector, 0.3)
    assert overlaps(selector, PROMPT)[1] == (5, 5), "a booking after the clear"


def test_time_ends_the_assumption():
    selector = predicting_selector()
    book(selector, "a", PROMPT)
    run_turns(selector, 1.9)
    assert overlaps(selector, PROMPT)[1] == (5, 5)
    run_turns(selector, 2.1)
    assert overlaps(selector, PROMPT)[1] == (0, 0)
    assert pending(selector).n_expired == 1
    assert not len(pending(selector))


def test_a_later_booking_keeps_blocks_that_an_earlier_one_loses():
    selector = predicting_selector()
    book(selector, "a", PROMPT)
    book(selector, "b", PROMPT, now=1.5)
    run_turns(selector, 2.5)
    assert overlaps(selector, PROMPT)[1] == (5, 5)
    run_turns(selector, 4.0)
    assert overlaps(selector, PROMPT)[1] == (0, 0)


def test_confirmed_blocks_are_not_assumed():
    selector = predicting_selector()
    store(selector, 0, 5)
    book(selector, "a", PROMPT)
    assert partition_of(selector).assumed.count_blocks(0) == 0
    assert not len(pending(selector))


def test_blocks_below_the_device_are_not_counted_twice():
    selector = predicting_selector()
    path = path_of(PROMPT)
    writer_of(selector, 1).store(Tier.CPU, None, path, NAMES)
    selection = book(selector, "a", PROMPT)
    assert selection.overlap.cpu == 20
    _, rows = selector.inspection.overlap_scores(a_select(20))
    (row, _) = rows
    assert (row.device_blocks, row.host_pinned_blocks, row.disk_blocks) == (5, 5, 5)


def test_too_many_waiting_prompts_end_the_oldest(monkeypatch):
    monkeypatch.setattr(pending_prompts, "PROMPTS_MAX", 3)
    selector = predicting_selector()
    prompts = [range(100 * n, 100 * n + 20) for n in range(5)]
    for number, prompt in enumerate(prompts):
        book(selector, f"r{number}", prompt)
    assert len(pending(selector)) == 3
    assert [overlaps(selector, prompt)[1][0] for prompt in prompts] == [0, 0, 5, 5, 5]


def test_a_rank_that_leaves_ends_its_waiting_prompts():
    selector = predicting_selector()
    book(selector, "a", PROMPT)
    selector.delete_worker(1, 0.1)
    while selector.drain_removed_ranks(0.2):
        pass
    for retired in selector.fleet.take_changes().retired:
        retired.close()
    run_turns(selector, 0.3)
    assert not len(pending(selector))
