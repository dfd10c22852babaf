"""Learnt prefill speeds of ranks, and mean properties of requests.

Listener of the ledger. If a rank was idle when a request came, the time until the end of the
prefill gives its speed.
"""

from collections.abc import Container
from math import inf

from select_service.core.health.capacity_estimate import RequestMeanValues
from select_service.core.health.migration.learnt_rates import LearntRate, RequestMeans
from select_service.core.health.migration.move_cost import PREFILL_TOKENS_PER_S
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.compiled import load_layout as layout
from select_service.core.load.ledger import Cause
from select_service.core.load.new_reservation import NewReservation
from select_service.core.load.reservation_view import ReservationView

TIMED_MAX = 4096
"""Maximum number of prefills timed at once."""
RATES_MAX = 65_536
"""Maximum number of ranks with a known speed; the oldest entries are dropped."""


class SpeedEstimates:
    """Speeds and request properties of all ranks and partitions."""

    def __init__(self) -> None:
        self._rates: dict[Rank, LearntRate] = {}
        self._key_of: dict[Rank, PartitionKey] = {}
        self._ranks: dict[PartitionKey, dict[Rank, LearntRate]] = {}
        """The same rates, by partition."""
        self._means: dict[str, RequestMeans] = {}
        """Request properties by model."""
        self._timed: dict[str, tuple[Rank, float, int]] = {}
        """(rank, start time, tokens) by reservation id."""

    def rate_of(self, rank: Rank) -> float:
        """Return the prefill rate in tokens/s, or the default."""
        learnt = self.learnt_rate(rank)
        return PREFILL_TOKENS_PER_S if learnt is None else learnt

    def learnt_rate(self, rank: Rank) -> float | None:
        """Return the prefill rate in tokens/s; None before the first sample."""
        rate = self._rates.get(rank)
        return None if rate is None else rate.value

    def ranks_with_samples(self, key: PartitionKey) -> list[Rank]:
        """Return a copy of the ranks of a partition with samples."""
        return list(self._ranks.get(key, ()))

    def mean_request(self, model_name: str, now: float) -> RequestMeanValues:
        """Return mean request properties of the last ten minutes, or the latest earlier means."""
        means = self._means.get(model_name)
        return RequestMeanValues() if means is None else means.compute_means(now)

    def last_request_times(self, model_name: str) -> tuple[float, float]:
        """Return the times of the latest booking and the latest end, in s; -inf means none yet."""
        means = self._means.get(model_name)
        return (-inf, -inf) if means is None else (means.booked_at, means.ended_at)

    def forget_rank(self, rank: Rank) -> None:
        """Forget the speed of a rank that left or restarted."""
        if self._rates.pop(rank, None) is not None:
            key = self._key_of.pop(rank)
            del self._ranks[key][rank]
            if not self._ranks[key]:
                del self._ranks[key]

    def _ensure_rate(self, rank: Rank, key: PartitionKey) -> LearntRate:
        if self._key_of.get(rank) != key:
            self.forget_rank(rank)
            if len(self._rates) >= RATES_MAX:
                self.forget_rank(next(iter(self._rates)))
            rate = self._rates[rank] = LearntRate()
            self._key_of[rank] = key
            self._ranks.setdefault(key, {})[rank] = rate
        return self._rates[rank]

    def keep_only(self, models: Container[str]) -> None:
        """Forget all other models."""
        for gone in [name for name in self._means if name not in models]:
            del self._means[gone]

    def on_booked(self, booking: NewReservation, cause: Cause, now: float) -> None:
        """Start timing a request of an own client."""
        if cause != "client":
            return
        cached = max(0, booking.isl_tokens - booking.prefill_tokens)
        model_name = booking.account.key.model_name
        means = self._means.get(model_name)
        if means is None:
            means = self._means[model_name] = RequestMeans()
        means.add_request(booking.isl_tokens, cached if booking.tracks_prefill else 0, now)
        # With other requests on the rank the duration would measure queueing, not speed.
        is_alone = booking.account.load.totals[booking.slot, layout.REQUESTS] == 1
        if is_alone and booking.prefill_tokens and len(self._timed) < TIMED_MAX:
            begun = booking.rank, booking.booked_at, booking.prefill_tokens
            self._timed[booking.reservation_id] = begun

    def on_prefill_completed(self, booking: ReservationView, cause: Cause, now: float) -> None:
        timed = self._timed.pop(booking.reservation_id, None) if self._timed else None
        # A moved reservation finished its prefill on another rank.
        if timed is not None and cause == "client" and timed[0] == booking.rank:
            rank, begin, tokens = timed
            self._ensure_rate(rank, booking.key).add_sample(tokens, now - begin)

    def on_released(self, booking: ReservationView, cause: Cause, now: float) -> None:
        if self._timed:
            self._timed.pop(booking.reservation_id, None)
        if cause != "client":
            return
        account = booking.account
        means = self._means.get(account.key.model_name)
        if means is not None and booking.origin is None:
            means.add_ended_request(booking.output_blocks * account.block_size, now)

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        assert len(self._timed) <= TIMED_MAX
        assert self._rates.keys() == self._key_of.keys()
        assert len(self._rates) <= RATES_MAX
        by_key = {rank: rate for rates in self._ranks.values() for rank, rate in rates.items()}
        assert by_key == self._rates
