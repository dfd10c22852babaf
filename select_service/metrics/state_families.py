"""Tables of the metric families over the state of the service.

Rows of one table share their labels and are read from the same kind of record.  Admission,
replicas, requests and tasks have their own modules.
"""

from collections.abc import Sequence
from typing import NamedTuple

from indexer.sockets.listener_status import ListenerStatus
from select_service.core.registry.fleet.recovered_blocks import PersistenceReport
from select_service.core.views.state_report import PartitionReport, RankLoadSums, StateReport
from select_service.metrics.series import COUNTER, GAUGE, OTHER, FamilyRow, record_itself

_DECISIONS = "Selections, with (reserve) or without (select) a reservation."
_MATCHED = "Prompt blocks held by the chosen rank, each counted in its first tier."

PARTITIONS: Sequence[FamilyRow[PartitionReport]] = (
    FamilyRow(COUNTER, "decisions", _DECISIONS, lambda p: p.tally.selected, (("kind", "select"),)),
    FamilyRow(COUNTER, "decisions", _DECISIONS, lambda p: p.tally.reserved, (("kind", "reserve"),)),
    FamilyRow(
        COUNTER,
        "prompt_blocks",
        "Complete blocks of the prompts of all selections.",
        lambda p: p.tally.prompt_blocks,
    ),
    FamilyRow(
        COUNTER, "matched_blocks", _MATCHED, lambda p: p.tally.matched_gpu, (("tier", "gpu"),)
    ),
    FamilyRow(
        COUNTER, "matched_blocks", _MATCHED, lambda p: p.tally.matched_cpu, (("tier", "cpu"),)
    ),
    FamilyRow(
        COUNTER, "matched_blocks", _MATCHED, lambda p: p.tally.matched_disk, (("tier", "disk"),)
    ),
    FamilyRow(
        COUNTER,
        "matched_blocks",
        _MATCHED,
        lambda p: p.tally.matched_external,
        (("tier", "external"),),
    ),
    FamilyRow(
        COUNTER,
        "best_reachable_overlap_blocks",
        "Leading prompt blocks held by the best candidate, all tiers.",
        lambda p: p.tally.best_overlap,
    ),
    FamilyRow(
        COUNTER,
        "chosen_overlap_blocks",
        "Leading prompt blocks held by the chosen rank, all tiers.",
        lambda p: p.tally.chosen_overlap,
    ),
    FamilyRow(GAUGE, "ranks", "Schedulable ranks.", lambda p: p.n_ranks),
    FamilyRow(
        GAUGE, "index_blocks", "Distinct blocks in the index.", lambda p: p.prefix_index.blocks
    ),
    FamilyRow(
        GAUGE,
        "index_blocks_max",
        "Maximum number of distinct blocks in the index.",
        lambda p: p.prefix_index.blocks_max,
    ),
    FamilyRow(
        GAUGE,
        "index_memberships",
        "Triples of block, rank and tier in the index.",
        lambda p: p.prefix_index.memberships,
    ),
    FamilyRow(
        GAUGE, "index_bytes", "Memory of the index in bytes.", lambda p: p.prefix_index.bytes
    ),
    FamilyRow(
        GAUGE,
        "index_bytes_max",
        "Maximum memory of the index in bytes.",
        lambda p: p.prefix_index.bytes_max,
    ),
    FamilyRow(
        GAUGE,
        "index_holder_sets",
        "Distinct sets of ranks and tiers that hold a block.",
        lambda p: p.prefix_index.holder_sets,
    ),
    FamilyRow(
        GAUGE,
        "index_orphan_blocks",
        "Announced blocks with an unannounced parent.",
        lambda p: p.prefix_index.orphans,
    ),
    FamilyRow(
        COUNTER,
        "index_dropped_orphan_blocks",
        "Orphan blocks dropped because of their number.",
        lambda p: p.prefix_index.dropped_orphans,
    ),
    FamilyRow(
        COUNTER,
        "index_refused_blocks",
        "Announced blocks refused because the index was full.",
        lambda p: p.prefix_index.refused_blocks,
    ),
    FamilyRow(
        COUNTER,
        "index_unannounced_blocks",
        "Blocks referenced by hash that were never announced with content.",
        lambda p: p.prefix_index.unannounced_blocks,
    ),
)

