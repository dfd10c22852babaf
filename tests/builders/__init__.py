"""Builders of valid bodies and of a selector with real parts, for tests."""

from random import Random

import msgspec

from indexer.index.prefix_index import PrefixIndex
from select_service.core.admission.admission_settings import AdmissionSettings
from select_service.core.placement.pending_selections import SelectionCacheLimits
from select_service.core.placement.router_config import RouterConfig
from select_service.core.selector_builder import SelectorConfig, build_selector
from select_service.core.sessions.session_settings import SessionSettings
from select_service.schemas.reservations import ReservationRequest
from select_service.schemas.selection import SelectAndReserveRequest, SelectRequest
from select_service.schemas.workers import WorkerPatch, WorkerRegistration


def a_selector(
    config=None,
    *,
    use_kv_events=False,
    ttl_s=3600.0,
    seed=0,
    blocks_max=4096,
    ranks_max=1 << 32,
    decisions_kept=0,
    selection_cache=SelectionCacheLimits(),  # noqa: B008
    shadow=None,
    router_mark=None,
    make_health=None,
    sessions=None,
    admission=None,
    names_kv_sources=False,
):
    return build_selector(
        SelectorConfig(
            RouterConfig() if config is None else config,
            use_kv_events=use_kv_events,
            ranks_max=ranks_max,
            reservation_ttl_s=ttl_s,
            decisions_kept=decisions_kept,
            selection_cache=selection_cache,
            shadow=shadow,
            router_mark=router_mark,
            sessions=sessions or SessionSettings(),
            admission=admission or AdmissionSettings(),
            names_kv_sources=names_kv_sources,
        ),
        lambda: PrefixIndex(blocks_max),
        rng=Random(seed),
        make_health=make_health,
    )


def sources_of(fleet):
    """Return the event sources of the workers that changed since the last look."""
    return [s for sources in fleet.take_changes().sources.values() for s in sources]


def worker_body(worker_id=1, **fields):
    return {
        "worker_id": worker_id,
        "model_name": "m",
        "endpoint": f"http://w{worker_id}:8000",
        "block_size": 4,
        **fields,
    }


def a_worker(worker_id=1, **fields):
    return msgspec.convert(worker_body(worker_id, **fields), WorkerRegistration)


def a_patch(**fields):
    return msgspec.convert(fields, WorkerPatch)


def a_select(tokens=8, **fields):
    body = {"model_name": "m", "token_ids": list(range(tokens)), **fields}
    return msgspec.convert(body, SelectRequest)


def a_select_and_reserve(tokens=8, **fields):
    body = {"model_name": "m", "token_ids": list(range(tokens)), **fields}
    return msgspec.convert(body, SelectAndReserveRequest)


def a_reservation(reservation_id, worker_id=1, tokens=8, **fields):
    body = {
        "model_name": "m",
        "token_ids": list(range(tokens)),
        "reservation_id": reservation_id,
        "worker_id": worker_id,
        **fields,
    }
    return msgspec.convert(body, ReservationRequest)
