"""When is whom due for a check?

Every rank has its turn once in an interval, at a phase of its own, so that a fleet is spread
evenly.  Nothing is queued: who cannot be asked in its turn has the next one.

When many hang, checks are scarce.  Then those whose turn it is go first, so that everybody is known
before somebody is condemned, but a share is left for confirmations and probes, which wait.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, TypeAlias

from select_service.core.health.rules import HealthRules
from select_service.core.health.spread import phase
from select_service.core.identity import Rank

IN_FLIGHT_MAX = 32
"""Checks of which a request is under way."""
CHECKS_MAX = 128
"""With those that pause between two requests."""
LATE_S = 1.0
"""A turn that begins later is skipped."""
EXTRAS_AT_LEAST = 8
"""Of those in flight, extra turns, as long as any wait."""
SCARCE = IN_FLIGHT_MAX // 2
"""So many in flight, others may soon have to wait."""
LOOKED_AT_MAX = 256
"""Turns that are skipped or outdated, in one look, some 5 us each."""
ASKED_AGAIN_S = 5.0
"""Between two checks of a rank that callers or peers ask for."""


_Heap: TypeAlias = list[tuple[float, int, Rank]]
"""When, in which order, who."""


@dataclass(slots=True)
class _Turn:
    """offset_s: where in an interval its ordinary turns are;  at: None: there is none

    prompt: None: the one of the round;  is_extra: must not be skipped
    """

    offset_s: float
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
        self._rounds: _Heap = []
        self._extras: _Heap = []
        """Those that are outdated among them; what counts is the turn."""
        self._pushed = count()
        self.in_flight: set[Rank] = set()
        self._pausing: set[Rank] = set()
        """Of those in flight, who is not asked anything for a while."""
        self._waiting: set[Rank] = set()
        """Of those, whose pause is over."""
        self._extra_in_flight: set[Rank] = set()

    def join(self, rank: Rank, now: float) -> None:
        """A rank that is to be checked; its first turn is within an interval."""
        self._turns[rank] = _Turn(phase(rank) * self._rules.interval_s)
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
        turn = self._turns.get(rank)
        if turn is not None:
            interval, offset = self._rules.interval_s, turn.offset_s
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
        at: float | None = None,
    ) -> bool:
        """Because somebody doubts it, now or then; whether that is done, not too often."""
        turn = self._turns.get(rank)
        if turn is None or turn.at is None or rank in self.in_flight:
            return False
        if turn.asked_at is not None and now - turn.asked_at < again_s:
            return False
        turn.asked_at = now
        self._plan(rank, now if at is None else at, prompt, True)
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
            heap = self._extras if is_extra else self._rounds
            heappush(heap, (at, next(self._pushed), rank))

    # --- taking turns

    @property
    def is_scarce(self) -> bool:
        """Are so many in flight that nobody should take longer than he must?"""
        return len(self.in_flight) - len(self._pausing) > SCARCE

    @property
    def _is_full(self) -> bool:
        """Is there no place for a new one?  Those that are under way go first."""
        taken = len(self.in_flight) - len(self._pausing) + len(self._waiting)
        return taken >= IN_FLIGHT_MAX or len(self.in_flight) >= CHECKS_MAX

    def due(self, now: float) -> Due | None:
        """Whose turn it is, in flight from now on; None: nobody's, or too many are in flight, or
        so many turns had to be skipped that there has to be another look.

        O(LOOKED_AT_MAX * log ranks), O(log ranks) amortised
        """
        for _ in range(LOOKED_AT_MAX):
            heap = self._next_heap(now)
            if heap is None or self._is_full:
                return None
            at, _, rank = heappop(heap)
            turn = self._turns.get(rank)
            if turn is None or turn.at != at:
                continue
            if rank in self.in_flight or (now - at > LATE_S and not turn.is_extra):
                self.next_round(rank, now)
                continue
            turn.at = None
            self.in_flight.add(rank)
            if turn.is_extra:
                self._extra_in_flight.add(rank)
            return Due(rank, self._prompt(turn, now))
        return None

    def _next_heap(self, now: float) -> _Heap | None:
        """Where the next one is taken from; None: nobody waits."""
        rounds, extras = self._rounds, self._extras
        is_round = bool(rounds) and rounds[0][0] <= now
        is_extra = bool(extras) and extras[0][0] <= now
        if is_extra and (not is_round or len(self._extra_in_flight) < EXTRAS_AT_LEAST):
            return extras
        return rounds if is_round else None

    def pauses(self, rank: Rank) -> None:
        """The check in flight leaves its place to others until `resumes`."""
        self._pausing.add(rank)
        self._extra_in_flight.discard(rank)

    def resumes(self, rank: Rank) -> bool:
        """Its pause is over: is there a place?  If not it asks again, and goes before new ones."""
        if rank not in self._pausing:
            return True
        if len(self.in_flight) - len(self._pausing) >= IN_FLIGHT_MAX:
            self._waiting.add(rank)
            return False
        self._pausing.discard(rank)
        self._waiting.discard(rank)
        return True

    def ended(self, rank: Rank) -> None:
        """The check in flight is over."""
        for checks in (self.in_flight, self._pausing, self._waiting, self._extra_in_flight):
            checks.discard(rank)

    def _prompt(self, turn: _Turn, now: float) -> int:
        """All ranks have the same one in a round, so that answers can be compared."""
        return int(now // self._rules.interval_s) if turn.prompt is None else turn.prompt

    def check_invariants(self) -> None:
        """For tests."""
        assert len(self.in_flight) <= CHECKS_MAX
        assert len(self.in_flight - self._pausing) <= IN_FLIGHT_MAX
        assert self._waiting <= self._pausing <= self.in_flight
        assert self._extra_in_flight <= self.in_flight - self._pausing
        planned = {(rank, at) for heap in (self._rounds, self._extras) for at, _, rank in heap}
        for rank, turn in self._turns.items():
            assert turn.at is None or (rank, turn.at) in planned
