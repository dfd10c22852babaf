"""Builder of health checks, migration and the capacity watch; their modules load only when used."""

from collections.abc import Callable
from time import time
from typing import TYPE_CHECKING

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.config.health_settings import HealthSettings
from select_service.core.load.ledger import Ledger
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.selector import SelectorCore
from select_service.server.startup_settings import StartupSettings

if TYPE_CHECKING:
    from select_service.adapters.health.health_runner import HealthRunner
    from select_service.core.health.fleet_health.health_service import HealthService
    from select_service.core.health.migration.migrator import Migrator


def health_factory(
    settings: HealthSettings,
) -> "Callable[[WorkerFleet, Ledger], HealthService]":
    """Return the function that makes the health service of a core."""
    from select_service.core.health.fleet_health.health_service import HealthService

    canaries = settings.canaries
    return lambda fleet, ledger: HealthService(
        settings.rules,
        lambda key: canaries.model_canaries(key.model_name).prompts,
        fleet,
        ledger,
        fleet.dirty,
    )


def start_health(
    startup: StartupSettings,
    selector: SelectorCore,
    resolver: Resolver,
    callbacks: GuardedCallbacks,
) -> "HealthRunner":
    """Build the runner of health checks, and what builds on them: unhealthy ranks get no requests,
    their reservations move, and lost capacity sheds load.
    """
    from select_service.adapters.health.health_runner import HealthRunner
    from select_service.adapters.probe_http import TimedHttpClient

    settings, health = startup.health, selector.health
    assert settings is not None
    assert health is not None
    client = TimedHttpClient(resolver, startup.client_tls)
    mode = startup.config.created_file_mode
    health.spare_rules = settings.spares
    runner = HealthRunner(settings, health, selector.fleet, client, callbacks, mode)
    health.mover = _build_mover(selector, health, settings)
    health.listeners.append(health.mover)
    if settings.degradation != "off":
        _watch_capacity(selector, health, health.mover, settings)
    return runner


def _build_mover(
    selector: SelectorCore, health: "HealthService", settings: HealthSettings
) -> "Migrator":
    """Return the mover of reservations away from unhealthy ranks."""
    from select_service.core.health.migration.booking_observer import BookingObserver
    from select_service.core.health.migration.migrator import Migrator, MovableBookings
    from select_service.core.health.migration.rank_snapshot import CacheLayouts
    from select_service.core.load.move_constraints import MoveConstraintStore

    fleet, ledger, decisions = selector.fleet, selector.ledger, selector.decisions
    observer = BookingObserver(MoveConstraintStore())
    decisions.keeps_move_constraints = True
    ledger.add_listener(observer, needs_moves=False)
    return Migrator(
        health.monitor,
        MovableBookings(
            fleet.partitions,
            ledger,
            fleet.dirty,
            decisions.config.track_prefill_tokens,
            selector.pairs,
        ),
        observer,
        CacheLayouts(
            fleet.catalog, lambda name: settings.canaries.model_canaries(name).kv_layout
        ).layout_of,
        first_number=int(time() * 1000.0),
        limits=settings.migration,
    )


def _watch_capacity(
    selector: SelectorCore, health: "HealthService", mover: "Migrator", settings: HealthSettings
) -> None:
    """Estimate capacity and, with --degradation auto, shed load."""
    from select_service.core.health.degradation.capacity_watch import CapacityWatch
    from select_service.core.health.degradation.degradation_levels import DegradationRules

    gate = selector.gate if settings.degradation == "auto" else None
    watch = CapacityWatch(
        health.monitor,
        selector.fleet.partitions,
        mover.observer.speeds,
        settings.promises,
        gate,
        DegradationRules(ratios=settings.ratios),
    )
    health.listeners.append(watch)
    health.capacity_of = watch.capacity_of
