"""Test that ranks with an assumed index skip recovered blocks, which no event would ever remove."""

from tests.builders.dumped_partition import a_dump
from tests.core.assumed.scenes import assuming_selector, register


def test_ranks_with_events_take_recovered_blocks_and_others_do_not():
    selector = assuming_selector(use_kv_events=True)
    selector.fleet.recovered_blocks.store_partitions([a_dump(1, 2, name="m:default")], 0.0)
    register(selector, 1)
    register(selector, 2, index="assumed")
    adopted = [adoption.rank for adoption in selector.fleet.take_changes().adoptions]
    assert adopted == [(1, 0)]
