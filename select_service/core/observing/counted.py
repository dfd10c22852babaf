"""All counts of one partition as one array that only grows, wherever they are kept.

An int64 array of LENGTH: the tally of its decisions (`plan_layout`, of all who decide), the
counters of its reservations (`observed_layout`), refusals by reason, and what waits now, which may
shrink.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from select_service.core.admission.tally import Reason
from select_service.core.decide import plan_layout
from select_service.core.fleet.partition import Partition
from select_service.core.load import bins, observed_layout

Words = npt.NDArray[np.int64]
Samples = npt.NDArray[np.float32]
"""float32[n, SAMPLE_NUMBERS]"""

REASONS: Final[tuple[Reason, ...]] = (
    *("busy", "shed", "queue_full", "queue_timeout", "client_gone", "no_rank", "no_workers"),
)

RESERVATIONS = plan_layout.TALLY_LENGTH
REFUSED = RESERVATIONS + observed_layout.N_COUNTERS
QUEUED = REFUSED + len(REASONS)
LENGTH = QUEUED + 1

NO_SAMPLES: Samples = np.zeros((0, observed_layout.SAMPLE_NUMBERS), np.float32)
_LISTS = (observed_layout.PREFILLS, observed_layout.DECODES)
_S_PER_NS = 1e-9


class Counted:
    """The counts of one partition, over its ends and new beginnings."""

    def __init__(self) -> None:
        self.refused: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        self._gone = np.zeros(LENGTH, np.int64)
        """What was counted in arrays that nobody writes any more."""
        self._tallies: list[Words] = []
        self._observed: Words | None = None

    def meet(self, partition: Partition | None, observed: Words | None) -> None:
        """These are the arrays that are written now; None: there are no others than until now."""
        if partition is not None and partition.placing.tallies is not self._tallies:
            for tally in self._tallies:
                self._gone[:RESERVATIONS] += tally
            self._tallies = partition.placing.tallies
        if observed is not None and observed is not self._observed:
            if self._observed is not None:
                self._gone[RESERVATIONS:REFUSED] += self._observed[: observed_layout.N_COUNTERS]
            self._observed = observed

    def now(self, queued: int) -> Words:
        """int64[LENGTH], a copy.  queued: requests that wait"""
        found = self._gone.copy()
        for tally in self._tallies:
            found[:RESERVATIONS] += tally
        if self._observed is not None:
            found[RESERVATIONS:REFUSED] += self._observed[: observed_layout.N_COUNTERS]
        found[REFUSED:QUEUED] = list(self.refused.values())
        found[QUEUED] = queued
        return found

    def samples(self, begin_anew: bool) -> tuple[Samples, Samples]:
        """Of prefills (own work in tokens, seconds, tokens that were left before it) and of decodes
        (live requests, active KV tokens, seconds a token).
        """
        observed = self._observed
        if observed is None:
            return NO_SAMPLES, NO_SAMPLES
        prefills, decodes = (_samples_at(observed, at) for at in _LISTS)
        prefills[:, 1] *= _S_PER_NS
        size = float(observed[observed_layout.BLOCK_SIZE])
        decodes[:, 1] *= size
        decodes[:, 2] *= _S_PER_NS / size
        if begin_anew:
            for at in _LISTS:
                observed[at + observed_layout.SEEN] = observed[at + observed_layout.KEPT] = 0
                observed[at + observed_layout.STRIDE] = 1
        return prefills, decodes


def _samples_at(observed: Words, at: int) -> Samples:
    begin = at + observed_layout.STRIDE + 1
    length = int(observed[at + observed_layout.KEPT]) * observed_layout.SAMPLE_NUMBERS
    found: Samples = observed[begin : begin + length].astype(np.float32)
    return found.reshape(-1, observed_layout.SAMPLE_NUMBERS)


def has_counted(partition: Partition) -> bool:
    """Has it decided anything?"""
    selected, reserved = plan_layout.T_SELECTED, plan_layout.T_RESERVED
    return any(bool(t[selected] or t[reserved]) for t in partition.placing.tallies)


def prompts(counts: Words, skips_decode: bool) -> Words:
    """int64[PART_LENGTH] (bins): the prompts of decisions or, where there are more, of bookings.

    A request that asks for a rank and books it in another call counts once so.
    counts: int64[LENGTH];  skips_decode: those on ranks that only decode count on another one
    """
    decided = counts[plan_layout.T_PROMPTS :][: bins.PARTS_LENGTH]
    booked = counts[RESERVATIONS + observed_layout.PROMPTS :][: bins.PARTS_LENGTH]
    found = (_joined(decided, skips_decode), _joined(booked, skips_decode))
    return max(found, key=lambda part: int(part[bins.N_PROMPTS]))


def _joined(parts: Words, skips_decode: bool) -> Words:
    first = parts[: bins.PART_LENGTH]
    return first if skips_decode else first + parts[bins.PART_LENGTH :]


def arrivals_of(counts: Words, skips_decode: bool) -> int:
    """Requests for a rank, whatever became of them, less those that waited before."""
    got = int(prompts(counts, skips_decode)[bins.N_PROMPTS])
    return got + int(counts[REFUSED:].sum())
