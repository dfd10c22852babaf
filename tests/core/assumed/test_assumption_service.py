"""Tests of ranks with an assumed index, through the selector."""

import msgspec
import numpy as np
import pytest

from indexer.tiers import Tier
from select_service.base.errors import BadRequest, NotFound
from select_service.core.identity import PartitionKey
from select_service.core.views.dump_parts import list_dump_parts
from tests.builders import a_patch, a_reservation, a_select
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

PROMPT = range(20)  # five blocks


def test_bookings_are_the_index_of_ranks_without_events():
    selector = assuming_selector()
    register(selector, 1)
    register(selector, 2)
    selection = book(selector, "a", PROMPT)
    assert selection.overlap.certainty is msgspec.UNSET
    assert overlaps(selector, PROMPT) == {1: (5, 5), 2: (0, 0)}
    assert overlaps(selector, [*range(12), *range(50, 58)]) == {1: (3, 3), 2: (0, 0)}
    selector.free_reservation("a", 1.0)
    again = book(selector, "b", PROMPT, now=2.0)
    assert (again.overlap.gpu, again.overlap.assumed) == (20, 20)
    assert again.overlap.certainty == "assumed"
    assert again.effective_prefill_tokens == 0
    selector.check_invariants()


def test_a_selection_without_a_booking_leaves_nothing_behind():
    selector = assuming_selector()
    register(selector, 1)
    selector.select(a_select(20), 0.0)
    list(selector.inspection.potential_loads(a_select(20)))
    assert overlaps(selector, PROMPT) == {1: (0, 0)}


def test_a_booking_on_a_rank_of_the_caller_counts_with_its_block_hashes():
    selector = assuming_selector()
    register(selector, 1)
    selector.reserve(a_reservation("a", 1, 20), 0.0)
    assert overlaps(selector, PROMPT) == {1: (5, 5)}
    given = {"token_ids": None, "sequence_hashes": [1, 2], "isl_tokens": 8}
    selector.reserve(a_reservation("b", 1, **given, block_hashes=[31, 32]), 0.0)
    selector.reserve(a_reservation("c", 1, **given | {"sequence_hashes": [8, 9]}), 0.0)
    query = {"token_ids": None, "sequence_hashes": [5, 6], "isl_tokens": 8}
    _, rows = selector.inspection.overlap_scores(a_select(block_hashes=[31, 32], **query))
    assert [row.device_blocks for row in rows] == [2]


def test_declared_caches_bound_the_assumed_blocks():
    selector = assuming_selector()
    register(selector, 1, total_kv_blocks=7)
    book(selector, "a", PROMPT)
    selector.free_reservation("a", 0.5)
    book(selector, "b", range(100, 116), now=1.0)  # four more blocks evict two of the first
    assert overlaps(selector, PROMPT) == {1: (3, 3)}
    assert overlaps(selector, range(100, 116)) == {1: (4, 4)}
    (view,) = selector.followers.assumptions.view_assumed(selector.get_worker(1), 1.0).values()
    assert (view.blocks, view.size, view.size_from) == (7, 7, "total_kv_blocks")


def test_blocks_of_live_reservations_are_not_evicted():
    selector = assuming_selector()
    register(selector, 1, total_kv_blocks=5)
    book(selector, "a", PROMPT)
    book(selector, "b", range(100, 116), now=1.0)
    assert overlaps(selector, PROMPT) == {1: (5, 5)}, "beyond the size while both live"
    selector.free_reservation("a", 2.0)
    book(selector, "c", range(200, 204), now=3.0)
    assert overlaps(selector, PROMPT) == {1: (0, 0)}
    assert overlaps(selector, range(100, 116)) == {1: (4, 4)}


