"""Decisions of Dynamo's planner (`--profile document`), as recorded, including their weaknesses.

While the last decision is not acknowledged, updates are dropped silently, for up to `max_wait_s`.
An acknowledgement of an older decision sets the last one back.
"""

from collections.abc import Mapping
from typing import Self

import msgspec
from msgspec import Struct

from select_service.planner.connectors.virtual_state import (
    NEVER,
    AcknowledgementEffect,
    CountsEffect,
    VirtualDecision,
)
from select_service.planner.core.tick_input import Role


class ReferenceDecisionState(Struct, frozen=True, kw_only=True):
    """State with the methods of `VirtualState`."""

    decision: VirtualDecision = VirtualDecision()
    acknowledged: int = NEVER
    reported: Mapping[Role, int] = {}
    first_dropped_at: float | None = None
    max_wait_s: float = 1800.0
    """Product check_interval * retries of Dynamo's planner."""

    @property
    def is_open(self) -> bool:
        """Whether the acknowledgement is behind."""
        return self.acknowledged < self.decision.decision_id

    @property
    def kept_counts(self) -> Mapping[Role, int] | None:
        """None, since Dynamo keeps no desired counts for later."""
        return None

    def expected_count(self, role: Role) -> int | None:
        """Return the decided replicas of a role, or None before any decision."""
        return self.decision.role_count(role)

    def with_counts(
        self,
        wanted: Mapping[Role, int],
        now: float,
        victims: tuple[int, ...] = (),
        lost: tuple[int, ...] = (),
    ) -> tuple[Self, CountsEffect]:
        """Apply the desired counts of a tick; lost workers are not replaced in this profile."""
        if all(self.expected_count(role) == count for role, count in wanted.items()):
            return self, CountsEffect.UNCHANGED
        if self.is_open:
            since = now if self.first_dropped_at is None else self.first_dropped_at
            if now - since < self.max_wait_s:
                return msgspec.structs.replace(self, first_dropped_at=since), CountsEffect.DROPPED
        change = CountsEffect.SUPERSEDED if self.is_open else CountsEffect.DECIDED
        decision = self.decision.next_decision(wanted, now, self.is_open, victims)
        state = msgspec.structs.replace(self, decision=decision, first_dropped_at=None)
        return state, change

    def with_acknowledgement(
        self, decision_id: int, now: float, reported: Mapping[Role, int]
    ) -> tuple[Self, AcknowledgementEffect]:
        """Apply an acknowledgement with any number."""
        counts = dict(self.reported) | dict(reported)
        state = msgspec.structs.replace(self, acknowledged=decision_id, reported=counts)
        return state, AcknowledgementEffect.COMPLETED

    def with_observation(self, ready: Mapping[Role, int], now: float) -> Self:
        """Return the state unchanged: observations are ignored."""
        return self
