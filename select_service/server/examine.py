"""Wiring of the doctor with the running service; imported with the first examination."""

from time import monotonic, time
from typing import TYPE_CHECKING

from select_service.adapters.doctor.examination import Examination, ExaminationContext
from select_service.adapters.doctor.worker_examiner import WorkerExaminer
from select_service.adapters.http_get import HttpClient
from select_service.api.service_context import ServiceContext, persistence_report
from select_service.api.worker_views import rank_predictions
from select_service.config.open_interfaces import is_unauthenticated
from select_service.core.doctor.facts import ServiceFacts, SharedCacheFacts, TlsFacts
from select_service.core.pairs.pair_report import find_pair_facts
from select_service.net.tls.current_tls import CurrentTls
from select_service.schemas.doctor import Machine

if TYPE_CHECKING:
    from select_service.adapters.persistence.state_file import StateFile


def make_examination(
    service: ServiceContext, http: HttpClient, state: "StateFile | None"
) -> Examination:
    """Return an examination of the service.

    state: None without a state file
    """
    looking = WorkerExaminer(
        service.selector,
        service.ingest,
        http,
        lambda worker, rank: rank_predictions(service, worker, rank),
        uses_events=service.config["use_kv_events"],
    )
    around = ExaminationContext(
        service.version,
        lambda machine: _service_facts(service, state, machine),
        lambda: service.features.replicas.replica_status().peers,
        lambda: service.features.discovery.discovery_view().sources,
    )
    return Examination(looking, around)


def _service_facts(
    service: ServiceContext, state: "StateFile | None", machine: Machine
) -> ServiceFacts:
    selector, keeping = service.selector, persistence_report(service)
    workers = [
        w
        for w in selector.list_workers()
        if selector.find_deletion(w.worker_id, monotonic()) is None
    ]
    age_s = keeping.written_ago_s
    return ServiceFacts(
        machine,
        workers=len(workers),
        schedulable=sum(worker.is_schedulable for worker in workers),
        is_insecure=is_unauthenticated(service.config),
        keys_error=service.guard.fault,
        state_failures=0 if state is None else state.failures_in_a_row,
        snapshot_failures=keeping.snapshot_failures,
        snapshot_age_s=None if age_s < 0.0 else age_s,
        snapshot_interval_s=service.config["snapshot_interval_s"],
        tls=[_tls_facts(side, kept) for side, kept in service.tls.files_by_side()],
        recovery_failed=keeping.state == "failed",
        pairs=find_pair_facts(selector.pairs, (w for w in workers if w.is_schedulable)),
        shared_caches=_shared_cache_facts(service),
        unpriced_sources=_unpriced_sources(service) if service.config["kv_sources"] else (),
    )


def _unpriced_sources(service: ServiceContext) -> list[str]:
    """Return the models with ranks of which none has a known price of moving a token."""
    priced = dict[str, bool]()
    for key, partition in service.fleet.partitions.items():
        if n_ranks := len(partition.table):
            has_price = partition.placer.fetch_prices.count_unpriced() < n_ranks
            priced[key.model_name] = priced.get(key.model_name, False) or has_price
    return sorted(name for name, has_price in priced.items() if not has_price)


def _shared_cache_facts(service: ServiceContext) -> list[SharedCacheFacts]:
    caches, facts = service.features.shared_caches, list[SharedCacheFacts]()
    partitions = list(service.fleet.partitions.items())
    for each in () if caches is None else caches.list_status():
        of_model = [found for key, found in partitions if key.model_name == each.model_name]
        facts.append(
            SharedCacheFacts(
                each.model_name,
                each.url,
                each.answered,
                each.hits,
                each.outcomes.get("timeout", 0) + each.outcomes.get("failed", 0),
                each.is_open,
                each.last_error,
                sum(found.placer.fetch_prices.count_unpriced() for found in of_model),
                sum(found.looked_up_tokens for found in of_model),
                sum(found.reused_tokens for found in of_model),
            )
        )
    return facts


def _tls_facts(side: str, kept: CurrentTls) -> TlsFacts:
    left_s = None if kept.ends_at is None else kept.ends_at - time()
    return TlsFacts(side, left_s, kept.fault)
