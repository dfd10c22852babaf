"""Tests of the event listeners that workers' registrations require."""

import pytest

from indexer.index.kv_cache_facts import NO_FACTS, HashFacts, KvCacheFacts
from tests.builders import a_patch, a_selector, a_worker, sources_of

TWO_RANKS = {
    "data_parallel_start_rank": 4,
    "data_parallel_size": 2,
    "kv_events_endpoints": {4: "tcp://w:5557", 5: "tcp://w:5558"},
}


def sources_with(**fields):
    selector = a_selector(use_kv_events=True)
    assert selector.register_worker(a_worker(1, **fields)).lifecycle == "schedulable"
    return sources_of(selector.fleet)


@pytest.mark.parametrize(
    ("fields", "endpoints"),
    [
        ({}, [None, None]),
        ({"replay_endpoint": "tcp://w:6557"}, ["tcp://w:6557", "tcp://w:6558"]),
        ({"replay_endpoints": {5: "tcp://x:1"}}, [None, "tcp://x:1"]),
        (
            {"replay_endpoint": "tcp://w:6557", "replay_endpoints": {5: "tcp://x:1"}},
            ["tcp://w:6557", "tcp://x:1"],
        ),
        (
            {"replay_endpoint": "tcp://w:6557", "replay_endpoints": {4: "tcp://x:1"}},
            ["tcp://x:1", "tcp://w:6558"],
        ),
    ],
)
def test_a_rank_replays_from_its_own_entry_or_from_the_common_port_plus_its_place(
    fields, endpoints
):
    sources = sources_with(**TWO_RANKS, **fields)
    assert [source.dp_rank for source in sources] == [4, 5]
    assert [source.replay_endpoint for source in sources] == endpoints


def test_the_first_rank_of_a_second_node_replays_from_the_common_port_itself():
    """Check that ports are port + (rank - start rank) for any start rank."""
    events = {rank: f"tcp://w:{5557 + rank}" for rank in (8, 9)}
    fields = {"data_parallel_start_rank": 8, "data_parallel_size": 2, "kv_events_endpoints": events}
    sources = sources_with(**fields, replay_endpoint="tcp://w:6565")
    replays = {source.dp_rank: source.replay_endpoint for source in sources}
    assert replays == {8: "tcp://w:6565", 9: "tcp://w:6566"}


@pytest.mark.parametrize("endpoint", ["ipc:///tmp/replay", "tcp://w:65535"])
def test_a_common_replay_endpoint_without_a_port_for_every_rank_is_named(endpoint):
    selector = a_selector(use_kv_events=True)
    record = selector.register_worker(a_worker(1, **TWO_RANKS, replay_endpoint=endpoint))
    assert record.not_schedulable_reasons == [
        "reconciliation failed: invalid replay endpoint for worker 1 dp_rank 5: "
        f"`{endpoint}` has no port for this rank; set replay_endpoints"
    ]


@pytest.mark.parametrize(
    ("semantics", "counted"), [(None, True), ("counted", True), ("set", False)]
)
def test_duplicate_stores_are_counted_unless_the_worker_uses_sets(semantics, counted):
    (source,) = sources_with(kv_events_endpoint="tcp://w:5557", kv_event_semantics=semantics)
    assert source.counted is counted


def test_a_patch_reaches_the_listeners():
    selector = a_selector(use_kv_events=True)
    selector.register_worker(a_worker(1, **TWO_RANKS))
    selector.patch_worker(1, a_patch(kv_event_semantics="set", replay_endpoints={4: "tcp://x:1"}))
    sources = sources_of(selector.fleet)
    assert [source.counted for source in sources] == [False, False]
    assert [source.replay_endpoint for source in sources] == ["tcp://x:1", None]


def test_without_kv_events_there_are_no_listeners():
    selector = a_selector(use_kv_events=False)
    selector.register_worker(a_worker(1, **TWO_RANKS))
    assert sources_of(selector.fleet) == []


