"""Reconciler of the worker catalog with the desired workers of several sources, step by step.

A worker added by a source belongs to that source until the source no longer lists it. All other
workers belong to the client that registered them, and are never touched.

* An id with another owner is a conflict: the first owner keeps the worker until it is removed.
* Fields patched by an operator stay until the source changes them (`differing`).
* A worker deleted by an operator stays away until the source changes its record, or drops the
  worker and lists it again.
* A worker dropped by its source gets no new requests. Some seconds later the worker is removed if
  nothing is booked there, else after a time limit. If another source lists the worker meanwhile,
  that source takes it over unchanged.

Workers are examined one at a time, changed workers first and all workers periodically, so that a
turn is bounded.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from select_service.core.registry.discovery.worker_diff import WorkerChange, diff_worker
from select_service.schemas.workers import WorkerRegistration

GRACE_S = 5.0
"""Time before an empty worker is removed, s; a worker listed again meanwhile loses nothing."""
OPERATOR_OWNER = "HTTP"
"""Owner name of workers that no source added."""

NO_WORKERS: frozenset[int] = frozenset()

Desired: TypeAlias = Mapping[int, WorkerRegistration]
"""Desired records by worker id."""


class FleetView(Protocol):
    """View of catalog and load for the reconciler."""

    def registration_of(self, worker_id: int) -> WorkerRegistration | None:
        """Return the registration; None if the worker is unknown or deleted."""

    def has_no_reservations(self, worker_id: int) -> bool:
        """Return whether the worker has no reservations."""


class AddWorker(NamedTuple):
    source: str
    record: WorkerRegistration

    @property
    def worker_id(self) -> int:
        return self.record.worker_id


class UpdateWorker(NamedTuple):
    source: str
    worker_id: int
    change: WorkerChange
    record: WorkerRegistration


class DrainWorker(NamedTuple):
    source: str
    worker_id: int


class UndrainWorker(NamedTuple):
    source: str
    worker_id: int


class RemoveWorker(NamedTuple):
    source: str
    worker_id: int


ReconcileAction: TypeAlias = AddWorker | UpdateWorker | DrainWorker | UndrainWorker | RemoveWorker


@dataclass(slots=True)
class _Owned:
    """Worker owned by a source.

    said: record of the source at its last application
    leaving_at: start of the drain, monotonic s; None means not draining
    """

    source: str
    last_applied: WorkerRegistration
    leaving_at: float | None = None


class SourceCounts(NamedTuple):
    """Workers of a source.

    desired: number of listed workers; None before the first list
    owned: number of registered workers, including draining ones
    leaving: number of unlisted workers that may still have reservations
    patched: workers with a field changed by an operator
    deleted: workers deleted by an operator that stay away
    conflicts: ids with another owner, and the owner; the first ones
    n_conflicts: number of all conflicts
    refused: ids that could not be added or changed, and the reason; the first ones
    n_refused: number of all refusals
    """

    desired: int | None
    owned: int
    leaving: int
    patched: list[int]
    deleted: list[int]
    conflicts: dict[int, str]
    n_conflicts: int
    refused: dict[int, str]
    n_refused: int


class Reconciler:
    """Reconciler; used by the event loop thread only."""

    def __init__(self, sources: Sequence[str], fleet: FleetView, drain_s: float) -> None:
        """Create the reconciler.

        sources: names; the first of several sources with the same id becomes the owner
        drain_s: maximum duration of a drain, s
        """
        self._names = tuple(sources)
        self._standing = fleet
        self._drain_s = drain_s
        self._desired: dict[str, Desired] = {}
        self._undecided: dict[str, frozenset[int]] = {}
        self._owned: dict[int, _Owned] = {}
        self._due: dict[int, None] = {}
        self._conflicts: dict[int, tuple[tuple[str, ...], str]] = {}
        """Losing sources and owner, by worker id."""
        self._refused: dict[int, tuple[str, str]] = {}
        """Source and error, by worker id."""
        self._patched: set[int] = set()
        self._deleted: set[int] = set()
        self.changes = 0
        """Number of changes of `owned_records` since start-up."""

    def set_desired(
        self, source: str, desired: Desired, undecided: frozenset[int] = NO_WORKERS
    ) -> None:
        """Set the complete list of a source; the mapping must not change afterwards.

        undecided: ids with unknown presence; owned workers among them stay unchanged
        """
        assert source in self._names
        before = self._desired.get(source, {})
        self._desired[source], self._undecided[source] = desired, undecided
        self._due |= dict.fromkeys(before) | dict.fromkeys(desired)

    def queue_all(self) -> None:
        """Queue all workers, as time has passed and operators may have made changes."""
        self._due |= dict.fromkeys(self._owned)
        for desired in self._desired.values():
            self._due |= dict.fromkeys(desired)

    def owner_of(self, worker_id: int) -> str | None:
        """Return the source that owns a registered worker; None if no source does."""
        owned = self._owned.get(worker_id)
        is_there = owned is not None and self._standing.registration_of(worker_id) is not None
        return owned.source if owned is not None and is_there else None

    def release_ownership(self, worker_id: int) -> None:
        """Release ownership, as an operator registers a worker that is absent."""
        self._drop_ownership(worker_id)

    def has_source(self, source: str) -> bool:
        """Return whether a source of this name exists."""
        return source in self._names

    def restore_ownership(self, source: str, record: WorkerRegistration) -> None:
        """Restore ownership from before a restart; said is the source's record at that time."""
        assert source in self._names
        self._owned[record.worker_id] = _Owned(source, record)
        self.changes += 1

    @property
    def n_pending(self) -> int:
        """Number of queued workers."""
        return len(self._due)

    def next_action(self, now: float, workers_max: int) -> ReconcileAction | None:
        """Return the next action, examining at most looks_max workers; report it by `record_done`
        or `refused`.
        """
        for _ in range(min(workers_max, len(self._due))):
            worker_id = next(iter(self._due))
            del self._due[worker_id]
            action = self._examine_worker(worker_id, now)
            if action is not None:
                return action
            self._refused.pop(worker_id, None)
        return None

    def is_current(self, action: ReconcileAction) -> bool:
        """Return whether the action is still valid after changes by operators."""
        if isinstance(action, AddWorker):
            return self._standing.registration_of(action.worker_id) is None
        return self.owner_of(action.worker_id) == action.source

    def requeue_action(self, action: ReconcileAction) -> None:
        """Queue the worker of an action that was not done."""
        self._due[action.worker_id] = None

    def record_done(self, action: ReconcileAction, now: float) -> None:
        """Record a completed action and queue its worker for a possible next action."""
        self.changes += 1
        self._due[action.worker_id] = None
        self._refused.pop(action.worker_id, None)
        if isinstance(action, AddWorker):
            self._deleted.discard(action.worker_id)
            self._owned[action.worker_id] = _Owned(action.source, action.record)
            return
        if isinstance(action, RemoveWorker):
            self._drop_ownership(action.worker_id)
            return
        owned = self._owned[action.worker_id]
        if isinstance(action, UpdateWorker):
            owned.last_applied = action.record
        else:
            owned.leaving_at = now if isinstance(action, DrainWorker) else None

    def record_refusal(self, action: ReconcileAction, text: str) -> bool:
        """Record a failed action, to be retried at the next look. Return whether the failure is
        new.
        """
        before = self._refused.get(action.worker_id)
        self._refused[action.worker_id] = action.source, text
        return before != (action.source, text)

    def _drop_ownership(self, worker_id: int) -> None:
        self.changes += 1
        self._owned.pop(worker_id, None)
        self._patched.discard(worker_id)
        self._deleted.discard(worker_id)

    def _examine_worker(self, worker_id: int, now: float) -> ReconcileAction | None:
        owned, stands = self._owned.get(worker_id), self._standing.registration_of(worker_id)
        claims = [name for name in self._names if worker_id in self._desired.get(name, ())]
        # The engine may be restarting: neither keep nor remove is justified before it answers.
        if owned is not None and worker_id in self._undecided.get(owned.source, NO_WORKERS):
            return None
        if owned is not None and owned.source in self._desired and owned.source not in claims:
            if stands is None:
                self._drop_ownership(worker_id)
                owned = None
            elif claims:
                owned.source = claims[0]
                self.changes += 1
        self._record_conflict(worker_id, claims, owned, stands is not None)
        if owned is None:
            return self._add_action(claims[0], worker_id) if claims and stands is None else None
        if owned.source not in self._desired:
            return None  # owned before a restart, and its source has not been read yet
        if owned.source not in claims:
            return self._leave_action(worker_id, owned, now)
        return self._keep_action(worker_id, owned, stands)

    def _add_action(self, source: str, worker_id: int) -> AddWorker:
        return AddWorker(source, self._desired[source][worker_id])

    def _leave_action(self, worker_id: int, owned: _Owned, now: float) -> ReconcileAction | None:
        if owned.leaving_at is None:
            return DrainWorker(owned.source, worker_id)
        passed_s = now - owned.leaving_at
        # The grace time protects workers that disappear for one reading of the source only.
        is_over = passed_s >= self._drain_s or self._standing.has_no_reservations(worker_id)
        return RemoveWorker(owned.source, worker_id) if is_over and passed_s >= GRACE_S else None

    def _keep_action(
        self, worker_id: int, owned: _Owned, registered: WorkerRegistration | None
    ) -> ReconcileAction | None:
        says = self._desired[owned.source][worker_id]
        if registered is None:
            # Unchanged since an operator deleted the worker: respect the deletion.
            if says == owned.last_applied:
                self._deleted.add(worker_id)
                return None
            return self._add_action(owned.source, worker_id)
        self._deleted.discard(worker_id)
        if owned.leaving_at is not None:
            return UndrainWorker(owned.source, worker_id)
        change = diff_worker(owned.last_applied, says, registered)
        if change is not None:
            return UpdateWorker(owned.source, worker_id, change, says)
        owned.last_applied = says
        # A difference that the source did not cause is an operator's patch.
        (self._patched.discard if registered == says else self._patched.add)(worker_id)
        return None

    def _record_conflict(
        self, worker_id: int, claims: list[str], owned: _Owned | None, is_there: bool
    ) -> None:
        keeper = OPERATOR_OWNER if owned is None else owned.source
        losers = tuple(name for name in claims if name != keeper)
        if owned is None and not is_there:
            # The first claiming source is about to add the worker, so it is the owner already.
            losers, keeper = losers[1:], losers[0] if losers else OPERATOR_OWNER
        if losers:
            self._conflicts[worker_id] = losers, keeper
        else:
            self._conflicts.pop(worker_id, None)

    def owned_records(self) -> dict[int, tuple[str, WorkerRegistration]]:
        """Return source and last applied record, by worker id."""
        return {
            worker_id: (each.source, each.last_applied) for worker_id, each in self._owned.items()
        }

    def counts_by_source(self, listed_max: int) -> dict[str, SourceCounts]:
        """Return counts by source. O(workers)

        listed_max: maximum number of ids in each list
        """
        owned = Counter(each.source for each in self._owned.values())
        gone = Counter(self._owned[each].source for each in self._deleted)
        leaving = Counter(e.source for e in self._owned.values() if e.leaving_at is not None)
        n_conflicts = Counter(name for losers, _ in self._conflicts.values() for name in losers)
        n_refused = Counter(source for source, _ in self._refused.values())
        return {
            name: SourceCounts(
                desired=len(self._desired[name]) if name in self._desired else None,
                owned=owned[name] - gone[name],
                leaving=leaving[name],
                patched=self._list_ids(self._patched, name, listed_max),
                deleted=self._list_ids(self._deleted, name, listed_max),
                conflicts=self._some_conflicts(name, listed_max),
                n_conflicts=n_conflicts[name],
                refused=self._some_refused(name, listed_max),
                n_refused=n_refused[name],
            )
            for name in self._names
        }

    def _list_ids(self, ids: set[int], source: str, listed_max: int) -> list[int]:
        return sorted(each for each in ids if self._owned[each].source == source)[:listed_max]

    def _some_conflicts(self, source: str, listed_max: int) -> dict[int, str]:
        found = [(i, keeper) for i, (losers, keeper) in self._conflicts.items() if source in losers]
        return dict(found[:listed_max])

    def _some_refused(self, source: str, listed_max: int) -> dict[int, str]:
        found = [(i, text) for i, (name, text) in self._refused.items() if name == source]
        return dict(found[:listed_max])

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        assert self._deleted <= set(self._owned)
        assert self._patched <= set(self._owned)
        assert {each.source for each in self._owned.values()} <= set(self._names)
        assert set(self._desired) <= set(self._names)
