"""Test of cache layouts: a worker's own facts precede the file, in blocks of the worker's size."""

from select_service.core.health.migration.move_cost import CacheLayout
from select_service.core.health.migration.rank_snapshot import CacheLayouts
from select_service.schemas.workers import KvLayoutFields
from tests.builders import a_selector, a_worker
from tests.builders.selector_scenes import KEY

OF_MODEL = CacheLayout(block_size=64, layers=32, kv_heads=8, head_dim=128, dtype_bytes=2, tp=2)


def test_a_workers_own_facts_precede_the_file():
    selector = a_selector()
    said = KvLayoutFields(layers=2, kv_heads=4, head_dim=64, dtype_bytes=1, tp=4)
    selector.register_worker(a_worker(1, block_size=4, kv_layout=said))
    selector.register_worker(a_worker(2, block_size=4))
    layouts = CacheLayouts(selector.fleet.catalog, lambda name: OF_MODEL if name == "m" else None)
    assert layouts.layout_of(KEY, 1) == CacheLayout(4, 2, 4, 64, 1, 4)
    assert layouts.layout_of(KEY, 2) == OF_MODEL._replace(block_size=4)
    assert layouts.layout_of(KEY, 9) == OF_MODEL
    assert layouts.layout_of(KEY._replace(model_name="n"), 2) is None
    assert CacheLayouts(selector.fleet.catalog).layout_of(KEY, 2) is None
