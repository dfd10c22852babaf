"""What the replica plane tells Prometheus.  Peers are few and bounded, so each has its series."""

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from select_service.bodies.replicas import ReplicaPeer, ReplicaStatus
from select_service.metrics.series import COUNTER, GAUGE, Family, itself, series_of

PEER_LABELS = ("peer",)

_REPAIRS = "Repairs from the list of the peer, by how they ended."
_REPAIRED = "Reservations that repairs added, dropped or changed."

OUT: Sequence[Family[ReplicaStatus]] = (
    Family(COUNTER, "replica_frames_out", "Events published.", lambda s: s.frames_out),
    Family(COUNTER, "replica_digests_out", "Digests published.", lambda s: s.digests_out),
    Family(
        COUNTER,
        "replica_progress_out",
        "Messages about the progress of prefills published.",
        lambda s: s.progress_out,
    ),
    Family(GAUGE, "replica_subscribers", "Replicas that listen.", lambda s: s.subscribers),
    Family(
        COUNTER,
        "replica_refused",
        "Connections to our port that were refused: an unknown key, or another protocol.",
        lambda s: s.refused,
    ),
    Family(
        GAUGE,
        "replica_keys_stale",
        "Is the file of replica keys wrong, so that the keys before go on counting?",
        lambda s: s.keys_error is not None,
    ),
    Family(
        COUNTER,
        "replica_frames_out_dropped",
        "Events not published: the queue was full, or the event too large.",
        lambda s: s.frames_dropped_out,
    ),
    Family(GAUGE, "replica_frames_queued", "Events to be published.", lambda s: s.frames_queued),
)

PEERS: Sequence[Family[ReplicaPeer]] = (
    Family(COUNTER, "replica_frames_in", "Messages of the peer.", lambda p: p.frames_in),
    Family(
        COUNTER, "replica_applied", "Events of the peer that were followed.", lambda p: p.applied
    ),
    Family(
        COUNTER,
        "replica_progress",
        "Messages of the peer about the progress of prefills that were followed.",
        lambda p: p.progress,
    ),
    Family(
        COUNTER,
        "replica_lost",
        "Events of the peer that are known not to have arrived.",
        lambda p: p.lost,
    ),
    Family(
        COUNTER,
        "replica_frames_out_arrived",
        "Messages of ours that the peer says have arrived.",
        lambda p: p.frames_out or 0,
    ),
    Family(GAUGE, "replica_connected", "Is the peer connected?", lambda p: p.connected),
    Family(
        GAUGE,
        "replica_divergence_reservations",
        "Reservations in which the peer and this replica differ, at least.",
        lambda p: p.divergence_reservations,
    ),
    Family(
        GAUGE,
        "replica_divergence_prefill_tokens",
        "Prefill tokens by which the peer and this replica differ.",
        lambda p: p.divergence_prefill_tokens,
    ),
    Family(
        COUNTER,
        "replica_repairs",
        _REPAIRS,
        lambda p: p.repairs.runs - p.repairs.failed,
        (("result", "done"),),
    ),
    Family(
        COUNTER, "replica_repairs", _REPAIRS, lambda p: p.repairs.failed, (("result", "failed"),)
    ),
    Family(
        COUNTER,
        "replica_repaired_reservations",
        _REPAIRED,
        lambda p: p.repairs.added,
        (("change", "added"),),
    ),
    Family(
        COUNTER,
        "replica_repaired_reservations",
        _REPAIRED,
        lambda p: p.repairs.dropped,
        (("change", "dropped"),),
    ),
    Family(
        COUNTER,
        "replica_repaired_reservations",
        _REPAIRED,
        lambda p: p.repairs.changed,
        (("change", "changed"),),
    ),
    Family(
        GAUGE,
        "replica_last_frame_age_seconds",
        "Seconds since the last message of the peer; no series before the first one.",
        lambda p: p.seconds_since_last_frame,
    ),
)

DROPPED: Sequence[Family[int]] = (
    Family(
        COUNTER,
        "replica_dropped",
        "Messages of the peer that changed nothing, by reason.",
        itself,
    ),
)


def of_replicas(status: ReplicaStatus) -> Iterator[Metric]:
    """All families of the replica plane."""
    yield from series_of(OUT, (), {(): status})
    yield from series_of(PEERS, PEER_LABELS, {(peer.endpoint,): peer for peer in status.peers})
    dropped = {
        (peer.endpoint, reason): n for peer in status.peers for reason, n in peer.dropped.items()
    }
    yield from series_of(DROPPED, (*PEER_LABELS, "reason"), dropped)
