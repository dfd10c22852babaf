"""Facts examined by the doctor, as plain values. None means not examined, or unknown."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from indexer.sockets.listener_status import ListenerStatus
from select_service.schemas.discovery import SourceView
from select_service.schemas.doctor import Machine
from select_service.schemas.health import DrainView
from select_service.schemas.rank_index import RankAssumptions, RankPredictions, ReportedTokens
from select_service.schemas.replicas import ReplicaPeer

NO_CACHE_FACTS: Mapping[str, object] = MappingProxyType({})


class ReplayFacts(NamedTuple):
    """Result of a replay request for the newest batches.

    error: reason for a missing answer; None means an answer came, perhaps without a batch
    reached: whether a TCP connection was established
    batches: number of received batches
    block_sizes: sizes of the blocks stored in them
    clock_s: lead of the engine's clock at its latest batch, s
    checked, found: leading prompt blocks looked up, and found, in the index
    """

    error: str | None = None
    reached: bool = True
    batches: int = 0
    block_sizes: tuple[int, ...] = ()
    clock_s: float | None = None
    checked: int = 0
    found: int = 0


class RankFacts(NamedTuple):
    """Facts about a rank.

    events_error: reason why the events endpoint is unreachable; None means reachable, or not tried
        because the listener is connected
    status: status of the listener; None means no listener
    replay: None means no replay endpoint
    requests: reservations on the rank
    """

    dp_rank: int
    events_endpoint: str | None = None
    events_error: str | None = None
    status: ListenerStatus | None = None
    replay_endpoint: str | None = None
    replay: ReplayFacts | None = None
    predictions: RankPredictions | None = None
    requests: int = 0
    silent_s: float | None = None
    """Time since the last event, s; None before the first."""
    assumptions: RankAssumptions | None = None
    """Blocks that the rank is assumed to hold; None means that its bookings are not assumed."""
    reported: ReportedTokens | None = None
    """Cached tokens that callers reported; None without reports."""
    unconnected_s: float | None = None
    """Time for which the events endpoint has not answered, s; None while short."""


class ProbeFacts(NamedTuple):
    """Result of a probe prompt sent through the engine.

    error: reason for a missing answer
    blocks: number of blocks the engine should have stored
    found: leading blocks that reached the index in time, for any rank of the worker
    """

    error: str | None = None
    blocks: int = 0
    found: int = 0
    waited_s: float = 0.0


class EngineReportedFacts(NamedTuple):
    """Facts reported by the engine, see `discovery.engine_facts`."""

    engine: str | None
    block_size: int | None = None
    model_names: Sequence[str] = ()
    data_parallel_size: int | None = None
    kv_cache: Mapping[str, object] = NO_CACHE_FACTS
    """Facts about the KV cache, as `kv_cache` of a registration."""


class WorkerFacts(NamedTuple):
    """Facts about a worker.

    endpoint_error: reason why its HTTP endpoint is unreachable by TCP
    http_error: reason why HTTP fails there despite a connection
    clock_s: lead of the engine's clock by HTTP, s, to about a second
    reasons: reasons why the worker is not schedulable
    check_refused: reason why its engine rejects health checks; empty if accepted, or without checks
    lost: states and causes of its ranks that health has taken out; empty if none are
    kv_cache: registered facts about the KV cache
    is_eagle: whether the worker is registered with `is_eagle`
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
    description: EngineReportedFacts | None = None
    kv_cache: Mapping[str, object] = NO_CACHE_FACTS
    is_eagle: bool = False
    clock_s: float | None = None
    ranks: Sequence[RankFacts] = ()
    n_ranks: int = 0
    drain: DrainView | None = None
    probed: ProbeFacts | None = None
    check_refused: str = ""
    lost: str = ""
    is_cut_short: bool = False


class TlsFacts(NamedTuple):
    """Facts about TLS files.

    side: `server` or `client`
    left_s: time until the certificate expires, s; None without a certificate
    error: reason why the current files are not in use
    """

    side: str
    left_s: float | None = None
    error: str | None = None


class PairFacts(NamedTuple):
    """Facts about pairs of prefill and decode ranks.

    decisions: number of pairs chosen so far
    unknown_links: workers without a known price of moving a token
    connectors: by model and tenant with more than one, the connectors of the workers
    without_decode: models and tenants with workers for prefill only
    first_tokens: transfers with a reported first token
    unreported: transfers that were forgotten without one
    """

    decisions: int = 0
    unknown_links: int = 0
    connectors: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    without_decode: tuple[str, ...] = ()
    first_tokens: int = 0
    unreported: int = 0


class SharedCacheFacts(NamedTuple):
    """Facts about the shared cache of a model.

    lookups: look-ups that were answered;  hits: those that found something
    without_answer: look-ups that failed or were too late
    is_open: whether the breaker is open
    last_error: reason of the latest failure; None means answers were late
    unpriced: ranks of the model without a known price of fetching a token
    prompt_tokens: tokens of the prompts with an answered look-up
    reused_tokens: leading tokens of these prompts that the chosen workers held themselves
    """

    model_name: str
    url: str
    lookups: int = 0
    hits: int = 0
    without_answer: int = 0
    is_open: bool = False
    last_error: str | None = None
    unpriced: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0


class ServiceFacts(NamedTuple):
    """Facts about the service.

    workers, schedulable: numbers of workers
    is_insecure: other hosts can reach the address without keys
    keys_error: reason why the current key file is not in use
    state_failures, snapshot_failures: failed writes
    snapshot_age_s: None without a snapshot so far, or with snapshots disabled
    recovery_failed: no peer provided the index
    unpriced_sources: models without a known price of moving a token on any rank, with --kv-sources
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
    pairs: PairFacts = PairFacts()
    shared_caches: Sequence[SharedCacheFacts] = ()
    unpriced_sources: Sequence[str] = ()
