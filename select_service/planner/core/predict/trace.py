"""A recorded trace as the windows that a planner would have seen of it."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from select_service.planner.core.inputs import Traffic

WINDOWS_MAX = 100_000
"""Later requests are left out: 200 days of 3 minutes."""


class Asked(NamedTuple):
    """One request: milliseconds from the start, tokens of prompt and of answer."""

    at_ms: float
    isl: float
    osl: float


def windows(requests: Iterable[Asked], interval_s: float) -> Iterator[Traffic]:
    """Every window from the first request to the last whole one, the idle ones too.

    The last window, in which the recording ends, says nothing: it is left out, unless alone.
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
    for window in range(first, max(last, first + 1)):
        count, isl, osl = sums.get(window, (0, 0.0, 0.0))
        if count:
            lengths = isl / count, osl / count
            yield Traffic(
                duration_s=interval_s, requests=float(count), isl=lengths[0], osl=lengths[1]
            )
        else:
            yield Traffic(duration_s=interval_s, requests=0.0)
