"""Tests of the history checker: perfect replicas pass, and each broken guarantee is found."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.netns_replicas.guarantees import AGREE_S_MAX, GUARANTEES, check_history
from scripts.netns_replicas.history import (
    FaultWindow,
    HeldRow,
    History,
    Operation,
    ReplicaView,
    SettledState,
    ShownLoad,
)
from tests.builders.hypothesis_profiles import explores

WORKERS, REPLICAS, TOKENS, LEASE_S = [1, 2], 3, 128, 100.0


class PerfectReplicas:
    """Replicas that share all state at once and record every call.

    Each call takes 0.1 s and begins 0.1 s after the end of the previous call.
    """

    def __init__(self):
        self.history, self._now = History(WORKERS, LEASE_S), 0.0
        self._rows = {}

    def call(self, kind, replica, name):
        begin, self._now = self._now, self._now + 0.2
        done, rank = self._answer(kind, name)
        operation = Operation(0, kind, replica, name, begin, begin + 0.1, done, rank)
        self.history.operations.append(operation)
        return operation

    def _answer(self, kind, name):
        row = self._rows.get(name)
        if kind in ("book", "repeat"):
            if row is not None:
                return (409, None) if kind == "book" else (200, row.rank)
            row = self._rows[name] = HeldRow(name, (1 + len(name) % 2, 0), True, TOKENS)
            return 200, row.rank
        if row is None:
            return 404, None
        if kind == "end":
            del self._rows[name]
        elif kind == "prefill_complete":
            row.is_in_prefill, row.prefill_tokens = False, 0
        return 200, row.rank if kind == "read" else None

    def kill(self, replica, seconds=1.0):
        window = FaultWindow("kill", replica, self._now, self._now + seconds)
        self.history.faults.append(window)
        self._now += seconds

    def wait(self, seconds):
        self._now += seconds

    def settle(self):
        self.history.settled = SettledState(self._now, 1.0, [self._view() for _ in range(REPLICAS)])
        self._rows.clear()
        at = self._now + LEASE_S
        self.history.expired = SettledState(at, 1.0, [self._view() for _ in range(REPLICAS)])
        return self.history

    def _view(self):
        rows = [copy.copy(row) for row in self._rows.values()]
        loads = []
        for worker_id in WORKERS:
            own = [row for row in rows if row.rank[0] == worker_id]
            loads.append(ShownLoad((worker_id, 0), len(own), sum(r.prefill_tokens for r in own)))
        return ReplicaView(rows, loads, list(WORKERS))


def broken(history):
    return {violation.guarantee for violation in check_history(history)}


CALLS = st.tuples(
    st.sampled_from(["book", "repeat", "prefill_complete", "renew", "read", "end"]),
    st.integers(0, REPLICAS - 1),
    st.sampled_from(["a", "bb", "c", "dd"]),
)


@explores()
@given(st.lists(CALLS, max_size=30))
def test_perfect_replicas_break_no_guarantee(calls):
    replicas, ended = PerfectReplicas(), set()
    for kind, replica, name in calls:
        if name in ended and kind in ("book", "repeat"):
            continue  # clients never reuse an id
        if replicas.call(kind, replica, name).is_done and kind == "end":
            ended.add(name)
    assert check_history(replicas.settle()) == []


@pytest.mark.parametrize(("killed", "is_broken"), [(0, False), (1, True)])
def test_a_restarted_replica_may_book_anew_after_the_end_of_a_prefill(killed, is_broken):
    replicas = PerfectReplicas()
    replicas.call("book", 0, "a")
    replicas.wait(10.0)
    replicas.call("prefill_complete", 2, "a")
    replicas.wait(2.0)
    replicas.kill(killed)
    replicas.call("repeat", 0, "a")
    history = replicas.settle()
    for number in range(REPLICAS):
        row_of(history, "a", number).is_in_prefill = True
    assert broken(history) == ({"a prefill completes everywhere"} if is_broken else set())


def a_history():
    """Return a history: `held` is in prefill, `over` has completed prefill, `gone` has ended."""
    replicas = PerfectReplicas()
    for name in ("held", "over", "gone"):
        replicas.call("book", 0, name)
        replicas.call("read", 0, name)
        replicas.call("repeat", 0, name)
        replicas.call("book", 0, name)
    replicas.call("prefill_complete", 1, "over")
    replicas.call("end", 1, "gone")
    replicas.call("read", 1, "gone")
    return replicas.settle()


def operation_of(history, kind, name, number=0):
    found = [op for op in history.operations if (op.kind, op.name) == (kind, name)]
    return found[number]


def view(history, number=1):
    return history.settled.views[number]


def row_of(history, name, number=1):
    return next(row for row in view(history, number).rows if row.name == name)


def book_twice(history):
    operation_of(history, "book", "held", 1).status = 200


def answer_another_rank(history):
    operation_of(history, "repeat", "held").rank = (9, 9)


def refuse_repeat(history):
    operation_of(history, "repeat", "held").status = 409


def forget_own_booking(history):
    operation_of(history, "read", "held").status = 404


def read_another_rank(history):
    operation_of(history, "read", "held").rank = (9, 9)


def show_after_end(history):
    operation_of(history, "read", "gone", -1).status = 200


def never_agree(history):
    history.settled.settled_s = None


def agree_late(history):
    history.settled.settled_s = AGREE_S_MAX + 1.0


def place_apart(history):
    for each in view(history).rows:
        each.rank = (3 - each.rank[0], 0)


def load_apart(history):
    view(history).loads[0].prefill_tokens += 1


def lose_everywhere(history):
    for number in range(REPLICAS):
        view(history, number).rows.remove(row_of(history, "held", number))


def revive_everywhere(history):
    for number in range(REPLICAS):
        view(history, number).rows.append(HeldRow("gone", (1, 0), True, TOKENS))


def invent_everywhere(history):
    for number in range(REPLICAS):
        view(history, number).rows.append(HeldRow("invented", (1, 0), True, TOKENS))


def double(history):
    view(history).rows.append(copy.copy(row_of(history, "held")))


def load_without_rows(history):
    for number in range(REPLICAS):
        view(history, number).loads[0].requests += 1


def forget_prefill(history):
    for number in range(REPLICAS):
        row_of(history, "over", number).is_in_prefill = True


def complete_by_itself(history):
    for number in range(REPLICAS):
        row_of(history, "held", number).is_in_prefill = False


def create_worker(history):
    view(history).workers.append(7)


def place_at_unknown_worker(history):
    for number in range(REPLICAS):
        row_of(history, "held", number).rank = (7, 0)


def outlive_lease(history):
    history.expired.views[2].rows.append(HeldRow("held", (1, 0), True, TOKENS))


def keep_load(history):
    history.expired.views[2].loads[0].requests = 1


def read_leases_early(history):
    history.expired.at -= LEASE_S / 2


BREACHES = {
    book_twice: "an id in use is refused",
    answer_another_rank: "a repeat answers the same booking",
    refuse_repeat: "a repeat answers the same booking",
    forget_own_booking: "a replica keeps its own bookings",
    read_another_rank: "a replica keeps its own bookings",
    show_after_end: "an ended reservation is not shown again",
    never_agree: "replicas agree within 45 s",
    agree_late: "replicas agree within 45 s",
    place_apart: "replicas agree within 45 s",
    load_apart: "replicas agree within 45 s",
    lose_everywhere: "no reservation is lost",
    revive_everywhere: "no ended reservation comes back",
    invent_everywhere: "no ended reservation comes back",
    double: "no reservation is doubled",
    load_without_rows: "load is that of the reservations",
    forget_prefill: "a prefill completes everywhere",
    complete_by_itself: "a prefill completes everywhere",
    create_worker: "no event creates workers",
    place_at_unknown_worker: "no event creates workers",
    outlive_lease: "load ends with its lease",
    keep_load: "load ends with its lease",
    read_leases_early: "load ends with its lease",
}


def test_the_unbroken_history_has_no_violation():
    assert check_history(a_history()) == []


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: breach.__name__)
def test_a_breach_is_found(breach):
    history = a_history()
    breach(history)
    assert BREACHES[breach] in broken(history)


def test_each_guarantee_has_a_breach():
    assert set(BREACHES.values()) == set(GUARANTEES)


def test_a_history_without_comparison_is_a_violation():
    history = a_history()
    history.settled = None
    assert broken(history) == {"replicas agree within 45 s"}


# Losses that the pages allow


def lost_after_kill(wait_s, *, network_fault=False):
    """Return the violations if a booking is lost with its replica, `wait_s` after the booking."""
    replicas = PerfectReplicas()
    if network_fault:
        replicas.history.faults.append(FaultWindow("network", 0, 0.0, 0.1))
    replicas.call("book", 0, "x")
    replicas.wait(wait_s)
    replicas.kill(0)
    replicas._rows.clear()
    return broken(replicas.settle())


@pytest.mark.parametrize(
    ("wait_s", "network_fault", "lost"), [(0.5, False, 0), (5.0, False, 1), (5.0, True, 0)]
)
def test_only_a_booking_that_was_published_survives_its_replica(wait_s, network_fault, lost):
    found = lost_after_kill(wait_s, network_fault=network_fault)
    assert found == ({"no reservation is lost"} if lost else set())


def test_an_answer_that_was_lost_allows_both_outcomes():
    for is_held in (True, False):
        replicas = PerfectReplicas()
        operation = replicas.call("book", 0, "x")
        operation.status = operation.rank = None
        if not is_held:
            replicas._rows.clear()
        assert check_history(replicas.settle()) == []


def test_an_id_that_two_replicas_admitted_may_keep_either_rank():
    replicas = PerfectReplicas()
    first = replicas.call("book", 0, "x")
    second = replicas.call("repeat", 1, "x")
    first.rank, second.rank = (1, 0), (2, 0)
    assert check_history(replicas.settle()) == []


def test_an_end_that_may_have_come_first_excuses_a_missing_reservation():
    replicas = PerfectReplicas()
    replicas.call("end", 1, "x")
    replicas.call("book", 0, "x")
    replicas._rows.clear()
    assert check_history(replicas.settle()) == []
