"""Sums over the slots of a window, and histograms from them."""

from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from select_service.core.admission.outcome_counters import REFUSAL_REASONS
from select_service.core.load import histogram_bins
from select_service.core.load.compiled import observation_layout
from select_service.core.pairs import pair_traffic_layout
from select_service.core.traffic import traffic_counters
from select_service.core.traffic.time_slots import TrafficSlot, WindowSpan
from select_service.core.traffic.traffic_counters import NO_SAMPLES, Samples, Words

SAMPLES_MAX = 256
"""Maximum number of samples of each kind per answer."""
SLOTS_PER_STEP = 128
"""Slots summed per step, before the event loop runs other tasks."""


class HistogramCounts(NamedTuple):
    """Histogram (bins) with the sum of its values, in tokens or seconds."""

    counts: list[int]
    sum: float


class ObservationWindow(NamedTuple):
    """Counts of a span.

    total: int64[LENGTH], see `counted`
    arrivals: int64[n, 2] by closed slot of the span, as in slots
    """

    total: Words
    arrivals: Words
    prefills: Samples
    decodes: Samples


def sum_slots(
    slots: Sequence[TrafficSlot], fresh: TrafficSlot, span: WindowSpan
) -> Generator[None, None, ObservationWindow]:
    """Sum slots; slots are those of the span in order, fresh holds the counts after them."""
    total = np.zeros(traffic_counters.LENGTH, np.int64)
    arrivals = np.zeros((len(span.lengths_s) + 1, 2), np.int64)
    every = [*slots, fresh]
    for begin in range(0, len(every), SLOTS_PER_STEP):
        some = every[begin : begin + SLOTS_PER_STEP]
        # Unbuffered add: indices repeat over slots, and fancy-index += would count them once.
        np.add.at(total, np.concatenate([s.at for s in some]), np.concatenate([s.by for s in some]))
        for slot in some:
            arrivals[min(slot.number - span.first, len(arrivals) - 1)] += slot.arrivals
        yield
    prefills = _thin_samples([slot.prefills for slot in every])
    yield
    decodes = _thin_samples([slot.decodes for slot in every])
    return ObservationWindow(total, arrivals[:-1], prefills, decodes)


def _thin_samples(samples: Iterable[Samples]) -> Samples:
    """Return at most SAMPLES_MAX samples, evenly spaced."""
    found = np.concatenate([NO_SAMPLES, *samples])
    n = len(found)
    if n <= SAMPLES_MAX:
        return found
    thinned: Samples = found[np.arange(SAMPLES_MAX) * n // SAMPLES_MAX]
    return thinned


def length_histograms(part: Words) -> tuple[HistogramCounts, HistogramCounts]:
    """Return histograms of prompt lengths and of their uncached parts.

    part: int64[PART_LENGTH], see `bins`
    """
    first, second = (
        HistogramCounts(
            part[begin : begin + histogram_bins.TOKEN_BINS].tolist(), float(part[sum_at])
        )
        for begin, sum_at in (
            (histogram_bins.ISL, histogram_bins.ISL_SUM),
            (histogram_bins.UNCACHED, histogram_bins.UNCACHED_SUM),
        )
    )
    return first, second


def refusals_by_reason(total: Words) -> dict[str, int]:
    """Return the number of refusals for every reason."""
    numbers = total[traffic_counters.REFUSED : traffic_counters.QUEUED].tolist()
    return dict(zip(REFUSAL_REASONS, numbers, strict=True))


def output_histogram(total: Words) -> HistogramCounts:
    """Return the output lengths, in tokens, of requests that reported output blocks."""
    ours = total[traffic_counters.RESERVATIONS :]
    begin = observation_layout.OSL
    osl = ours[begin : begin + histogram_bins.TOKEN_BINS]
    return HistogramCounts(osl.tolist(), float(ours[observation_layout.OSL_SUM]))


def local_histogram(total: Words) -> HistogramCounts:
    """Return the tokens that decode ranks computed for their own pairs."""
    pairs = total[traffic_counters.PAIRS : traffic_counters.REFUSED]
    counts = pairs[pair_traffic_layout.LOCAL_BINS :].tolist()
    return HistogramCounts(counts, float(pairs[pair_traffic_layout.LOCAL_TOKENS]))


def time_histogram(total: Words, begin: int, sum_at: int) -> HistogramCounts:
    """Return a histogram in seconds; begin, sum_at: as in observed_layout"""
    ours = total[traffic_counters.RESERVATIONS :]
    found = ours[begin : begin + histogram_bins.TIME_BINS]
    return HistogramCounts(found.tolist(), float(ours[sum_at]) / 1e6)
