"""Persisted state: catalog, owners of its workers, and admission; saving and restoring.

Restored workers are treated as just registered.  Health checks, listeners and the owning sources
find out which of these are gone.
"""

from collections.abc import Iterator

from select_service.base.errors import SelectError
from select_service.core.registry.discovery.reconciler import Reconciler
from select_service.core.selector import SelectorCore
from select_service.schemas.persisted_state import DeletedWorker, PersistedState, PersistedWorker


def change_count(selector: SelectorCore, reconciler: Reconciler | None = None) -> int:
    """Return a number that changes with every change of the persisted state."""
    gate = selector.gate
    # Counters only grow, so the sum changes with every counter.
    own = 0 if reconciler is None else reconciler.changes
    own += gate.busy_check.thresholds.changes + gate.shedding.tiers.changes
    return selector.fleet.catalog.changes + selector.draining.changes + own


def persisted_state(selector: SelectorCore, reconciler: Reconciler | None = None) -> PersistedState:
    """Return the state to persist.  Takes half a microsecond per worker."""
    catalog, gate = selector.fleet.catalog, selector.gate
    owned = {} if reconciler is None else reconciler.owned_records()
    gone = catalog.deleted_workers()
    workers = []
    for worker in catalog:
        if worker.worker_id in gone:
            continue
        source, source_record = owned.get(worker.worker_id, (None, None))
        # The usual case, one object, needs no comparison of all fields.
        differs = (
            source_record is not None
            and source_record is not worker.registration
            and source_record != worker.registration
        )
        kept = PersistedWorker(
            given=worker.registration, source=source, said=source_record if differs else None
        )
        kept.drain = selector.draining.persisted_drain(worker.worker_id)
        workers.append(kept)
    deleted = [
        DeletedWorker(source=source, said=source_record)
        for worker_id, (source, source_record) in owned.items()
        # A source must not register these again unless its own record of the worker changes.
        if catalog.find_worker(worker_id) is None or worker_id in gone
    ]
    thresholds = gate.busy_check.thresholds.own_views()
    return PersistedState(
        workers=workers, deleted=deleted, thresholds=thresholds, shed=gate.shedding.tiers.shed_tier
    )


def restore_state(
    state: PersistedState, selector: SelectorCore, reconciler: Reconciler | None = None
) -> Iterator[str | None]:
    """Restore a state in steps, yielding a text for everything that cannot be restored.

    Workers of sources that are no longer configured are skipped, because no source would remove
    them.
    """
    for kept in state.workers:
        try:
            yield from _restore_worker(kept, selector, reconciler)
        except SelectError as error:
            yield f"worker {kept.given.worker_id}: {error}"
    for gone in state.deleted:
        if reconciler is not None and reconciler.has_source(gone.source):
            reconciler.restore_ownership(gone.source, gone.said)
    try:
        selector.gate.busy_check.thresholds.restore_thresholds(state.thresholds)
        selector.gate.set_shed_tier(state.shed)
    except SelectError as error:
        yield f"admission: {error}"


def _restore_worker(
    persisted: PersistedWorker, selector: SelectorCore, reconciler: Reconciler | None
) -> Iterator[str | None]:
    """Restore one worker.  Raises SelectError."""
    is_known = (
        reconciler is not None
        and persisted.source is not None
        and reconciler.has_source(persisted.source)
    )
    if persisted.source is not None and not is_known:
        yield (
            f"worker {persisted.given.worker_id}: source `{persisted.source}` is no "
            "longer configured"
        )
        return
    fleet = selector.fleet
    # Allocating for many ranks takes long, hence the steps before registering.
    yield from (
        None for _ in fleet.prepare_room(fleet.catalog.preview_registration(persisted.given))
    )
    selector.register_worker(persisted.given)
    if persisted.drain is not None:
        selector.draining.restore_drain(persisted.given.worker_id, persisted.drain)
    if reconciler is not None and persisted.source is not None:
        reconciler.restore_ownership(persisted.source, persisted.said or persisted.given)
    yield None
