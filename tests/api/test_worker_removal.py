"""Tests of the state that a removed worker takes along."""

import numpy as np

from indexer.hashing.block_hashing import compute_block_hashes
from indexer.tiers import Tier
from select_service.core.identity import PartitionKey, Rank
from tests.builders import worker_body
from tests.builders.in_process import Api

TOKENS = list(range(16))


def test_a_changed_event_endpoint_drops_blocks_of_the_old_one():
    with Api(DYN_USE_KV_EVENTS="true") as api:
        body = worker_body(1, kv_events_endpoint="ipc:///nowhere/a")
        assert api.call("POST", "/workers", body).status == 201
        partition = api.service.selector.fleet.partitions[PartitionKey("m", "default")]
        hashes = compute_block_hashes(np.array(TOKENS, np.uint32), 4)
        partition.table.writer_of(Rank(1, 0)).store(Tier.GPU, None, hashes, hashes)
        moved = api.call("PATCH", "/workers/1", {"kv_events_endpoint": "ipc:///nowhere/b"})
        assert (moved.status, partition.index.stats().blocks) == (200, 0)
        assert partition.table.writer_of(Rank(1, 0)).store(Tier.GPU, None, hashes, hashes) == 4


def test_a_removed_workers_blocks_leave_the_index_and_its_slot_returns_empty():
    with Api() as api:
        for worker_id in (1, 2):
            assert api.call("POST", "/workers", worker_body(worker_id)).status == 201
        partition = api.service.selector.fleet.partitions[PartitionKey("m", "default")]
        hashes = compute_block_hashes(np.array(TOKENS, np.uint32), 4)
        partition.table.writer_of(Rank(1, 0)).store(Tier.GPU, None, hashes, hashes)
        assert partition.index.stats().blocks == 4
        assert api.call("DELETE", "/workers/1").status == 200
        assert partition.index.stats().blocks == 0
        assert api.call("POST", "/workers", worker_body(3)).status == 201
        answer = api.call("POST", "/overlap_scores", {"model_name": "m", "token_ids": TOKENS})
        rows = {row["worker_id"]: row["device_blocks"] for row in answer.body["workers"]}
        assert rows == {2: 0, 3: 0}
