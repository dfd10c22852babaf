"""What it costs to run a prompt on each rank: one pure function of per-rank numbers.

The `reference` policy, all sizes in blocks of B tokens (isl = prompt length in tokens):

    D, H, K    matched blocks on GPU; further ones on CPU; further ones on disk and external storage
    P, A, N    active prefill tokens; active blocks; prompt blocks not yet live on the rank
    cached     = round((D + host_weight*H + disk_weight*K) * B)                          in tokens
    effective  = max(0, isl - cached)                                                    in tokens
    raw        = (P + effective + cached) / B          0 when prefill tokens are not tracked
    decay      = 1 / (1 + decay_rate * x),   x = ((P - min P) / B) / ceil(isl / B)
    credit     = credit_weight*decay*D + host_weight*H + disk_weight*K
    prefill    = scale * max(0, raw - credit)
    decode     = A + N                                 0 when active blocks are not tracked
    cost       = prefill + decode, times exp(-tanh(sum of matching preferred taint weights))

`min P` is over the eligible ranks; decay is 1 for a pinned request.

Source: the reference selection service 1.3.1, measured; it prints the same terms per candidate at
debug level.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.bodies.prompts import RouterConfigOverride
from select_service.core.load import kernels

Terms = npt.NDArray[np.float64]


class RouterConfig(NamedTuple):
    """Scheduling parameters of the process; a request may override some."""

    overlap_score_credit: float = 1.0
    overlap_score_credit_decay: float = 0.0
    prefill_load_scale: float = 1.0
    host_cache_hit_weight: float = 0.75
    disk_cache_hit_weight: float = 0.25
    temperature: float = 0.0
    track_prefill_tokens: bool = True
    track_active_blocks: bool = True
    track_output_blocks: bool = True
    assume_kv_reuse: bool = True
    policy: str = "reference"


class RankNumbers(NamedTuple):
    """What a policy may look at; every array has one row per slot of the partition."""

    matched: npt.NDArray[np.int32]
    """int32[n_slots, 4]: cumulative matched blocks after GPU, CPU, DISK, EXTERNAL."""
    totals: npt.NDArray[np.int64]
    """int64[n_slots, 4]: prefill tokens, live requests and block counts (load_kernels columns)."""
    active_blocks: npt.NDArray[np.int64]
    """int64[n_slots]: active blocks, rounded."""
    leading_run: npt.NDArray[np.int64]
    """int64[n_slots]: leading prompt blocks that live reservations of the slot hold."""
    eligible: npt.NDArray[np.bool_]
    """bool[n_slots]: the candidates; other rows are computed but never chosen."""


def overridden(config: RouterConfig, override: RouterConfigOverride | None) -> RouterConfig:
    """The configuration of one request.

    The deprecated `overlap_score_weight` stands for the prefill load scale, and 0 also takes the
    overlap credit away.
    """
    if override is None:
        return config
    given: dict[str, Any] = {
        "overlap_score_credit": override.overlap_score_credit,
        "prefill_load_scale": override.prefill_load_scale,
        "temperature": override.router_temperature,
        "track_prefill_tokens": override.track_prefill_tokens,
        "assume_kv_reuse": override.assume_kv_reuse,
    }
    if override.overlap_score_weight is not None:
        given["prefill_load_scale"] = override.overlap_score_weight
        if override.overlap_score_weight == 0.0:
            given["overlap_score_credit"] = 0.0
    return config._replace(**{name: value for name, value in given.items() if value is not None})


@lru_cache(maxsize=256)
def _parameters(config: RouterConfig) -> npt.NDArray[np.float64]:
    """float64[N_PARAMETERS] for the kernel, which only reads it."""
    return np.array(
        (
            config.overlap_score_credit,
            config.overlap_score_credit_decay,
            config.prefill_load_scale,
            config.host_cache_hit_weight,
            config.disk_cache_hit_weight,
            config.track_prefill_tokens,
            config.track_active_blocks,
        ),
        np.float64,
    )


def reference(
    numbers: RankNumbers,
    config: RouterConfig,
    block_size: int,
    isl_tokens: int,
    n_blocks: int,
    pinned: bool,
) -> Terms:
    """float64[n_slots, 7]: the terms of the module docstring, columns named in load_kernels."""
    terms = np.empty((len(numbers.totals), kernels.N_TERMS), np.float64)
    kernels.reference_terms(
        numbers.matched,
        numbers.totals,
        numbers.active_blocks,
        numbers.leading_run,
        numbers.eligible,
        _parameters(config),
        float(block_size),
        float(isl_tokens),
        float(n_blocks),
        pinned,
        terms,
    )
    return terms


def router_credit_blocks(matched: npt.NDArray[np.int32], config: RouterConfig) -> float:
    """Overlap credit of one slot (`matched` is its row), without decay, in blocks."""
    device, host = int(matched[0]), int(matched[1] - matched[0])
    disk = int(matched[3] - matched[1])
    return (
        config.overlap_score_credit * device
        + config.host_cache_hit_weight * host
        + config.disk_cache_hit_weight * disk
    )


POLICIES = {"reference": reference}
