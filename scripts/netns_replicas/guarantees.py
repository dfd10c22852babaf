"""Checker of histories against the documented guarantees of replicas.

The guarantees are documented in docs/explanation/replication.md, docs/guides/replicas.md and
docs/reference/api.md. A history that no sequence of allowed steps explains yields a `Violation`.
The rules allow the exceptions of these pages: answers of a replica that dies before publishing, and
ids that two replicas admitted while cut off from each other.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from scripts.netns_replicas.history import (
    FaultWindow,
    History,
    Operation,
    Rank,
    ReplicaView,
    SettledState,
    ShownLoad,
)

AGREE_S_MAX = 45.0
"""Promised time from the last fault to equal replicas."""
PUBLISH_S = 1.0
"""Time after an answer in which a killed replica may not have published the change."""
RESTART_S = 5.0
"""Time after the start in which a restarted replica reads all reservations."""


class Violation(NamedTuple):
    """Observation that contradicts a documented guarantee."""

    guarantee: str
    text: str


class ReservationStory:
    """Operations of a reservation id, by begin."""

    def __init__(self, name: str, operations: list[Operation], faults: list[FaultWindow]) -> None:
        self.name, self._faults = name, faults
        self.operations = sorted(operations, key=lambda each: each.begin)
        self.bookings = [
            each for each in self.operations if each.kind in ("book", "repeat") and each.may_be_done
        ]
        self.ends = [each for each in self.operations if each.kind == "end"]

    @property
    def is_contested(self) -> bool:
        """Whether several replicas may have admitted the id."""
        return len({each.replica for each in self.bookings}) > 1

    def is_published(self, operation: Operation) -> bool:
        """Return whether the other replicas have certainly received an answered operation.

        Only a kill of the answering replica can prevent publication: soon after the answer, or
        while any replica was not reachable, or not yet repaired.
        """
        kills = [
            each.begin
            for each in self._faults
            if each.kind == "kill"
            and each.replica == operation.replica
            and each.begin > operation.begin
        ]
        if not kills:
            return True
        # The first kill decides: a restarted replica has nothing of the operation to publish.
        until = min(kills)
        return until - operation.end > PUBLISH_S and not any(
            each.begin < until and _repaired_at(each) > operation.begin for each in self._faults
        )

    def killed_between(self, replica: int, begin: float, end: float) -> bool:
        return any(
            each.kind == "kill" and each.replica == replica
            for each in self._faults
            if begin <= _healed_at(each) and each.begin <= end
        )

    def may_begin_anew_after(self, report: Operation) -> bool:
        """Return whether a booking after a report may have been a new booking.

        A restarted replica books an id anew until all reservations of the others were read.
        """
        begin = min(each.begin for each in self.bookings) - RESTART_S
        return any(
            each.end > report.begin and self.killed_between(each.replica, begin, each.end)
            for each in self.bookings
        )

    @property
    def must_exist(self) -> bool:
        """Whether the reservation is certainly booked, and no client has tried to end it."""
        return not self.ends and any(
            each.is_done and self.is_published(each) for each in self.bookings
        )

    @property
    def must_not_exist(self) -> bool:
        """Whether the reservation has certainly ended, or was never booked."""
        if not self.bookings:
            return True
        last_booking = max(each.end for each in self.bookings)
        # A booking without an answer may have been executed after the end.
        if self.is_contested or any(each.status is None for each in self.bookings):
            return False
        return any(
            each.is_done and each.begin > last_booking and self.is_published(each)
            for each in self.ends
        )


def _repaired_at(fault: FaultWindow) -> float:
    return _healed_at(fault) + (AGREE_S_MAX if fault.kind == "network" else RESTART_S)


def _healed_at(fault: FaultWindow) -> float:
    return float("inf") if fault.end is None else fault.end


def group_by_reservation(history: History) -> list[ReservationStory]:
    grouped = defaultdict[str, list[Operation]](list)
    for operation in history.operations:
        grouped[operation.name].append(operation)
    return [ReservationStory(name, each, history.faults) for name, each in grouped.items()]


Found = Iterator[str]
Rule = Callable[[History, list[ReservationStory]], Found]


# Rules for answers


def find_second_bookings(history: History, stories: list[ReservationStory]) -> Found:
    """An id in use is refused with 409 at the replica of the reservation."""
    for story in stories:
        for first, later in _later_operations(story, lambda each: each.kind == "book"):
            if later.is_done and not _may_be_gone(story, first, later):
                yield f"{story.name} was booked twice at replica {first.replica}"


def find_changed_repeats(history: History, stories: list[ReservationStory]) -> Found:
    """The answer to a repeated booking is the existing booking."""
    for story in stories:
        for first, later in _later_operations(story, lambda each: each.kind == "repeat"):
            if story.is_contested or _may_be_gone(story, first, later):
                continue
            if later.status is not None and not later.is_done:
                yield f"the repeat of {story.name} was answered with {later.status}"
            elif later.is_done and later.rank != first.rank:
                yield f"{story.name} was at {first.rank}, its repeat at {later.rank}"


def find_lost_answers(history: History, stories: list[ReservationStory]) -> Found:
    """A replica keeps own bookings until the end."""
    for story in stories:
        for first, later in _later_operations(
            story, lambda each: each.kind not in ("book", "repeat")
        ):
            if _may_be_gone(story, first, later):
                continue
            if later.status is not None and not later.is_done:
                yield f"{later.kind} of {story.name} at its replica: {later.status}"
            is_moved = later.kind == "read" and later.rank != first.rank
            if later.is_done and is_moved and not story.is_contested:
                yield f"{story.name} was booked at {first.rank} and read at {later.rank}"


def find_revived_answers(history: History, stories: list[ReservationStory]) -> Found:
    """A replica does not show an ended reservation again."""
    for story in stories:
        for end in story.ends:
            if not end.is_done or story.is_contested:
                continue
            for later in story.operations:
                is_after = later.begin > end.end and later.replica == end.replica
                is_booked = any(
                    each.end > end.begin or each.status is None for each in story.bookings
                )
                if not is_after or is_booked or later.kind in ("book", "repeat"):
                    continue
                if later.is_done and not story.killed_between(end.replica, end.begin, later.end):
                    yield f"{later.kind} of {story.name} after its end: {later.status}"


def _later_operations(
    story: ReservationStory, matches: Callable[[Operation], bool]
) -> Iterator[tuple[Operation, Operation]]:
    """Yield each booking with each later matching operation at the same replica."""
    for first in story.bookings:
        if not first.is_done:
            continue
        for later in story.operations:
            if later.begin > first.end and later.replica == first.replica and matches(later):
                yield first, later


def _may_be_gone(story: ReservationStory, first: Operation, later: Operation) -> bool:
    """Return whether an end or a kill may have removed a booking before `later` was answered."""
    is_ended = any(each.begin < later.end and each is not later for each in story.ends)
    return is_ended or story.killed_between(first.replica, first.begin, later.end)


# Rules for the settled state


def find_disagreement(history: History, stories: list[ReservationStory]) -> Found:
    """Replicas with equal catalogs hold equal reservations 45 s after the last fault."""
    state = history.settled
    if state is None:
        yield "the replicas were never compared"
    elif state.settled_s is None or state.settled_s > AGREE_S_MAX:
        yield f"the replicas did not agree within {AGREE_S_MAX:g} s"
    else:
        for number, view in enumerate(state.views):
            first = state.views[0]
            differing = _ranks_of(first).items() ^ _ranks_of(view).items()
            if differing:
                yield f"replicas 0 and {number} differ: {sorted(differing)[:4]}"
            if sorted(first.loads) != sorted(view.loads):
                yield f"loads of replicas 0 and {number} differ"


def find_lost_reservations(history: History, stories: list[ReservationStory]) -> Found:
    for story in stories if history.settled else ():
        if story.must_exist:
            for number, view in enumerate(_views(history.settled)):
                if story.name not in view.names:
                    yield f"{story.name} is not at replica {number}"


def find_revived_reservations(history: History, stories: list[ReservationStory]) -> Found:
    ended = {story.name for story in stories if story.must_not_exist}
    known = {story.name for story in stories}
    for number, view in enumerate(_views(history.settled)):
        for name in sorted(view.names & ended):
            yield f"{name} has ended and is at replica {number}"
        for name in sorted(view.names - known):
            yield f"{name} was never booked and is at replica {number}"


def find_doubled_reservations(history: History, stories: list[ReservationStory]) -> Found:
    for number, view in enumerate(_views(history.settled)):
        for name, count in Counter(row.name for row in view.rows).items():
            if count > 1:
                yield f"{name} is {count} times at replica {number}"


def find_wrong_loads(history: History, stories: list[ReservationStory]) -> Found:
    """The load of a rank is the sum of the rank's reservations."""
    for number, view in enumerate(_views(history.settled)):
        for load in view.loads:
            rows = [row for row in view.rows if row.rank == load.rank]
            expected = ShownLoad(load.rank, len(rows), sum(row.prefill_tokens for row in rows))
            if load != expected:
                yield f"replica {number} shows {load}, its reservations are {expected}"


