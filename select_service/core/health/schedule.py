"""When is whom due for a check?

Every rank has its turn once in an interval, at a phase of its own, so that a fleet is spread
evenly.  Nothing is queued: who cannot be asked in its turn has the next one.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from select_service.core.health.rules import HealthRules
from select_service.core.health.spread import phase
from select_service.core.identity import Rank

IN_FLIGHT_MAX = 32
LATE_S = 1.0
"""A turn that begins later is skipped."""
ASKED_AGAIN_S = 5.0
"""Between two checks of a rank that callers or peers ask for."""


@dataclass(slots=True)
class _Turn:
    """at: None: none;  prompt: None: the one of the round;  is_extra: must not be skipped"""

    at: float | None = None
    prompt: int | None = None
    is_extra: bool = False
    asked_at: float | None = None


class Due(NamedTuple):
    """prompt: number of it, modulo how many the model has"""

    rank: Rank
    prompt: int


class Schedule:
    """One check of a rank at a time, and so many of all."""

    def __init__(self, rules: HealthRules) -> None:
        self._rules = rules
        self._turns: dict[Rank, _Turn] = {}
        self._heap: list[tuple[float, int, Rank]] = []
        """Those that are outdated among them; what counts is the turn."""
        self._pushed = count()
        self.in_flight: set[Rank] = set()

    def join(self, rank: Rank, now: float) -> None:
        """A rank that is to be checked; its first turn is within an interval."""
        self._turns[rank] = _Turn()
        self.next_round(rank, now)

    def leave(self, rank: Rank) -> None:
        """It is not checked any more; a check in flight ends by itself."""
        self._turns.pop(rank, None)

    def __contains__(self, rank: object) -> bool:
        return rank in self._turns

    def next_at(self, rank: Rank) -> float | None:
        """When its turn is; None: it has none, as long as a breaker is open."""
        turn = self._turns.get(rank)
        return None if turn is None else turn.at

    # --- planning

    def next_round(self, rank: Rank, now: float) -> None:
        """Its ordinary turn."""
        interval = self._rules.interval_s
        offset = phase(rank) * interval
        at = offset + ((now - offset) // interval + 1.0) * interval
        self._plan(rank, at, None, False)

    def at(self, rank: Rank, at: float, prompt: int | None = None) -> None:
        """A turn of its own: a confirmation, a probe."""
        self._plan(rank, at, prompt, True)

    def confirm(self, rank: Rank, at: float) -> None:
        """As `at`, unless it is being checked or would be before."""
        turn = self._turns.get(rank)
        if turn is not None and turn.at is not None and turn.at > at:
            self._plan(rank, at, None, True)

    def ask(
        self,
        rank: Rank,
        now: float,
        prompt: int | None = None,
        again_s: float = ASKED_AGAIN_S,
    ) -> bool:
        """Now, because somebody doubts it; whether that is done, not too often."""
        turn = self._turns.get(rank)
        if turn is None or turn.at is None or rank in self.in_flight:
            return False
        if turn.asked_at is not None and now - turn.asked_at < again_s:
            return False
        turn.asked_at = now
        self._plan(rank, now, prompt, True)
        return True

    def pause(self, rank: Rank) -> None:
        """No turn until one is planned."""
        turn = self._turns.get(rank)
        if turn is not None:
            turn.at = None

    def _plan(self, rank: Rank, at: float, prompt: int | None, is_extra: bool) -> None:
        turn = self._turns.get(rank)
        if turn is not None:
            turn.at, turn.prompt, turn.is_extra = at, prompt, is_extra
            heappush(self._heap, (at, next(self._pushed), rank))

    # --- taking turns

    def due(self, now: float) -> Due | None:
        """Whose turn it is, in flight from now on; None: nobody's, or too many are in flight.

        O(log ranks) amortised
        """
        while self._heap and self._heap[0][0] <= now and len(self.in_flight) < IN_FLIGHT_MAX:
            at, _, rank = heappop(self._heap)
            turn = self._turns.get(rank)
            if turn is None or turn.at != at:
                continue
            if rank in self.in_flight or (now - at > LATE_S and not turn.is_extra):
                self.next_round(rank, now)
                continue
            turn.at = None
            self.in_flight.add(rank)
            return Due(rank, self._prompt(turn, now))
        return None

    def ended(self, rank: Rank) -> None:
        """The check in flight is over."""
        self.in_flight.discard(rank)

    def _prompt(self, turn: _Turn, now: float) -> int:
        """All ranks have the same one in a round, so that answers can be compared."""
        return int(now // self._rules.interval_s) if turn.prompt is None else turn.prompt

    def check_invariants(self) -> None:
        """For tests."""
        assert len(self.in_flight) <= IN_FLIGHT_MAX
        planned = {(rank, at) for at, _, rank in self._heap}
        for rank, turn in self._turns.items():
            assert turn.at is None or (rank, turn.at) in planned
