"""Goal of a request: the time to the first token, and the time between tokens."""

from collections.abc import Sequence

import numpy as np

from select_service.sim.engine.gpu_hardware import Fleet
from select_service.sim.engine.replay_world import RequestHistory

FIRST_S, TOKEN_S = 0.5, 0.03
"""Longest times, in seconds; the first token may take twice the time of its prompt longer."""
GOAL_SHARE = 0.9
"""Share of requests that a fleet has to serve in time."""


def share_in_time(histories: Sequence[RequestHistory], fleet: Fleet) -> float:
    """Return the share of requests that keep both times.

    A prompt takes as long as without cache on its decode rank.
    """
    in_time = [
        each.first_s - each.arrived_s
        <= FIRST_S + 2 * each.turn.prompt_tokens / fleet[each.rank].prefill_tokens_per_s
        and each.end_s - each.first_s <= TOKEN_S * (each.turn.output_tokens - 1)
        for each in histories
    ]
    return float(np.mean(in_time))