def test_ranks_beyond_the_sockets_that_there_are_wait_for_room():
    selector = a_selector(use_kv_events=True, ranks_max=3)
    first = {"kv_events_endpoint": "tcp://w:1"}
    assert selector.register_worker(a_worker(1, **TWO_RANKS)).lifecycle == "schedulable"
    assert selector.register_worker(a_worker(1, **TWO_RANKS)).lifecycle == "schedulable"
    refused = selector.register_worker(a_worker(2, **TWO_RANKS))
    assert refused.not_schedulable_reasons == [
        "reconciliation failed: the limit of open files (ulimit -n) leaves sockets for 3 ranks, "
        "and 2 others have theirs"
    ]
    assert len(sources_of(selector.fleet)) == 2
    assert selector.register_worker(a_worker(3, **first)).lifecycle == "schedulable"
    selector.delete_worker(1, 0.0)
    assert selector.register_worker(a_worker(2, **TWO_RANKS)).lifecycle == "schedulable"


def test_without_kv_events_no_rank_needs_a_socket():
    selector = a_selector(use_kv_events=False, ranks_max=0)
    assert selector.register_worker(a_worker(1, **TWO_RANKS)).lifecycle == "schedulable"


def test_the_key_of_an_engine_reaches_its_listeners_and_one_that_is_none_is_named():
    key = "0" * 40
    sources = sources_with(**TWO_RANKS, curve_server_key=key)
    assert [source.server_key for source in sources] == [key, key]
    selector = a_selector(use_kv_events=True)
    record = selector.register_worker(a_worker(1, **TWO_RANKS, curve_server_key="short"))
    assert record.not_schedulable_reasons == [
        "curve_server_key: a CURVE key has 40 characters of Z85, this one 5"
    ]
    assert sources_of(selector.fleet) == []
    selector.patch_worker(1, a_patch(curve_server_key=key))
    assert {source.server_key for source in sources_of(selector.fleet)} == {key}


EVENTS = {"kv_events_endpoint": "tcp://w:5557"}


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        (None, NO_FACTS),
        ({}, NO_FACTS),
        ({"certainty": "exact"}, NO_FACTS),
        ({"eagle_drop": True}, KvCacheFacts(eagle_drop=True)),
        (
            {"eagle_drop": True, "eagle_groups": [2, 0], "eagle_apart": False},
            KvCacheFacts(eagle_drop=True, eagle_groups=(0, 2), eagle_apart=False),
        ),
        (
            {"chunk": 8192, "context_parallel": True, "replay": 128, "salted": True},
            KvCacheFacts(chunk=8192, context_parallel=True, replay=128, salted=True),
        ),
        (
            {"hash": {"algorithm": "sha256", "seed": "7"}},
            KvCacheFacts(hash=HashFacts("sha256", "7")),
        ),
        ({"certainty": "at_most"}, KvCacheFacts(certainty="at_most")),
        ({"speculates": True}, KvCacheFacts(may_drop=True)),
        ({"speculates": True, "eagle_drop": False}, NO_FACTS),
        ({"speculates": True, "eagle_drop": True}, KvCacheFacts(eagle_drop=True)),
    ],
)
def test_facts_about_the_cache_reach_the_listener(given, facts):
    (source,) = sources_with(**EVENTS, kv_cache=given)
    assert source.facts == facts


def test_a_patch_replaces_the_facts_as_a_whole_and_keeps_them_when_absent():
    selector = a_selector(use_kv_events=True)
    selector.register_worker(a_worker(1, **EVENTS, kv_cache={"eagle_drop": True}))
    (before,) = sources_of(selector.fleet)
    selector.patch_worker(1, a_patch(taints=["a"], kv_cache=None))
    (kept,) = sources_of(selector.fleet)
    assert kept.facts == before.facts
    selector.patch_worker(1, a_patch(kv_cache={"chunk": 64}))
    (after,) = sources_of(selector.fleet)
    assert after.facts == KvCacheFacts(chunk=64)
    assert after.writers[0] is before.writers[0]
    selector.patch_worker(1, a_patch(kv_cache={}))
    (cleared,) = sources_of(selector.fleet)
    assert cleared.facts == NO_FACTS


def test_registering_again_with_other_facts_keeps_the_slot():
    selector = a_selector(use_kv_events=True)
    selector.register_worker(a_worker(1, **EVENTS))
    (before,) = sources_of(selector.fleet)
    selector.register_worker(a_worker(1, **EVENTS, kv_cache={"eagle_drop": True}))
    (after,) = sources_of(selector.fleet)
    assert after.facts.eagle_drop
    assert after.writers[0] is before.writers[0]
