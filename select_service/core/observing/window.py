"""Slots of a window added up, and what follows from them."""

from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from select_service.core.load import bins, observed_layout
from select_service.core.observing import counted
from select_service.core.observing.counted import (
    NO_SAMPLES,
    REASONS,
    Samples,
    Words,
)
from select_service.core.observing.slots import Slot, Span

SAMPLES_MAX = 256
"""Of a kind, in one answer."""
SLOTS_PER_STEP = 128
"""That are added up before others may be served."""


class Counts(NamedTuple):
    """A histogram (bins) with the sum of its values; tokens, or seconds."""

    counts: list[int]
    sum: float


class Window(NamedTuple):
    """What was counted in a span.

    total: int64[LENGTH], see `counted`
    arrivals: int64[n, 2] by closed slot of the span, as slots have them
    """

    total: Words
    arrivals: Words
    prefills: Samples
    decodes: Samples


def summed(slots: Sequence[Slot], fresh: Slot, span: Span) -> Generator[None, None, Window]:
    """slots: those of the span, in order;  fresh: what is in none of them yet"""
    total = np.zeros(counted.LENGTH, np.int64)
    arrivals = np.zeros((len(span.lengths_s) + 1, 2), np.int64)
    every = [*slots, fresh]
    for begin in range(0, len(every), SLOTS_PER_STEP):
        some = every[begin : begin + SLOTS_PER_STEP]
        np.add.at(total, np.concatenate([s.at for s in some]), np.concatenate([s.by for s in some]))
        for slot in some:
            arrivals[min(slot.number - span.first, len(arrivals) - 1)] += slot.arrivals
        yield
    prefills = _thinned([slot.prefills for slot in every])
    yield
    decodes = _thinned([slot.decodes for slot in every])
    return Window(total, arrivals[:-1], prefills, decodes)


def _thinned(samples: Iterable[Samples]) -> Samples:
    """At most SAMPLES_MAX of them, spread evenly."""
    found = np.concatenate([NO_SAMPLES, *samples])
    n = len(found)
    if n <= SAMPLES_MAX:
        return found
    thinned: Samples = found[np.arange(SAMPLES_MAX) * n // SAMPLES_MAX]
    return thinned


# --- what follows


def lengths(part: Words) -> tuple[Counts, Counts]:
    """Of prompts, and of what was not cached of them.  part: int64[PART_LENGTH], see `bins`"""
    first, second = (
        Counts(part[begin : begin + bins.TOKEN_BINS].tolist(), float(part[sum_at]))
        for begin, sum_at in ((bins.ISL, bins.ISL_SUM), (bins.UNCACHED, bins.UNCACHED_SUM))
    )
    return first, second


def refused(total: Words) -> dict[str, int]:
    """By reason; every one has a number."""
    numbers = total[counted.REFUSED : counted.QUEUED].tolist()
    return dict(zip(REASONS, numbers, strict=True))


def outputs(total: Words) -> Counts:
    """Tokens of the answers whose callers reported output blocks."""
    ours = total[counted.RESERVATIONS :]
    begin = observed_layout.OSL
    osl = ours[begin : begin + bins.TOKEN_BINS]
    return Counts(osl.tolist(), float(ours[observed_layout.OSL_SUM]))


def times(total: Words, begin: int, sum_at: int) -> Counts:
    """A histogram of seconds.  begin, sum_at: as in observed_layout"""
    ours = total[counted.RESERVATIONS :]
    found = ours[begin : begin + bins.TIME_BINS]
    return Counts(found.tolist(), float(ours[sum_at]) / 1e6)
