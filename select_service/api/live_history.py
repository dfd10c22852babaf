"""What the charts of the page show of the last ten minutes, so that they are not empty at first.

Every other second some numbers of each partition are noted: differences of what its decisions have
come to, and what is live and waits.  That takes about 10 us for a partition and no more memory than
HISTORY_BYTES_MAX, whoever watches.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from select_service.access.guard import Grant
from select_service.core.fleet.partition import Partition
from select_service.core.identity import PartitionKey
from select_service.core.load import load_layout
from select_service.core.selector import Selector

SAMPLE_S = 2.0
HISTORY_S = 600.0
SAMPLES = int(HISTORY_S / SAMPLE_S)
PARTITIONS_MAX = 100
"""Partitions with a history of their own; further ones are summed, for those who see all."""
PARTITIONS_PER_STEP = 128
COLUMNS = ("decided", "prompt_blocks", "chosen_overlap", "best_overlap", "live", "waiting")
"""The first four are differences to the sample before, the others stand for themselves."""
N_DIFFERENCES = 4
NOTHING = np.zeros(N_DIFFERENCES, np.int64)
HISTORY_BYTES_MAX = (PARTITIONS_MAX + 1) * SAMPLES * len(COLUMNS) * 8

Numbers = npt.NDArray[np.int64]


class LiveHistory:
    """Belongs to the event loop, as a due task every SAMPLE_S."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._times: npt.NDArray[np.float64] = np.zeros(SAMPLES)
        self._n_samples = 0
        """Since the start; the newest lies at this - 1, modulo SAMPLES."""
        self._rows: dict[PartitionKey, Numbers] = {}
        self._others = _no_samples()
        self._before: dict[PartitionKey, Numbers] = {}
        """What the decisions of partitions had come to at their last sample."""
        self._seen_at: dict[PartitionKey, int] = {}
        """Number of the last sample in which a partition with a row was there."""
        self._sampling: Iterator[None] | None = None

    def step(self, now: float) -> bool:
        """Note numbers of some partitions.  True: others are left of this sample."""
        if self._sampling is None:
            self._sampling = self._sample(now)
        if next(self._sampling, self) is self:
            self._sampling = None
        return self._sampling is not None

    def columns(self, grant: Grant, now: float) -> dict[str, list[float]]:
        """Return the sums over what the caller sees, oldest first, with the age of each in s."""
        n = min(self._n_samples, SAMPLES - 1)  # the oldest may be half overwritten
        order = np.arange(self._n_samples - n, self._n_samples) % SAMPLES
        total = np.zeros((n, len(COLUMNS)), np.int64)
        for key, row in self._rows.items():
            if grant.sees(key.tenant_id):
                total += row[order]
        if grant.tenants is None:
            total += self._others[order]
        found: dict[str, list[float]] = {"ages_s": (now - self._times[order]).round(1).tolist()}
        return found | {name: total[:, i].tolist() for i, name in enumerate(COLUMNS)}

    def _sample(self, now: float) -> Iterator[None]:
        """Yield after every PARTITIONS_PER_STEP.  A sample is shown when it is complete."""
        number, partitions = self._n_samples, self._selector.fleet.partitions
        at = number % SAMPLES
        self._others[at] = 0
        for row in self._rows.values():
            row[at] = 0
        for count, key in enumerate(list(partitions), 1):
            if key in partitions:
                self._note(key, partitions[key], number)
            if count % PARTITIONS_PER_STEP == 0:
                yield
        self._times[at] = now
        self._n_samples = number + 1
        for key in [key for key in self._before if key not in partitions]:
            del self._before[key]
        for key in [key for key, seen in self._seen_at.items() if number - seen >= SAMPLES]:
            del self._rows[key], self._seen_at[key]

    def _note(self, key: PartitionKey, partition: Partition, number: int) -> None:
        row = self._rows.get(key)
        if row is None and len(self._rows) < PARTITIONS_MAX:
            row = self._rows[key] = _no_samples()
        if row is None:
            row = self._others
        else:
            self._seen_at[key] = number
        tally = partition.placing.tally
        come_to = np.array(
            [
                tally.selected + tally.reserved,
                tally.prompt_blocks,
                tally.chosen_overlap,
                tally.best_overlap,
            ]
        )
        before = self._before.get(key, come_to if number == 0 else NOTHING)
        if (come_to < before).any():  # it has begun anew
            before = NOTHING
        self._before[key] = come_to
        at = number % SAMPLES
        row[at, :N_DIFFERENCES] += come_to - before
        row[at, N_DIFFERENCES] += int(partition.load.totals[:, load_layout.REQUESTS].sum())
        row[at, N_DIFFERENCES + 1] += self._selector.gate.waiting.of(key).requests


def _no_samples() -> Numbers:
    return np.zeros((SAMPLES, len(COLUMNS)), np.int64)
