"""Makes the catalog what sources say, by the selector's own verbs, a bounded step per turn."""

import logging
from collections.abc import Callable, Iterator
from time import perf_counter

from select_service.bodies.workers import WorkerPatch, WorkerRegistration
from select_service.core.discovery.following import (
    Action,
    Add,
    Alter,
    Drain,
    Following,
    Remove,
    Undrain,
)
from select_service.core.due_task import SECOND_S
from select_service.core.selector import Selector
from select_service.errors import SelectError

INTERVAL_S = 0.1
"""Between two looks for something to do."""
STEP_S = 0.001
"""After which a step lets others have their turn."""
LOOKS_MAX = 128
"""Workers that are judged before the time is looked at again."""

log = logging.getLogger("select_service.discovery")


class CarryingOut:
    """Belongs to the event loop, as a due task."""

    def __init__(
        self, following: Following, selector: Selector, in_force: Callable[[], None]
    ) -> None:
        """in_force: called when workers have changed, so that what follows from it begins"""
        self._following = following
        self._selector = selector
        self._in_force = in_force
        self._work: Iterator[None] = iter(())
        self._next_look = 0.0
        self._now = 0.0

    def step(self, now: float) -> bool:
        """Returns whether there is more to do at once."""
        self._now = now
        if now >= self._next_look:
            self._next_look = now + SECOND_S
            self._following.look()
        end, goes_on = perf_counter() + STEP_S, True
        while goes_on and perf_counter() < end:
            goes_on = self._goes_on()
        return goes_on

    def _goes_on(self) -> bool:
        """One piece of the action under way, or the next action."""
        for _ in self._work:
            return True
        action = self._following.next(self._now, LOOKS_MAX)
        if action is not None:
            self._work = self._carried_out(action)
        return action is not None or self._following.pending > 0

    def _carried_out(self, action: Action) -> Iterator[None]:
        try:
            yield from self._room(action)
            if not self._following.is_current(action):
                self._following.again(action)
                return
            self._carry_out(action)
        except SelectError as error:
            self._refused(action, str(error))
        else:
            self._told(action)
            self._following.took(action, self._now)
            self._in_force()

    def _room(self, action: Action) -> Iterator[None]:
        """What comes before a worker is judged and put, as over HTTP.  Raises SelectError."""
        fleet = self._selector.fleet
        change = action.change if isinstance(action, Alter) else None
        change = action.given if isinstance(action, Add) else change
        if isinstance(change, WorkerPatch):
            yield from fleet.making_room(fleet.catalog.patched(action.worker_id, change))
        elif change is not None:
            yield from fleet.making_room(fleet.catalog.registered(change))
        yield

    def _carry_out(self, action: Action) -> None:
        """Raises SelectError, and has changed nothing."""
        if isinstance(action, Add):
            self._selector.register(action.given)
        elif isinstance(action, Remove):
            reason = f"the source `{action.source}` no longer has it"
            self._selector.delete(action.worker_id, self._now, reason)
        elif isinstance(action, Drain | Undrain):
            self._drain(action)
        elif isinstance(action.change, WorkerPatch):
            self._selector.patch(action.worker_id, action.change)
        else:
            self._replace(action.change)

    def _replace(self, given: WorkerRegistration) -> None:
        """What operators or the planner drain goes on draining, whatever its source changes."""
        draining = self._selector.draining
        drain = draining.kept(given.worker_id)
        self._selector.register(given)
        if drain is not None:
            draining.again(given.worker_id, drain)

    def _drain(self, action: Drain | Undrain) -> None:
        """No new requests, or new ones again; of a worker that gets none anyway, nothing."""
        draining = self._selector.draining
        if not self._selector.fleet.catalog.get(action.worker_id).schedulable:
            return
        if isinstance(action, Drain):
            draining.drain(action.worker_id, "source", True, self._now)
        else:
            draining.undrain(action.worker_id, "source", self._now)

    def _refused(self, action: Action, text: str) -> None:
        if self._following.refused(action, text):
            fields = {"source": action.source, "worker_id": action.worker_id, "error": text}
            log.warning("a worker of a source cannot be registered", extra={"fields": fields})

    def _told(self, action: Action) -> None:
        fields: dict[str, object] = {"source": action.source, "worker_id": action.worker_id}
        worker = self._selector.fleet.catalog.find(action.worker_id)
        if worker is not None:
            fields |= {"model_name": worker.key.model_name, "tenant_id": worker.key.tenant_id}
            fields["lifecycle"] = worker.lifecycle
            if worker.reasons:
                fields["reasons"] = worker.reasons
        log.info(_WORDS[type(action).__name__], extra={"fields": fields})


_WORDS = {
    "Add": "a source adds a worker",
    "Alter": "a source changes a worker",
    "Drain": "a source drops a worker: it takes no new requests",
    "Undrain": "a source says a worker again that it had dropped: it takes requests",
    "Remove": "a worker that a source dropped is removed",
}
