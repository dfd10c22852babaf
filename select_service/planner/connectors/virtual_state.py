"""Numbered decisions that somebody else carries out: a state machine; the time is an argument.

A decision is *open* until it is acknowledged.  Meanwhile a wish that differs is kept; when wishes
have differed for two ticks in a row, the newest replaces what is open.  Acknowledgements never go
back.  Transitions give a new state, so that it can be written before anybody sees it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

import msgspec
from msgspec import Struct

from select_service.planner.core.inputs import Role

NEVER = -1
"""Number before the first decision, and count of a role that was never decided."""
TICKS_TO_SUPERSEDE = 2
"""Wishes in a row that must differ from an open decision before one replaces it."""
ADOPT_AFTER_S = 60.0
"""More replicas than were decided, so long after the acknowledgement, are somebody's own wish."""


class Change(StrEnum):
    """What a wish did."""

    DECIDED = "decided"
    SUPERSEDED = "superseded"
    """Decided, in place of one that was still open."""
    UNCHANGED = "unchanged"
    KEPT = "kept"
    """An open decision is in the way; kept, and told."""
    DROPPED = "dropped"
    """Document profile only: an open decision is in the way."""


class Completion(StrEnum):
    """What an acknowledgement did."""

    COMPLETED = "completed"
    SUPERSEDED = "superseded"
    """Of an older decision: nothing changed."""


class UnknownDecision(Exception):
    """No decision has that number."""


class VirtualDecision(Struct, frozen=True, kw_only=True):
    """What the platform is asked for; -1: never decided."""

    num_prefill: int = NEVER
    num_decode: int = NEVER
    decision_id: int = NEVER
    superseded: bool = False
    """Did it replace one that was still open?"""
    decided_at: float = 0.0
    victims: tuple[int, ...] = ()
    """Workers that were drained for it and should be the ones that go."""

    def count(self, role: Role) -> int | None:
        """None: never decided."""
        count = self.num_prefill if role == Role.PREFILL else self.num_decode
        return None if count == NEVER else count

    def followed(
        self, wanted: Mapping[Role, int], now: float, superseded: bool, victims: tuple[int, ...]
    ) -> "VirtualDecision":
        """The next decision; roles that are not named keep their number."""
        return VirtualDecision(
            num_prefill=wanted.get(Role.PREFILL, self.num_prefill),
            num_decode=wanted.get(Role.DECODE, self.num_decode),
            decision_id=self.decision_id + 1,
            superseded=superseded,
            decided_at=now,
            victims=victims,
        )


class VirtualState(Struct, frozen=True, kw_only=True):
    """All that outlives the process."""

    decision: VirtualDecision = VirtualDecision()
    acknowledged: int = NEVER
    acknowledged_at: float = 0.0
    reported: Mapping[Role, int] = {}
    """Replicas that were there, as the last acknowledgement said."""
    adopted: Mapping[Role, int] = {}
    """Replicas that somebody else has added since the decision."""
    kept: Mapping[Role, int] | None = None
    """The newest wish that an open decision is in the way of."""
    kept_ticks: int = 0
    draining: tuple[int, ...] = ()
    """Workers that drain for a wish that is not decided yet."""

    @property
    def is_open(self) -> bool:
        """Is a decision not acknowledged yet?"""
        return self.acknowledged < self.decision.decision_id

    def expected(self, role: Role) -> int | None:
        """Replicas that should be there; None: nobody has decided."""
        return self.adopted.get(role, self.decision.count(role))

    def updated(
        self, wanted: Mapping[Role, int], now: float, victims: tuple[int, ...] = ()
    ) -> tuple[Self, Change]:
        """A wish of one tick."""
        if all(self.expected(role) == count for role, count in wanted.items()):
            return msgspec.structs.replace(self, kept=None, kept_ticks=0), Change.UNCHANGED
        if not self.is_open:
            return self._decided(wanted, now, victims), Change.DECIDED
        ticks = self.kept_ticks + 1
        if ticks < TICKS_TO_SUPERSEDE:
            kept = dict(self.kept or {}) | dict(wanted)
            return msgspec.structs.replace(self, kept=kept, kept_ticks=ticks), Change.KEPT
        return self._decided(wanted, now, victims), Change.SUPERSEDED

    def _decided(self, wanted: Mapping[Role, int], now: float, victims: tuple[int, ...]) -> Self:
        counts = {**self.adopted, **wanted}
        decision = self.decision.followed(counts, now, self.is_open, victims)
        return msgspec.structs.replace(
            self, decision=decision, adopted={}, kept=None, kept_ticks=0, draining=()
        )

    def completed(
        self, decision_id: int, now: float, reported: Mapping[Role, int]
    ) -> tuple[Self, Completion]:
        """An acknowledgement.  Raises UnknownDecision."""
        if not 0 <= decision_id <= self.decision.decision_id:
            raise UnknownDecision(decision_id)
        if decision_id < self.decision.decision_id:
            return self, Completion.SUPERSEDED
        if not self.is_open:
            now = self.acknowledged_at
        counts = dict(self.reported) | dict(reported)
        state = msgspec.structs.replace(
            self, acknowledged=decision_id, acknowledged_at=now, reported=counts
        )
        return state, Completion.COMPLETED

    def observed(self, ready: Mapping[Role, int], now: float) -> Self:
        """What is there.  Takes what others have added as it is, some time after the last word."""
        if self.is_open or now - self.acknowledged_at < ADOPT_AFTER_S:
            return self
        adopted = {
            role: count
            for role, count in ready.items()
            if (decided := self.decision.count(role)) is not None and count > decided
        }
        if adopted == self.adopted:
            return self
        return msgspec.structs.replace(self, adopted=adopted)

    def check_invariants(self) -> None:
        """For tests."""
        assert NEVER <= self.acknowledged <= self.decision.decision_id
        assert 0 <= self.kept_ticks < TICKS_TO_SUPERSEDE
        assert (self.kept is None) == (self.kept_ticks == 0)
        assert self.decision.decision_id > NEVER or not (self.reported or self.adopted)
        for role in Role:
            assert (self.decision.count(role) or 0) >= 0
