"""What the service tells Prometheus of its state: families as rows of tables.

Rows of one table share their labels and are read from the same kind of record.  Admission,
replicas, requests and tasks have files of their own.
"""

from collections.abc import Sequence
from typing import NamedTuple

from indexer.sockets.listener_status import ListenerStatus
from select_service.core.fleet.recovered import KeepingReport
from select_service.core.views.state_report import Load, PartitionReport, Report
from select_service.metrics.series import COUNTER, GAUGE, OTHER, Family, itself

_DECISIONS = "Selections, by whether load was booked with them."
_MATCHED = "Prompt blocks that the chosen rank held, each in the first tier that has it."

PARTITIONS: Sequence[Family[PartitionReport]] = (
    Family(COUNTER, "decisions", _DECISIONS, lambda p: p.tally.selected, (("kind", "select"),)),
    Family(COUNTER, "decisions", _DECISIONS, lambda p: p.tally.reserved, (("kind", "reserve"),)),
    Family(
        COUNTER,
        "prompt_blocks",
        "Complete blocks of the prompts of all selections.",
        lambda p: p.tally.prompt_blocks,
    ),
    Family(COUNTER, "matched_blocks", _MATCHED, lambda p: p.tally.matched_gpu, (("tier", "gpu"),)),
    Family(COUNTER, "matched_blocks", _MATCHED, lambda p: p.tally.matched_cpu, (("tier", "cpu"),)),
    Family(
        COUNTER, "matched_blocks", _MATCHED, lambda p: p.tally.matched_disk, (("tier", "disk"),)
    ),
    Family(
        COUNTER,
        "matched_blocks",
        _MATCHED,
        lambda p: p.tally.matched_external,
        (("tier", "external"),),
    ),
    Family(
        COUNTER,
        "best_reachable_overlap_blocks",
        "Leading prompt blocks held by whichever candidate held most, all tiers.",
        lambda p: p.tally.best_overlap,
    ),
    Family(
        COUNTER,
        "chosen_overlap_blocks",
        "Leading prompt blocks held by the chosen rank, all tiers.",
        lambda p: p.tally.chosen_overlap,
    ),
    Family(GAUGE, "ranks", "Ranks that can be chosen.", lambda p: p.n_ranks),
    Family(GAUGE, "index_blocks", "Distinct blocks in the index.", lambda p: p.prefix_index.blocks),
    Family(
        GAUGE,
        "index_blocks_max",
        "Distinct blocks that the index may hold.",
        lambda p: p.prefix_index.blocks_max,
    ),
    Family(
        GAUGE,
        "index_memberships",
        "Triples of block, rank and tier in the index.",
        lambda p: p.prefix_index.memberships,
    ),
    Family(GAUGE, "index_bytes", "Memory of the index.", lambda p: p.prefix_index.bytes),
    Family(
        GAUGE,
        "index_bytes_max",
        "Memory that the index may take.",
        lambda p: p.prefix_index.bytes_max,
    ),
    Family(
        GAUGE,
        "index_holder_sets",
        "Distinct sets of ranks and tiers that hold a block.",
        lambda p: p.prefix_index.holder_sets,
    ),
    Family(
        GAUGE,
        "index_orphan_blocks",
        "Announced blocks whose parent has not been announced.",
        lambda p: p.prefix_index.orphans,
    ),
    Family(
        COUNTER,
        "index_dropped_orphan_blocks",
        "Orphan blocks that were dropped because too many waited.",
        lambda p: p.prefix_index.dropped_orphans,
    ),
    Family(
        COUNTER,
        "index_refused_blocks",
        "Announced blocks that were refused because the index was full.",
        lambda p: p.prefix_index.refused_blocks,
    ),
    Family(
        COUNTER,
        "index_unannounced_blocks",
        "Blocks named by their hash alone that were never announced with content.",
        lambda p: p.prefix_index.unannounced_blocks,
    ),
)

LOADS: Sequence[Family[Load]] = (
    Family(GAUGE, "prefill_tokens", "Prompt tokens booked and not yet prefilled.", lambda x: x[0]),
    Family(GAUGE, "active_blocks", "Blocks of live reservations, rounded.", lambda x: x[1]),
    Family(GAUGE, "active_requests", "Live reservations of the rank.", lambda x: x[2]),
    Family(
        GAUGE,
        "kv_blocks_active",
        "Blocks of the KV cache in use: in the words of the engine while it is heard, else those "
        "of live reservations. Cached blocks that nobody uses are not in use.",
        lambda x: x[3],
    ),
    Family(
        GAUGE,
        "kv_blocks_max",
        "Blocks of the KV cache; no series where the worker does not say how many.",
        lambda x: x[4] or None,
    ),
)

