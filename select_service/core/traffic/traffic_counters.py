"""Counters of a partition, combined from their sources into one growing array.

An int64 array of LENGTH: tally of the decisions (`plan_layout`), counters of the reservations
(`observation_layout`) and of the pairs (`pair_traffic_layout`), refusals by reason, and the number
of waiting requests, which may decrease.
"""

import numpy as np
import numpy.typing as npt

from select_service.core.admission.outcome_counters import REFUSAL_REASONS, RefusalReason
from select_service.core.load import histogram_bins
from select_service.core.load.compiled import observation_layout
from select_service.core.pairs import pair_traffic_layout
from select_service.core.placement import plan_layout
from select_service.core.registry.fleet.partition import Partition

Words = npt.NDArray[np.int64]
Samples = npt.NDArray[np.float32]
"""float32[n, SAMPLE_NUMBERS]"""

RESERVATIONS = plan_layout.TALLY_LENGTH
PAIRS = RESERVATIONS + observation_layout.N_COUNTERS
REFUSED = PAIRS + pair_traffic_layout.N_COUNTERS
QUEUED = REFUSED + len(REFUSAL_REASONS)
LENGTH = QUEUED + 1

NO_SAMPLES: Samples = np.zeros((0, observation_layout.SAMPLE_NUMBERS), np.float32)
_LISTS = (observation_layout.PREFILLS, observation_layout.DECODES)
_S_PER_NS = 1e-9


class PartitionTrafficCounter:
    """Counters of a partition, continued when the partition is removed and created again."""

    def __init__(self) -> None:
        self.refused: dict[RefusalReason, int] = dict.fromkeys(REFUSAL_REASONS, 0)
        self._retired_sums = np.zeros(LENGTH, np.int64)
        """Sums of counters in arrays that are no longer written."""
        self._tally: Words | None = None
        self._observed: Words | None = None
        self._pairs: Words | None = None

    def set_sources(
        self, partition: Partition | None, observed: Words | None, pairs: Words | None = None
    ) -> None:
        """Set the arrays now being written; None keeps the earlier ones."""
        # A recreated partition has new arrays; the sums of the old arrays must not be lost.
        if partition is not None and partition.placer.tally_words is not self._tally:
            if self._tally is not None:
                self._retired_sums[:RESERVATIONS] += self._tally
            self._tally = partition.placer.tally_words
        if observed is not None and observed is not self._observed:
            if self._observed is not None:
                self._retired_sums[RESERVATIONS:PAIRS] += self._observed[
                    : observation_layout.N_COUNTERS
                ]
            self._observed = observed
        if pairs is not None and pairs is not self._pairs:
            if self._pairs is not None:
                self._retired_sums[PAIRS:REFUSED] += self._pairs
            self._pairs = pairs

    def read_counters(self, queued: int) -> Words:
        """Return a copy of the counters, int64[LENGTH]. queued: number of waiting requests"""
        found = self._retired_sums.copy()
        if self._tally is not None:
            found[:RESERVATIONS] += self._tally
        if self._observed is not None:
            found[RESERVATIONS:PAIRS] += self._observed[: observation_layout.N_COUNTERS]
        if self._pairs is not None:
            found[PAIRS:REFUSED] += self._pairs
        found[REFUSED:QUEUED] = list(self.refused.values())
        found[QUEUED] = queued
        return found

    def read_samples(self, resets: bool) -> tuple[Samples, Samples]:
        """Return samples of prefills (own work in tokens, seconds, tokens left before it) and of
        decodes (live requests, active KV tokens, seconds per token).
        """
        observed = self._observed
        if observed is None:
            return NO_SAMPLES, NO_SAMPLES
        prefills, decodes = (_samples_at(observed, at) for at in _LISTS)
        prefills[:, 1] *= _S_PER_NS
        size = float(observed[observation_layout.BLOCK_SIZE])
        decodes[:, 1] *= size
        decodes[:, 2] *= _S_PER_NS / size
        if resets:
            for at in _LISTS:
                observed[at + observation_layout.N_SEEN] = observed[
                    at + observation_layout.N_KEPT
                ] = 0
                observed[at + observation_layout.STRIDE] = 1
        return prefills, decodes


def _samples_at(observed: Words, at: int) -> Samples:
    begin = at + observation_layout.STRIDE + 1
    length = int(observed[at + observation_layout.N_KEPT]) * observation_layout.SAMPLE_NUMBERS
    found: Samples = observed[begin : begin + length].astype(np.float32)
    return found.reshape(-1, observation_layout.SAMPLE_NUMBERS)


def has_counted(partition: Partition) -> bool:
    """Return whether the partition has made any decision."""
    tally = partition.placer.tally_words
    return bool(tally[plan_layout.T_SELECTED] or tally[plan_layout.T_RESERVED])


def prompt_histogram(counts: Words, skips_decode: bool) -> Words:
    """Return the prompt histogram, int64[PART_LENGTH] (bins), of decisions or bookings, whichever
    has more.

    A request that selects a rank and books it in another call therefore counts once.

    counts: int64[LENGTH]
    skips_decode: leave out decode-only ranks: their requests count on another rank
    """
    decided = counts[plan_layout.T_PROMPTS :][: histogram_bins.PARTS_LENGTH]
    booked = counts[RESERVATIONS + observation_layout.PROMPTS :][: histogram_bins.PARTS_LENGTH]
    found = (_join_parts(decided, skips_decode), _join_parts(booked, skips_decode))
    return max(found, key=lambda part: int(part[histogram_bins.N_PROMPTS]))


def _join_parts(parts: Words, skips_decode: bool) -> Words:
    first = parts[: histogram_bins.PART_LENGTH]
    return first if skips_decode else first + parts[histogram_bins.PART_LENGTH :]


def count_arrivals(counts: Words, skips_decode: bool) -> int:
    """Return the number of requests for a rank, minus those that waited before."""
    got = int(prompt_histogram(counts, skips_decode)[histogram_bins.N_PROMPTS])
    return got + int(counts[REFUSED:].sum())
