"""Metrics of the replica protocol.  The number of peers is limited, so each has its own series."""

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import FamilyRow, make_process_series, make_series
from select_service.schemas.replicas import ReplicaPeer, ReplicaStatus

OUT: Sequence[FamilyRow[ReplicaStatus]] = (
    FamilyRow(
        "replica_frames_out_total",
        "Load events published to replicas since the start.",
        lambda s: s.frames_out,
    ),
    FamilyRow(
        "replica_digests_out_total",
        "Summaries of reservations published to replicas since the start.",
        lambda s: s.digests_out,
    ),
    FamilyRow(
        "replica_progress_out_total",
        "Messages with the progress of prefills published to replicas.",
        lambda s: s.progress_out,
    ),
    FamilyRow(
        "replica_sessions_out_total",
        "Messages about sessions published to replicas.",
        lambda s: s.sessions_out,
    ),
    FamilyRow(
        "replica_subscribers",
        "Replicas that receive the events of this one now.",
        lambda s: s.subscribers,
    ),
    FamilyRow(
        "replica_refused_total",
        "Connections to the replica port refused for an unknown key or another protocol.",
        lambda s: s.refused,
    ),
    FamilyRow(
        "replica_keys_stale",
        "1 while the replica keys file is invalid and older keys are in use.",
        lambda s: s.keys_error is not None,
    ),
    FamilyRow(
        "replica_frames_out_dropped_total",
        "Load events not published, because the queue was full or they were too large; peers "
        "repair the difference.",
        lambda s: s.frames_dropped_out,
    ),
    FamilyRow(
        "replica_frames_queued",
        "Load events that wait to be published now.",
        lambda s: s.frames_queued,
    ),
)

PEERS: Sequence[FamilyRow[ReplicaPeer]] = (
    FamilyRow(
        "replica_frames_in_total",
        "Messages received from the peer, with and without effect.",
        lambda p: p.frames_in,
    ),
    FamilyRow(
        "replica_applied_total",
        "Load events of the peer that changed the load here.",
        lambda p: p.applied,
    ),
    FamilyRow(
        "replica_progress_total",
        "Messages of the peer with the progress of prefills that changed the load here.",
        lambda p: p.progress,
    ),
    FamilyRow(
        "replica_sessions_total",
        "Messages of the peer about sessions that had an effect here.",
        lambda p: p.sessions,
    ),
    FamilyRow(
        "replica_session_repairs_total",
        "Readings of the peer's sessions, where digests differed.",
        lambda p: p.session_repairs,
    ),
    FamilyRow(
        "replica_sessions_repaired_total",
        "Sessions added or changed here by readings of the peer's.",
        lambda p: p.sessions_repaired,
    ),
    FamilyRow(
        "replica_lost_total",
        "Load events of the peer that never arrived, by gaps in its numbers.",
        lambda p: p.lost,
    ),
    FamilyRow(
        "replica_frames_out_arrived_total",
        "Own messages that the peer has received, by its last digest.",
        # None until the first digest: a counter starts at zero.
        lambda p: p.frames_out or 0,
    ),
    FamilyRow(
        "replica_connected",
        "1 while the connection to the peer is up, else 0.",
        lambda p: p.connected,
    ),
    FamilyRow(
        "replica_divergence_reservations",
        "Least number of reservations in which the peer and this replica differ; 0 again soon "
        "after every event.",
        lambda p: p.divergence_reservations,
    ),
    FamilyRow(
        "replica_divergence_prefill_tokens",
        "Booked prefill tokens by which the peer and this replica differ now.",
        lambda p: p.divergence_prefill_tokens,
    ),
    FamilyRow(
        "replica_repairs_total",
        "Fetches of the list of reservations of a peer after a persistent difference, by result.",
        lambda p: {"done": p.repairs.runs - p.repairs.failed, "failed": p.repairs.failed},
        ("result",),
    ),
    FamilyRow(
        "replica_repaired_reservations_total",
        "Reservations that repairs added, dropped or changed here.",
        lambda p: {
            "added": p.repairs.added,
            "dropped": p.repairs.dropped,
            "changed": p.repairs.changed,
        },
        ("change",),
    ),
    FamilyRow(
        "replica_last_frame_age_seconds",
        "Seconds since the last message of the peer; no series before the first one.",
        lambda p: p.seconds_since_last_frame,
    ),
    FamilyRow(
        "replica_dropped_total",
        "Messages of the peer that changed nothing, by reason.",
        lambda p: p.dropped,
        ("reason",),
    ),
)


def replica_metrics(status: ReplicaStatus) -> Iterator[Metric]:
    """Yield the series of the replica protocol."""
    yield from make_process_series(OUT, status)
    yield from make_series(PEERS, ("peer",), {(peer.endpoint,): peer for peer in status.peers})
