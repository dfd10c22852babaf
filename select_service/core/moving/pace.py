"""What ranks and requests have shown: how fast prefills are, and what requests are like.

Follows the ledger.  Of a rank that had nothing else to do when a request came, the time until the
end of the prefill says how fast it computes.
"""

from collections.abc import Container

from select_service.core.health.capacity import LoadMeans
from select_service.core.health.learnt import LearntRate, RequestMeans
from select_service.core.health.move_cost import PREFILL_TOKENS_PER_S
from select_service.core.identity import Rank
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

    def means(self, model_name: str, now: float) -> LoadMeans:
        """Of the requests of the last ten minutes."""
        means = self._means.get(model_name)
        return LoadMeans() if means is None else means.means(now)

    def forget(self, rank: Rank) -> None:
        """It is another process now."""
        self._rates.pop(rank, None)

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
        known = self._means.setdefault(booking.key.model_name, RequestMeans())
        known.booked(booking.isl_tokens, cached if booking.tracks_prefill else 0, now)
        is_alone = booking.account.load.totals[booking.slot, layout.REQUESTS] == 1
        if is_alone and booking.prefill_tokens and len(self._timed) < TIMED_MAX:
            begun = booking.rank, booking.booked_at, booking.prefill_tokens
            self._timed[booking.reservation_id] = begun

    def prefill_completed(self, booking: Booking, cause: Cause, now: float) -> None:
        timed = self._timed.pop(booking.reservation_id, None) if self._timed else None
        if timed is not None and cause == "client" and timed[0] == booking.rank:
            rank, begin, tokens = timed
            self._rates.setdefault(rank, LearntRate()).learn(tokens, now - begin)
            if len(self._rates) > RATES_MAX:
                del self._rates[next(iter(self._rates))]

    def released(self, booking: Booking, cause: Cause, now: float) -> None:
        if self._timed:
            self._timed.pop(booking.reservation_id, None)
        if cause != "client":
            return
        known = self._means.get(booking.key.model_name)
        if booking.origin is None and known is not None:
            known.ended(booking.output_blocks * booking.account.block_size, now)

    def check_invariants(self) -> None:
        """For tests."""
        assert len(self._timed) <= TIMED_MAX
        assert len(self._rates) <= RATES_MAX
