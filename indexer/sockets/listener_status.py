"""What is known of one rank's event stream."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

State = Literal[
    "no_events_yet", "connected", "catching_up", "degraded", "unverified", "unconnected"
]
UNCONNECTED_S = 10.0
"""A rank whose endpoint has not answered for so long is `unconnected`: an engine that starts anew
or a network that breaks for a moment takes less."""


class Pulse(NamedTuple):
    """The little of a ListenerStatus that is asked for often, and of all ranks."""

    state: State
    batches: int
    last_event_monotonic: float | None


class Unconnected(NamedTuple):
    """A connection that is missing.

    since: monotonic seconds;  error: reason, as far as it is known
    """

    endpoint: str
    since: float
    error: str | None

    def lasts(self, now: float) -> bool:
        """Return whether it is missing for so long that its rank is `unconnected`."""
        return now - self.since >= UNCONNECTED_S


@dataclass(frozen=True, slots=True)
class ListenerStatus:
    """Plain numbers of one rank's stream since it was opened.

    state: degraded means that the index may lack events of this rank (`feed` says until when;
    after a connection that was cut off, until a message shows whether any are missing), because
    of `degraded`; unverified that nobody knows, because of `doubt`; both since so many monotonic
    seconds; unconnected that the endpoint has not answered for UNCONNECTED_S
    is_counted: duplicate stores are counted, which ends when they prove to be none (`inflations`)
    connected: there is a connection; connect_error: why not, as far as is known
    unconnected_monotonic: since when there is none, once that is for UNCONNECTED_S; else None
    batches counts decoded and applied ones, replayed those of them that came by replay; lost are
    known to be missing; is_size_wrong: the registered block size is probably not the engine's;
    stale came twice; dropped counts what was not indexed, by reason.
    """

    state: State
    endpoint: str
    replay_endpoint: str | None
    last_sequence: int | None
    batches: int
    gaps: int
    replayed: int
    lost: int
    stale: int
    restarts: int
    decode_errors: int
    last_error: str | None
    is_size_wrong: bool
    last_event_monotonic: float | None
    connected: bool
    connect_error: str | None
    unconnected_monotonic: float | None
    is_counted: bool
    inflations: int
    degraded: str | None
    degraded_monotonic: float | None
    doubt: str | None
    doubted_monotonic: float | None
    stored_blocks: int
    removed_blocks: int
    dropped: dict[str, int]
