"""Tables of the metric families over the state of the service.

Rows of one table share their labels and are read from the same kind of record.  Admission,
replicas, requests and tasks have their own modules.
"""

from collections.abc import Sequence

from indexer.sockets.listener_status import ListenerStatus
from select_service.core.registry.fleet.recovered_blocks import (
    RECOVERY_STATE_NAMES,
    PersistenceReport,
)
from select_service.core.views.state_report import PartitionReport, RankLoadSums, StateReport
from select_service.metrics.series import FamilyRow

PARTITIONS: Sequence[FamilyRow[PartitionReport]] = (
    FamilyRow(
        "decisions_total",
        "Decisions since the start, with (reserve) or without (select) a booking; pairs have "
        "numbers of their own and count neither here nor as prompts, matches and claims.",
        lambda p: {"select": p.tally.selected, "reserve": p.tally.reserved},
        ("kind",),
    ),
    FamilyRow(
        "prompt_blocks_total",
        "Complete blocks of the prompts of all decisions.",
        lambda p: p.tally.prompt_blocks,
    ),
    FamilyRow(
        "matched_blocks_total",
        "Prompt blocks that the chosen rank held at the decision, each in its fastest tier; "
        "divided by prompt blocks the predicted hit rate.",
        lambda p: {
            "gpu": p.tally.matched_gpu,
            "cpu": p.tally.matched_cpu,
            "disk": p.tally.matched_disk,
            "external": p.tally.matched_external,
        },
        ("tier",),
    ),
    FamilyRow(
        "best_reachable_overlap_blocks_total",
        "Leading prompt blocks held by the candidate with most of them, all tiers: the best "
        "reachable overlap.",
        lambda p: p.tally.best_overlap,
    ),
    FamilyRow(
        "chosen_overlap_blocks_total",
        "Leading prompt blocks held by the chosen rank, all tiers; the difference to the best was"
        " given up for load.",
        lambda p: p.tally.chosen_overlap,
    ),
    FamilyRow(
        "claimed_tokens_total",
        "Prompt tokens that the chosen rank held at the decision, by certainty: the exact reusable "
        "prefix, an upper bound (at_most), a lower bound (at_least), unknown, or only assumed "
        "because of earlier bookings (assumed).",
        lambda p: {
            "exact": p.tally.exact_tokens,
            "at_most": p.tally.bound_tokens,
            "at_least": p.tally.least_tokens,
            "unknown": p.tally.uncertain_tokens,
            "assumed": p.tally.assumed_tokens,
        },
        ("certainty",),
    ),
    FamilyRow(
        "kv_hints_total",
        "Bookings on workers with a router_hint_worker_type: with a kv_hint (given), without a "
        "better source (none), or with one whose own block hashes are too many to look up "
        "(unnamed).",
        lambda p: p.hint_outcomes,
        ("outcome",),
    ),
    FamilyRow(
        "shared_cache_credit_tokens_total",
        "Prefill tokens that decisions credited for tokens in a shared cache.",
        lambda p: p.shared_credit_tokens,
    ),
    FamilyRow(
        "kv_sources_total",
        "Decisions with --kv-sources: with a rank to fetch from (given) or without (none).",
        lambda p: p.kv_source_outcomes,
        ("outcome",),
    ),
    FamilyRow("ranks", "Ranks that can be chosen now.", lambda p: p.n_ranks),
    FamilyRow(
        "index_blocks",
        "Distinct blocks in the index of a model and tenant now.",
        lambda p: p.prefix_index.blocks,
    ),
    FamilyRow(
        "index_blocks_max",
        "Limit of distinct blocks in the index (--index-max-blocks).",
        lambda p: p.prefix_index.blocks_max,
    ),
    FamilyRow(
        "index_memberships",
        "Triples of block, rank and tier in the index now.",
        lambda p: p.prefix_index.memberships,
    ),
    FamilyRow(
        "index_bytes",
        "Memory of the index in bytes; grows in steps as tables are enlarged.",
        lambda p: p.prefix_index.bytes,
    ),
    FamilyRow(
        "index_bytes_max",
        "Limit of the memory of the index in bytes (--index-max-bytes).",
        lambda p: p.prefix_index.bytes_max,
    ),
    FamilyRow(
        "assumed_blocks",
        "Blocks that ranks are assumed to hold because of bookings now; a block counts on each.",
        lambda p: p.assumed.blocks,
    ),
    FamilyRow(
        "assumed_index_bytes",
        "Memory of the assumed blocks in bytes; limited like the index (--index-max-bytes).",
        lambda p: p.assumed.bytes,
    ),
    FamilyRow(
        "assumed_refused_blocks_total",
        "Blocks of bookings that are not assumed because memory was short.",
        lambda p: p.assumed.refused,
    ),
    FamilyRow(
        "assumed_evicted_blocks_total",
        "Assumed blocks that were evicted because the cache of their rank is full, or expired.",
        lambda p: p.assumed.evicted,
    ),
    FamilyRow(
        "index_holder_sets",
        "Distinct sets of ranks and tiers that hold a block now.",
        lambda p: p.prefix_index.holder_sets,
    ),
    FamilyRow(
        "index_orphan_blocks",
        "Announced blocks that wait for their parent and count for no overlap.",
        lambda p: p.prefix_index.orphans,
    ),
    FamilyRow(
        "index_dropped_orphan_blocks_total",
        "Orphan blocks dropped because too many waited for their parents.",
        lambda p: p.prefix_index.dropped_orphans,
    ),
    FamilyRow(
        "index_refused_blocks_total",
        "Announced blocks that were not indexed because the index was full.",
        lambda p: p.prefix_index.refused_blocks,
    ),
    FamilyRow(
        "index_unannounced_blocks_total",
        "Blocks named by an engine only by hash, of which it never announced the content.",
        lambda p: p.prefix_index.unannounced_blocks,
    ),
)

