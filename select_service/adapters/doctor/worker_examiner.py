"""Examination of a worker: HTTP endpoint, event streams and an optional probe."""

import asyncio
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from time import monotonic, time

from msgspec import to_builtins

from indexer.sockets.ingest import Ingest
from indexer.sockets.listener_status import ListenerStatus
from select_service.adapters.discovery.probe_engine import fetch_engine_facts
from select_service.adapters.doctor.prompt_probe import probe_engine
from select_service.adapters.doctor.reachability import (
    endpoint_connection_error,
    url_connection_error,
)
from select_service.adapters.doctor.replay_check import ReplayCheck, check_replay
from select_service.adapters.http_get import HttpClient
from select_service.core.doctor.facts import (
    NO_CACHE_FACTS,
    EngineReportedFacts,
    RankFacts,
    ReplayFacts,
    WorkerFacts,
)
from select_service.core.identity import Rank
from select_service.core.load.compiled import load_layout
from select_service.core.registry.discovery.engine_facts import EngineFacts
from select_service.core.registry.fleet.partition import Partition
from select_service.core.selector import SelectorCore
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.net.http_client.http_error import HttpError
from select_service.net.urls import engine_url_error
from select_service.schemas.rank_index import RankAssumptions, RankPredictions, ReportedTokens

RANKS_MAX = 16
"""Maximum number of examined ranks per worker."""
CONCURRENT_RANKS = 4
"""Maximum number of concurrently examined ranks per worker."""
HTTP_S = 5.0
PREDICTIONS_OF = Callable[[RegisteredWorker, Rank], RankPredictions | None]


