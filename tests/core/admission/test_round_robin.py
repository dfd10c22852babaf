"""The deficit round robin of one partition against a ring that is walked step by step."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from select_service.core.admission.partition_queue import (
    ConstraintLane,
    PartitionQueue,
    RequestSize,
    WaitingTicket,
    score_of,
)
from select_service.core.admission.policy_classes import PolicyClass
from select_service.core.identity import Rank
from tests.builders import a_select
from tests.models.waiting import Asked, Waiter, WaitingModel

KEY = ("m", "default")
CLASSES = st.lists(
    st.tuples(st.sampled_from(["fcfs", "wspt", "lcfs"]), st.integers(1, 30)),
    min_size=2,
    max_size=4,
)
COSTS = st.sampled_from([1, 2, 7, 10, 50, 55, 60, 90])
ARRIVALS = st.tuples(st.just("add"), st.integers(0, 3), COSTS, st.integers(0, 3))
SERVICES = st.tuples(st.just("next"), st.lists(st.integers(0, 15), min_size=4, max_size=4))
LEAVINGS = st.tuples(st.just("leave"), st.integers(0, 99))
EVERYWHERE = [0b1111] * 4


def policies_of(classes):
    return [
        {"name": f"c{i}", "queue_policy": policy, "quantum": quantum}
        for i, (policy, quantum) in enumerate(classes)
    ]


class Both:
    """The queue and its twin.  A request fits one of four ranks, or two when its slot is even."""

    def __init__(self, classes):
        self.policies = policies_of(classes)
        self.classes = [msgspec.convert(policy, PolicyClass) for policy in self.policies]
        self.queue = PartitionQueue(self.classes)
        self.model = WaitingModel({"policy_classes": self.policies})
        self.pairs = []

    def add(self, number, class_index, cost, slot):
        class_index %= len(self.policies)
        policy, size = self.policies[class_index], RequestSize(cost, 0)
        arrived = float(number)
        ticket = WaitingTicket(
            placement_request=None,
            request=a_select(),
            lane=ConstraintLane(
                None if slot % 2 else Rank(slot, 0), frozenset([slot]), frozenset()
            ),
            size=size,
            class_index=class_index,
            policy_class=policy["name"],
            tier=0,
            arrived_at=arrived,
            deadline=float("inf"),
            order=(0.0, -score_of(policy["queue_policy"], 0.0, arrived, size), number),
        )
        asked = Asked(str(number), KEY, (), cost)
        waiter = Waiter(asked, 0, policy, arrived, float("inf"), number, 4)
        bits = 1 << slot if slot % 2 else 0b11 << slot
        if not self.pairs:
            self.queue = PartitionQueue(self.classes)
        self.queue.add(ticket, bits)
        assert ticket.position == self.model.add(waiter)
        self.pairs.append((ticket, waiter, bits))

    def next(self, free):
        """free: bits of slots for each class; the last bit is closed to pinned requests."""

        def bits(index, pinned):
            return free[index] & (0b0111 if pinned else 0b1111)

        def has_room(waiter):
            ticket, _, of_lane = next(pair for pair in self.pairs if pair[1] is waiter)
            return of_lane & bits(ticket.class_index, ticket.lane.pinned is not None)

        ticket, waiter = self.queue.take_next(bits), self.model.take(KEY, has_room)
        assert (ticket is None) == (waiter is None)
        if ticket is not None:
            assert str(ticket.number) == waiter.asked.name
            self.pairs = [pair for pair in self.pairs if pair[0] is not ticket]
        return ticket

    def leave(self, number):
        if self.pairs:
            ticket, waiter, _ = self.pairs.pop(number % len(self.pairs))
            self.queue.remove(ticket)
            self.model.remove(waiter)


@given(
    classes=CLASSES,
    first=st.lists(ARRIVALS, min_size=6, max_size=12),
    steps=st.lists(st.one_of(ARRIVALS, ARRIVALS, SERVICES, SERVICES, LEAVINGS), max_size=40),
)
def test_turns_are_those_of_a_ring_that_is_walked_step_by_step(classes, first, steps):
    both = Both(classes)
    for number, (verb, *arguments) in enumerate(first + steps):
        if verb == "add":
            both.add(number, *arguments)
        else:
            getattr(both, verb)(*arguments)
        both.queue.check_invariants()
        assert len(both.queue) == len(both.pairs)
    while both.pairs:
        both.next(EVERYWHERE)


def test_classes_share_the_room_in_the_proportion_of_their_quanta():
    both = Both([("fcfs", 30), ("fcfs", 10)])
    for number in range(200):
        both.add(number, number % 2, 10, 0)
    served = [0, 0]
    for _ in range(100):
        served[both.next(EVERYWHERE).class_index] += 1
    assert served == [75, 25]


def test_a_class_that_was_empty_has_saved_no_credit():
    both = Both([("fcfs", 60), ("fcfs", 1)])
    both.add(0, 0, 1, 0)
    for number in (1, 2, 3):
        both.add(number, 1, 1, 0)
    assert both.next(EVERYWHERE).number == 0
    both.add(4, 0, 100, 0)
    assert [both.next(EVERYWHERE).class_index for _ in range(3)] == [1, 1, 0]


def test_a_long_prompt_behind_a_tiny_quantum_takes_one_step_not_a_million_rounds():
    both = Both([("fcfs", 1), ("fcfs", 1)])
    both.add(0, 0, 2**40, 0)
    both.add(1, 1, 2**40 - 1, 0)
    assert both.queue.take_next(lambda index, pinned: 0b11).number == 1
