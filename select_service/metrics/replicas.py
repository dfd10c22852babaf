"""Metrics of the replica protocol.  The number of peers is limited, so each has its own series."""

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import COUNTER, GAUGE, FamilyRow, make_series, record_itself
from select_service.schemas.replicas import ReplicaPeer, ReplicaStatus

PEER_LABELS = ("peer",)

_REPAIRS = "Repairs from the list of the peer, by result."
_REPAIRED = "Reservations that repairs added, dropped or changed."

OUT: Sequence[FamilyRow[ReplicaStatus]] = (
    FamilyRow(COUNTER, "replica_frames_out", "Events published.", lambda s: s.frames_out),
    FamilyRow(COUNTER, "replica_digests_out", "Digests published.", lambda s: s.digests_out),
    FamilyRow(
        COUNTER,
        "replica_progress_out",
        "Prefill progress messages published.",
        lambda s: s.progress_out,
    ),
    FamilyRow(GAUGE, "replica_subscribers", "Subscribed replicas.", lambda s: s.subscribers),
    FamilyRow(
        COUNTER,
        "replica_refused",
        "Connections to the replica port refused for an unknown key or another protocol.",
        lambda s: s.refused,
    ),
    FamilyRow(
        GAUGE,
        "replica_keys_stale",
        "1 while the replica keys file is invalid and older keys are in use.",
        lambda s: s.keys_error is not None,
    ),
    FamilyRow(
        COUNTER,
        "replica_frames_out_dropped",
        "Events not published because of a full queue or their size.",
        lambda s: s.frames_dropped_out,
    ),
    FamilyRow(GAUGE, "replica_frames_queued", "Queued events.", lambda s: s.frames_queued),
)

PEERS: Sequence[FamilyRow[ReplicaPeer]] = (
    FamilyRow(
        COUNTER, "replica_frames_in", "Messages received from the peer.", lambda p: p.frames_in
    ),
    FamilyRow(COUNTER, "replica_applied", "Events of the peer applied.", lambda p: p.applied),
    FamilyRow(
        COUNTER,
        "replica_progress",
        "Prefill progress messages of the peer applied.",
        lambda p: p.progress,
    ),
    FamilyRow(
        COUNTER,
        "replica_lost",
        "Lost events of the peer.",
        lambda p: p.lost,
    ),
    FamilyRow(
        COUNTER,
        "replica_frames_out_arrived",
        "Own messages acknowledged in the peer's digest.",
        # None until the first digest: a counter starts at zero.
        lambda p: p.frames_out or 0,
    ),
    FamilyRow(GAUGE, "replica_connected", "1 while the peer is connected.", lambda p: p.connected),
    FamilyRow(
        GAUGE,
        "replica_divergence_reservations",
        "Minimum number of reservations in which the peer and this replica differ.",
        lambda p: p.divergence_reservations,
    ),
    FamilyRow(
        GAUGE,
        "replica_divergence_prefill_tokens",
        "Prefill tokens by which the peer and this replica differ.",
        lambda p: p.divergence_prefill_tokens,
    ),
    FamilyRow(
        COUNTER,
        "replica_repairs",
        _REPAIRS,
        lambda p: p.repairs.runs - p.repairs.failed,
        (("result", "done"),),
    ),
    FamilyRow(
        COUNTER, "replica_repairs", _REPAIRS, lambda p: p.repairs.failed, (("result", "failed"),)
    ),
    FamilyRow(
        COUNTER,
        "replica_repaired_reservations",
        _REPAIRED,
        lambda p: p.repairs.added,
        (("change", "added"),),
    ),
    FamilyRow(
        COUNTER,
        "replica_repaired_reservations",
        _REPAIRED,
        lambda p: p.repairs.dropped,
        (("change", "dropped"),),
    ),
    FamilyRow(
        COUNTER,
        "replica_repaired_reservations",
        _REPAIRED,
        lambda p: p.repairs.changed,
        (("change", "changed"),),
    ),
    FamilyRow(
        GAUGE,
        "replica_last_frame_age_seconds",
        "Seconds since the last message of the peer; no series before the first one.",
        lambda p: p.seconds_since_last_frame,
    ),
)

DROPPED: Sequence[FamilyRow[int]] = (
    FamilyRow(
        COUNTER,
        "replica_dropped",
        "Messages of the peer without effect, by reason.",
        record_itself,
    ),
)


def replica_metrics(status: ReplicaStatus) -> Iterator[Metric]:
    """Yield the series of the replica protocol."""
    yield from make_series(OUT, (), {(): status})
    yield from make_series(PEERS, PEER_LABELS, {(peer.endpoint,): peer for peer in status.peers})
    dropped = {
        (peer.endpoint, reason): n for peer in status.peers for reason, n in peer.dropped.items()
    }
    yield from make_series(DROPPED, (*PEER_LABELS, "reason"), dropped)
