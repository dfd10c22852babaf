"""Tests of the order of service and the waits of a partition against naive twins."""

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from select_service.core.admission.partition_queue import PartitionQueue
from select_service.core.admission.policy_classes import PolicyClass
from select_service.core.admission.wait_estimate import estimate_wait
from select_service.core.admission.waiting_ticket import (
    ConstraintLane,
    RequestSize,
    WaitingTicket,
    score_of,
)
from select_service.core.decision_maker import PlacementRequest
from select_service.core.identity import Rank
from select_service.core.placement.prompt import Prompt
from tests.builders import a_select
from tests.builders.hypothesis_profiles import explored
from tests.models.waiting import ModelRequest, Waiter, WaitingModel

KEY = ("m", "default")
WEIGHTS = st.dictionaries(
    st.sampled_from(["a", "b"]), st.sampled_from([0.001, 0.5, 2.0, 7.25]), max_size=2
)
CLASSES = st.lists(
    st.tuples(st.sampled_from(["fcfs", "wspt", "lcfs"]), st.integers(1, 30), WEIGHTS),
    min_size=1,
    max_size=4,
)
COSTS = st.sampled_from([1, 2, 7, 10, 50, 55, 60, 90])
FLOWS = st.sampled_from(["", "a", "b", "c"])
KINDS = st.integers(0, 6)
EVERYWHERE = [0b1111] * 4
NO_HASHES = np.zeros(0, np.uint64)
FOREVER = float("inf")


def policies_of(classes):
    return [
        {"name": f"c{i}", "queue_policy": policy, "quantum": quantum, "fairness_weights": weights}
        for i, (policy, quantum, weights) in enumerate(classes)
    ]


def slots(bits):
    return np.array([bits], np.int64)


def lane_bits(kind):
    return tuple(slots(leg) for leg in LEGS[kind])


LEGS = {
    0: (0b0011,),
    1: (0b0010,),
    2: (0b1100,),
    3: (0b1000,),
    4: (0b0011, 0b0110),
    5: (0b0001, 0b1000),
    6: (0b1111,),
}
"""Candidates of each leg by the kind of a request; even kinds are pinned."""


class Both:
    """Queue under test and its twin."""

    def __init__(self, classes, burst=0):
        self.burst = burst
        self.policies = policies_of(classes)
        self.classes = [msgspec.convert(policy, PolicyClass) for policy in self.policies]
        self.queue = PartitionQueue(self.classes)
        self.model = WaitingModel({"policy_classes": self.policies})
        self.pairs = []

    def make(self, number, class_index, cost, kind, *, flow="", strict=0, due_s=FOREVER):
        class_index %= len(self.policies)
        policy, size = self.policies[class_index], RequestSize(cost, 0)
        arrived, prompt = float(number), Prompt(NO_HASHES, NO_HASHES, cost)
        ticket = WaitingTicket(
            placement_request=PlacementRequest(None, prompt, None, None),
            request=a_select(fairness_id=flow or None),
            lane=ConstraintLane(
                None if kind % 2 else Rank(kind, 0), frozenset([kind]), frozenset()
            ),
            size=size,
            class_index=class_index,
            classes=(),
            policy_class=policy["name"],
            tier=0,
            arrived_at=arrived,
            deadline=float("inf"),
            order=(
                -strict,
                arrived + due_s,
                -score_of(policy["queue_policy"], 0.0, arrived, size),
                number,
            ),
        )
        asked = ModelRequest(str(number), KEY, (), cost, strict=strict, flow=flow, due_s=due_s)
        legs = tuple(frozenset(s for s in range(4) if leg >> s & 1) for leg in LEGS[kind])
        waiter = Waiter(asked, 0, policy, arrived, float("inf"), number, 4, legs=legs)
        return ticket, waiter, kind

    def add(self, *arguments, **fields):
        ticket, waiter, kind = pair = self.make(*arguments, **fields)
        if not self.pairs:
            self.queue = PartitionQueue(self.classes)
        self.queue.add(ticket, lane_bits(kind))
        assert ticket.position == self.model.add(waiter)
        self.pairs.append(pair)

    def next(self, free, is_returned=False):
        """Take the next request from both queues.

        free: bits of free slots for each class; the last bit is closed to pinned requests
        """

        def bits(index, pinned):
            return free[index] & (0b0111 if pinned else 0b1111)

        def has_room(waiter):
            ticket, _, kind = next(pair for pair in self.pairs if pair[1] is waiter)
            there = bits(ticket.class_index, ticket.lane.pinned is not None)
            return all(leg & there for leg in LEGS[kind])

        ticket = self.queue.take_next(lambda index, pinned: slots(bits(index, pinned)), self.burst)
        waiter = self.model.take(KEY, has_room, self.burst)
        assert (ticket is None) == (waiter is None)
        if ticket is None:
            return None
        assert str(ticket.number) == waiter.asked.name
        pair = next(pair for pair in self.pairs if pair[0] is ticket)
        if is_returned:
            self.queue.return_ticket(ticket, lane_bits(pair[2]), None)
            self.model.give_back(waiter)
        else:
            self.pairs.remove(pair)
        return ticket

    def leave(self, number):
        if self.pairs:
            ticket, waiter, _ = self.pairs.pop(number % len(self.pairs))
            self.queue.remove(ticket)
            self.model.remove(waiter)


