"""Desired workers of several sources against the catalog: one action after another.

A worker that a source has added belongs to it until the source no longer says it.  Everything else
in the catalog belongs to whoever registered it, and is never touched.

* An id that somebody else has is a conflict: the first owner keeps it, until it goes.
* Fields that an operator patched stay until the source says something else of them (`differing`).
* A worker that an operator deleted stays away until the source says something else of it, or drops
  it and says it again.
* A worker that its source drops takes no new requests, and goes after some seconds when nothing is
  booked on it, else after a time.  If another source says it meanwhile, that one takes it over as
  it stands.

Workers are judged one at a time, those that changed first and everybody now and then, so that a
turn is bounded whatever there is to do.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from select_service.bodies.workers import WorkerRegistration
from select_service.core.discovery.differing import Change, change_of

GRACE_S = 5.0
"""How long an empty worker leaves: who is said again meanwhile has lost nothing."""
BY_HAND = "HTTP"
"""Who owns workers that no source has added."""

NOBODY: frozenset[int] = frozenset()

Desired: TypeAlias = Mapping[int, WorkerRegistration]
"""By worker id."""


class Standing(Protocol):
    """What is asked of the catalog and of the load."""

    def given(self, worker_id: int) -> WorkerRegistration | None:
        """What was registered; None: there is no such worker, or it was deleted."""

    def is_empty(self, worker_id: int) -> bool:
        """Is nothing booked on it?"""


class Add(NamedTuple):
    source: str
    given: WorkerRegistration

    @property
    def worker_id(self) -> int:
        return self.given.worker_id


class Alter(NamedTuple):
    source: str
    worker_id: int
    change: Change
    says: WorkerRegistration


class Drain(NamedTuple):
    source: str
    worker_id: int


class Undrain(NamedTuple):
    source: str
    worker_id: int


class Remove(NamedTuple):
    source: str
    worker_id: int


Action: TypeAlias = Add | Alter | Drain | Undrain | Remove


@dataclass(slots=True)
class _Owned:
    """said: what was heeded last;  leaving_at: it takes nothing since then, in monotonic s"""

    source: str
    said: WorkerRegistration
    leaving_at: float | None = None


class SourceCounts(NamedTuple):
    """Workers of a source.

    desired:    that it says; None: it has said nothing yet
    owned:      that belong to it and are there, those that leave included
    leaving:    that it no longer says, and on which something may still be booked
    patched:    of which a field was changed by hand
    deleted:    that were deleted by hand and stay away
    conflicts:  ids that somebody else owns, and who; the first ones
    n_conflicts: all of them
    refused:    ids that could not be added or changed, and why; the first ones
    n_refused:  all of them
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


