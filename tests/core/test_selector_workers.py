"""Tests of the selector's rules for workers that come, change and go, one by one."""

import numpy as np
import pytest
from msgspec import UNSET

from indexer.hashing.block_hashing import compute_block_hashes
from indexer.tiers import Tier
from select_service.base.errors import NotFound, NoWorkers
from select_service.core.identity import Rank
from select_service.core.workers.worker_catalog import DELETED_WORKERS_MAX
from tests.builders import a_patch, a_reservation, a_select, a_selector, a_worker, sources_of
from tests.builders.selector_scenes import KEY, load_of, store


@pytest.fixture
def selector():
    selector = a_selector()
    selector.register_worker(a_worker(1))
    return selector


def test_registration_of_the_document_is_schedulable():
    selector = a_selector(use_kv_events=True)
    record = selector.register_worker(
        a_worker(
            1,
            block_size=16,
            data_parallel_start_rank=0,
            data_parallel_size=2,
            kv_events_endpoints={0: "tcp://worker:5557", 1: "tcp://worker:5558"},
            replay_endpoint="tcp://worker:5560",
        )
    )
    assert record.lifecycle == "schedulable"
    sources = sources_of(selector.fleet)
    assert [(s.dp_rank, s.endpoint, s.replay_endpoint) for s in sources] == [
        (0, "tcp://worker:5557", "tcp://worker:5560"),
        (1, "tcp://worker:5558", "tcp://worker:5561"),
    ]


def test_reasons_come_in_the_documented_order():
    selector = a_selector(use_kv_events=True)
    record = selector.register_worker(
        a_worker(1, endpoint=None, block_size=0, data_parallel_size=0)
    )
    assert record.lifecycle == "incomplete"
    assert record.not_schedulable_reasons == [
        "endpoint is required",
        "block_size must be greater than 0",
        "data_parallel_size must be greater than 0",
    ]
    record = selector.register_worker(
        a_worker(1, data_parallel_size=2, kv_events_endpoint="tcp://a:1")
    )
    assert record.not_schedulable_reasons == [
        "kv_events endpoint is required for dp_rank 0 (field kv_events_endpoint, or "
        '"0" of kv_events_endpoints); if the engine publishes none, `index`: "assumed"',
        "kv_events endpoint is required for dp_rank 1 (field kv_events_endpoint, or "
        '"1" of kv_events_endpoints); if the engine publishes none, `index`: "assumed"',
        "kv_events_endpoint serves one rank only: each of 2 ranks needs its own in "
        'kv_events_endpoints, such as {"0": "tcp://a:1", "1": "tcp://a:2"}',
    ]


@pytest.mark.parametrize("size", [1025, 2**32 - 1])
def test_absurd_rank_ranges_are_incomplete_not_fatal(selector, size):
    record = selector.register_worker(a_worker(2, data_parallel_size=size))
    assert record.lifecycle == "incomplete"
    record = selector.register_worker(
        a_worker(2, data_parallel_start_rank=2**32 - 6, data_parallel_size=9)
    )
    assert record.lifecycle == "incomplete"
    selector.select(a_select(), 0.0)


def test_bad_event_endpoint_is_named_in_the_reason():
    selector = a_selector(use_kv_events=True)
    record = selector.register_worker(a_worker(1, kv_events_endpoint="http://x:1"))
    assert record.not_schedulable_reasons == [
        "reconciliation failed: invalid kv_events endpoint for worker 1 dp_rank 0: "
        "invalid ZMQ endpoint `http://x:1`: unsupported scheme `http`"
    ]


def test_block_size_of_a_partition_is_fixed_by_its_workers(selector):
    record = selector.register_worker(a_worker(2, block_size=16))
    assert record.not_schedulable_reasons == [
        "reconciliation failed: block_size mismatch for model=m tenant=default: "
        "existing=4 requested=16"
    ]
    record = selector.register_worker(a_worker(3, is_eagle=True))
    assert record.not_schedulable_reasons == [
        "reconciliation failed: is_eagle mismatch for model=m tenant=default: "
        "existing=false requested=true"
    ]
    assert selector.register_worker(a_worker(4, is_eagle=False)).lifecycle == "schedulable"


def test_partition_without_workers_is_freed_and_may_come_back_with_another_block_size(selector):
    selector.delete_worker(1, 0.0)
    assert selector.fleet.partitions == {}
    assert list(selector.inspection.partition_loads()) == []
    assert selector.register_worker(a_worker(2, block_size=16)).lifecycle == "schedulable"


def test_lone_worker_may_change_the_block_size(selector):
    assert selector.patch_worker(1, a_patch(block_size=8)).lifecycle == "schedulable"
    assert selector.select(a_select(), 0.0).selection.block_size == 8