class OrderMatchesModel(RuleBasedStateMachine):
    """Requests arrive in flows, are served where there is room, and leave."""

    @initialize(classes=CLASSES, burst=st.sampled_from([0, 20, 200]))
    def start(self, classes, burst):
        self.both, self.count = Both(classes, burst), 0

    @rule(
        class_index=st.integers(0, 3),
        cost=COSTS,
        kind=KINDS,
        flow=FLOWS,
        strict=st.sampled_from([0, 0, 0, 1]),
        due_s=st.sampled_from([FOREVER, FOREVER, 2.0, 30.0]),
        some=st.integers(1, 4),
    )
    def requests_come(self, class_index, cost, kind, flow, strict, due_s, some):
        for _ in range(some):
            self.both.add(
                self.count, class_index, cost, kind, flow=flow, strict=strict, due_s=due_s
            )
            self.count += 1

    @precondition(lambda self: self.both.pairs)
    @rule(free=st.lists(st.integers(0, 15), min_size=4, max_size=4), some=st.integers(1, 3))
    def some_are_served(self, free, some):
        for _ in range(some):
            if self.both.pairs:
                self.both.next(free)

    @precondition(lambda self: self.both.pairs)
    @rule(free=st.lists(st.integers(0, 15), min_size=4, max_size=4), some=st.integers(1, 3))
    def some_are_taken_and_returned(self, free, some):
        for _ in range(some):
            self.both.next(free, is_returned=True)

    @rule(
        class_index=st.integers(0, 3),
        kind=KINDS,
        flow=FLOWS,
        strict=st.sampled_from([0, 0, 0, 1]),
        due_s=st.sampled_from([FOREVER, FOREVER, 2.0, 30.0]),
    )
    def a_wait_is_estimated(self, class_index, kind, flow, strict, due_s):
        ticket, waiter, _ = self.both.make(
            self.count, class_index, 7, kind, flow=flow, strict=strict, due_s=due_s
        )
        wait_s = estimate_wait(self.both.queue, ticket, lane_bits(kind), 2.0, self.both.burst)
        assert wait_s == pytest.approx(self.both.model.wait_s(waiter, 2.0, self.both.burst))

    @precondition(lambda self: self.both.pairs)
    @rule(number=st.integers(0, 99))
    def one_leaves(self, number):
        self.both.leave(number)

    @invariant()
    def the_queue_is_in_order(self):
        self.both.queue.check_invariants()
        assert len(self.both.queue) == len(self.both.pairs)
        ring = self.both.model.rings.get(KEY)
        if ring is not None and self.both.pairs:
            assert self.both.queue.released_cost == ring.released
        flows = {(t.class_index, t.flow) for t, _, _ in self.both.pairs}
        assert sum(len(queue.flows) for queue in self.both.queue.queues) == len(flows)

    def teardown(self):
        while self.both.pairs:
            self.both.next(EVERYWHERE)