def test_a_cleared_cache_keeps_the_prompts_of_live_reservations():
    selector = assuming_selector()
    register(selector, 1)
    register(selector, 2)
    book(selector, "a", PROMPT)
    book(selector, "b", range(100, 120))
    book(selector, "c", range(200, 220), worker_id=2)
    selector.free_reservation("b", 1.0)
    assert selector.followers.assumptions.clear_cache(1, None, 2.0) == {0: 10}
    run_turns(selector, 2.0)
    assert overlaps(selector, PROMPT)[1] == (5, 5)
    assert overlaps(selector, range(100, 120))[1] == (0, 0)
    assert overlaps(selector, range(200, 220))[2] == (5, 5)
    with pytest.raises(NotFound):
        selector.followers.assumptions.clear_cache(3, None, 2.0)
    with pytest.raises(NotFound):
        selector.followers.assumptions.clear_cache(1, 1, 2.0)


def test_answers_are_assumed_behind_their_prompts():
    selector = assuming_selector()
    register(selector, 1)
    book(selector, "a", range(18))  # four blocks and a half
    answer = np.arange(18, 27, dtype=np.uint32)
    service = selector.followers.assumptions
    assert service.add_answer("a", answer, 1.0) == "added"
    selector.free_reservation("a", 1.0)
    assert overlaps(selector, range(40)) == {1: (6, 6)}
    book(selector, "b", range(40), now=2.0)
    assert partition_of(selector).assumed.count_blocks(0) == 10, "the same names as the next turn"
    with pytest.raises(NotFound):
        service.add_answer("a", answer, 1.0)


def test_answers_that_cannot_be_hashed_are_reported_as_such():
    selector = assuming_selector()
    register(selector, 1, total_kv_blocks=5)
    hashes = {"block_hashes": [1, 2], "sequence_hashes": [1, 2], "isl_tokens": 8}
    selector.reserve(a_reservation("h", 1, token_ids=None, **hashes), 0.0)
    service, tokens = selector.followers.assumptions, np.arange(9, dtype=np.uint32)
    assert service.add_answer("h", tokens, 0.0) == "prompt_unknown"
    book(selector, "a", PROMPT)
    partition_of(selector).assumed.forget_prompt(
        0, partition_of(selector).assumed.name_prompt(path_of(PROMPT), path_of(PROMPT)), 9.0
    )
    service.clear_cache(1, None, 9.0)
    assert service.add_answer("a", tokens, 1.0) in ("added", "prompt_evicted")
    assert sum(service.follower.answers.values()) == 2


def test_ranks_that_leave_take_their_blocks_along_before_the_slot_is_reused():
    selector = assuming_selector()
    for worker_id in (1, 2):
        register(selector, worker_id)
    book(selector, "a", PROMPT)
    selector.delete_worker(1, 1.0)
    register(selector, 3)
    while selector.drain_removed_ranks(2.0):
        pass
    for retired in selector.fleet.take_changes().retired:
        retired.close()
    register(selector, 4)
    assert overlaps(selector, PROMPT) == {2: (0, 0), 3: (0, 0), 4: (0, 0)}
    assert partition_of(selector).table.n_slots == 3, "the slot was used again"
    selector.check_invariants()


def test_a_patch_changes_the_source_of_the_index():
    selector = assuming_selector(use_kv_events=True)
    register(selector, 1)
    register(selector, 2)
    book(selector, "a", PROMPT)
    assert partition_of(selector).assumed is None
    assert selector.patch_worker(1, a_patch(index="assumed")).index == "assumed"
    book(selector, "b", PROMPT)
    book(selector, "c", PROMPT, worker_id=2)
    assert overlaps(selector, PROMPT) == {1: (5, 5), 2: (0, 0)}
    selector.patch_worker(1, a_patch(index="events"))
    run_turns(selector, 1.0)
    assert overlaps(selector, PROMPT) == {1: (0, 0), 2: (0, 0)}
    selector.check_invariants()


def test_a_worker_with_an_assumed_index_needs_no_event_endpoint():
    selector = assuming_selector(use_kv_events=True)
    assert register(selector, 1, index="assumed").lifecycle == "schedulable"
    record = register(selector, 2, index="assumed", kv_events_endpoint="tcp://10.0.0.1:5557")
    assert any("is not read" in hint for hint in record.hints)
    assert not any(selector.fleet.take_changes().sources.values())
    incomplete = register(selector, 3, kv_events_endpoint=None)
    assert incomplete.lifecycle == "incomplete"


