"""What engines say about their own load, and for how long it is believed.

Each signal has one owner.  How full the KV cache of a rank is: its engine, while its last reading
is fresh, else our own accounting of blocks.  How many prompt tokens are being prefilled: always our
own accounting, as no engine tells.  Requests waiting and running in the engine are shown, never
judged.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from select_service.core.identity import Rank

ERROR_CHARS_MAX = 300


class EngineTarget(NamedTuple):
    """One engine to ask: a schedulable worker, where it serves its metrics, and its ranks."""

    worker_id: int
    url: str
    dp_ranks: tuple[int, ...]


class EngineReading(NamedTuple):
    """One rank in the words of its engine.  kv_usage: used part of the KV cache, 0 to 1."""

    kv_usage: float | None
    requests_waiting: int | None
    requests_running: int | None


class Heard(NamedTuple):
    """A reading and when it was taken, in seconds of the monotonic clock."""

    reading: EngineReading
    at: float


class Failure(NamedTuple):
    """Why an engine was not heard, and when."""

    error: str
    at: float


class EngineLoads:
    """The last reading of every rank, and the last failure of every worker."""

    def __init__(self, stale_s: float) -> None:
        """stale_s: age in seconds from which on a reading is not believed."""
        self.stale_s = stale_s
        self._heard: dict[int, dict[int, Heard]] = {}  # worker id -> dp_rank -> reading
        self._failures: dict[int, Failure] = {}
        self._believed: OrderedDict[Rank, float] = OrderedDict()
        """When each rank was last heard that is not known to be stale, the oldest first."""

    def put(self, worker_id: int, readings: Mapping[int, EngineReading], now: float) -> None:
        """Take the readings of one scrape; the failure before it is over.

        A rank that the engine no longer speaks of is believed until its last reading is stale.
        """
        self._failures.pop(worker_id, None)
        ranks = self._heard.setdefault(worker_id, {})
        for dp_rank, reading in readings.items():
            ranks[dp_rank] = Heard(reading, now)
            rank = Rank(worker_id, dp_rank)
            self._believed[rank] = now
            self._believed.move_to_end(rank)
        for dp_rank, heard in ranks.items():
            if not self.is_fresh(heard, now):
                self._believed.pop(Rank(worker_id, dp_rank), None)

    def failed(self, worker_id: int, error: str, now: float) -> None:
        self._failures[worker_id] = Failure(error[:ERROR_CHARS_MAX], now)

    def forget(self, worker_id: int) -> None:
        """The worker left, or its metrics moved."""
        self._failures.pop(worker_id, None)
        for dp_rank in self._heard.pop(worker_id, ()):
            self._believed.pop(Rank(worker_id, dp_rank), None)

    def take_stale(self, now: float, ranks_max: int) -> list[Rank]:
        """Ranks that are believed no more from now on, as their engine was silent for too long."""
        found: list[Rank] = []
        while self._believed and len(found) < ranks_max:
            rank, at = next(iter(self._believed.items()))
            if now - at < self.stale_s:
                break
            del self._believed[rank]
            found.append(rank)
        return found

    def __bool__(self) -> bool:
        """Has any engine ever been heard?"""
        return bool(self._heard)

    def last(self, rank: Rank) -> Heard | None:
        ranks = self._heard.get(rank.worker_id)
        return None if ranks is None else ranks.get(rank.dp_rank)

    def failure(self, worker_id: int) -> Failure | None:
        """None when the last scrape succeeded, or none was made."""
        return self._failures.get(worker_id)

    def is_fresh(self, heard: Heard, now: float) -> bool:
        return now - heard.at < self.stale_s

    def kv_usage(self, rank: Rank) -> float | None:
        """The engine's own number while it is believed: until `take_stale` has named the rank."""
        heard = self.last(rank) if rank in self._believed else None
        return None if heard is None else heard.reading.kv_usage

    def check_invariants(self) -> None:
        """For tests."""
        assert list(self._believed.values()) == sorted(self._believed.values())
        for rank, at in self._believed.items():
            assert self._heard[rank.worker_id][rank.dp_rank].at == at
        for worker_id, ranks in self._heard.items():
            for heard in ranks.values():
                usage = heard.reading.kv_usage
                assert usage is None or 0.0 <= usage <= 1.0, worker_id