LOADS: Sequence[FamilyRow[RankLoadSums]] = (
    FamilyRow(
        GAUGE, "prefill_tokens", "Prompt tokens booked and not yet prefilled.", lambda x: x[0]
    ),
    FamilyRow(GAUGE, "active_blocks", "Blocks of live reservations, rounded.", lambda x: x[1]),
    FamilyRow(GAUGE, "active_requests", "Live reservations of the rank.", lambda x: x[2]),
    FamilyRow(
        GAUGE,
        "kv_blocks_active",
        "Blocks of the KV cache in use, as reported by the engine, else by reservations. "
        "Cached but unused blocks are not counted.",
        lambda x: x[3],
    ),
    FamilyRow(
        GAUGE,
        "kv_blocks_max",
        "Size of the KV cache in blocks; no series if unknown.",
        # A size of zero means unknown: no series is better than a wrong one.
        lambda x: x[4] or None,
    ),
)

LISTENERS: Sequence[FamilyRow[ListenerStatus]] = (
    FamilyRow(COUNTER, "kv_event_batches", "Batches of KV events applied.", lambda s: s.batches),
    FamilyRow(COUNTER, "kv_event_gaps", "Gaps in the sequence numbers.", lambda s: s.gaps),
    FamilyRow(
        COUNTER,
        "kv_event_replayed_batches",
        "Batches applied from a replay.",
        lambda s: s.replayed,
    ),
    FamilyRow(
        COUNTER,
        "kv_event_lost_batches",
        "Batches lost for good.",
        lambda s: s.lost,
    ),
    FamilyRow(
        COUNTER, "kv_event_stale_batches", "Batches skipped as duplicates.", lambda s: s.stale
    ),
    FamilyRow(
        COUNTER,
        "kv_event_restarts",
        "Restarts of the engine's sequence numbers, after which its blocks were dropped.",
        lambda s: s.restarts,
    ),
    FamilyRow(
        COUNTER,
        "kv_event_inflations",
        "Ranks that announced more copies than they have blocks; copy counting was then disabled.",
        lambda s: s.inflations,
    ),
    FamilyRow(
        COUNTER,
        "kv_event_decode_errors",
        "Undecodable batches or events.",
        lambda s: s.decode_errors,
    ),
    FamilyRow(
        COUNTER, "kv_event_stored_blocks", "Blocks stored by events.", lambda s: s.stored_blocks
    ),
    FamilyRow(
        COUNTER, "kv_event_removed_blocks", "Blocks removed by events.", lambda s: s.removed_blocks
    ),
)

PROCESS: Sequence[FamilyRow[StateReport]] = (
    FamilyRow(
        GAUGE,
        "reservations",
        "Live reservations.",
        lambda r: r.reservations_prefill,
        (("state", "prefill"),),
    ),
    FamilyRow(
        GAUGE,
        "reservations",
        "Live reservations.",
        lambda r: r.reservations_decode,
        (("state", "decode"),),
    ),
    FamilyRow(
        GAUGE,
        "reserved_blocks",
        "Prompt blocks of live reservations.",
        lambda r: r.reserved_blocks,
    ),
    FamilyRow(
        COUNTER,
        "reservations_expired",
        "Reservations that expired without renewal.",
        lambda r: r.expired,
    ),
    FamilyRow(
        COUNTER,
        "reservations_dropped_with_rank",
        "Reservations dropped because their rank was removed.",
        lambda r: r.dropped_with_rank,
    ),
)

_DUMPS = "Started dumps by format."