def find_wrong_prefills(history: History, stories: list[ReservationStory]) -> Found:
    """A prefill is completed at every replica if and only if a client reported the end."""
    by_name = {story.name: story for story in stories}
    for number, view in enumerate(_views(history.settled)):
        for row in view.rows:
            story = by_name.get(row.name)
            if story is None or story.is_contested:
                continue
            reports = [each for each in story.operations if each.kind == "prefill_complete"]
            is_over = any(
                each.is_done and story.is_published(each) and not story.may_begin_anew_after(each)
                for each in reports
            )
            if row.is_in_prefill and is_over:
                yield f"{row.name} is in prefill at replica {number} after its completion"
            if not row.is_in_prefill and not any(each.may_be_done for each in reports):
                yield f"{row.name} is past prefill at replica {number} without a report"


def find_changed_catalogs(history: History, stories: list[ReservationStory]) -> Found:
    """No event or list creates workers."""
    for number, view in enumerate(_views(history.settled)):
        if sorted(view.workers) != sorted(history.workers):
            yield f"workers of replica {number}: {view.workers}"
        for row in view.rows:
            if row.rank[0] not in history.workers:
                yield f"{row.name} is at the unknown worker {row.rank[0]}"


def find_outlived_leases(history: History, stories: list[ReservationStory]) -> Found:
    """The load of a reservation ends with the lease at the latest."""
    state = history.expired
    if state is None:
        return
    last = max((each.end for each in history.operations), default=0.0)
    if state.at < last + history.lease_s:
        yield "the state after the last lease was read before its end"
    for number, view in enumerate(state.views):
        # Rows without load, or load without rows, would also be a leak.
        if view.rows or any(load.requests or load.prefill_tokens for load in view.loads):
            yield f"replica {number} still holds {sorted(view.names)[:4]} or their load"


def _views(state: SettledState | None) -> list[ReplicaView]:
    return [] if state is None else state.views


def _ranks_of(view: ReplicaView) -> dict[str, Rank]:
    return {row.name: row.rank for row in view.rows}


GUARANTEES: Final[dict[str, Rule]] = {
    "an id in use is refused": find_second_bookings,
    "a repeat answers the same booking": find_changed_repeats,
    "a replica keeps its own bookings": find_lost_answers,
    "an ended reservation is not shown again": find_revived_answers,
    "replicas agree within 45 s": find_disagreement,
    "no reservation is lost": find_lost_reservations,
    "no ended reservation comes back": find_revived_reservations,
    "no reservation is doubled": find_doubled_reservations,
    "load is that of the reservations": find_wrong_loads,
    "a prefill completes everywhere": find_wrong_prefills,
    "no event creates workers": find_changed_catalogs,
    "load ends with its lease": find_outlived_leases,
}


def check_history(history: History) -> list[Violation]:
    """Return all violations; an empty list means that the history is allowed."""
    stories = group_by_reservation(history)
    return [
        Violation(guarantee, text)
        for guarantee, find in GUARANTEES.items()
        for text in find(history, stories)
    ]
