"""What ranks and requests have shown: how fast prefills are, and what requests are like.

Follows the ledger.  Of a rank that had nothing else to do when a request came, the time until the
end of the prefill says how fast it computes.
"""

from collections.abc import Container
from math import inf

from select_service.core.health.capacity import LoadMeans
from select_service.core.health.learnt import LearntRate, RequestMeans
from select_service.core.health.move_cost import PREFILL_TOKENS_PER_S
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load import load_layout as layout
from select_service.core.load.booking import NewBooking
from select_service.core.load.held_booking import Booking
from select_service.core.load.ledger import Cause

TIMED_MAX = 4096
"""Prefills that are timed at once."""
RATES_MAX = 65_536
"""Ranks whose speed is known; of more, those that showed it first are forgotten."""


class Pace:
    """Of all ranks and partitions."""

    def __init__(self) -> None:
        self._rates: dict[Rank, LearntRate] = {}
        self._key_of: dict[Rank, PartitionKey] = {}
        self._ranks: dict[PartitionKey, dict[Rank, LearntRate]] = {}
        """The same rates, by partition."""
        self._means: dict[str, RequestMeans] = {}
        """By model."""
        self._timed: dict[str, tuple[Rank, float, int]] = {}
        """(rank, begin, tokens) by reservation."""

    def rate_of(self, rank: Rank) -> float:
        """Prefill tokens/s, or what is usual."""
        learnt = self.learnt(rank)
        return PREFILL_TOKENS_PER_S if learnt is None else learnt

    def learnt(self, rank: Rank) -> float | None:
        """Prefill tokens/s; None before the first sample."""
        rate = self._rates.get(rank)
        return None if rate is None else rate.value

    def ranks(self, key: PartitionKey) -> list[Rank]:
        """Those of a partition of which something may have been learnt.  A copy."""
        return list(self._ranks.get(key, ()))

    def means(self, model_name: str, now: float) -> LoadMeans:
        """Of the requests of the last ten minutes, or of the last before."""
        means = self._means.get(model_name)
        return LoadMeans() if means is None else means.means(now)

    def last_seen(self, model_name: str) -> tuple[float, float]:
        """When a request was booked, and when one ended, in s; -inf: none yet."""
        means = self._means.get(model_name)
        return (-inf, -inf) if means is None else (means.booked_at, means.ended_at)

    def forget(self, rank: Rank) -> None:
        """It has gone, or is another process now."""
        if self._rates.pop(rank, None) is not None:
            key = self._key_of.pop(rank)
            del self._ranks[key][rank]
            if not self._ranks[key]:
                del self._ranks[key]

    def _rate(self, rank: Rank, key: PartitionKey) -> LearntRate:
        if self._key_of.get(rank) != key:
            self.forget(rank)
            if len(self._rates) >= RATES_MAX:
                self.forget(next(iter(self._rates)))
            rate = self._rates[rank] = LearntRate()
            self._key_of[rank] = key
            self._ranks.setdefault(key, {})[rank] = rate
        return self._rates[rank]

    def keep_only(self, models: Container[str]) -> None:
        """The others have gone."""
        for gone in [name for name in self._means if name not in models]:
            del self._means[gone]

    # --- what is told by the ledger

    def booked(self, booking: NewBooking, cause: Cause, now: float) -> None:
        """A request of ours begins."""
        if cause != "client":
            return
        cached = max(0, booking.isl_tokens - booking.prefill_tokens)
        model_name = booking.account.key.model_name
        known = self._means.get(model_name)
        if known is None:
            known = self._means[model_name] = RequestMeans()
        known.booked(booking.isl_tokens, cached if booking.tracks_prefill else 0, now)
        is_alone = booking.account.load.totals[booking.slot, layout.REQUESTS] == 1
        if is_alone and booking.prefill_tokens and len(self._timed) < TIMED_MAX:
            begun = booking.rank, booking.booked_at, booking.prefill_tokens
            self._timed[booking.reservation_id] = begun

    def prefill_completed(self, booking: Booking, cause: Cause, now: float) -> None:
        timed = self._timed.pop(booking.reservation_id, None) if self._timed else None
        if timed is not None and cause == "client" and timed[0] == booking.rank:
            rank, begin, tokens = timed
            self._rate(rank, booking.key).learn(tokens, now - begin)

    def released(self, booking: Booking, cause: Cause, now: float) -> None:
        if self._timed:
            self._timed.pop(booking.reservation_id, None)
        if cause != "client":
            return
        account = booking.account
        known = self._means.get(account.key.model_name)
        if known is not None and booking.origin is None:
            known.ended(booking.output_blocks * account.block_size, now)

    def check_invariants(self) -> None:
        """For tests."""
        assert len(self._timed) <= TIMED_MAX
        assert self._rates.keys() == self._key_of.keys()
        assert len(self._rates) <= RATES_MAX
        by_key = {rank: rate for known in self._ranks.values() for rank, rate in known.items()}
        assert by_key == self._rates
