"""What a run brought, in numbers."""

from typing import NamedTuple

import numpy as np

from select_service.replaying.world import Record

WARM_SHARE = 0.2
"""First requests of a run that do not count: caches are cold."""


class Figures(NamedTuple):
    """Of the requests that count.  Times in seconds; hit_rate: tokens of prompts that were cached.

    ttft: from the question to the first token;  e2e: to the last
    """

    requests: int
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    hit_rate: float
    e2e_mean: float


def figures_of(record: Record) -> Figures:
    lives = record.lives[int(WARM_SHARE * len(record.lives)) :]
    ttft = np.array([life.first_s - life.asked_s for life in lives])
    return Figures(
        requests=len(lives),
        ttft_mean=float(ttft.mean()),
        ttft_p50=float(np.quantile(ttft, 0.5)),
        ttft_p99=float(np.quantile(ttft, 0.99)),
        hit_rate=sum(life.cached for life in lives)
        / sum(life.turn.prompt_tokens for life in lives),
        e2e_mean=float(np.mean([life.end_s - life.asked_s for life in lives])),
    )
