"""Schedule of checks.

Every rank has one regular check per interval, at its own phase, so that the checks of a fleet are
spread evenly. Regular checks are not queued: a missed check is skipped until the next interval.

When many ranks hang, check slots are scarce. Regular checks then go first, so that every rank is
checked before any rank is ejected. A share is reserved for confirmations and probes, which wait.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, TypeAlias

from select_service.core.health.checks.hash_mixing import phase_of
from select_service.core.health.health_rules import HealthRules
from select_service.core.identity import Rank

IN_FLIGHT_MAX = 32
"""Maximum number of checks with a request in progress."""
CHECKS_MAX = 128
"""Maximum number of checks in progress, including those that pause between two requests."""
LATE_S = 1.0
"""Delay after which a regular check is skipped, s."""
EXTRA_SLOTS_MIN = 8
"""Check slots reserved for extra checks (confirmations, probes) while any wait."""
SCARCE_FROM = IN_FLIGHT_MAX // 2
"""Number of checks in progress from which slots are scarce."""
ENTRIES_EXAMINED_MAX = 256
"""Maximum number of skipped or outdated entries examined per call, about 5 us each."""
REPEAT_AFTER_S = 5.0
"""Minimum time between two checks of a rank on request of clients or peers, s."""


_Heap: TypeAlias = list[tuple[float, int, Rank]]
"""Heap of (time, sequence number, rank)."""


@dataclass(slots=True)
class _NextCheck:
    """Next check of a rank.

    offset_s: phase of its regular checks within the interval
    at: time of the next check; None means that no check is planned
    prompt: index of the prompt; None means the prompt of the round
    is_extra: must not be skipped
    """

    offset_s: float
    at: float | None = None
    prompt: int | None = None
    is_extra: bool = False
    asked_at: float | None = None


class DueCheck(NamedTuple):
    """Check that is due.

    prompt: prompt number, to be taken modulo the number of prompts
    """

    rank: Rank
    prompt: int


class CheckSchedule:
    """Schedule with at most one check per rank at a time, and limits for all checks together."""

    def __init__(self, rules: HealthRules) -> None:
        self._rules = rules
        self._turns: dict[Rank, _NextCheck] = {}
        self._rounds: _Heap = []
        self._extras: _Heap = []
        """Extra checks; both heaps may contain outdated entries, and the `_NextCheck` decides."""
        self._pushed = count()
        self.in_flight: set[Rank] = set()
        self._pausing: set[Rank] = set()
        """Ranks in flight that pause between two requests."""
        self._waiting: set[Rank] = set()
        """Pausing ranks with an elapsed pause."""
        self._extra_in_flight: set[Rank] = set()

    def add_rank(self, rank: Rank, now: float) -> None:
        """Add a rank; its first check is due within one interval."""
        self._turns[rank] = _NextCheck(phase_of(rank) * self._rules.interval_s)
        self.plan_regular_check(rank, now)

    def remove_rank(self, rank: Rank) -> None:
        """Remove a rank; a check in flight ends by itself."""
        self._turns.pop(rank, None)

    def __contains__(self, rank: object) -> bool:
        return rank in self._turns

    def next_at(self, rank: Rank) -> float | None:
        """Return the time of the next check; None while a breaker is open."""
        turn = self._turns.get(rank)
        return None if turn is None else turn.at

    def plan_regular_check(self, rank: Rank, now: float) -> None:
        """Plan the regular check."""
        turn = self._turns.get(rank)
        if turn is not None:
            interval, offset = self._rules.interval_s, turn.offset_s
            # Aligned to the phase instead of now + interval, so that checks never drift into
            # bursts.
            at = offset + ((now - offset) // interval + 1.0) * interval
            self._plan_check(rank, at, None, False)

    def plan_extra_check(self, rank: Rank, at: float, prompt: int | None = None) -> None:
        """Plan an extra check: a confirmation or a probe."""
        self._plan_check(rank, at, prompt, True)

    def plan_confirmation(self, rank: Rank, at: float) -> None:
        """Plan an extra check, unless the rank is being checked or is due earlier."""
        turn = self._turns.get(rank)
        if turn is not None and turn.at is not None and turn.at > at:
            self._plan_check(rank, at, None, True)

    def request_check(
        self,
        rank: Rank,
        now: float,
        prompt: int | None = None,
        repeat_after_s: float = REPEAT_AFTER_S,
        at: float | None = None,
    ) -> bool:
        """Plan a requested check; return whether the check is planned, which is rate limited."""
        turn = self._turns.get(rank)
        if turn is None or turn.at is None or rank in self.in_flight:
            return False
        if turn.asked_at is not None and now - turn.asked_at < repeat_after_s:
            return False
        # Set for accepted requests only: a rejected one must not postpone the next.
        turn.asked_at = now
        self._plan_check(rank, now if at is None else at, prompt, True)
        return True

    def cancel_next_check(self, rank: Rank) -> None:
        """Cancel the next check until another is planned."""
        turn = self._turns.get(rank)
        if turn is not None:
            turn.at = None

    def _plan_check(self, rank: Rank, at: float, prompt: int | None, is_extra: bool) -> None:
        turn = self._turns.get(rank)
        if turn is not None:
            turn.at, turn.prompt, turn.is_extra = at, prompt, is_extra
            heap = self._extras if is_extra else self._rounds
            # The counter breaks ties in order of planning.
            heappush(heap, (at, next(self._pushed), rank))

    @property
    def is_scarce(self) -> bool:
        """Whether so many checks are in flight that none should take longer than necessary."""
        return len(self.in_flight) - len(self._pausing) > SCARCE_FROM

    @property
    def _is_full(self) -> bool:
        """Whether new checks have to wait; checks in progress go first."""
        taken = len(self.in_flight) - len(self._pausing) + len(self._waiting)
        # Waiting checks count as taken: finishing started checks has priority over new checks.
        return taken >= IN_FLIGHT_MAX or len(self.in_flight) >= CHECKS_MAX

    def take_due(self, now: float) -> DueCheck | None:
        """Return a due check, which is in flight from now on.

        None means that no check is due, that too many are in flight, or that ENTRIES_EXAMINED_MAX
        entries were skipped and another call is necessary. O(ENTRIES_EXAMINED_MAX * log ranks),
        O(log ranks) amortised
        """
        for _ in range(ENTRIES_EXAMINED_MAX):
            heap = self._next_heap(now)
            if heap is None or self._is_full:
                return None
            at, _, rank = heappop(heap)
            turn = self._turns.get(rank)
            # Replanning pushes a new entry and leaves the old entry in the heap.
            if turn is None or turn.at != at:
                continue
            # A late regular check is dropped, as a backlog would only postpone all others.
            if rank in self.in_flight or (now - at > LATE_S and not turn.is_extra):
                self.plan_regular_check(rank, now)
                continue
            turn.at = None
            self.in_flight.add(rank)
            if turn.is_extra:
                self._extra_in_flight.add(rank)
            return DueCheck(rank, self._prompt_number(turn, now))
        return None

    def _next_heap(self, now: float) -> _Heap | None:
        """Return the heap to take the next check from; None if no check is due."""
        rounds, extras = self._rounds, self._extras
        is_round = bool(rounds) and rounds[0][0] <= now
        is_extra = bool(extras) and extras[0][0] <= now
        # Regular checks go first beyond the reserved slots: during a mass outage the confirmations
        # of the first failures must not starve the first checks of all other ranks.
        if is_extra and (not is_round or len(self._extra_in_flight) < EXTRA_SLOTS_MIN):
            return extras
        return rounds if is_round else None

    def release_slot(self, rank: Rank) -> None:
        """Release the slot of a check in flight until `take_slot_again`."""
        # The rank stays in flight, so it cannot become due a second time during the pause.
        self._pausing.add(rank)
        self._extra_in_flight.discard(rank)

    def take_slot_again(self, rank: Rank) -> bool:
        """Return whether the check may continue after its pause.

        If not, the caller repeats the call, and the check goes before new checks.
        """
        if rank not in self._pausing:
            return True
        if len(self.in_flight) - len(self._pausing) >= IN_FLIGHT_MAX:
            self._waiting.add(rank)
            return False
        self._pausing.discard(rank)
        self._waiting.discard(rank)
        return True

    def end_check(self, rank: Rank) -> None:
        """Remove a check that is over."""
        for checks in (self.in_flight, self._pausing, self._waiting, self._extra_in_flight):
            checks.discard(rank)

    def _prompt_number(self, turn: _NextCheck, now: float) -> int:
        """Return the prompt of the check; all ranks use the same prompt in a round, to be
        comparable.
        """
        return int(now // self._rules.interval_s) if turn.prompt is None else turn.prompt

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        assert len(self.in_flight) <= CHECKS_MAX
        assert len(self.in_flight - self._pausing) <= IN_FLIGHT_MAX
        assert self._waiting <= self._pausing <= self.in_flight
        assert self._extra_in_flight <= self.in_flight - self._pausing
        planned = {(rank, at) for heap in (self._rounds, self._extras) for at, _, rank in heap}
        for rank, turn in self._turns.items():
            assert turn.at is None or (rank, turn.at) in planned
