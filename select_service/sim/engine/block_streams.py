"""Workloads: sessions of requests with chains of blocks as prompts."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from select_service.sim.engine.kv_block_pool import Chain


class ReplayRequest(NamedTuple):
    """A request. chain: full blocks of prompt and answer.

    think_s: time from the end of the answer to the next turn of the session, in seconds
    """

    chain: Chain
    prompt_tokens: int
    output_tokens: int
    think_s: float = 0.0


ReplaySession = tuple[ReplayRequest, ...]


def constant_rate_starts(units: NDArray[np.float64], per_s: float) -> NDArray[np.float64]:
    """Return starts in seconds from starts in mean gaps, at a constant rate."""
    return units / per_s


class ReplayWorkload(NamedTuple):
    """Requests of a run, independent of the router and of the rate.

    units:    float64[n], starts of the sessions in mean gaps between them, ascending
    n_blocks: number of different blocks
    timed:    (units, sessions/s) -> seconds
    labels:   label of the client by session, as routers see it; empty means the session's number
    """

    sessions: tuple[ReplaySession, ...]
    units: NDArray[np.float64]
    n_blocks: int
    timed: Callable[[NDArray[np.float64], float], NDArray[np.float64]] = constant_rate_starts
    labels: tuple[int, ...] = ()

    @property
    def requests(self) -> int:
        return sum(map(len, self.sessions))

    @property
    def mean_session_length(self) -> float:
        """Mean number of requests in a session."""
        return self.requests / len(self.sessions)
