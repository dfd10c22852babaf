"""Reports of the shared limits: totals, shares, and the usage of each key."""

from collections import Counter

from msgspec import Struct

from select_service.api.process_limits import SharedLimits, count_event_ranks
from select_service.api.service_context import ServiceContext
from select_service.auth.guard import Guard
from select_service.auth.limit_shares import SharedLimit, fraction_of_limit
from select_service.core.workers.worker_catalog import WorkerCatalog
from select_service.metrics.shared_limits import LimitReport

KEYS_SHOWN_MAX = 64
"""Most keys shown per limit, those with the highest usage."""


class Share(Struct, kw_only=True):
    """Maximum usage of a limit per key, by whether the key is bound to tenants."""

    bound_key: int
    """Share of a key that is bound to tenants."""
    tenant: int
    """Share of a tenant, over all keys bound to that tenant."""
    unbound_key: int
    """Share of a key that is not bound to tenants."""


class LimitView(Struct, kw_only=True):
    """Limit shared by all callers."""

    total: int
    """Total amount."""
    used: int
    """Amount in use, by all callers."""
    unit: str
    """Counted unit."""
    share: Share | None
    """Shares of a key; null where keys are off: every caller may use the total."""
    keys: dict[str, int]
    """Usage by key, for the 64 keys with the highest usage."""
    refused: dict[str, int]
    """Refusals since the start because of a share, by key."""


def limit_reports(service: ServiceContext) -> list[LimitReport]:
    """Return the usage of every limit."""
    limits, fleet, reservations = service.limits, service.fleet, service.ledger.reservations
    # Totals of all callers. SharedLimit.used covers only resources that are taken and given back,
    # not objects stored in the catalog, the ledger or the queue.
    everywhere = {
        limits.connections: len(service.process.open_connections),
        limits.workers: len(fleet.catalog),
        limits.partitions: len(fleet.partitions),
        limits.event_ranks: service.ingest.count_ranks(),
        limits.reservations: len(reservations),
        limits.reserved_blocks: reservations.n_blocks,
        **dict(zip(limits.queue_limits, service.gate.waiting.usage, strict=True)),
    }
    stored = _stored_usage_by_key(service.guard, limits, fleet.catalog)
    return [
        LimitReport(
            limit.name,
            limit.total,
            everywhere.get(limit, limit.used),
            dict(Counter(stored.get(limit, limit.by_key)).most_common(KEYS_SHOWN_MAX)),
            {(holder.key, holder.scope): n for holder, n in limit.refusals.items()},
        )
        for limit in limits
    ]


def _stored_usage_by_key(
    guard: Guard, limits: SharedLimits, catalog: WorkerCatalog
) -> dict[SharedLimit, dict[str, int]]:
    """Return the usage of stored objects per limit and key; such usage is not counted as it
    changes.
    """
    stored = (
        limits.workers,
        limits.partitions,
        limits.event_ranks,
        limits.reservations,
        limits.reserved_blocks,
    )
    found: dict[SharedLimit, dict[str, int]] = {limit: {} for limit in stored}
    for name, use in guard.usages().items():
        workers = [
            catalog.get_worker(each) for each in use.registered_worker_ids(catalog.is_registered)
        ]
        numbers = (
            len(workers),
            len({worker.key for worker in workers}),
            count_event_ranks(workers),
            use.live.numbers[0],
            use.live.numbers[1],
        )
        for limit, n in zip(stored, numbers, strict=True):
            if n:
                found[limit][name] = n
    return found


def limit_views(service: ServiceContext) -> dict[str, LimitView]:
    """Return all limits for GET /config, by name."""
    guard, reports = service.guard, limit_reports(service)
    return {
        limit.name: LimitView(
            total=report.total,
            used=report.used,
            unit=limit.unit,
            share=_share_view(guard, limit) if guard.is_on else None,
            keys=dict(report.by_key),
            refused=dict(_refusals_by_key(limit).most_common(KEYS_SHOWN_MAX)),
        )
        for limit, report in zip(service.limits, reports, strict=True)
    }


def _share_view(guard: Guard, limit: SharedLimit) -> Share:
    rules, total = guard.rules, limit.total
    return Share(
        bound_key=fraction_of_limit(total, rules.bound_key),
        tenant=fraction_of_limit(total, rules.tenant),
        unbound_key=fraction_of_limit(total, rules.unbound_key),
    )


def _refusals_by_key(limit: SharedLimit) -> Counter[str]:
    found: Counter[str] = Counter()
    for refused, n in limit.refusals.items():
        found[refused.key] += n
    return found
