"""EDGE: looks at one worker: its HTTP, the streams of its ranks, and a prompt if that is wanted."""

import asyncio
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from time import monotonic, time

from indexer.sockets.ingest import Ingest
from indexer.sockets.listener_status import ListenerStatus
from select_service.bodies.workers import RankPredictions
from select_service.core.discovery.engine_facts import EngineFacts
from select_service.core.doctor.facts import EngineSaid, RankFacts, Replayed, WorkerFacts
from select_service.core.fleet.partition import Partition
from select_service.core.identity import Rank
from select_service.core.load import load_layout
from select_service.core.selector import Selector
from select_service.core.workers.catalog import Worker
from select_service.edge.discovery.asking import facts_from
from select_service.edge.doctor.probing import probed
from select_service.edge.doctor.reaching import endpoint_fault, url_fault
from select_service.edge.doctor.replays import Wanted, replayed
from select_service.edge.http_client import HttpClient
from select_service.edge.http_error import HttpError
from select_service.urls import engine_url_error

RANKS_MAX = 16
"""Of one worker."""
AT_ONCE = 4
"""Ranks of one worker."""
HTTP_S = 5.0
PREDICTIONS_OF = Callable[[Worker, Rank], RankPredictions | None]


class Looking:
    """Belongs to the event loop.  Reads only, but where a prompt is wanted."""

    def __init__(
        self,
        selector: Selector,
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

    def begun(self, worker: Worker) -> WorkerFacts:
        """What is known without asking anybody."""
        fitness = self._selector.fitness
        ranks = worker.ranks() if self._uses_events and worker.schedulable else ()
        return WorkerFacts(
            worker_id=worker.worker_id,
            model_name=worker.key.model_name,
            block_size=worker.given.block_size,
            data_parallel_size=len(worker.dp_ranks()),
            is_schedulable=worker.schedulable,
            reasons=tuple(worker.reasons),
            endpoint=worker.given.endpoint,
            ranks=[self._rank(worker, rank) for rank in ranks[:RANKS_MAX]],
            n_ranks=len(ranks),
            drain=self._selector.draining.view(worker.worker_id),
            check_refused=""
            if fitness is None
            else fitness.monitor.checks_refused(worker.worker_id),
        )

    async def looked_at(self, worker: Worker, probes: bool) -> WorkerFacts:
        """probes: a prompt is sent through the engine."""
        facts = self.begun(worker)
        partition = self._selector.fleet.partitions.get(worker.key)
        if not worker.schedulable or partition is None:
            return facts
        facts = await self._asked(facts)
        is_up = facts.endpoint_error is None and facts.http_error is None
        if probes and is_up and facts.endpoint is not None:
            found = await probed(self._ingest.names, self._http.tls, worker, partition)
            facts = self.begun(worker)._replace(
                said=facts.said, clock_s=facts.clock_s, probed=found
            )
        ranks = []
        for begin in range(0, len(facts.ranks), AT_ONCE):
            some = facts.ranks[begin : begin + AT_ONCE]
            ranks += await asyncio.gather(
                *(self._rank_asked(worker, partition, rank) for rank in some)
            )
        return facts._replace(ranks=ranks)

    def _rank(self, worker: Worker, rank: Rank) -> RankFacts:
        status = self._ingest.status_of(rank)
        partition = self._selector.fleet.partitions[worker.key]
        slot = partition.table.find(rank)
        last = None if status is None else status.last_event_monotonic
        lost_at = None if status is None else status.unconnected_monotonic
        requests = 0 if slot is None else partition.load.totals[slot, load_layout.REQUESTS]
        return RankFacts(
            dp_rank=rank.dp_rank,
            events_endpoint=None if status is None else status.endpoint,
            status=status,
            replay_endpoint=None if status is None else status.replay_endpoint,
            predictions=self._predictions_of(worker, rank),
            requests=int(requests),
            silent_s=None if last is None else monotonic() - last,
            unconnected_s=None if lost_at is None else monotonic() - lost_at,
        )

    # --- HTTP

    async def _asked(self, facts: WorkerFacts) -> WorkerFacts:
        url = facts.endpoint
        if url is None or engine_url_error(url) is not None:
            return facts._replace(endpoint=None)
        fault = await url_fault(self._ingest.names, url)
        if fault is not None:
            return facts._replace(endpoint_error=fault)
        said, (clock_s, health_error) = await asyncio.gather(self._facts(url), self._health(url))
        if isinstance(said, EngineSaid):
            return facts._replace(said=said, clock_s=clock_s)
        if health_error is None:
            return facts._replace(clock_s=clock_s, said=EngineSaid(None))
        return facts._replace(http_error=f"{said}; /health: {health_error}")

    async def _facts(self, url: str) -> EngineSaid | str:
        """What it says of itself, or why it says nothing."""
        try:
            async with asyncio.timeout(HTTP_S):
                return _said(await facts_from(self._http, url))
        except HttpError as error:
            return str(error)
        except TimeoutError:
            return f"no complete answer within {HTTP_S:g} s"

    async def _health(self, url: str) -> tuple[float | None, str | None]:
        """By how much its clock is ahead, and why it does not answer."""
        begun = time()
        try:
            async with (
                asyncio.timeout(HTTP_S),
                self._http.get(f"{url.rstrip('/')}/health", "*/*") as response,
            ):
                stamp = response.headers.get("date")
        except HttpError as error:
            return None, str(error)
        except TimeoutError:
            return None, f"no answer within {HTTP_S:g} s"
        return _ahead(stamp, begun, time()), None

    # --- streams

    async def _rank_asked(self, worker: Worker, partition: Partition, rank: RankFacts) -> RankFacts:
        status = rank.status
        if status is None:
            return rank
        if not status.connected:
            fault = await endpoint_fault(self._ingest.names, status.endpoint)
            return rank._replace(events_error=fault)
        slot = partition.table.find(Rank(worker.worker_id, rank.dp_rank))
        if status.replay_endpoint is None or slot is None:
            return rank
        fault = await endpoint_fault(self._ingest.names, status.replay_endpoint)
        if fault is not None:  # said at once: ZMQ would go on trying
            return rank._replace(replay=Replayed(reached=False, error=fault))
        wanted = Wanted(
            endpoint=status.replay_endpoint,
            server=self._ingest.server_of((worker.worker_id, rank.dp_rank)),
            last=status.last_sequence,
            received_at=_received_at(status),
            is_live=not status.replayed and not status.gaps,
            prefixes=partition.index,
            slot=slot,
            block_size=partition.block_size,
            is_eagle=partition.is_eagle,
        )
        replay = await asyncio.to_thread(replayed, self._ingest.names, wanted)
        return rank._replace(replay=replay)


def _said(facts: EngineFacts) -> EngineSaid:
    fields = facts.fields
    names = [*([fields["model_name"]] if "model_name" in fields else []), *facts.aliases]
    return EngineSaid(
        facts.engine,
        fields.get("block_size"),
        (*names, *facts.adapters),
        fields.get("data_parallel_size"),
    )


def _received_at(status: ListenerStatus) -> float | None:
    last = status.last_event_monotonic
    return None if last is None else time() - (monotonic() - last)


def _ahead(stamp: str | None, begun: float, ended: float) -> float | None:
    """stamp: an HTTP date, of some moment between the two, cut to seconds"""
    if stamp is None:
        return None
    try:
        told = parsedate_to_datetime(stamp).timestamp()
    except (ValueError, TypeError):
        return None
    if told + 1.0 < begun:
        return told + 1.0 - begun
    return max(0.0, told - ended)