OWN_PARTITIONS: Sequence[FamilyRow[PartitionReport]] = (
    FamilyRow(
        "policy", "1 for the placement policy in force.", lambda p: {p.policy: 1}, ("policy",)
    ),
    FamilyRow(
        "reported_prefills_ratio",
        "Share of prefills whose end callers reported (prefill_complete), 0 to 1, over about the "
        "last 100.",
        lambda p: p.reported_share,
    ),
)
"""Families without a sum over the other partitions."""

LOADS: Sequence[FamilyRow[RankLoadSums]] = (
    FamilyRow(
        "prefill_tokens",
        "Uncached prompt tokens booked on a rank whose prefill is not reported complete.",
        lambda x: x[0],
    ),
    FamilyRow(
        "active_blocks",
        "Distinct blocks of the live reservations of a rank, weighted and rounded.",
        lambda x: x[1],
    ),
    FamilyRow("active_requests", "Live reservations of a rank.", lambda x: x[2]),
    FamilyRow(
        "kv_blocks_active",
        "Blocks of the KV cache in use by requests, as reported by the engine, else by "
        "reservations; cached but unused blocks do not count.",
        lambda x: x[3],
    ),
    FamilyRow(
        "kv_blocks_max",
        "Size of the KV cache in blocks; no series if unknown.",
        # A size of zero means unknown: no series is better than a wrong one.
        lambda x: x[4] or None,
    ),
)

LISTENERS: Sequence[FamilyRow[ListenerStatus]] = (
    FamilyRow(
        "kv_event_batches_total",
        "Batches of KV events of a rank applied to the index.",
        lambda s: s.batches,
    ),
    FamilyRow(
        "kv_event_gaps_total",
        "Gaps in the sequence numbers of a rank; a replay may deliver the missed batches.",
        lambda s: s.gaps,
    ),
    FamilyRow(
        "kv_event_replayed_batches_total",
        "Missed batches that the engine's replay endpoint delivered.",
        lambda s: s.replayed,
    ),
    FamilyRow(
        "kv_event_lost_batches_total",
        "Missed batches that no replay delivered; the index may be wrong for the rank.",
        lambda s: s.lost,
    ),
    FamilyRow(
        "kv_event_stale_batches_total",
        "Batches skipped because they were applied before.",
        lambda s: s.stale,
    ),
    FamilyRow(
        "kv_event_restarts_total",
        "Restarts of the engine's sequence numbers, after which its blocks were dropped.",
        lambda s: s.restarts,
    ),
    FamilyRow(
        "kv_event_inflations_total",
        "Ranks that announced more copies than they have blocks; copy counting was then disabled.",
        lambda s: s.inflations,
    ),
    FamilyRow(
        "kv_event_decode_errors_total",
        "Batches or events that could not be decoded.",
        lambda s: s.decode_errors,
    ),
    FamilyRow(
        "kv_event_stored_blocks_total",
        "Blocks that events announced as stored on a rank.",
        lambda s: s.stored_blocks,
    ),
    FamilyRow(
        "kv_event_removed_blocks_total",
        "Blocks that events announced as removed from a rank.",
        lambda s: s.removed_blocks,
    ),
)