class WorkerExaminer:
    """Examiner of workers.  Belongs to the event loop.

    Changes nothing except for the optional probe.
    """

    def __init__(
        self,
        selector: SelectorCore,
        ingest: Ingest,
        http: HttpClient,
        predictions_of: PREDICTIONS_OF,
        uses_events: bool,
    ) -> None:
        self._selector = selector
        self._ingest = ingest
        self._http = http
        self._predictions_of = predictions_of
        self._uses_events = uses_events

    def known_facts(self, worker: RegisteredWorker) -> WorkerFacts:
        """Return the facts that need no request to the engine."""
        fitness, assumptions = self._selector.health, self._selector.followers.assumptions
        views = (
            assumptions.view_assumed(worker, monotonic()),
            assumptions.view_reported(worker),
        )
        has_index = worker.is_schedulable and (self._uses_events or any(views))
        ranks = worker.list_ranks() if has_index else ()
        return WorkerFacts(
            worker_id=worker.worker_id,
            model_name=worker.key.model_name,
            block_size=worker.registration.block_size,
            data_parallel_size=len(worker.dp_ranks()),
            is_schedulable=worker.is_schedulable,
            reasons=tuple(worker.reasons),
            endpoint=worker.registration.endpoint,
            kv_cache=to_builtins(worker.registration.kv_cache) or NO_CACHE_FACTS,
            is_eagle=worker.is_eagle,
            ranks=[self._rank_facts(worker, rank, views) for rank in ranks[:RANKS_MAX]],
            n_ranks=len(ranks),
            drain=self._selector.draining.drain_view(worker.worker_id),
            check_refused=""
            if fitness is None
            else fitness.monitor.refusal_reason(worker.worker_id),
            lost="" if fitness is None else fitness.monitor.describe_lost(worker.worker_id),
        )

    async def examine(self, worker: RegisteredWorker, probes: bool) -> WorkerFacts:
        """Examine a worker and return the facts found.

        probes: True sends a prompt through the engine
        """
        facts = self.known_facts(worker)
        partition = self._selector.fleet.partitions.get(worker.key)
        if not worker.is_schedulable or partition is None:
            return facts
        facts = await self._examine_http(facts)
        is_up = facts.endpoint_error is None and facts.http_error is None
        if probes and is_up and facts.endpoint is not None:
            found = await probe_engine(self._ingest.resolver, self._http.tls, worker, partition)
            # Collected again: the probe took seconds, in which streams and counters moved.
            facts = self.known_facts(worker)._replace(
                description=facts.description, clock_s=facts.clock_s, probed=found
            )
        ranks = []
        for begin in range(0, len(facts.ranks), CONCURRENT_RANKS):
            some = facts.ranks[begin : begin + CONCURRENT_RANKS]
            ranks += await asyncio.gather(
                *(self._examine_rank(worker, partition, rank) for rank in some)
            )
        return facts._replace(ranks=ranks)

    def _rank_facts(
        self,
        worker: RegisteredWorker,
        rank: Rank,
        views: tuple[dict[int, RankAssumptions], dict[int, ReportedTokens]],
    ) -> RankFacts:
        """Return the facts about a rank.  views: assumptions and reports by dp_rank"""
        assumed, reported = views
        status = self._ingest.status_of(rank)
        partition = self._selector.fleet.partitions[worker.key]
        slot = partition.table.find_slot(rank)
        last = None if status is None else status.last_event_monotonic
        lost_at = None if status is None else status.unconnected_monotonic
        requests = 0 if slot is None else partition.load.totals[slot, load_layout.REQUESTS]
        return RankFacts(
            dp_rank=rank.dp_rank,
            events_endpoint=None if status is None else status.endpoint,
            status=status,
            replay_endpoint=None if status is None else status.replay_endpoint,
            predictions=self._predictions_of(worker, rank),
            assumptions=assumed.get(rank.dp_rank),
            reported=reported.get(rank.dp_rank),
            requests=int(requests),
            silent_s=None if last is None else monotonic() - last,
            unconnected_s=None if lost_at is None else monotonic() - lost_at,
        )

    # HTTP endpoint.

    async def _examine_http(self, facts: WorkerFacts) -> WorkerFacts:
        url = facts.endpoint
        if url is None or engine_url_error(url) is not None:
            return facts._replace(endpoint=None)
        fault = await url_connection_error(self._ingest.resolver, url)
        if fault is not None:
            return facts._replace(endpoint_error=fault)
        # Two independent routes: an engine may serve /health and none of the description documents.
        description, (clock_s, health_error) = await asyncio.gather(
            self._fetch_facts(url), self._check_health_route(url)
        )
        if isinstance(description, EngineReportedFacts):
            return facts._replace(description=description, clock_s=clock_s)
        if health_error is None:
            return facts._replace(clock_s=clock_s, description=EngineReportedFacts(None))
        return facts._replace(http_error=f"{description}; /health: {health_error}")

    async def _fetch_facts(self, url: str) -> EngineReportedFacts | str:
        """Return the engine's description of itself, or an error text."""
        try:
            async with asyncio.timeout(HTTP_S):
                return _engine_description(await fetch_engine_facts(self._http, url))
        except HttpError as error:
            return str(error)
        except TimeoutError:
            return f"no complete answer within {HTTP_S:g} s"

    async def _check_health_route(self, url: str) -> tuple[float | None, str | None]:
        """Return the clock offset of the engine in seconds (positive: ahead) and the error of GET
        /health.
        """
        begun = time()
        try:
            async with (
                asyncio.timeout(HTTP_S),
                self._http.open_get(f"{url.rstrip('/')}/health", "*/*") as response,
            ):
                stamp = response.headers.get("date")
        except HttpError as error:
            return None, str(error)
        except TimeoutError:
            return None, f"no answer within {HTTP_S:g} s"
        return _clock_offset(stamp, begun, time()), None

    # Event streams of the ranks.

    async def _examine_rank(
        self, worker: RegisteredWorker, partition: Partition, rank: RankFacts
    ) -> RankFacts:
        status = rank.status
        if status is None:
            return rank
        if not status.connected:
            fault = await endpoint_connection_error(self._ingest.resolver, status.endpoint)
            return rank._replace(events_error=fault)
        slot = partition.table.find_slot(Rank(worker.worker_id, rank.dp_rank))
        if status.replay_endpoint is None or slot is None:
            return rank
        fault = await endpoint_connection_error(self._ingest.resolver, status.replay_endpoint)
        if fault is not None:  # reported at once: ZMQ would retry for ever
            return rank._replace(replay=ReplayFacts(reached=False, error=fault))
        wanted = ReplayCheck(
            endpoint=status.replay_endpoint,
            server=self._ingest.server_keys_of((worker.worker_id, rank.dp_rank)),
            last=status.last_sequence,
            received_at=_received_at(status),
            is_live=not status.replayed and not status.gaps,
            prefixes=partition.index,
            slot=slot,
            block_size=partition.block_size,
            is_eagle=partition.is_eagle,
        )
        replay = await asyncio.to_thread(check_replay, self._ingest.resolver, wanted)
        return rank._replace(replay=replay)


def _engine_description(facts: EngineFacts) -> EngineReportedFacts:
    fields = facts.fields
    names = [*([fields["model_name"]] if "model_name" in fields else []), *facts.aliases]
    return EngineReportedFacts(
        facts.engine,
        fields.get("block_size"),
        (*names, *facts.adapters),
        fields.get("data_parallel_size"),
        fields.get("kv_cache", NO_CACHE_FACTS),
    )


def _received_at(status: ListenerStatus) -> float | None:
    last = status.last_event_monotonic
    return None if last is None else time() - (monotonic() - last)


def _clock_offset(stamp: str | None, begun: float, ended: float) -> float | None:
    """Return the clock offset in seconds.

    stamp: HTTP date of a moment between `begun` and `ended`, truncated to seconds
    """
    if stamp is None:
        return None
    try:
        told = parsedate_to_datetime(stamp).timestamp()
    except (ValueError, TypeError):
        return None
    # HTTP dates are truncated to seconds: a difference within one second is no offset.
    if told + 1.0 < begun:
        return told + 1.0 - begun
    return max(0.0, told - ended)
