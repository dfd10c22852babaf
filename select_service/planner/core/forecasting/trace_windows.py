"""Conversion of a recorded trace to windows of a planner."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from select_service.planner.core.tick_input import TrafficWindow

WINDOWS_MAX = 100_000
"""Limit of windows; later requests are ignored: 200 days of 3 minutes."""


class TraceRequest(NamedTuple):
    """Request of a trace: milliseconds from the start, tokens of prompt and of answer."""

    at_ms: float
    isl: float
    osl: float


def trace_windows(requests: Iterable[TraceRequest], interval_s: float) -> Iterator[TrafficWindow]:
    """Yield every window from the first request to the last whole one, including idle windows.

    The last window is incomplete: omitted, unless there is no other.
    """
    sums: dict[int, tuple[int, float, float]] = {}
    for each in requests:
        window = int(each.at_ms / 1000.0 / interval_s)
        if window < WINDOWS_MAX:
            count, isl, osl = sums.get(window, (0, 0.0, 0.0))
            sums[window] = count + 1, isl + each.isl, osl + each.osl
    if not sums:
        return
    first, last = min(sums), max(sums)
    # The last window is cut off by the end of the recording, and would look like a drop.
    for window in range(first, max(last, first + 1)):
        count, isl, osl = sums.get(window, (0, 0.0, 0.0))
        if count:
            lengths = isl / count, osl / count
            yield TrafficWindow(
                duration_s=interval_s, requests=float(count), isl=lengths[0], osl=lengths[1]
            )
        else:
            yield TrafficWindow(duration_s=interval_s, requests=0.0)