PROCESS: Sequence[FamilyRow[StateReport]] = (
    FamilyRow(
        "reservations",
        "Live reservations of the process, before (prefill) or after (decode) their first token.",
        lambda r: {"prefill": r.reservations_prefill, "decode": r.reservations_decode},
        ("state",),
    ),
    FamilyRow(
        "reserved_blocks",
        "Prompt blocks of all live reservations, towards the limit `reserved_blocks`.",
        lambda r: r.reserved_blocks,
    ),
    FamilyRow(
        "reservations_expired_total",
        "Reservations that expired after --reservation-ttl-secs without a call: their clients did"
        " not free them.",
        lambda r: r.expired,
    ),
    FamilyRow(
        "reservations_dropped_with_rank_total",
        "Live reservations dropped together with their removed rank.",
        lambda r: r.dropped_with_rank,
    ),
    FamilyRow(
        "pending_selections",
        "Answers of /select that a booking may still take over by their selection_id.",
        lambda r: r.selections.entries,
    ),
    FamilyRow(
        "pending_selection_bytes",
        "Memory of the pending selections in bytes, towards --selection-cache-max-bytes.",
        lambda r: r.selections.n_bytes,
    ),
    FamilyRow(
        "pending_selections_ended_total",
        "Pending selections that were booked, made room for newer ones (evicted), or were larger "
        "than the whole limit and not kept (oversized); the others expire.",
        lambda r: {
            "booked": r.selections.booked,
            "evicted": r.selections.evicted,
            "oversized": r.selections.oversized,
        },
        ("reason",),
    ),
    FamilyRow(
        "workers",
        "Workers of the catalog now; unschedulable: deleted and remembered for a while.",
        lambda r: r.workers,
        ("lifecycle",),
    ),
)


PERSISTENCE: Sequence[FamilyRow[PersistenceReport]] = (
    FamilyRow(
        "recovery_blocks",
        "Blocks taken from snapshot and peers at the start.",
        lambda k: k.recovered_blocks,
    ),
    FamilyRow(
        "recovery_seconds",
        "Seconds of the recovery at the start, so far or in all.",
        lambda k: k.recovery_s,
    ),
    FamilyRow(
        "recovery_waiting_blocks",
        "Recovered blocks that wait for the registration of their ranks, at most 600 s.",
        lambda k: k.waiting_blocks,
    ),
    FamilyRow(
        "recovery_dropped_blocks_total",
        "Recovered blocks dropped because their ranks were not registered in time.",
        lambda k: k.dropped_blocks,
    ),
    FamilyRow(
        "recovery_bad_entries",
        "Entries of the recovered dump that could not be used.",
        lambda k: k.bad_entries,
    ),
    FamilyRow(
        "snapshot_age_seconds",
        "Seconds since the last snapshot; -1 before the first one.",
        lambda k: k.written_ago_s,
    ),
    FamilyRow("snapshot_bytes", "Size of the snapshot file in bytes.", lambda k: k.snapshot_bytes),
    FamilyRow(
        "snapshot_failures_total",
        "Snapshots that could not be written.",
        lambda k: k.snapshot_failures,
    ),
    FamilyRow(
        "dumps_total",
        "Dumps of the index that clients began to read, by format.",
        lambda k: {"json": k.json_dumps, "compact": k.compact_dumps},
        ("form",),
    ),
    FamilyRow(
        "recovery_state",
        "1 for the present state of the recovery, 0 for the others.",
        lambda k: {state: state == k.state for state in RECOVERY_STATE_NAMES},
        ("state",),
    ),
)
