"""Test of an engine that no longer reports one of its ranks."""

from select_service.core.identity import Rank
from select_service.core.workers.engine_load import EngineLoads, EngineReading


def test_a_scrape_without_a_rank_ends_the_belief_in_its_stale_reading() -> None:
    loads = EngineLoads(stale_s=5.0)
    loads.store_readings(1, {0: EngineReading(0.9, None, None)}, 0.0)
    loads.store_readings(1, {}, 4.0)
    assert loads.kv_usage(Rank(1, 0)) == 0.9
    loads.store_readings(1, {1: EngineReading(0.5, None, None)}, 5.0)
    assert loads.kv_usage(Rank(1, 0)) is None
    assert loads.kv_usage(Rank(1, 1)) == 0.5
    loads.check_invariants()
    assert loads.take_stale(9.0, 10) == []
