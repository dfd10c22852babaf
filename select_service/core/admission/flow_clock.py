"""Start-time fair queueing: flows share what is served in proportion to their weights.

A request starts, in virtual time, when the flow's last request ends, and lasts its cost divided by
the flow's weight.  The request that starts first is served first.  A flow that had no head, because
none of its requests waited or had room, continues at the floor, which is a burst before the
present: below its share, a flow need not share while it sends some requests at once.

Source: Goyal, Vin and Cheng, "Start-time Fair Queueing" (1996); for requests to language models:
Sheng et al., "Fairness in Serving Large Language Models" (2024); for the burst: Duda and Cheriton,
"Borrowed-Virtual-Time Scheduling" (1999).
"""

from collections import OrderedDict
from math import inf

import numpy as np
from numpy.typing import NDArray

from select_service.core.admission import lane_kernels
from select_service.core.admission.lane_table import LaneRoom, LaneTable, LaneTickets
from select_service.core.workers.rank_table import RankTable

BURST_TOKENS = 4096
"""Tokens per rank and weight that a flow below its share may be served at once."""
REBASE_AT = 2.0**40
"""Virtual time that becomes 0, so that no length is lost in rounding."""
DEBTORS_MAX = 1024
"""Number of idle flows with an end above the floor; the oldest are forgotten."""
FLOWS_AT_FIRST = 8


def compute_burst(table: RankTable) -> float:
    """Return the burst of a flow of weight 1, tokens."""
    return float(BURST_TOKENS * (len(table) - table.n_closed))


class FlowClock:
    """Virtual time of the flows of a class; a flow with waiting requests has a number."""

    def __init__(self) -> None:
        self._now = 0.0
        """Latest start of a served request, in virtual time."""
        self._floor = -inf
        """Earliest start of a request of a flow that had no head."""
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
        self._starts[number] = self._debtors.pop(name, -inf)
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
        floor = self._floor
        while debtors and (len(debtors) >= DEBTORS_MAX or next(iter(debtors.values())) <= floor):
            debtors.popitem(last=False)
        if start > floor:
            debtors[name] = start

    def find_head(self, lanes: LaneTable, room: LaneRoom, burst: float) -> LaneTickets | None:
        """Return the lane of the next request.

        burst: virtual time before the present at which flows without a head continue
        """
        if not lanes.find_heads(room, self._heads):
            return None
        # It never falls: what was forgotten below it is not needed again.
        self._floor = max(self._floor, self._now - burst)
        flow = lanes.choose_flow(self._heads, self._starts, self._had_head, self._floor)
        return lanes.lanes[int(self._heads[flow])]

    def start_of(self, name: str, number: int | None, burst: float) -> float:
        """Return when the next request of a flow starts.

        number: number of the flow; None means that no request of it waits
        """
        floor = max(self._floor, self._now - burst)
        if number is None:
            return max(self._debtors.get(name, floor), floor)
        start = float(self._starts[number])
        return start if self._had_head[number] else max(start, floor)

    def charge_flow(self, number: int, length: float) -> None:
        """Let the flow found by `find_head` pay; must follow that call.

        length: cost divided by weight
        """
        start = lane_kernels.advance_flows(
            self._heads, self._starts, self._had_head, self._floor, number
        )
        self._starts[number] += length
        self._now = max(self._now, float(start))
        if self._now > REBASE_AT:
            self._rebase_time()

    def _rebase_time(self) -> None:
        """Subtract the present from all times."""
        self._starts -= self._now
        for name in self._debtors:
            self._debtors[name] -= self._now
        self._floor -= self._now
        self._now = 0.0

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
