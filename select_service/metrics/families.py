"""What the service tells Prometheus of its state: families as rows of tables.

Rows of one table share their labels and are read from the same kind of record.  What is counted as
requests pass, and what is no single number per record, is in `metrics`.
"""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from indexer.sockets.listener import ListenerStatus
from select_service.core.fleet.recovered import KeepingReport
from select_service.core.views.state_report import Load, PartitionReport, Report

PREFIX = "select_service_"

S = TypeVar("S")


class Family(NamedTuple, Generic[S]):
    """One series of a family for each record.  `extra` are labels that the row itself fixes.

    Rows of the same name make one family and stand together.
    """

    kind: type[CounterMetricFamily] | type[GaugeMetricFamily]
    name: str
    help: str
    read: Callable[[S], float]
    extra: tuple[tuple[str, str], ...] = ()


_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily

SCOPE_LABELS = ("model_name", "tenant_id")
RANK_LABELS = ("worker_id", "dp_rank")

_DECISIONS = "Selections, by whether load was booked with them."
_MATCHED = "Prompt blocks that the chosen rank held, each in the first tier that has it."

PARTITIONS: Sequence[Family[PartitionReport]] = (
    Family(_COUNTER, "decisions", _DECISIONS, lambda p: p.tally.selected, (("kind", "select"),)),
    Family(_COUNTER, "decisions", _DECISIONS, lambda p: p.tally.reserved, (("kind", "reserve"),)),
    Family(
        _COUNTER,
        "prompt_blocks",
        "Complete blocks of the prompts of all selections.",
        lambda p: p.tally.prompt_blocks,
    ),
    Family(_COUNTER, "matched_blocks", _MATCHED, lambda p: p.tally.matched_gpu, (("tier", "gpu"),)),
    Family(_COUNTER, "matched_blocks", _MATCHED, lambda p: p.tally.matched_cpu, (("tier", "cpu"),)),
    Family(
        _COUNTER, "matched_blocks", _MATCHED, lambda p: p.tally.matched_disk, (("tier", "disk"),)
    ),
    Family(
        _COUNTER,
        "matched_blocks",
        _MATCHED,
        lambda p: p.tally.matched_external,
        (("tier", "external"),),
    ),
    Family(
        _COUNTER,
        "best_reachable_overlap_blocks",
        "Leading prompt blocks held by whichever candidate held most, all tiers.",
        lambda p: p.tally.best_overlap,
    ),
    Family(
        _COUNTER,
        "chosen_overlap_blocks",
        "Leading prompt blocks held by the chosen rank, all tiers.",
        lambda p: p.tally.chosen_overlap,
    ),
    Family(_GAUGE, "ranks", "Ranks that can be chosen.", lambda p: p.n_ranks),
    Family(
        _GAUGE, "index_blocks", "Distinct blocks in the index.", lambda p: p.prefix_index.blocks
    ),
    Family(
        _GAUGE,
        "index_blocks_max",
        "Distinct blocks that the index may hold.",
        lambda p: p.prefix_index.blocks_max,
    ),
    Family(
        _GAUGE,
        "index_memberships",
        "Triples of block, rank and tier in the index.",
        lambda p: p.prefix_index.memberships,
    ),
    Family(_GAUGE, "index_bytes", "Memory of the index.", lambda p: p.prefix_index.bytes),
    Family(
        _GAUGE,
        "index_bytes_max",
        "Memory that the index may take.",
        lambda p: p.prefix_index.bytes_max,
    ),
    Family(
        _GAUGE,
        "index_holder_sets",
        "Distinct sets of ranks and tiers that hold a block.",
        lambda p: p.prefix_index.holder_sets,
    ),
    Family(
        _GAUGE,
        "index_orphan_blocks",
        "Announced blocks whose parent has not been announced.",
        lambda p: p.prefix_index.orphans,
    ),
    Family(
        _COUNTER,
        "index_dropped_orphan_blocks",
        "Orphan blocks that were dropped because too many waited.",
        lambda p: p.prefix_index.dropped_orphans,
    ),
    Family(
        _COUNTER,
        "index_refused_blocks",
        "Announced blocks that were refused because the index was full.",
        lambda p: p.prefix_index.refused_blocks,
    ),
    Family(
        _COUNTER,
        "index_unannounced_blocks",
        "Blocks named by their hash alone that were never announced with content.",
        lambda p: p.prefix_index.unannounced_blocks,
    ),
)

