"""Tests of recovered partitions, which wait for their ranks and are handed out by the fleet."""

import numpy as np
import pytest

from indexer.dumps.recovered_blocks import adopt_blocks
from indexer.index.index_snapshot import StreamPosition
from indexer.index.prefix_index import PrefixIndex
from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.identity import PartitionKey, Rank
from select_service.core.placement.router_config import RouterConfig
from select_service.core.registry.fleet.fleet import RegistrationRules, WorkerFleet
from select_service.core.registry.fleet.recovered_blocks import RETENTION_S_MAX, RecoveredBlocks
from select_service.core.views.dump_parts import group_by_name, list_dump_parts
from select_service.core.workers.worker_catalog import WorkerTombstone
from select_service.schemas.workers import WorkerRegistration
from tests.builders.dumped_partition import a_dump

KEY = PartitionKey("llama3:8b", "t")


def u64(*values):
    return np.array(values, np.uint64)


@pytest.fixture
def recovered():
    held = RecoveredBlocks()
    yield held
    held.check_invariants()


@pytest.mark.parametrize("key", [KEY, PartitionKey("llama3", "8b:t")])
def test_the_joined_name_decides_for_any_border(recovered, key):
    dump = a_dump(1)
    recovered.store_partitions([dump], 0.0)
    assert recovered.claim_blocks(key, 4, Rank(1, 0)) is dump


def test_a_rank_takes_its_blocks_once(recovered):
    recovered.store_partitions([a_dump(1, 2)], 0.0)
    assert recovered.claim_blocks(KEY, 4, Rank(1, 0)) is not None
    assert recovered.claim_blocks(KEY, 4, Rank(1, 0)) is None
    (rest,) = recovered
    assert set(rest.ranks) == {(2, 0)}
    assert recovered.count_blocks() == 2
    assert recovered.claim_blocks(KEY, 4, Rank(2, 0)) is not None
    assert (list(recovered), recovered.count_blocks(), recovered.dropped_blocks) == ([], 0, 0)


def test_ranks_that_are_not_in_the_dump_take_nothing(recovered):
    recovered.store_partitions([a_dump(1)], 0.0)
    assert recovered.claim_blocks(KEY, 4, Rank(3, 0)) is None
    assert recovered.claim_blocks(PartitionKey("m", "t"), 4, Rank(1, 0)) is None
    assert recovered.count_blocks() == 2


def test_another_block_size_drops_held_blocks(recovered):
    recovered.store_partitions([a_dump(1)], 0.0)
    assert recovered.claim_blocks(KEY, 8, Rank(5, 0)) is None
    assert (recovered.count_blocks(), recovered.dropped_blocks) == (0, 2)


def test_the_fitting_one_of_two_dumps_with_one_name_is_taken(recovered):
    right = a_dump(1)
    recovered.store_partitions([a_dump(1, block_size=8), right], 0.0)
    assert recovered.claim_blocks(KEY, 4, Rank(1, 0)) is right


def test_unclaimed_blocks_are_dropped_after_a_while(recovered):
    recovered.store_partitions([a_dump(1)], 100.0)
    recovered.drop_expired(100.0 + RETENTION_S_MAX - 0.1)
    assert recovered.count_blocks() == 2
    recovered.drop_expired(100.0 + RETENTION_S_MAX)
    assert (recovered.count_blocks(), recovered.dropped_blocks) == (0, 2)


def a_fleet():
    return WorkerFleet(
        lambda: PrefixIndex(100),
        RegistrationRules(use_kv_events=True),
        router=RouterConfig(),
        dirty=DirtyPartitions(lambda: None),
    )


def join(fleet, worker_id):
    given = WorkerRegistration(
        worker_id=worker_id,
        model_name="llama3:8b",
        tenant_id="t",
        endpoint="http://w",
        block_size=4,
        kv_events_endpoint="tcp://127.0.0.1:1",
    )
    fleet.put_worker(fleet.preview_registration(given))


def matched(fleet, worker_id):
    partition = fleet.partitions[KEY]
    return partition.index.match(u64(10, 11))[partition.table.find_slot(Rank(worker_id, 0)), 0]


@pytest.mark.parametrize("registered_first", [True, False])
def test_a_rank_gets_its_blocks_and_its_position_in_either_order(registered_first):
    fleet = a_fleet()
    if registered_first:
        join(fleet, 1)
    fleet.recovered_blocks.store_partitions([a_dump(1, 2)], 0.0)
    assert sum(1 for _ in fleet.claim_recovered_blocks()) == registered_first
    if not registered_first:
        join(fleet, 1)
    assert fleet.partitions[KEY].index.snapshot().slots == ()  # the index is being filled
    assert fleet.has_adoptions
    changes = fleet.take_changes()
    assert adopt_blocks(changes.adoptions) == 2
    assert not fleet.has_adoptions
    assert matched(fleet, 1) == 2
    (source,) = changes.sources[1]
    assert source.writers[0].position == StreamPosition(7)
    assert fleet.partitions[KEY].index.snapshot().slots == (0,)
    fleet.check_invariants()


def test_a_rank_that_leaves_before_its_blocks_arrive_gets_none():
    fleet = a_fleet()
    fleet.recovered_blocks.store_partitions([a_dump(1)], 0.0)
    join(fleet, 1)
    adoptions = fleet.take_changes().adoptions
    fleet.delete_worker(fleet.catalog.get_worker(1), WorkerTombstone(0.0, "test"))
    for writer in fleet.take_changes().retired:
        writer.close()
    assert adopt_blocks(adoptions) == 0


def dumped(fleet):
    """Return (name, ranks, blocks) of each part, grouped by partition name."""
    groups = group_by_name(list_dump_parts(fleet.partitions, fleet.recovered_blocks))
    taken = [[part.take() for part in group] for group in groups]
    return [[(part.name, set(part.ranks), part.blocks) for part in group] for group in taken]


def test_a_dump_has_held_blocks_beside_live_ones():
    fleet = a_fleet()
    fleet.recovered_blocks.store_partitions([a_dump(1, 2), a_dump(3, name="n:t", blocks=5)], 0.0)
    waiting = ("llama3:8b:t", {(1, 0), (2, 0)}, 2)
    assert dumped(fleet) == [[waiting], [("n:t", {(3, 0)}, 5)]]
    join(fleet, 1)
    adopt_blocks(fleet.take_changes().adoptions)
    assert dumped(fleet) == [
        [("llama3:8b:t", {(1, 0)}, 2), ("llama3:8b:t", {(2, 0)}, 2)],
        [("n:t", {(3, 0)}, 5)],
    ]


def test_a_rank_that_gave_its_slot_to_another_is_not_in_the_copy():
    fleet = a_fleet()
    for worker_id in (1, 2):
        join(fleet, worker_id)
    (part,) = list_dump_parts(fleet.partitions, fleet.recovered_blocks)
    fleet.delete_worker(fleet.catalog.get_worker(1), WorkerTombstone(0.0, "test"))
    for writer in fleet.take_changes().retired:
        writer.close()
    join(fleet, 3)  # takes the slot of worker 1
    assert set(part.take().ranks) == {(2, 0)}