def test_dumps_have_confirmed_blocks_only():
    selector = assuming_selector()
    register(selector, 1)
    book(selector, "a", PROMPT)
    writer = writer_of(selector, 1)
    writer.store(Tier.GPU, None, path_of(PROMPT)[:2], path_of(PROMPT)[:2])
    assert len(list_dump_parts(selector.fleet.partitions, selector.fleet.recovered_blocks)) == 1
    assert partition_of(selector).index.stats().blocks == 2
    assert partition_of(selector).assumed.index.stats().blocks == 5


def test_reported_tokens_are_compared_and_teach_an_undeclared_size():
    selector = assuming_selector()
    register(selector, 1)
    service, size = selector.followers.assumptions, partition_of(selector).assumed.rank_at(0).size
    book(selector, "a", PROMPT)
    service.report_cached("a", 0)
    selector.complete_prefill("a", 0.5)
    before = size.blocks
    book(selector, "b", [*PROMPT, 77], now=1.0)
    service.report_cached("b", 18)  # half a block less than expected
    assert size.blocks == pytest.approx(before * 0.97, abs=1)
    selector.complete_prefill("b", 1.5)
    service.report_cached("b", 4)
    assert size.blocks == pytest.approx(before * 0.97, abs=1), "a prompt is reported once"
    book(selector, "c", [*PROMPT, 78], now=2.0)
    service.report_cached("c", 21)
    (view,) = service.view_reported(selector.get_worker(1)).values()
    assert (view.reports, view.predicted_tokens, view.cached_tokens) == (3, 40, 39)
    assert (view.over_tokens, view.under_tokens, view.over_claims) == (2, 1, 1)
    with pytest.raises(BadRequest):
        service.report_cached("c", 22)
    with pytest.raises(NotFound):
        service.report_cached("x", 1)


def test_bookings_without_a_lookup_are_not_compared():
    selector = assuming_selector()
    register(selector, 1)
    book(selector, "a", PROMPT)
    selector.reserve(a_reservation("b", 1, 20), 0.0)
    selector.followers.assumptions.report_cached("b", 20)
    assert not selector.followers.assumptions.view_reported(selector.get_worker(1))


def test_declared_sizes_are_not_learned():
    selector = assuming_selector()
    register(selector, 1, total_kv_blocks=100)
    book(selector, "a", PROMPT)
    book(selector, "b", PROMPT, now=1.0)
    selector.followers.assumptions.report_cached("b", 0)
    assert partition_of(selector).assumed.rank_at(0).size.blocks == 100


def test_blocks_expire_where_a_time_is_given():
    selector = assuming_selector(ttl_s=2.0)
    register(selector, 1)
    book(selector, "a", PROMPT, now=10.0)
    book(selector, "b", range(8), now=11.5)
    run_turns(selector, 12.5)
    assert overlaps(selector, PROMPT) == {1: (2, 2)}
    run_turns(selector, 14.0)
    assert overlaps(selector, PROMPT) == {1: (0, 0)}


def test_partitions_without_assuming_ranks_have_no_assumed_index():
    selector = assuming_selector(assumes_without_events=False)
    register(selector, 1)
    register(selector, 2, index="auto")
    book(selector, "a", PROMPT)
    assert partition_of(selector).assumed is None
    assert not selector.ledger.listeners
    register(selector, 3, index="assumed")
    assert partition_of(selector).assumed is not None
    book(selector, "b", PROMPT, worker_id=3)
    assert overlaps(selector, PROMPT) == {1: (0, 0), 2: (0, 0), 3: (5, 5)}


def test_a_worker_that_changes_its_partition_takes_nothing_along():
    selector = assuming_selector()
    register(selector, 1)
    register(selector, 2)
    book(selector, "a", PROMPT)
    register(selector, 1, tenant_id="other")
    assert PartitionKey("m", "other") in selector.fleet.partitions
    while selector.drain_removed_ranks(2.0):
        pass
    _, rows = selector.inspection.overlap_scores(a_select(20, tenant_id="other"))
    assert [row.device_blocks for row in rows] == [0]
    selector.check_invariants()
