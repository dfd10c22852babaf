"""The limits that all callers share, as they are shown: totals, shares, and who uses how much."""

from collections import Counter

from msgspec import Struct

from select_service.access.guard import Guard
from select_service.access.shares import SharedLimit, part_of
from select_service.api.limits import Limits, event_ranks
from select_service.api.service import Service
from select_service.core.workers.catalog import Catalog
from select_service.metrics.limits import LimitReport

KEYS_SHOWN_MAX = 64
"""Keys that are shown of one limit, those that use most of it."""


class Share(Struct, kw_only=True):
    """What one key may use of a limit, by whether it is bound to tenants."""

    bound_key: int
    """A key that is bound to tenants."""
    tenant: int
    """Of one tenant, by all keys together that are bound to it."""
    unbound_key: int
    """A key that is bound to no tenants."""


class LimitView(Struct, kw_only=True):
    """One limit that all callers share."""

    total: int
    """What there is."""
    used: int
    """What is used, whoever uses it."""
    unit: str
    """What is counted."""
    share: Share | None
    """Null where keys are off: everybody may use all of it."""
    keys: dict[str, int]
    """What each key uses, of at most 64 keys those that use most."""
    refused: dict[str, int]
    """How often a share was refused since the start, by key."""


def limit_reports(service: Service) -> list[LimitReport]:
    """Return what is used of every limit."""
    limits, selector = service.limits, service.selector
    catalog = selector.fleet.catalog
    everywhere = {
        limits.connections: service.open_connections(),
        limits.workers: len(catalog),
        limits.partitions: len(selector.fleet.partitions),
        limits.event_ranks: service.ingest.n_ranks(),
        limits.reservations: len(selector.held),
        limits.reserved_blocks: selector.held.blocks,
        **dict(zip(limits.queue, selector.gate.waiting.size, strict=True)),
    }
    stored = _stored_by_key(service.guard, limits, catalog)
    return [
        LimitReport(
            limit.name,
            limit.total,
            everywhere.get(limit, limit.used),
            dict(Counter(stored.get(limit, limit.by_key)).most_common(KEYS_SHOWN_MAX)),
            {(who.key, who.scope): n for who, n in limit.refusals.items()},
        )
        for limit in limits
    ]


def _stored_by_key(
    guard: Guard, limits: Limits, catalog: Catalog
) -> dict[SharedLimit, dict[str, int]]:
    stored = (
        limits.workers,
        limits.partitions,
        limits.event_ranks,
        limits.reservations,
        limits.reserved_blocks,
    )
    found: dict[SharedLimit, dict[str, int]] = {limit: {} for limit in stored}
    for name, use in guard.uses().items():
        workers = [catalog.get(each) for each in use.workers(catalog.is_registered)]
        numbers = (
            len(workers),
            len({worker.key for worker in workers}),
            event_ranks(workers),
            use.live.numbers[0],
            use.live.numbers[1],
        )
        for limit, n in zip(stored, numbers, strict=True):
            if n:
                found[limit][name] = n
    return found


def limit_views(service: Service) -> dict[str, LimitView]:
    """Return all of them for GET /config, by their names."""
    guard, reports = service.guard, limit_reports(service)
    return {
        limit.name: LimitView(
            total=report.total,
            used=report.used,
            unit=limit.unit,
            share=_share(guard, limit) if guard.is_on else None,
            keys=dict(report.by_key),
            refused=dict(_refused_by_key(limit).most_common(KEYS_SHOWN_MAX)),
        )
        for limit, report in zip(service.limits, reports, strict=True)
    }


def _share(guard: Guard, limit: SharedLimit) -> Share:
    rules, total = guard.rules, limit.total
    return Share(
        bound_key=part_of(total, rules.bound_key),
        tenant=part_of(total, rules.tenant),
        unbound_key=part_of(total, rules.unbound_key),
    )


def _refused_by_key(limit: SharedLimit) -> Counter[str]:
    found: Counter[str] = Counter()
    for refused, n in limit.refusals.items():
        found[refused.key] += n
    return found
