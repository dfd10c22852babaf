"""The reference's decisions (`--profile document`), as recorded: weaknesses included.

While the last decision is not acknowledged updates are dropped without a word, until that has been
so for `max_wait_s`; and an acknowledgement of an older decision sets the last one back.
"""

from collections.abc import Mapping
from typing import Self

import msgspec
from msgspec import Struct

from select_service.planner.connectors.virtual_state import (
    NEVER,
    Change,
    Completion,
    VirtualDecision,
)
from select_service.planner.core.inputs import Role


class DocumentState(Struct, frozen=True, kw_only=True):
    """As `VirtualState`, with the same methods."""

    decision: VirtualDecision = VirtualDecision()
    acknowledged: int = NEVER
    reported: Mapping[Role, int] = {}
    first_dropped_at: float | None = None
    max_wait_s: float = 1800.0
    """check_interval * retries of the reference."""

    @property
    def is_open(self) -> bool:
        """Is the acknowledgement behind?"""
        return self.acknowledged < self.decision.decision_id

    @property
    def kept(self) -> Mapping[Role, int] | None:
        """Nothing is kept."""
        return None

    def expected(self, role: Role) -> int | None:
        """Replicas that should be there; None: nobody has decided."""
        return self.decision.count(role)

    def updated(
        self, wanted: Mapping[Role, int], now: float, victims: tuple[int, ...] = ()
    ) -> tuple[Self, Change]:
        """A wish of one tick."""
        if all(self.expected(role) == count for role, count in wanted.items()):
            return self, Change.UNCHANGED
        if self.is_open:
            since = now if self.first_dropped_at is None else self.first_dropped_at
            if now - since < self.max_wait_s:
                return msgspec.structs.replace(self, first_dropped_at=since), Change.DROPPED
        change = Change.SUPERSEDED if self.is_open else Change.DECIDED
        decision = self.decision.followed(wanted, now, self.is_open, victims)
        state = msgspec.structs.replace(self, decision=decision, first_dropped_at=None)
        return state, change

    def completed(
        self, decision_id: int, now: float, reported: Mapping[Role, int]
    ) -> tuple[Self, Completion]:
        """An acknowledgement, of whatever number."""
        counts = dict(self.reported) | dict(reported)
        state = msgspec.structs.replace(self, acknowledged=decision_id, reported=counts)
        return state, Completion.COMPLETED

    def observed(self, ready: Mapping[Role, int], now: float) -> Self:
        """Nothing is learnt from what is there."""
        return self