PERSISTENCE: Sequence[FamilyRow[PersistenceReport]] = (
    FamilyRow(GAUGE, "recovery_blocks", "Recovered blocks.", lambda k: k.recovered_blocks),
    FamilyRow(GAUGE, "recovery_seconds", "Duration of the recovery.", lambda k: k.recovery_s),
    FamilyRow(
        GAUGE,
        "recovery_waiting_blocks",
        "Recovered blocks waiting for the registration of their ranks.",
        lambda k: k.waiting_blocks,
    ),
    FamilyRow(
        COUNTER,
        "recovery_dropped_blocks",
        "Recovered blocks dropped because their ranks were not registered.",
        lambda k: k.dropped_blocks,
    ),
    FamilyRow(
        GAUGE,
        "recovery_bad_entries",
        "Unusable entries of the recovered dump.",
        lambda k: k.bad_entries,
    ),
    FamilyRow(
        GAUGE,
        "snapshot_age_seconds",
        "Seconds since the last snapshot; -1 before the first one.",
        lambda k: k.written_ago_s,
    ),
    FamilyRow(
        GAUGE, "snapshot_bytes", "Size of the snapshot file in bytes.", lambda k: k.snapshot_bytes
    ),
    FamilyRow(
        COUNTER,
        "snapshot_failures",
        "Failed snapshots.",
        lambda k: k.snapshot_failures,
    ),
    FamilyRow(COUNTER, "dumps", _DUMPS, lambda k: k.json_dumps, (("form", "json"),)),
    FamilyRow(COUNTER, "dumps", _DUMPS, lambda k: k.compact_dumps, (("form", "compact"),)),
)

RECOVERY_STATES: Sequence[FamilyRow[bool]] = (
    FamilyRow(GAUGE, "recovery_state", "1 for the current state of the recovery.", record_itself),
)

WORKERS: Sequence[FamilyRow[int]] = (
    FamilyRow(
        GAUGE,
        "workers",
        "Workers of the catalog, including remembered deleted ones.",
        record_itself,
    ),
)

POLICY: Sequence[FamilyRow[int]] = (
    FamilyRow(GAUGE, "policy", "1 for the current placement policy.", record_itself),
)

REPORTED: Sequence[FamilyRow[float]] = (
    FamilyRow(
        GAUGE,
        "reported_prefills_ratio",
        "Fraction of prefills with a reported end (prefill_complete), about the last 100.",
        record_itself,
    ),
)

LISTENER_LAGS: Sequence[FamilyRow[float]] = (
    FamilyRow(
        GAUGE,
        "kv_event_lag_seconds",
        "Seconds since the last batch of KV events; no series before the first one.",
        record_itself,
    ),
)

LISTENER_STATES: Sequence[FamilyRow[int]] = (
    FamilyRow(
        GAUGE, "kv_event_listeners", "Ranks with a KV event listener, by state.", record_itself
    ),
)

EVENTS_DROPPED: Sequence[FamilyRow[float]] = (
    FamilyRow(
        COUNTER,
        "kv_event_dropped",
        "Received events and frames that were not indexed, over all ranks.",
        record_itself,
    ),
)


class TruncatedSeries(NamedTuple):
    """Numbers of partitions and ranks without their own series."""

    partitions: int
    ranks: int


TRUNCATED: Sequence[FamilyRow[TruncatedSeries]] = (
    FamilyRow(
        GAUGE,
        "partition_series_truncated",
        f"Partitions without their own series, summed under `{OTHER}`.",
        lambda t: t.partitions,
    ),
    FamilyRow(
        GAUGE,
        "rank_series_truncated",
        f"Ranks without their own series, summed under `{OTHER}`.",
        lambda t: t.ranks,
    ),
)

BUILD: Sequence[FamilyRow[int]] = (
    FamilyRow(GAUGE, "build_info", "Version of the service.", record_itself),
)
