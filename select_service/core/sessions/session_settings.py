"""Settings of sessions."""

from typing import NamedTuple

SESSION_TTL_S = 600.0
"""Idle seconds after which a session ends, without `--session-affinity-ttl-secs`.

In simulation 60 s and never gave the same times within 1 %; ten minutes cover the pauses of people.
"""


class SessionSettings(NamedTuple):
    """Settings of sessions.

    ttl_s: idle seconds after which a session ends; None means not set, see `SESSION_TTL_S`
    is_hard: whether the requests of a session go to the bound rank, as in Dynamo; requests can
    override this, and without `ttl_s` only requests can enable it
    epoch_s: seconds from the epoch to the zero of the core's clock
    """

    ttl_s: float | None = None
    is_hard: bool = False
    epoch_s: float = 0.0

    @property
    def idle_s(self) -> float:
        """Idle seconds after which a session ends."""
        return SESSION_TTL_S if self.ttl_s is None else self.ttl_s
