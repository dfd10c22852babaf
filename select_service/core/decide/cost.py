"""The scheduling parameters of a request, and the policies that they are for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.bodies.prompts import RouterConfigOverride
from select_service.core.decide import reference_kernels as reference


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


def parameters_of(config: RouterConfig, block_size: int) -> npt.NDArray[np.float64]:
    """float64[N_PARAMETERS] for the kernel of the policy, which only reads it."""
    found = np.zeros(reference.N_PARAMETERS, np.float64)
    found[reference.P_CREDIT] = config.overlap_score_credit
    found[reference.P_CREDIT_DECAY] = config.overlap_score_credit_decay
    found[reference.P_SCALE] = config.prefill_load_scale
    found[reference.P_HOST] = config.host_cache_hit_weight
    found[reference.P_DISK] = config.disk_cache_hit_weight
    found[reference.P_TRACK_PREFILL] = config.track_prefill_tokens
    found[reference.P_TRACK_ACTIVE] = config.track_active_blocks
    found[reference.P_KV_REUSE] = config.assume_kv_reuse
    found[reference.P_TEMPERATURE] = config.temperature
    found[reference.P_BLOCK_SIZE] = block_size
    return found


def router_credit_blocks(matched: Sequence[int], config: RouterConfig) -> float:
    """Overlap credit of one slot (`matched`: its cumulative blocks by tier), without decay."""
    device, host = matched[0], matched[1] - matched[0]
    disk = matched[3] - matched[1]
    return (
        config.overlap_score_credit * device
        + config.host_cache_hit_weight * host
        + config.disk_cache_hit_weight * disk
    )


Place = Callable[..., int]
"""A compiled `place`; see the policy `reference` for its arguments."""

POLICIES: Mapping[str, Place] = {"reference": reference.place}
