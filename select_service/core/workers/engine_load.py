"""Latest reported load of engines, and its validity.

Each signal has one owner. KV cache usage of a rank: its engine while the latest reading is fresh,
else our own accounting of blocks. Prompt tokens in prefill: always our own accounting, since no
engine reports them. Waiting and running requests of the engine are displayed, never used in
decisions.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from select_service.core.identity import Rank

ERROR_CHARS_MAX = 300


class EngineTarget(NamedTuple):
    """Engine to scrape: a schedulable worker, its metrics URL and ranks."""

    worker_id: int
    url: str
    dp_ranks: tuple[int, ...]


class EngineReading(NamedTuple):
    """Reported load of a rank.

    kv_usage: used share of the KV cache, 0 to 1
    """

    kv_usage: float | None
    requests_waiting: int | None
    requests_running: int | None


class TimedReading(NamedTuple):
    """Reading and its time, monotonic s."""

    reading: EngineReading
    at: float


class ScrapeFailure(NamedTuple):
    """Reason and time of a failed scrape."""

    error: str
    at: float


class EngineLoads:
    """Latest reading of every rank, and latest failure of every worker."""

    def __init__(self, stale_s: float) -> None:
        """Create the table; readings older than stale_s seconds are invalid."""
        self.stale_s = stale_s
        self._readings: dict[int, dict[int, TimedReading]] = {}  # worker id -> dp_rank -> reading
        self._failures: dict[int, ScrapeFailure] = {}
        self._valid_since: OrderedDict[Rank, float] = OrderedDict()
        """Time of the latest reading of each rank that is not known to be stale, oldest first."""

    def store_readings(
        self, worker_id: int, readings: Mapping[int, EngineReading], now: float
    ) -> None:
        """Store the readings of a scrape and clear the worker's failure.

        A rank missing in the scrape keeps its latest reading until stale.
        """
        self._failures.pop(worker_id, None)
        ranks = self._readings.setdefault(worker_id, {})
        for dp_rank, reading in readings.items():
            ranks[dp_rank] = TimedReading(reading, now)
            rank = Rank(worker_id, dp_rank)
            self._valid_since[rank] = now
            # Oldest first, so that `take_stale` stops at the first fresh rank.
            self._valid_since.move_to_end(rank)
        for dp_rank, heard in ranks.items():
            if not self.is_fresh(heard, now):
                self._valid_since.pop(Rank(worker_id, dp_rank), None)

    def record_failure(self, worker_id: int, error: str, now: float) -> None:
        # The text may quote the engine's answer, so its length is limited.
        self._failures[worker_id] = ScrapeFailure(error[:ERROR_CHARS_MAX], now)

    def remove_worker(self, worker_id: int) -> None:
        """Remove a worker that left, or changed its metrics endpoint."""
        self._failures.pop(worker_id, None)
        for dp_rank in self._readings.pop(worker_id, ()):
            self._valid_since.pop(Rank(worker_id, dp_rank), None)

    def take_stale(self, now: float, ranks_max: int) -> list[Rank]:
        """Return and invalidate ranks with a stale latest reading."""
        found: list[Rank] = []
        while self._valid_since and len(found) < ranks_max:
            rank, at = next(iter(self._valid_since.items()))
            if now - at < self.stale_s:
                break
            del self._valid_since[rank]
            found.append(rank)
        return found

    def __bool__(self) -> bool:
        """Return whether any reading exists."""
        return bool(self._readings)

    def last_reading(self, rank: Rank) -> TimedReading | None:
        ranks = self._readings.get(rank.worker_id)
        return None if ranks is None else ranks.get(rank.dp_rank)

    def last_failure(self, worker_id: int) -> ScrapeFailure | None:
        """Return the failure of the latest scrape; None after a success or before the first."""
        return self._failures.get(worker_id)

    def is_fresh(self, timed_reading: TimedReading, now: float) -> bool:
        return now - timed_reading.at < self.stale_s

    def kv_usage(self, rank: Rank) -> float | None:
        """Return the reported cache usage while valid, that is until `take_stale` returns the
        rank.
        """
        heard = self.last_reading(rank) if rank in self._valid_since else None
        return None if heard is None else heard.reading.kv_usage

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        assert list(self._valid_since.values()) == sorted(self._valid_since.values())
        for rank, at in self._valid_since.items():
            assert self._readings[rank.worker_id][rank.dp_rank].at == at
        for worker_id, ranks in self._readings.items():
            for heard in ranks.values():
                usage = heard.reading.kv_usage
                assert usage is None or 0.0 <= usage <= 1.0, worker_id
