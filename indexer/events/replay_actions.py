"""Requests of a feed for the replay socket."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class StartReplay:
    """Request every batch from `start` on, over a fresh socket; an older replay becomes void."""

    start: int


@dataclass(frozen=True, slots=True)
class StopReplay:
    """Stop the replay: no further answer is needed."""


Action: TypeAlias = StartReplay | StopReplay | None
