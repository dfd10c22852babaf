"""State machine of numbered decisions carried out by an external program; the time is an argument.

A decision is *open* until its acknowledgement.  Meanwhile different desired counts are kept; after
differences in two consecutive ticks the newest counts replace the open decision.  Acknowledgements
never go back.  Transitions return a new state, which can be stored before any client sees it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

import msgspec
from msgspec import Struct, field

from select_service.planner.core.tick_input import Role

NEVER = -1
"""Number before the first decision, and count of a role never decided."""
TICKS_TO_SUPERSEDE = 2
"""Number of consecutive ticks with other counts before an open decision is replaced."""
ADOPT_AFTER_S = 60.0
"""Time after the acknowledgement from which surplus replicas count as added on purpose, seconds."""

REPLACED_MAX = 1024
"""Limit of the workers to replace that a decision names; the latest stay."""


class CountsEffect(StrEnum):
    """Effect of desired counts."""

    DECIDED = "decided"
    SUPERSEDED = "superseded"
    """Decided, in place of an open decision."""
    UNCHANGED = "unchanged"
    KEPT = "kept"
    """Kept and reported: an open decision has precedence."""
    DROPPED = "dropped"
    """Document profile only: dropped, as a decision is open."""


class AcknowledgementEffect(StrEnum):
    """Effect of an acknowledgement."""

    COMPLETED = "completed"
    SUPERSEDED = "superseded"
    """Acknowledgement of an older decision: no change."""


class UnknownDecisionNumber(Exception):
    """Error of a number without a decision."""


class VirtualDecision(Struct, frozen=True, kw_only=True):
    """Decision for the platform; -1 means never decided."""

    num_prefill: int = NEVER
    num_decode: int = NEVER
    decision_id: int = NEVER
    superseded: bool = False
    """Whether the decision replaced an open one."""
    decided_at: float = 0.0
    victims: tuple[int, ...] = ()
    """Workers that were drained for the decision and should be removed."""
    replace: tuple[int, ...] = ()
    """Lost workers to end and to start anew in place; the counts include them."""

    def role_count(self, role: Role) -> int | None:
        """Return the count of a role, or None if never decided."""
        count = self.num_prefill if role == Role.PREFILL else self.num_decode
        return None if count == NEVER else count

    def next_decision(
        self,
        wanted: Mapping[Role, int],
        now: float,
        superseded: bool,
        victims: tuple[int, ...],
        lost: tuple[int, ...] = (),
    ) -> "VirtualDecision":
        """Return the next decision; unnamed roles keep their number."""
        return VirtualDecision(
            num_prefill=wanted.get(Role.PREFILL, self.num_prefill),
            num_decode=wanted.get(Role.DECODE, self.num_decode),
            decision_id=self.decision_id + 1,
            superseded=superseded,
            decided_at=now,
            victims=victims,
            replace=lost,
        )


class VirtualState(Struct, frozen=True, kw_only=True):
    """State that outlives the process."""

    decision: VirtualDecision = VirtualDecision()
    acknowledged: int = NEVER
    acknowledged_at: float = 0.0
    reported: Mapping[Role, int] = {}
    """Replicas reported by the last acknowledgement."""
    adopted: Mapping[Role, int] = {}
    """Replicas added by other actors since the decision."""
    kept_counts: Mapping[Role, int] | None = field(default=None, name="kept")
    """Newest desired counts that an open decision delays."""
    kept_ticks: int = 0
    draining: tuple[int, ...] = ()
    """Workers that drain for a pending decision."""

    @property
    def is_open(self) -> bool:
        """Whether the decision is not acknowledged yet."""
        return self.acknowledged < self.decision.decision_id

    def expected_count(self, role: Role) -> int | None:
        """Return the expected replicas of a role, or None before any decision."""
        return self.adopted.get(role, self.decision.role_count(role))

    def with_counts(
        self,
        wanted: Mapping[Role, int],
        now: float,
        victims: tuple[int, ...] = (),
        lost: tuple[int, ...] = (),
    ) -> tuple[Self, CountsEffect]:
        """Apply the desired counts of a tick. lost: workers to replace"""
        if not lost and all(self.expected_count(role) == count for role, count in wanted.items()):
            return msgspec.structs.replace(
                self, kept_counts=None, kept_ticks=0
            ), CountsEffect.UNCHANGED
        if not self.is_open:
            return self._with_decision(wanted, now, victims, lost), CountsEffect.DECIDED
        ticks = self.kept_ticks + 1
        # A single different tick may be noise; replacing a decision under way costs the client its
        # work.
        if ticks < TICKS_TO_SUPERSEDE:
            kept = dict(self.kept_counts or {}) | dict(wanted)
            return msgspec.structs.replace(
                self, kept_counts=kept, kept_ticks=ticks
            ), CountsEffect.KEPT
        # What an open decision still has to replace stays to be done.
        lost = tuple(dict.fromkeys((*self.decision.replace, *lost)))[-REPLACED_MAX:]
        return self._with_decision(wanted, now, victims, lost), CountsEffect.SUPERSEDED

    def _with_decision(
        self,
        wanted: Mapping[Role, int],
        now: float,
        victims: tuple[int, ...],
        lost: tuple[int, ...],
    ) -> Self:
        """Return the state with the next decision."""
        # Roles without a new count keep what others added, else they would be reduced by accident.
        counts = {**self.adopted, **wanted}
        decision = self.decision.next_decision(counts, now, self.is_open, victims, lost)
        return msgspec.structs.replace(
            self, decision=decision, adopted={}, kept_counts=None, kept_ticks=0, draining=()
        )

    def with_acknowledgement(
        self, decision_id: int, now: float, reported: Mapping[Role, int]
    ) -> tuple[Self, AcknowledgementEffect]:
        """Apply an acknowledgement.  Raises UnknownDecisionNumber."""
        if not 0 <= decision_id <= self.decision.decision_id:
            raise UnknownDecisionNumber(decision_id)
        if decision_id < self.decision.decision_id:
            return self, AcknowledgementEffect.SUPERSEDED
        if not self.is_open:
            # A repeated acknowledgement must not delay the adoption of surplus replicas.
            now = self.acknowledged_at
        counts = dict(self.reported) | dict(reported)
        state = msgspec.structs.replace(
            self, acknowledged=decision_id, acknowledged_at=now, reported=counts
        )
        return state, AcknowledgementEffect.COMPLETED

    def with_observation(self, ready: Mapping[Role, int], now: float) -> Self:
        """Apply an observation: adopt surplus replicas some time after the last acknowledgement."""
        # Right after an acknowledgement ending replicas may still be counted as ready.
        if self.is_open or now - self.acknowledged_at < ADOPT_AFTER_S:
            return self
        adopted = {
            role: count
            for role, count in ready.items()
            if (decided := self.decision.role_count(role)) is not None and count > decided
        }
        if adopted == self.adopted:
            return self
        return msgspec.structs.replace(self, adopted=adopted)
