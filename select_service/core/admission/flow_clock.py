"""Start-time fair queueing: flows share what is served in proportion to their weights.

A request starts, in virtual time, when the flow's last request ends, and lasts its cost divided by
the flow's weight.  The request that starts first is served first.  A flow that had no head, because
none of its requests waited or had room, continues at the present: it saved up nothing, but is next.

Source: Goyal, Vin and Cheng, "Start-time Fair Queueing" (1996); for requests to language models:
Sheng et al., "Fairness in Serving Large Language Models" (2024).
"""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from select_service.core.admission import lane_kernels
from select_service.core.admission.lane_table import LaneRoom, LaneTable, LaneTickets

DEBTORS_MAX = 1024
"""Flows without waiting requests whose last one ends in the future; the oldest are forgotten."""
FLOWS_AT_FIRST = 8


class FlowClock:
    """Virtual time of the flows of one class; a flow with waiting requests has a number."""

    def __init__(self) -> None:
        self.now = 0.0
        """Start of the request served last, in virtual time."""
        self._heads: NDArray[np.int64] = np.full(FLOWS_AT_FIRST, -1)
        self._starts = np.zeros(FLOWS_AT_FIRST)
        self._had_head = np.zeros(FLOWS_AT_FIRST, np.bool_)
        self._unused = list(range(FLOWS_AT_FIRST))
        self._debtors: OrderedDict[str, float] = OrderedDict()

    def add_flow(self, name: str) -> int:
        """Return the number of a new flow."""
        if not self._unused:
            self._grow()
        number = self._unused.pop()
        self._starts[number] = self._debtors.pop(name, 0.0)
        self._had_head[number] = False
        return number

    def _grow(self) -> None:
        n_flows = len(self._heads)
        self._heads = np.concatenate((self._heads, np.full(n_flows, -1)))
        self._starts = np.concatenate((self._starts, np.zeros(n_flows)))
        self._had_head = np.concatenate((self._had_head, np.zeros(n_flows, np.bool_)))
        self._unused = list(range(n_flows, 2 * n_flows))

    def remove_flow(self, name: str, number: int) -> None:
        """Forget a flow, but for a debt."""
        self._unused.append(number)
        self._keep_debt(name, float(self._starts[number]))

    def _keep_debt(self, name: str, start: float) -> None:
        debtors = self._debtors
        debtors.pop(name, None)
        while debtors and (len(debtors) >= DEBTORS_MAX or next(iter(debtors.values())) <= self.now):
            debtors.popitem(last=False)
        if start > self.now:
            debtors[name] = start

    def find_head(self, lanes: LaneTable, room: LaneRoom) -> LaneTickets | None:
        """Return the lane of the next request."""
        if not lanes.find_heads(room, self._heads):
            return None
        flow = lanes.choose_flow(self._heads, self._starts, self._had_head, self.now)
        return lanes.lanes[int(self._heads[flow])]

    def charge_flow(self, number: int, length: float) -> None:
        """Let the flow found by `find_head` pay; must follow that call.

        length: cost divided by weight
        """
        self.now = float(
            lane_kernels.advance_flows(self._heads, self._starts, self._had_head, self.now, number)
        )
        self._starts[number] += length

    def repay_flow(self, name: str, number: int | None, length: float) -> None:
        """Return a payment, after the request was not served.

        number: number of the flow; None means that no other request of it waits
        """
        if number is not None:
            self._starts[number] -= length
        elif name in self._debtors:
            self._keep_debt(name, self._debtors[name] - length)

    def check_invariants(self, numbers: list[int]) -> None:
        """Check the invariants, for tests.

        numbers: those of all flows
        """
        assert sorted(numbers + self._unused) == list(range(len(self._heads)))
        assert len(self._debtors) <= DEBTORS_MAX
