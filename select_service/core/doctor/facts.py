"""What was looked at, as plain values.  None: it was not looked at, or nobody can tell."""

from collections.abc import Sequence
from typing import NamedTuple

from indexer.sockets.listener_status import ListenerStatus
from select_service.bodies.discovery import SourceView
from select_service.bodies.doctor import Machine
from select_service.bodies.health import DrainView
from select_service.bodies.replicas import ReplicaPeer
from select_service.bodies.workers import RankPredictions


class Replayed(NamedTuple):
    """What became of a question for the newest batches.

    error:       why no answer came; None: one came, perhaps without a batch
    reached:     was there a TCP connection?
    batches:     that came
    block_sizes: of the blocks that were stored in them
    clock_s:     by how much the engine's clock was ahead of ours when it published the last batch
    checked, found: leading blocks of its prompts that were looked for, and found, in the index
    """

    error: str | None = None
    reached: bool = True
    batches: int = 0
    block_sizes: tuple[int, ...] = ()
    clock_s: float | None = None
    checked: int = 0
    found: int = 0


class RankFacts(NamedTuple):
    """events_error: why no connection to the endpoint of events comes about; None: it does, or was
    not tried as the listener has one
    status:       of the listener; None: nobody listens
    replay:       None: the rank has no replay endpoint
    requests:     reservations on the rank
    """

    dp_rank: int
    events_endpoint: str | None = None
    events_error: str | None = None
    status: ListenerStatus | None = None
    replay_endpoint: str | None = None
    replay: Replayed | None = None
    predictions: RankPredictions | None = None
    requests: int = 0
    silent_s: float | None = None
    """Since the last event; None before the first."""
    unconnected_s: float | None = None
    """How long the endpoint of events has not answered; None before that is long."""


class Probed(NamedTuple):
    """A prompt that was sent through the engine.

    error: why the engine did not answer it;  blocks: that it should have stored
    found: leading ones of these that came into the index for any rank of the worker in time
    """

    error: str | None = None
    blocks: int = 0
    found: int = 0
    waited_s: float = 0.0


class EngineSaid(NamedTuple):
    """See `discovery.engine_facts`."""

    engine: str | None
    block_size: int | None = None
    model_names: Sequence[str] = ()
    data_parallel_size: int | None = None


class WorkerFacts(NamedTuple):
    """endpoint_error: why there is no TCP connection to its HTTP endpoint
    http_error:     why HTTP is not answered there, though there is a connection
    clock_s:        by how much the engine's clock is ahead of ours, by HTTP; to a second or so
    reasons:        why it is not schedulable
    check_refused:  why its engine refuses health checks; empty: it does not, or there are none
    """

    worker_id: int
    model_name: str
    block_size: int | None
    data_parallel_size: int
    is_schedulable: bool = True
    reasons: Sequence[str] = ()
    endpoint: str | None = None
    endpoint_error: str | None = None
    http_error: str | None = None
    said: EngineSaid | None = None
    clock_s: float | None = None
    ranks: Sequence[RankFacts] = ()
    n_ranks: int = 0
    drain: DrainView | None = None
    probed: Probed | None = None
    check_refused: str = ""
    is_cut_short: bool = False


class TlsFacts(NamedTuple):
    """side: `server` or `client`;  left_s: until its certificate ends; None: there is none
    error: why the files count no more as they are
    """

    side: str
    left_s: float | None = None
    error: str | None = None


class ServiceFacts(NamedTuple):
    """workers, schedulable: how many there are
    is_insecure:     no key is asked for although others can reach the address
    keys_error:      why the file of keys counts no more as it is
    state_failures, snapshot_failures: writings that failed
    snapshot_age_s:  None: none was written yet, or none is wanted
    recovery_failed: nobody answered well
    """

    machine: Machine
    workers: int = 0
    schedulable: int = 0
    is_insecure: bool = False
    keys_error: str | None = None
    tls: Sequence[TlsFacts] = ()
    peers: Sequence[ReplicaPeer] = ()
    state_failures: int = 0
    snapshot_failures: int = 0
    snapshot_age_s: float | None = None
    snapshot_interval_s: float = 60.0
    recovery_failed: bool = False
    sources: Sequence[SourceView] = ()
