"""Applies the changes of discovery to the catalog, in bounded steps."""

import logging
from collections.abc import Callable, Iterator
from time import perf_counter

from select_service.base.errors import SelectError
from select_service.core.periodic_task import SECOND_S
from select_service.core.registry.discovery.reconciler import (
    AddWorker,
    DrainWorker,
    ReconcileAction,
    Reconciler,
    RemoveWorker,
    UndrainWorker,
    UpdateWorker,
)
from select_service.core.selector import SelectorCore
from select_service.schemas.workers import WorkerPatch, WorkerRegistration

INTERVAL_S = 0.1
"""Interval of checks for new changes, in seconds."""
STEP_S = 0.001
"""Duration after which a step returns to the event loop, in seconds."""
EXAMINED_WORKERS_MAX = 128
"""Number of workers examined between two reads of the clock."""

log = logging.getLogger("select_service.discovery")


class ChangeApplier:
    """Applier of discovery changes.  Belongs to the event loop, as a periodic task."""

    def __init__(
        self, following: Reconciler, selector: SelectorCore, on_change: Callable[[], None]
    ) -> None:
        """on_change: callback after a change of workers, which triggers the updates of listeners"""
        self._following = following
        self._selector = selector
        self._in_force = on_change
        self._work: Iterator[None] = iter(())
        self._next_look = 0.0
        self._now = 0.0

    def apply_step(self, now: float) -> bool:
        """Apply changes for STEP_S; return whether more work is due at once."""
        self._now = now
        if now >= self._next_look:
            self._next_look = now + SECOND_S
            self._following.queue_all()
        end, goes_on = perf_counter() + STEP_S, True
        # By time, not by count: registering a worker of 512 ranks costs far more than a patch.
        while goes_on and perf_counter() < end:
            goes_on = self._advance_action()
        return goes_on

    def _advance_action(self) -> bool:
        """Advance the current action, or begin the next; return whether work is left."""
        for _ in self._work:
            return True
        action = self._following.next_action(self._now, EXAMINED_WORKERS_MAX)
        if action is not None:
            self._work = self._apply_action(action)
        return action is not None or self._following.n_pending > 0

    def _apply_action(self, action: ReconcileAction) -> Iterator[None]:
        try:
            yield from self._make_room(action)
            # Making room took several event loop iterations: the source or an operator may have
            # changed the worker meanwhile.
            if not self._following.is_current(action):
                self._following.requeue_action(action)
                return
            self._call_selector(action)
        except SelectError as error:
            self._log_refusal(action, str(error))
        else:
            self._log_action(action)
            self._following.record_done(action, self._now)
            self._in_force()

    def _make_room(self, action: ReconcileAction) -> Iterator[None]:
        """Make room in the index for the worker, as the HTTP API does.  Raises SelectError."""
        fleet = self._selector.fleet
        change = action.change if isinstance(action, UpdateWorker) else None
        change = action.record if isinstance(action, AddWorker) else change
        if isinstance(change, WorkerPatch):
            yield from fleet.prepare_room(fleet.catalog.preview_patch(action.worker_id, change))
        elif change is not None:
            yield from fleet.prepare_room(fleet.catalog.preview_registration(change))
        yield

    def _call_selector(self, action: ReconcileAction) -> None:
        """Apply an action.  Raises SelectError without having changed anything."""
        if isinstance(action, AddWorker):
            self._selector.register_worker(action.record)
        elif isinstance(action, RemoveWorker):
            reason = f"removed from the source `{action.source}`"
            self._selector.delete_worker(action.worker_id, self._now, reason)
        elif isinstance(action, DrainWorker | UndrainWorker):
            self._update_drain(action)
        elif isinstance(action.change, WorkerPatch):
            self._selector.patch_worker(action.worker_id, action.change)
        else:
            self._replace_worker(action.change)

    def _replace_worker(self, given: WorkerRegistration) -> None:
        """Register the worker again and keep a drain started by an operator or the planner."""
        draining = self._selector.draining
        drain = draining.persisted_drain(given.worker_id)
        self._selector.register_worker(given)
        if drain is not None:
            draining.restore_drain(given.worker_id, drain)

    def _update_drain(self, action: DrainWorker | UndrainWorker) -> None:
        """Start or end the drain of a worker.

        A worker that is not schedulable is left unchanged.
        """
        draining = self._selector.draining
        if not self._selector.fleet.catalog.get_worker(action.worker_id).is_schedulable:
            return
        if isinstance(action, DrainWorker):
            draining.drain_worker(action.worker_id, "source", True, self._now)
        else:
            draining.undrain_worker(action.worker_id, "source", self._now)

    def _log_refusal(self, action: ReconcileAction, text: str) -> None:
        if self._following.record_refusal(action, text):
            fields = {"source": action.source, "worker_id": action.worker_id, "error": text}
            log.warning("discovered worker rejected", extra={"fields": fields})

    def _log_action(self, action: ReconcileAction) -> None:
        fields: dict[str, object] = {"source": action.source, "worker_id": action.worker_id}
        worker = self._selector.fleet.catalog.find_worker(action.worker_id)
        if worker is not None:
            fields |= {"model_name": worker.key.model_name, "tenant_id": worker.key.tenant_id}
            fields["lifecycle"] = worker.lifecycle
            if worker.reasons:
                fields["reasons"] = worker.reasons
        log.info(_LOG_TEXTS[type(action)], extra={"fields": fields})


_LOG_TEXTS = {
    AddWorker: "worker added by source",
    UpdateWorker: "worker changed by source",
    DrainWorker: "worker dropped by source, draining",
    UndrainWorker: "worker restored by source, drain ended",
    RemoveWorker: "worker dropped by source, removed",
}
