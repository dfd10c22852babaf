"""Kernels over the lanes and flows of a policy class."""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

import numpy as np

from indexer.jit.decorators import compiled
from select_service.core.admission.lane_layout import (
    BITS,
    FLOW,
    IS_CONSTRAINED,
    IS_PINNED,
    LEGS,
    ORDER_LENGTH,
)

I64 = np.int64


@compiled()
def _has_room(rows, first, width, free):
    """Return whether each leg has a candidate among the slots in `free`.

    first: index of the first word of the candidates
    """
    n_words = min(width, free.shape[0])
    for leg in range(LEGS):
        found = False
        for word in range(n_words):
            if rows[first + leg * width + word] & free[word]:
                found = True
                break
        if not found:
            return False
    return True


@compiled()
def _is_before(rows, one, other):
    for column in range(ORDER_LENGTH):
        if rows[one + column] != rows[other + column]:
            return rows[one + column] < rows[other + column]
    return False


@compiled("int64(int64, int64[::1], int64, int64[::1], int64[::1], int64[::1])")
def find_heads(n_lanes, rows, width, free, free_pinned, heads):
    """Write the row of the head of each flow, -1 without a head; return the number of heads.

    Only flows with the highest strict_priority of all first requests have a head.

    n_lanes: rows of the table in use
    width: words of candidates per leg, see lane_layout
    free: slots with room, as bits; `free_pinned`: for pinned requests
    heads: int64[n_flows]
    """
    stride = BITS + LEGS * width
    for flow in range(heads.shape[0]):
        heads[flow] = -1
    highest = np.iinfo(np.int64).max
    for lane in range(n_lanes):
        row = lane * stride
        if rows[row] > highest:
            continue
        slots = free_pinned if rows[row + IS_PINNED] else free
        if _has_room(rows, row + BITS, width, slots):
            highest = rows[row]
            head = heads[rows[row + FLOW]]
            if head < 0 or _is_before(rows, row, head * stride):
                heads[rows[row + FLOW]] = lane
    n_heads = I64(0)
    for flow in range(heads.shape[0]):
        # Flows found before a more urgent one have no head now.
        if heads[flow] >= 0 and rows[heads[flow] * stride] > highest:
            heads[flow] = -1
        n_heads += heads[flow] >= 0
    return n_heads


@compiled("int64(int64, int64[::1], int64, int64[::1], int64[::1], int64[::1])")
def collect_awaited(n_lanes, rows, width, free, free_pinned, out):
    """Add the candidates of the constrained lanes without room to `out`; return their number.

    out: int64[at least width], slots as bits.  Other arguments: see `find_heads`.
    """
    stride, n_awaited = BITS + LEGS * width, I64(0)
    for lane in range(n_lanes):
        row = lane * stride
        slots = free_pinned if rows[row + IS_PINNED] else free
        if rows[row + IS_CONSTRAINED] and not _has_room(rows, row + BITS, width, slots):
            n_awaited += 1
            for word in range(width):
                out[word] |= rows[row + BITS + word] | rows[row + BITS + width + word]
    return n_awaited


@compiled("int64(int64, int64[::1], int64, int64[::1])")
def collect_candidates(n_lanes, rows, width, out):
    """Add the candidates of all lanes to `out`; return the number of lanes."""
    stride = BITS + LEGS * width
    for lane in range(n_lanes):
        for word in range(width):
            first = lane * stride + BITS + word
            out[word] |= rows[first] | rows[first + width]
    return n_lanes


@compiled()
def _contains(rows, first, width, slots):
    """Return whether a leg of a lane has all of some slots.

    first: index of the first word of its candidates
    """
    for word in range(slots.shape[0]):
        candidates = rows[first + word] if word < width else I64(0)
        if slots[word] & ~candidates:
            return False
    return True


@compiled("int64(int64, int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1])")
def find_rivals(n_lanes, rows, width, leg, other_leg, used, out):
    """Write twice the row of each lane with room whenever a request has room to `out`.

    Each leg of these lanes has all slots of a leg of the request.  Return their number; a full
    `out` ends the search.  A lane with no other slots has 1 added.

    leg, other_leg: slots of the request as bits, as many words; equal for a request with one leg
    used: int64[at least width], gets the slots of the lanes added
    out: int64[most lanes found]
    """
    stride, found = BITS + LEGS * width, I64(0)
    for lane in range(n_lanes):
        if found == out.shape[0]:
            break
        first, is_rival, is_same = lane * stride + BITS, True, True
        for start in range(first, first + LEGS * width, width):
            is_rival &= _contains(rows, start, width, leg) or _contains(
                rows, start, width, other_leg
            )
        if not is_rival:
            continue
        for word in range(width):
            candidates = rows[first + word] | rows[first + width + word]
            own = leg[word] | other_leg[word] if word < leg.shape[0] else I64(0)
            is_same &= candidates == own
            used[word] |= candidates
        out[found] = 2 * lane + is_same
        found += 1
    return found


@compiled()
def _start_of(flow, starts, had_head, floor):
    """Return the start of a flow's next request, not below the floor unless it had a head."""
    return starts[flow] if had_head[flow] else max(starts[flow], floor)


@compiled("int64(int64[::1], int64, int64[::1], float64[::1], boolean[::1], float64)")
def choose_flow(rows, stride, heads, starts, had_head, floor):
    """Return the flow with the earliest start of a head; of equal flows, that of the first head.

    heads: see `find_heads`
    starts: virtual time of each flow's next request
    had_head: whether each flow had a head when a request was served last
    floor: earliest start for flows without a head then
    """
    chosen, first = I64(-1), np.inf
    for flow in range(heads.shape[0]):
        if heads[flow] >= 0:
            start = _start_of(flow, starts, had_head, floor)
            is_first = start < first or (
                start == first and _is_before(rows, heads[flow] * stride, heads[chosen] * stride)
            )
            if chosen < 0 or is_first:
                chosen, first = flow, start
    return chosen


@compiled("float64(int64[::1], float64[::1], boolean[::1], float64, int64)")
def advance_flows(heads, starts, had_head, floor, chosen):
    """Note which flows have heads, before a flow is served; return the start of its request."""
    for flow in range(heads.shape[0]):
        if heads[flow] >= 0:
            starts[flow] = _start_of(flow, starts, had_head, floor)
        had_head[flow] = heads[flow] >= 0
    return starts[chosen]