class Following:
    """Belongs to the thread that decides."""

    def __init__(self, sources: Sequence[str], standing: Standing, drain_s: float) -> None:
        """sources: their names; of two that say the same id at once, the first gets it
        drain_s: how long a worker leaves at most
        """
        self._names = tuple(sources)
        self._standing = standing
        self._drain_s = drain_s
        self._desired: dict[str, Desired] = {}
        self._undecided: dict[str, frozenset[int]] = {}
        self._owned: dict[int, _Owned] = {}
        self._due: dict[int, None] = {}
        self._conflicts: dict[int, tuple[tuple[str, ...], str]] = {}
        """By id: who does not get it, and who has it."""
        self._refused: dict[int, tuple[str, str]] = {}
        """By id: the source and what was wrong."""
        self._patched: set[int] = set()
        self._deleted: set[int] = set()
        self.changes = 0
        """Of what `kept` says, since the start."""

    # --- what sources and operators do

    def offer(self, source: str, desired: Desired, undecided: frozenset[int] = NOBODY) -> None:
        """All that the source wants from now on.  Not to be changed afterwards.

        undecided: ids of which it does not know yet; those that belong to it stay as they are
        """
        assert source in self._names
        before = self._desired.get(source, {})
        self._desired[source], self._undecided[source] = desired, undecided
        self._due |= dict.fromkeys(before) | dict.fromkeys(desired)

    def look(self) -> None:
        """Judge everybody anew: time has passed, and operators may have changed something."""
        self._due |= dict.fromkeys(self._owned)
        for desired in self._desired.values():
            self._due |= dict.fromkeys(desired)

    def owner(self, worker_id: int) -> str | None:
        """The source to which a worker belongs that is there; None: to nobody of them."""
        owned = self._owned.get(worker_id)
        is_there = owned is not None and self._standing.given(worker_id) is not None
        return owned.source if owned is not None and is_there else None

    def taken_by_hand(self, worker_id: int) -> None:
        """An operator registers a worker that is not there: it belongs to nobody else any more."""
        self._let_go(worker_id)

    def has(self, source: str) -> bool:
        """Is there a source of this name?"""
        return source in self._names

    def restored(self, source: str, said: WorkerRegistration) -> None:
        """A worker that was the source's before a restart.  said: by the source, then"""
        assert source in self._names
        self._owned[said.worker_id] = _Owned(source, said)
        self.changes += 1

    # --- what is to be done

    @property
    def pending(self) -> int:
        """Workers that are still to be judged."""
        return len(self._due)

    def next(self, now: float, looks_max: int) -> Action | None:
        """What is to be done next, of at most so many workers; `took` or `refused` follows it."""
        for _ in range(min(looks_max, len(self._due))):
            worker_id = next(iter(self._due))
            del self._due[worker_id]
            action = self._judged(worker_id, now)
            if action is not None:
                return action
            self._refused.pop(worker_id, None)
        return None

    def is_current(self, action: Action) -> bool:
        """May it still be done, or has somebody changed the worker meanwhile by hand?"""
        if isinstance(action, Add):
            return self._standing.given(action.worker_id) is None
        return self.owner(action.worker_id) == action.source

    def again(self, action: Action) -> None:
        """It was not done: the worker is judged anew."""
        self._due[action.worker_id] = None

    def took(self, action: Action, now: float) -> None:
        """It was done.  The worker is judged once more: there may be a next action."""
        self.changes += 1
        self._due[action.worker_id] = None
        self._refused.pop(action.worker_id, None)
        if isinstance(action, Add):
            self._deleted.discard(action.worker_id)
            self._owned[action.worker_id] = _Owned(action.source, action.given)
            return
        if isinstance(action, Remove):
            self._let_go(action.worker_id)
            return
        owned = self._owned[action.worker_id]
        if isinstance(action, Alter):
            owned.said = action.says
        else:
            owned.leaving_at = now if isinstance(action, Drain) else None

    def refused(self, action: Action, text: str) -> bool:
        """It could not be done; the next look tries again.  Returns whether that is news."""
        before = self._refused.get(action.worker_id)
        self._refused[action.worker_id] = action.source, text
        return before != (action.source, text)

    def _let_go(self, worker_id: int) -> None:
        self.changes += 1
        self._owned.pop(worker_id, None)
        self._patched.discard(worker_id)
        self._deleted.discard(worker_id)

    def _judged(self, worker_id: int, now: float) -> Action | None:
        owned, stands = self._owned.get(worker_id), self._standing.given(worker_id)
        claims = [name for name in self._names if worker_id in self._desired.get(name, ())]
        if owned is not None and worker_id in self._undecided.get(owned.source, NOBODY):
            return None
        if owned is not None and owned.source in self._desired and owned.source not in claims:
            if stands is None:
                self._let_go(worker_id)
                owned = None
            elif claims:
                owned.source = claims[0]
                self.changes += 1
        self._note_conflict(worker_id, claims, owned, stands is not None)
        if owned is None:
            return self._add(claims[0], worker_id) if claims and stands is None else None
        if owned.source not in self._desired:
            return None  # it was the source's before a restart, and that has not been read yet
        if owned.source not in claims:
            return self._leave(worker_id, owned, now)
        return self._keep(worker_id, owned, stands)

    def _add(self, source: str, worker_id: int) -> Add:
        return Add(source, self._desired[source][worker_id])

    def _leave(self, worker_id: int, owned: _Owned, now: float) -> Action | None:
        if owned.leaving_at is None:
            return Drain(owned.source, worker_id)
        passed_s = now - owned.leaving_at
        is_over = passed_s >= self._drain_s or self._standing.is_empty(worker_id)
        return Remove(owned.source, worker_id) if is_over and passed_s >= GRACE_S else None

    def _keep(
        self, worker_id: int, owned: _Owned, stands: WorkerRegistration | None
    ) -> Action | None:
        says = self._desired[owned.source][worker_id]
        if stands is None:
            if says == owned.said:
                self._deleted.add(worker_id)
                return None
            return self._add(owned.source, worker_id)
        self._deleted.discard(worker_id)
        if owned.leaving_at is not None:
            return Undrain(owned.source, worker_id)
        change = change_of(owned.said, says, stands)
        if change is not None:
            return Alter(owned.source, worker_id, change, says)
        owned.said = says
        (self._patched.discard if stands == says else self._patched.add)(worker_id)
        return None

    def _note_conflict(
        self, worker_id: int, claims: list[str], owned: _Owned | None, is_there: bool
    ) -> None:
        keeper = BY_HAND if owned is None else owned.source
        losers = tuple(name for name in claims if name != keeper)
        if owned is None and not is_there:
            losers, keeper = losers[1:], losers[0] if losers else BY_HAND
        if losers:
            self._conflicts[worker_id] = losers, keeper
        else:
            self._conflicts.pop(worker_id, None)

    # --- what is kept, and what is shown

    def kept(self) -> dict[int, tuple[str, WorkerRegistration]]:
        """By id: the source to which a worker belongs, and what it said last."""
        return {worker_id: (each.source, each.said) for worker_id, each in self._owned.items()}

    def counts(self, listed_max: int) -> dict[str, SourceCounts]:
        """By source.  listed_max: how many ids are listed of a kind.  O(workers)"""
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
                patched=self._some(self._patched, name, listed_max),
                deleted=self._some(self._deleted, name, listed_max),
                conflicts=self._some_conflicts(name, listed_max),
                n_conflicts=n_conflicts[name],
                refused=self._some_refused(name, listed_max),
                n_refused=n_refused[name],
            )
            for name in self._names
        }

    def _some(self, ids: set[int], source: str, listed_max: int) -> list[int]:
        return sorted(each for each in ids if self._owned[each].source == source)[:listed_max]

    def _some_conflicts(self, source: str, listed_max: int) -> dict[int, str]:
        found = [(i, keeper) for i, (losers, keeper) in self._conflicts.items() if source in losers]
        return dict(found[:listed_max])

    def _some_refused(self, source: str, listed_max: int) -> dict[int, str]:
        found = [(i, text) for i, (name, text) in self._refused.items() if name == source]
        return dict(found[:listed_max])

    def check_invariants(self) -> None:
        """For tests."""
        assert self._deleted <= set(self._owned)
        assert self._patched <= set(self._owned)
        assert {each.source for each in self._owned.values()} <= set(self._names)
        assert set(self._desired) <= set(self._names)
