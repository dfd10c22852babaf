"""What a feed wants done with its replay socket."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class StartReplay:
    """Ask for every batch from `start` on, over a fresh socket; an older replay is void."""

    start: int


@dataclass(frozen=True, slots=True)
class StopReplay:
    """No replay is wanted any more."""


Action: TypeAlias = StartReplay | StopReplay | None
