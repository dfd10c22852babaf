"""What is kept of the catalog, of who owns its workers, and of admission; and how it comes back.

Workers that come back are as if they had just been registered: whether they are still there, health
checks, listeners and the sources to which they belong find out.
"""

from collections.abc import Iterator

from select_service.bodies.state import DeletedWorker, KeptState, KeptWorker
from select_service.core.discovery.following import Following
from select_service.core.selector import Selector
from select_service.errors import SelectError


def changes_of(selector: Selector, following: Following | None = None) -> int:
    """Another number after anything has changed that is kept."""
    gate = selector.gate
    own = 0 if following is None else following.changes
    own += gate.judge.thresholds.changes + gate.tiers.changes
    return selector.fleet.catalog.changes + selector.draining.changes + own


def kept_state(selector: Selector, following: Following | None = None) -> KeptState:
    """Takes half a microsecond of each worker."""
    catalog, gate = selector.fleet.catalog, selector.gate
    owned = {} if following is None else following.kept()
    gone = catalog.deleted()
    workers = []
    for worker in catalog:
        if worker.worker_id in gone:
            continue
        source, said = owned.get(worker.worker_id, (None, None))
        differs = said is not None and said is not worker.given and said != worker.given
        kept = KeptWorker(given=worker.given, source=source, said=said if differs else None)
        kept.drain = selector.draining.kept(worker.worker_id)
        workers.append(kept)
    deleted = [
        DeletedWorker(source=source, said=said)
        for worker_id, (source, said) in owned.items()
        if catalog.find(worker_id) is None or worker_id in gone
    ]
    thresholds = gate.judge.thresholds.own_views()
    return KeptState(
        workers=workers, deleted=deleted, thresholds=thresholds, shed=gate.tiers.shed_tier
    )


def restoring(
    state: KeptState, selector: Selector, following: Following | None = None
) -> Iterator[str | None]:
    """In steps; what cannot come back is told, a text of each.

    Workers of sources that are no longer configured are left out: nobody would take them away.
    """
    for kept in state.workers:
        try:
            yield from _worker(kept, selector, following)
        except SelectError as error:
            yield f"worker {kept.given.worker_id}: {error}"
    for gone in state.deleted:
        if following is not None and following.has(gone.source):
            following.restored(gone.source, gone.said)
    try:
        selector.gate.judge.thresholds.restore(state.thresholds)
        selector.gate.shed(state.shed)
    except SelectError as error:
        yield f"admission: {error}"


def _worker(
    kept: KeptWorker, selector: Selector, following: Following | None
) -> Iterator[str | None]:
    """Raises SelectError."""
    is_known = following is not None and kept.source is not None and following.has(kept.source)
    if kept.source is not None and not is_known:
        yield f"worker {kept.given.worker_id}: there is no source `{kept.source}` any more"
        return
    fleet = selector.fleet
    yield from (None for _ in fleet.making_room(fleet.catalog.registered(kept.given)))
    selector.register(kept.given)
    if kept.drain is not None:
        selector.draining.again(kept.given.worker_id, kept.drain)
    if following is not None and kept.source is not None:
        following.restored(kept.source, kept.said or kept.given)
    yield None