LISTENERS: Sequence[Family[ListenerStatus]] = (
    Family(COUNTER, "kv_event_batches", "Batches of KV events applied.", lambda s: s.batches),
    Family(COUNTER, "kv_event_gaps", "Holes seen in the sequence numbers.", lambda s: s.gaps),
    Family(
        COUNTER,
        "kv_event_replayed_batches",
        "Batches applied that came by replay.",
        lambda s: s.replayed,
    ),
    Family(
        COUNTER,
        "kv_event_lost_batches",
        "Batches that are known to be missing for good.",
        lambda s: s.lost,
    ),
    Family(COUNTER, "kv_event_stale_batches", "Batches skipped: seen before.", lambda s: s.stale),
    Family(
        COUNTER,
        "kv_event_restarts",
        "Times the engine began to count anew and its blocks were forgotten.",
        lambda s: s.restarts,
    ),
    Family(
        COUNTER,
        "kv_event_inflations",
        "Times a rank announced more copies than it has blocks and counting them ended.",
        lambda s: s.inflations,
    ),
    Family(
        COUNTER,
        "kv_event_decode_errors",
        "Batches or events that could not be read.",
        lambda s: s.decode_errors,
    ),
    Family(
        COUNTER, "kv_event_stored_blocks", "Blocks stored by events.", lambda s: s.stored_blocks
    ),
    Family(
        COUNTER, "kv_event_removed_blocks", "Blocks removed by events.", lambda s: s.removed_blocks
    ),
)

PROCESS: Sequence[Family[Report]] = (
    Family(
        GAUGE,
        "reservations",
        "Live reservations.",
        lambda r: r.reservations_prefill,
        (("state", "prefill"),),
    ),
    Family(
        GAUGE,
        "reservations",
        "Live reservations.",
        lambda r: r.reservations_decode,
        (("state", "decode"),),
    ),
    Family(
        GAUGE,
        "reserved_blocks",
        "Prompt blocks of live reservations.",
        lambda r: r.reserved_blocks,
    ),
    Family(
        COUNTER,
        "reservations_expired",
        "Reservations that ended because nobody renewed them in time.",
        lambda r: r.expired,
    ),
    Family(
        COUNTER,
        "reservations_dropped_with_rank",
        "Reservations that ended because their rank left.",
        lambda r: r.dropped_with_rank,
    ),
)

_DUMPS = "Dumps begun, by form."

KEEPING: Sequence[Family[KeepingReport]] = (
    Family(GAUGE, "recovery_blocks", "Blocks that were recovered.", lambda k: k.recovered_blocks),
    Family(GAUGE, "recovery_seconds", "How long the recovery took.", lambda k: k.recovery_s),
    Family(
        GAUGE,
        "recovery_waiting_blocks",
        "Recovered blocks of partitions with ranks that are not registered yet.",
        lambda k: k.waiting_blocks,
    ),
    Family(
        COUNTER,
        "recovery_dropped_blocks",
        "Blocks of recovered partitions that were dropped with ranks still missing.",
        lambda k: k.dropped_blocks,
    ),
    Family(
        GAUGE,
        "recovery_bad_entries",
        "Entries of the recovered dump that could not be used.",
        lambda k: k.bad_entries,
    ),
    Family(
        GAUGE,
        "snapshot_age_seconds",
        "Seconds since the snapshot file was written; -1 before the first time.",
        lambda k: k.written_ago_s,
    ),
    Family(GAUGE, "snapshot_bytes", "Size of the snapshot file.", lambda k: k.snapshot_bytes),
    Family(
        COUNTER,
        "snapshot_failures",
        "Snapshots that could not be written.",
        lambda k: k.snapshot_failures,
    ),
    Family(COUNTER, "dumps", _DUMPS, lambda k: k.json_dumps, (("form", "json"),)),
    Family(COUNTER, "dumps", _DUMPS, lambda k: k.compact_dumps, (("form", "compact"),)),
)

RECOVERY_STATES: Sequence[Family[bool]] = (
    Family(GAUGE, "recovery_state", "1 at the state of the recovery.", itself),
)

WORKERS: Sequence[Family[int]] = (
    Family(
        GAUGE,
        "workers",
        "Workers of the catalog, deleted ones included while they are remembered.",
        itself,
    ),
)

POLICY: Sequence[Family[int]] = (
    Family(GAUGE, "policy", "1 for the policy by which ranks are chosen now.", itself),
)

REPORTED: Sequence[Family[float]] = (
    Family(
        GAUGE,
        "reported_prefills_ratio",
        "Share of ended prefills whose end was reported (prefill_complete); about the last 100.",
        itself,
    ),
)

LISTENER_LAGS: Sequence[Family[float]] = (
    Family(
        GAUGE,
        "kv_event_lag_seconds",
        "Seconds since the last batch of KV events; no series before the first one.",
        itself,
    ),
)

LISTENER_STATES: Sequence[Family[int]] = (
    Family(GAUGE, "kv_event_listeners", "Ranks whose KV events are listened to.", itself),
)

EVENTS_DROPPED: Sequence[Family[float]] = (
    Family(
        COUNTER,
        "kv_event_dropped",
        "Events and frames that arrived but were not indexed, over all ranks.",
        itself,
    ),
)


class Truncated(NamedTuple):
    """How many have no series of their own."""

    partitions: int
    ranks: int


TRUNCATED: Sequence[Family[Truncated]] = (
    Family(
        GAUGE,
        "partition_series_truncated",
        f"How many partitions have no series of their own and are summed under `{OTHER}`.",
        lambda t: t.partitions,
    ),
    Family(
        GAUGE,
        "rank_series_truncated",
        f"How many ranks have no series of their own and are summed under `{OTHER}`.",
        lambda t: t.ranks,
    ),
)

BUILD: Sequence[Family[int]] = (Family(GAUGE, "build_info", "Version of the service.", itself),)
