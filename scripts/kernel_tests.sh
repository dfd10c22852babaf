# Sourced by the other scripts: the tests of what runs compiled code, and of little else.
# shellcheck shell=bash disable=SC2034

KERNEL_TESTS=(
    tests/indexer/hashing tests/indexer/index
    tests/indexer/events/test_event_kernels.py tests/indexer/events/test_feed_machine.py
    tests/indexer/events/test_feed_runs.py tests/indexer/sockets/test_arrivals.py
    tests/indexer/events/test_kv_events.py tests/indexer/events/test_kv_events_properties.py
    tests/indexer/events/test_part_decoding.py tests/indexer/events/test_recorded_groups.py
    tests/indexer/dumps/test_held_blocks.py tests/indexer/dumps/test_json_dump.py
    tests/indexer/dumps/test_loading.py
    tests/core/load/test_active_load.py tests/core/load/test_growing_table.py
    tests/core/load/test_ledger.py tests/core/load/test_ledger_memory.py
    tests/core/placement tests/core/replication/test_progress.py
    tests/core/assumed tests/core/pairs tests/core/sessions tests/core/admission/test_busy.py
    tests/core/admission/test_hold.py tests/core/admission/test_hold_machine.py
    tests/core/admission/test_round_robin.py tests/core/admission/test_lane_table.py
    tests/sim/engine/test_pool.py
    tests/fastpath/test_byte_kernels.py tests/fastpath/test_number_lists.py tests/fastpath/test_request_kernels.py
    tests/fastpath/test_corpus.py
    tests/fastpath/test_guards.py tests/fastpath/test_equality.py tests/fastpath/test_replica_equality.py
    tests/fastpath/test_usual_requests.py tests/fastpath/test_pairs.py tests/fastpath/test_same_head.py
    tests/http/test_ready_connections.py
)