def test_patch_of_harmless_fields_keeps_index_and_reservations(selector):
    store(selector, Rank(1, 0), 8)
    selector.reserve(a_reservation("r"), now=0.0)
    selector.patch_worker(
        1, a_patch(endpoint="http://elsewhere:1", taints=["a"], total_kv_blocks=9)
    )
    selection = selector.select(a_select(), 0.0).selection
    assert selection.endpoint == "http://elsewhere:1"
    assert selection.overlap.gpu == 8
    assert load_of(selector) == (8, 2, 1)


def test_registering_the_same_worker_again_keeps_index_and_reservations(selector):
    store(selector, Rank(1, 0), 8)
    selector.reserve(a_reservation("r"), now=0.0)
    selector.register_worker(a_worker(1))
    assert selector.select(a_select(), 0.0).selection.overlap.gpu == 8
    assert load_of(selector) == (8, 2, 1)


def test_new_event_endpoint_drops_the_index_but_not_the_load():
    selector = a_selector(use_kv_events=True)
    selector.register_worker(a_worker(1, kv_events_endpoint="tcp://a:1"))
    old_writer = selector.fleet.partitions[KEY].table.writer_of(Rank(1, 0))
    store(selector, Rank(1, 0), 8)
    selector.reserve(a_reservation("r"), now=0.0)
    selector.patch_worker(1, a_patch(kv_events_endpoint="tcp://b:1"))
    for writer in selector.fleet.take_changes().renewed:
        writer.finish_clear()
    assert selector.select(a_select(), 0.0).selection.overlap.gpu == 0
    assert load_of(selector) == (8, 2, 1)
    hashes = compute_block_hashes(np.arange(8, dtype=np.uint32), 4)
    assert old_writer.store(Tier.GPU, None, hashes, hashes) == 0
    assert selector.select(a_select(), 0.0).selection.overlap.gpu == 0


def test_new_event_endpoint_leaves_the_clearing_of_a_large_index_to_others():
    selector = a_selector(use_kv_events=True)
    selector.register_worker(a_worker(1, kv_events_endpoint="tcp://a:1"))
    store(selector, Rank(1, 0), 8)
    partition = selector.fleet.partitions[KEY]
    selector.patch_worker(1, a_patch(kv_events_endpoint="tcp://b:1"))
    assert partition.index.stats().blocks == 2
    (writer,) = selector.fleet.take_changes().renewed
    assert writer is partition.table.writer_of(Rank(1, 0))
    hashes = compute_block_hashes(np.arange(4, dtype=np.uint32), 4)
    assert writer.store(Tier.GPU, None, hashes, hashes) == 0
    writer.finish_clear()
    assert partition.index.stats().blocks == 0
    assert writer.store(Tier.GPU, None, hashes, hashes) == 1
    assert selector.fleet.take_changes().renewed == []


def test_rank_that_leaves_the_range_loses_its_reservations_and_others_keep_theirs(selector):
    selector.patch_worker(1, a_patch(data_parallel_size=3))
    for dp_rank in range(3):
        selector.reserve(a_reservation(f"r{dp_rank}", dp_rank=dp_rank), now=0.0)
    selector.patch_worker(1, a_patch(data_parallel_size=2))
    assert load_of(selector, 1, 1) == (8, 2, 1)
    selector.run_pending(0.5)
    with pytest.raises(NotFound):
        selector.complete_prefill("r2", now=1.0)
    assert selector.ledger.released_with_rank == 1
    selector.check_invariants()


def test_deleted_worker_keeps_a_record_that_patch_revives(selector):
    assert selector.delete_worker(1, 0.0).lifecycle == "unschedulable"
    assert selector.delete_worker(1, 0.0).lifecycle == "unschedulable"
    assert [w.lifecycle for w in selector.list_workers()] == ["unschedulable"]
    deletion = selector.find_deletion(1, 2.5)
    assert (deletion.seconds_ago, deletion.reason) == (2.5, "DELETE /workers/1")
    revived = selector.patch_worker(1, a_patch())
    assert revived.lifecycle == "schedulable"
    assert "was deleted (DELETE /workers/1)" in revived.revived
    assert selector.find_deletion(1, 2.5) is None
    assert selector.patch_worker(1, a_patch()).revived is UNSET
    with pytest.raises(NotFound, match="worker 2 not found"):
        selector.delete_worker(2, 0.0)


def test_records_of_deleted_workers_are_bounded(selector):
    for worker_id in range(10, 10 + DELETED_WORKERS_MAX + 5):
        selector.register_worker(a_worker(worker_id))
        selector.delete_worker(worker_id, 0.0)
    assert len(selector.list_workers()) == DELETED_WORKERS_MAX + 1
    selector.check_invariants()


def test_worker_moves_between_partitions_with_its_id(selector):
    selector.reserve(a_reservation("r"), now=0.0)
    selector.register_worker(a_worker(1, model_name="other"))
    with pytest.raises(NoWorkers, match="no schedulable workers for model=m tenant=default"):
        selector.select(a_select(), 0.0)
    assert selector.select(a_select(model_name="other"), 0.0).selection.worker_id == 1
    selector.run_pending(0.0)
    assert len(selector.ledger.reservations) == 0
