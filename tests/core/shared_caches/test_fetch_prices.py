"""Tests of fetch prices while workers come, change and leave, against prices of a new reader."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from select_service.core.identity import PartitionKey
from select_service.core.shared_caches import fetch_prices
from select_service.core.shared_caches.fetch_prices import FetchPrices
from select_service.core.shared_caches.shared_hits import SharedHits
from tests.builders import a_selector, a_worker
from tests.builders.hypothesis_profiles import explored

KEY = PartitionKey("m", "default")
TRANSFERS = st.sampled_from(
    [
        {},
        {"bytes_per_token": 1e5, "link_gbps": 100.0, "engine_ids": {0: "a", 1: "b"}},
        {"bytes_per_token": 2e5, "link_gbps": 50.0, "engine_ids": {0: "b"}},
    ]
)
HITS = [SharedHits("hit", 100, {"a": 90, "b": 300}, link) for link in (None, 25.0)]


class ChangingWorkers(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.selector = a_selector()
        self.ids = set()
        self.register(1, {}, 1, None)
        self.partition = self.selector.fleet.partitions[KEY]

    @rule(
        worker_id=st.integers(1, 4),
        transfer=TRANSFERS,
        ranks=st.integers(1, 2),
        speed=st.sampled_from([None, 1e4, 4e4]),
    )
    def register(self, worker_id, transfer, ranks, speed):
        more = {} if speed is None else {"prefill_tokens_per_s": speed}
        body = a_worker(worker_id, kv_transfer=transfer, data_parallel_size=ranks, **more)
        if worker_id in self.ids:
            self.selector.delete_worker(worker_id, 0.0)
            self.selector.run_pending(0.0)
        self.selector.register_worker(body)
        self.ids.add(worker_id)

    @rule()
    def drop(self):
        if len(self.ids) > 1:
            self.selector.delete_worker(self.ids.pop(), 0.0)
            self.selector.run_pending(0.0)

    @invariant()
    def every_price_is_that_of_a_new_reader(self):
        partition = self.selector.fleet.partitions.get(KEY)
        if partition is None:
            return
        kept, fresh = partition.placer.fetch_prices, FetchPrices(partition.table)
        for hits in HITS:
            assert np.array_equal(kept.price_rows(hits), fresh.price_rows(hits))
        assert kept.count_unpriced() == fresh.count_unpriced()


TestChangingWorkers = explored(ChangingWorkers)


def test_a_call_reads_a_bounded_number_of_ranks(monkeypatch):
    monkeypatch.setattr(fetch_prices, "SLOTS_PER_CALL", 3)
    selector = a_selector()
    transfer = {"bytes_per_token": 1e5, "link_gbps": 100.0}
    for number in range(8):
        selector.register_worker(a_worker(number, kv_transfer=transfer, prefill_tokens_per_s=1e4))
    prices = selector.fleet.partitions[KEY].placer.fetch_prices
    for known in (3, 6, 8, 8):
        assert np.isfinite(prices.prices(None)).sum() == known
    assert prices.prices(None)[0] == pytest.approx(1e5 * 8 / (100e9 * 0.8) * 1e4)
