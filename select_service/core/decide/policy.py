"""What a policy is made of: terms, parameters and a kernel that fills the ones from the others."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from select_service.core.arrays import Floats
from select_service.core.decide.placement_kernels import N_COMMON_TERMS
from select_service.core.decide.router_config import RouterConfig

COMMON_TERMS = ("cached_tokens", "effective_prefill_tokens", "decode", "cost")
"""The rows that the terms of every policy begin with."""
assert len(COMMON_TERMS) == N_COMMON_TERMS

Place = Callable[..., int]
"""Compiled with the signature PLACE; `placement_kernels` says what it takes and fills."""


class Policy(NamedTuple):
    """How a rank is chosen; whoever places prompts or shows a placement asks here.

    own_terms:     names of its rows behind COMMON_TERMS, as the decision log shows them
    parameters_of: (configuration, block size in tokens) -> float64[n] for `place`, which reads it
    credit_blocks: (cumulative matched blocks of a slot by tier, configuration) -> what its overlap
                   is worth, in blocks
    """

    name: str
    place: Place
    own_terms: tuple[str, ...]
    parameters_of: Callable[[RouterConfig, int], Floats]
    credit_blocks: Callable[[Sequence[int], RouterConfig], float]

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of all rows of its terms."""
        return COMMON_TERMS + self.own_terms