TestOrder = explored(OrderMatchesModel, runs=60)


def test_classes_share_the_room_in_the_proportion_of_their_quanta():
    both = Both([("fcfs", 30, {}), ("fcfs", 10, {})])
    for number in range(200):
        both.add(number, number % 2, 10, 0)
    served = [0, 0]
    for _ in range(100):
        served[both.next(EVERYWHERE).class_index] += 1
    assert served == [75, 25]


def test_a_class_that_was_empty_has_saved_no_credit():
    both = Both([("fcfs", 60, {}), ("fcfs", 1, {})])
    both.add(0, 0, 1, 0)
    for number in (1, 2, 3):
        both.add(number, 1, 1, 0)
    assert both.next(EVERYWHERE).number == 0
    both.add(4, 0, 100, 0)
    assert [both.next(EVERYWHERE).class_index for _ in range(3)] == [1, 1, 0]


def test_a_long_prompt_behind_a_tiny_quantum_takes_one_step_not_a_million_rounds():
    both = Both([("fcfs", 1, {}), ("fcfs", 1, {})])
    both.add(0, 0, 2**40, 0)
    both.add(1, 1, 2**40 - 1, 0)
    assert both.queue.take_next(lambda index, pinned: slots(0b11), 0).number == 1


def served_of(both, n):
    """Return the number of requests per flow among the next `n`."""
    return Counter(both.next(EVERYWHERE).flow for _ in range(n))


def test_flows_share_a_class_in_the_proportion_of_their_weights():
    both = Both([("fcfs", 1, {"gold": 3, "low": 0.5})])
    for number in range(300):
        both.add(number, 0, 10, 0, flow=("gold", "low", "other")[number % 3])
    assert served_of(both, 90) == {"gold": 60, "other": 20, "low": 10}


def test_a_flow_of_long_prompts_gets_as_many_tokens_not_as_many_requests():
    both = Both([("fcfs", 1, {})])
    for number in range(100):
        both.add(number, 0, 90 if number % 2 else 10, 0, flow=str(number % 2))
    assert served_of(both, 50) == {"0": 45, "1": 5}


def test_a_forgotten_flow_returns_without_credit_and_without_debt():
    """Check a flow that always has a single long prompt queued: its share is exact."""
    both = Both([("fcfs", 1, {})])
    for number in range(100):
        both.add(number, 0, 10, 0, flow="many")
    both.add(100, 0, 90, 0, flow="single")
    seen = []
    for number in range(101, 161):
        seen.append(both.next(EVERYWHERE).flow)
        if seen[-1] == "single":
            both.add(number, 0, 90, 0, flow="single")
    assert [seen[i : i + 10].count("single") for i in range(0, 60, 10)] == [1] * 6


def test_a_flow_below_its_share_is_served_a_burst_at_once_and_no_more():
    both = Both([("fcfs", 1, {})], burst=30)
    for number in range(40):
        both.add(number, 0, 10, 0, flow="many")
    assert served_of(both, 10) == {"many": 10}
    for number in range(40, 50):
        both.add(number, 0, 10, 0, flow="few")
    # The last of the others started at 90, so the burst starts at 60, and the next of them at 100.
    order = [both.next(EVERYWHERE).flow for _ in range(10)]
    assert order == ["few"] * 4 + ["many", "few"] * 3


def test_a_higher_weight_has_a_larger_burst():
    both = Both([("fcfs", 1, {"few": 2})], burst=30)
    for number in range(20):
        both.add(number, 0, 10, 0, flow="many")
    assert served_of(both, 10) == {"many": 10}
    for number in range(20, 40):
        both.add(number, 0, 10, 0, flow="few")
    assert [both.next(EVERYWHERE).flow for _ in range(9)] == ["few"] * 8 + ["many"]


