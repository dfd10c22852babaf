"""Recent history for the charts of the fleet page, so that a newly opened page is not empty.

Every two seconds a few numbers of each partition are sampled: increments of decision totals, and
current live and waiting requests.  Sampling takes about 10 us per partition and at most
HISTORY_BYTES_MAX of memory, regardless of the number of viewers.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from select_service.auth.guard import Grant
from select_service.core.admission.waiting_list import Backlog
from select_service.core.identity import PartitionKey
from select_service.core.load.compiled import load_layout
from select_service.core.registry.fleet.partition import Partition

SAMPLE_S = 2.0
HISTORY_S = 600.0
SAMPLES_MAX = int(HISTORY_S / SAMPLE_S)
PARTITIONS_MAX = 100
"""Most partitions with a history of their own; the rest is summed, for callers that see all
tenants.
"""
PARTITIONS_PER_STEP = 128
HISTORY_COLUMNS = ("decided", "prompt_blocks", "chosen_overlap", "best_overlap", "live", "waiting")
"""Columns of a sample: the first four are increments since the sample before, the rest are
levels.
"""
N_DIFFERENCES = 4
NO_INCREMENTS = np.zeros(N_DIFFERENCES, np.int64)
HISTORY_BYTES_MAX = (PARTITIONS_MAX + 1) * SAMPLES_MAX * len(HISTORY_COLUMNS) * 8

Counts64 = npt.NDArray[np.int64]


class LiveHistory:
    """Ring of samples; used on the event loop only, as a periodic task every SAMPLE_S."""

    def __init__(
        self,
        partitions: Mapping[PartitionKey, Partition],
        backlog_of: Callable[[PartitionKey], Backlog],
    ) -> None:
        self._partitions = partitions
        self._backlog_of = backlog_of
        self._times: npt.NDArray[np.float64] = np.zeros(SAMPLES_MAX)
        self._n_samples = 0
        """Samples since the start; the newest has the index `_n_samples - 1`, modulo SAMPLES_MAX.
        """
        self._rows: dict[PartitionKey, Counts64] = {}
        self._others = _no_samples()
        self._before: dict[PartitionKey, Counts64] = {}
        """Decision totals of the partitions at their last sample."""
        self._seen_at: dict[PartitionKey, int] = {}
        """Number of the last sample of each partition that has a row."""
        self._sampling: Iterator[None] | None = None

    def step(self, now: float) -> bool:
        """Sample some partitions.  Returns True while partitions of this sample remain."""
        if self._sampling is None:
            self._sampling = self._take_sample(now)
        if next(self._sampling, self) is self:
            self._sampling = None
        return self._sampling is not None

    def visible_columns(self, grant: Grant, now: float) -> dict[str, list[float]]:
        """Return the sums over the tenants visible to the caller, oldest first, with ages in
        seconds.
        """
        n = min(self._n_samples, SAMPLES_MAX - 1)  # the oldest sample may be half overwritten
        order = np.arange(self._n_samples - n, self._n_samples) % SAMPLES_MAX
        total = np.zeros((n, len(HISTORY_COLUMNS)), np.int64)
        for key, row in self._rows.items():
            if grant.can_see_tenant(key.tenant_id):
                total += row[order]
        if grant.tenants is None:
            total += self._others[order]
        found: dict[str, list[float]] = {"ages_s": (now - self._times[order]).round(1).tolist()}
        return found | {name: total[:, i].tolist() for i, name in enumerate(HISTORY_COLUMNS)}

    def _take_sample(self, now: float) -> Iterator[None]:
        """Take a sample, yielding after every PARTITIONS_PER_STEP; visible only once complete."""
        number, partitions = self._n_samples, self._partitions
        at = number % SAMPLES_MAX
        # The ring reuses the entries of the oldest sample: clear them, since rows are summed up
        # below.
        self._others[at] = 0
        for row in self._rows.values():
            row[at] = 0
        for count, key in enumerate(list(partitions), 1):
            if key in partitions:
                self._note_partition(key, partitions[key], number)
            if count % PARTITIONS_PER_STEP == 0:
                yield
        self._times[at] = now
        self._n_samples = number + 1
        for key in [key for key in self._before if key not in partitions]:
            del self._before[key]
        # Keep the row of a removed partition until its last sample has left the window.
        for key in [key for key, seen in self._seen_at.items() if number - seen >= SAMPLES_MAX]:
            del self._rows[key], self._seen_at[key]

    def _note_partition(self, key: PartitionKey, partition: Partition, number: int) -> None:
        """Write the numbers of a partition into the sample."""
        row = self._rows.get(key)
        if row is None and len(self._rows) < PARTITIONS_MAX:
            row = self._rows[key] = _no_samples()
        if row is None:
            row = self._others
        else:
            self._seen_at[key] = number
        tally = partition.placer.total_tally
        come_to = np.array(
            [
                tally.selected + tally.reserved,
                tally.prompt_blocks,
                tally.chosen_overlap,
                tally.best_overlap,
            ]
        )
        # At the first sample of the process the totals already include the past: count no
        # increment. A partition that appears later starts from zero, so its totals are the
        # increment.
        before = self._before.get(key, come_to if number == 0 else NO_INCREMENTS)
        if (come_to < before).any():  # the partition was recreated
            before = NO_INCREMENTS
        self._before[key] = come_to
        at = number % SAMPLES_MAX
        row[at, :N_DIFFERENCES] += come_to - before
        row[at, N_DIFFERENCES] += int(partition.load.totals[:, load_layout.REQUESTS].sum())
        row[at, N_DIFFERENCES + 1] += self._backlog_of(key).requests


def _no_samples() -> Counts64:
    return np.zeros((SAMPLES_MAX, len(HISTORY_COLUMNS)), np.int64)
