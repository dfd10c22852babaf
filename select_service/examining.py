"""Joins an examination with the parts of a service that runs; imported when one is asked for."""

from time import monotonic, time
from typing import TYPE_CHECKING

from select_service.api.service import Service, keeping_report
from select_service.api.worker_records import shown_trust
from select_service.bodies.doctor import Machine
from select_service.bodies.workers import RankPredictions
from select_service.core.doctor.facts import ServiceFacts, TlsFacts
from select_service.core.identity import Rank
from select_service.core.workers.catalog import Worker
from select_service.edge.doctor.examination import Examination, Surroundings
from select_service.edge.doctor.workers import Looking
from select_service.edge.http_client import HttpClient
from select_service.settings.reach import is_open
from select_service.tls.kept import Kept

if TYPE_CHECKING:
    from select_service.edge.keeping.state_file import StateFile


def examination_of(service: Service, http: HttpClient, state: "StateFile | None") -> Examination:
    """state: None: nothing is kept"""
    looking = Looking(
        service.selector,
        service.ingest,
        http,
        lambda worker, rank: _predictions(service, worker, rank),
        uses_events=service.config["use_kv_events"],
    )
    around = Surroundings(
        service.version,
        lambda machine: _facts(service, state, machine),
        lambda: () if service.replicas is None else service.replicas.status().peers,
        lambda: () if service.discovery is None else service.discovery.view().sources,
    )
    return Examination(looking, around)


def _facts(service: Service, state: "StateFile | None", machine: Machine) -> ServiceFacts:
    selector, keeping = service.selector, keeping_report(service)
    workers = [w for w in selector.workers() if selector.deletion(w.worker_id, monotonic()) is None]
    age_s = keeping.written_ago_s
    return ServiceFacts(
        machine,
        workers=len(workers),
        schedulable=sum(worker.schedulable for worker in workers),
        is_insecure=is_open(service.config),
        keys_error=service.guard.fault,
        state_failures=0 if state is None else state.failures_in_a_row,
        snapshot_failures=keeping.snapshot_failures,
        snapshot_age_s=None if age_s < 0.0 else age_s,
        snapshot_interval_s=service.config["snapshot_interval_s"],
        tls=[_tls(side, kept) for side, kept in service.tls()],
        recovery_failed=keeping.state == "failed",
    )


def _tls(side: str, kept: Kept) -> TlsFacts:
    left_s = None if kept.ends_at is None else kept.ends_at - time()
    return TlsFacts(side, left_s, kept.fault)


def _predictions(service: Service, worker: Worker, rank: Rank) -> RankPredictions | None:
    checks = service.selector.hindsight.predictions
    partition = service.selector.fleet.partitions.get(worker.key)
    slot = None if partition is None else partition.table.find(rank)
    if checks is None or partition is None or slot is None:
        return None
    known = checks.of_rank(partition.table.row(slot).writer)
    return None if known is None else shown_trust(known, service.ingest.status_of(rank))