LOADS: Sequence[Family[Load]] = (
    Family(_GAUGE, "prefill_tokens", "Prompt tokens booked and not yet prefilled.", lambda x: x[0]),
    Family(_GAUGE, "active_blocks", "Blocks of live reservations, rounded.", lambda x: x[1]),
    Family(_GAUGE, "active_requests", "Live reservations of the rank.", lambda x: x[2]),
    Family(
        _GAUGE,
        "kv_blocks_active",
        "Blocks of the KV cache in use: in the words of the engine while it is heard, else those "
        "of live reservations. Cached blocks that nobody uses are not in use.",
        lambda x: x[3],
    ),
)

LISTENERS: Sequence[Family[ListenerStatus]] = (
    Family(_COUNTER, "kv_event_batches", "Batches of KV events applied.", lambda s: s.batches),
    Family(_COUNTER, "kv_event_gaps", "Holes seen in the sequence numbers.", lambda s: s.gaps),
    Family(
        _COUNTER,
        "kv_event_replayed_batches",
        "Batches applied that came by replay.",
        lambda s: s.replayed,
    ),
    Family(
        _COUNTER,
        "kv_event_lost_batches",
        "Batches that are known to be missing for good.",
        lambda s: s.lost,
    ),
    Family(_COUNTER, "kv_event_stale_batches", "Batches skipped: seen before.", lambda s: s.stale),
    Family(
        _COUNTER,
        "kv_event_restarts",
        "Times the engine began to count anew and its blocks were forgotten.",
        lambda s: s.restarts,
    ),
    Family(
        _COUNTER,
        "kv_event_inflations",
        "Times a rank announced more copies than it has blocks and counting them ended.",
        lambda s: s.inflations,
    ),
    Family(
        _COUNTER,
        "kv_event_decode_errors",
        "Batches or events that could not be read.",
        lambda s: s.decode_errors,
    ),
    Family(
        _COUNTER, "kv_event_stored_blocks", "Blocks stored by events.", lambda s: s.stored_blocks
    ),
    Family(
        _COUNTER, "kv_event_removed_blocks", "Blocks removed by events.", lambda s: s.removed_blocks
    ),
)

PROCESS: Sequence[Family[Report]] = (
    Family(
        _GAUGE,
        "reservations",
        "Live reservations.",
        lambda r: r.reservations_prefill,
        (("state", "prefill"),),
    ),
    Family(
        _GAUGE,
        "reservations",
        "Live reservations.",
        lambda r: r.reservations_decode,
        (("state", "decode"),),
    ),
    Family(
        _GAUGE,
        "reserved_blocks",
        "Prompt blocks of live reservations.",
        lambda r: r.reserved_blocks,
    ),
    Family(
        _COUNTER,
        "reservations_expired",
        "Reservations that ended because nobody renewed them in time.",
        lambda r: r.expired,
    ),
    Family(
        _COUNTER,
        "reservations_dropped_with_rank",
        "Reservations that ended because their rank left.",
        lambda r: r.dropped_with_rank,
    ),
)

_DUMPS = "Dumps begun, by form."

KEEPING: Sequence[Family[KeepingReport]] = (
    Family(_GAUGE, "recovery_blocks", "Blocks that were recovered.", lambda k: k.recovered_blocks),
    Family(_GAUGE, "recovery_seconds", "How long the recovery took.", lambda k: k.recovery_s),
    Family(
        _GAUGE,
        "recovery_waiting_blocks",
        "Recovered blocks of partitions with ranks that are not registered yet.",
        lambda k: k.waiting_blocks,
    ),
    Family(
        _COUNTER,
        "recovery_dropped_blocks",
        "Blocks of recovered partitions that were dropped with ranks still missing.",
        lambda k: k.dropped_blocks,
    ),
    Family(
        _GAUGE,
        "recovery_bad_entries",
        "Entries of the recovered dump that could not be used.",
        lambda k: k.bad_entries,
    ),
    Family(
        _GAUGE,
        "snapshot_age_seconds",
        "Seconds since the snapshot file was written; -1 before the first time.",
        lambda k: k.written_ago_s,
    ),
    Family(_GAUGE, "snapshot_bytes", "Size of the snapshot file.", lambda k: k.snapshot_bytes),
    Family(
        _COUNTER,
        "snapshot_failures",
        "Snapshots that could not be written.",
        lambda k: k.snapshot_failures,
    ),
    Family(_COUNTER, "dumps", _DUMPS, lambda k: k.json_dumps, (("form", "json"),)),
    Family(_COUNTER, "dumps", _DUMPS, lambda k: k.compact_dumps, (("form", "compact"),)),
)