def test_shares_are_exact_after_requests_of_any_length():
    """Check exact sums: a length of 2**60 in a sum of floats would absorb the next lengths."""
    both = Both([("fcfs", 1, {"huge": 0.001})])
    both.add(0, 0, 1, 3, flow="keeps the queue")
    for number in (1, 2):
        both.add(number, 0, 2**50, 2, flow="huge")
    for number in range(3, 43):
        both.add(number, 0, 1 + number % 2, 2, flow=str(number % 2))

    def take():
        return both.queue.take_next(lambda index, pinned: slots(0b0100), 0).flow

    # The other flows come back after the time of the long requests.
    for ticket in [t for t, _, _ in both.pairs if t.number > 2]:
        both.queue.remove(ticket)
    assert [take(), take()] == ["huge", "huge"]
    for ticket, _, kind in both.pairs[3:]:
        both.queue.add(ticket, lane_bits(kind))
    assert Counter(take() for _ in range(30)) == {"1": 10, "0": 20}


def test_a_flow_without_requests_is_forgotten():
    both = Both([("fcfs", 1, {})])
    for number in range(50):
        both.add(number, 0, 1, 0, flow=str(number))
    while both.pairs:
        both.next(EVERYWHERE)
    assert not both.queue.queues[0].flows


def test_strict_priority_goes_before_shares():
    both = Both([("fcfs", 1, {"other": 100})])
    both.add(0, 0, 1, 0, flow="other")
    for number in (1, 2, 3):
        both.add(number, 0, 90, 0, flow="urgent", strict=1)
    assert [both.next(EVERYWHERE).number for _ in range(4)] == [1, 2, 3, 0]


@pytest.mark.parametrize("policy", ["fcfs", "wspt", "lcfs"])
def test_the_earlier_deadline_goes_first_within_a_flow_only(policy):
    both = Both([(policy, 1, {})])
    both.add(0, 0, 10, 0, flow="a")
    both.add(1, 0, 10, 0, flow="a", due_s=60.0)
    both.add(2, 0, 10, 0, flow="a", due_s=5.0)
    both.add(3, 0, 10, 0, flow="b")
    assert [both.next(EVERYWHERE).number for _ in range(4)] == [2, 3, 1, 0]


def test_pairs_of_two_ranks_wait_for_those_before():
    """Check legs without a common rank: no leg of another request has all ranks of both."""
    both = Both([("fcfs", 1, {})])
    for number in range(5):
        both.add(number, 0, 10, 5)
    new = both.make(5, 0, 10, 5)[0]
    assert estimate_wait(both.queue, new, lane_bits(5), 1.0, 0) == 25.0


@pytest.mark.parametrize(
    ("classes", "waiting", "flow", "strict"),
    [
        pytest.param(1, [(10, 0, "a", 0), (1, 0, "b", 0), (999, 0, "c", 0)], "a", 0, id="flows"),
        pytest.param(3, [(10, 0, "", 0), (1, 1, "", 0), (999, 2, "", 0)], "", 0, id="classes"),
        pytest.param(1, [(999, 0, "a", 1)], "b", 1, id="flows of one priority"),
        pytest.param(1, [(99, 0, "a", 1), (3, 0, "b", 0), (9, 0, "a", 0)], "b", 0, id="priority"),
    ],
)
def test_a_wait_is_estimated_from_earlier_requests(classes, waiting, flow, strict):
    both = Both([("fcfs", 1, {})] * classes)
    requests = [each[1:] for each in waiting for _ in range(each[0])]
    for number, (class_index, name, priority) in enumerate(requests):
        both.add(number, class_index, 1, 6, flow=name, strict=priority)
    new = both.make(len(requests), 0, 1, 6, flow=flow, strict=strict)[0]
    before = 4 * estimate_wait(both.queue, new, lane_bits(6), 1.0, both.burst)
    both.add(len(requests), 0, 1, 6, flow=flow, strict=strict)
    served = 0
    while both.next(EVERYWHERE).number != new.number:
        served += 1
    # One request of each other flow or class may be served earlier or later.
    assert before == pytest.approx(served, abs=2)
