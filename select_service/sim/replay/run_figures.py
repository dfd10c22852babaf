"""Figures of a run."""

from typing import NamedTuple

import numpy as np

from select_service.sim.replay.replay_world import RunRecord

WARM_SHARE = 0.2
"""Share of first requests that are not counted, because caches are cold."""


class RunFigures(NamedTuple):
    """Figures of the counted requests. Times in seconds; hit_rate: share of cached prompt tokens.

    ttft: from the request to the first token;  e2e: to the last token
    """

    requests: int
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    hit_rate: float
    e2e_mean: float


def compute_figures(record: RunRecord) -> RunFigures:
    # In order of arrival, so the cold start is at the front.
    lives = record.histories[int(WARM_SHARE * len(record.histories)) :]
    ttft = np.array([life.first_s - life.arrived_s for life in lives])
    return RunFigures(
        requests=len(lives),
        ttft_mean=float(ttft.mean()),
        ttft_p50=float(np.quantile(ttft, 0.5)),
        ttft_p99=float(np.quantile(ttft, 0.99)),
        hit_rate=sum(life.cached for life in lives)
        / sum(life.turn.prompt_tokens for life in lives),
        e2e_mean=float(np.mean([life.end_s - life.arrived_s for life in lives])),
    )
