"""What the input loops do: series by the number of the loop.  Without loops there are none."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import COUNTER, GAUGE, Family, series_of

HANDED_OVER = "input_loop_handed_over"
REASONS = ("unusual", "not_mended", "no_room", "late", "too_many", "ending")


class LoopCounts(NamedTuple):
    """One loop.  handed_over: by reason, as in REASONS;  the other but the first: since the start

    closed: connections without a request for long, and those whose client took no answer
    """

    connections: int
    accepted: int
    handed_over: tuple[int, ...]
    closed: int
    questions: int
    pauses: int
    taken_back: int


def _handed_over(reason: int) -> Callable[[LoopCounts], int]:
    return lambda counts: counts.handed_over[reason]


_HELP = "Connections that went to the event loop, by reason."
LOOPS: Sequence[Family[LoopCounts]] = (
    Family(GAUGE, "input_loop_connections", "Open connections", lambda c: c.connections),
    Family(COUNTER, "input_loop_accepted", "Connections that were accepted", lambda c: c.accepted),
    *(
        Family(COUNTER, HANDED_OVER, _HELP, _handed_over(number), (("reason", reason),))
        for number, reason in enumerate(REASONS)
    ),
    Family(
        COUNTER,
        "input_loop_taken_back",
        "Connections that came back from the event loop",
        lambda c: c.taken_back,
    ),
    Family(
        COUNTER,
        "input_loop_closed",
        "Connections that were closed because their client did nothing for long",
        lambda c: c.closed,
    ),
    Family(
        COUNTER,
        "input_loop_questions",
        "Partitions and ranks of which the event loop had to tell",
        lambda c: c.questions,
    ),
    Family(
        COUNTER,
        "input_loop_accept_pauses",
        "How often nothing was accepted for a while, for want of descriptors, memory or room",
        lambda c: c.pauses,
    ),
)


def of_loops(loops: Sequence[LoopCounts]) -> Iterator[Metric]:
    """Families of all loops."""
    by_number: Mapping[tuple[str, ...], LoopCounts] = {
        (str(number),): counts for number, counts in enumerate(loops, 1)
    }
    if by_number:
        yield from series_of(LOOPS, ("loop",), by_number)
