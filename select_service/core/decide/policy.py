"""What a policy is made of: terms, parameters and kernels that make costs and terms of them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from select_service.core.arrays import Floats
from select_service.core.decide.placement_kernels import EFFECTIVE_PREFILL_TOKENS, N_COMMON_TERMS
from select_service.core.decide.plan_layout import N_COMMON_PARAMETERS, P_KV_REUSE, P_TEMPERATURE
from select_service.core.decide.router_config import RouterConfig

COMMON_TERMS = ("cached_tokens", "effective_prefill_tokens", "decode", "cost")
"""The rows that the terms of every policy begin with."""
assert len(COMMON_TERMS) == N_COMMON_TERMS

FillTerms = Callable[..., None]
"""Compiled with the signature TERMS; `reference_kernels.fill_terms` says what it does."""


class Policy(NamedTuple):
    """How a rank is chosen; whoever places prompts or shows a placement asks here.

    address_of_place: of what has the signature PLACE and does what `placement_kernels.place` says
    own_terms:        names of its rows behind COMMON_TERMS, as the decision log shows them
    parameters_of:    configuration -> its parameters behind those that all policies have
    credit_blocks:    (cumulative matched blocks of a slot by tier, configuration) -> what its
                      overlap is worth, in blocks
    follows:          does it look at the progress of prefills, so that prompts are to be kept?
    options:          of `policy_options`, those that it knows
    """

    name: str
    address_of_place: Callable[[], int]
    fill_terms: FillTerms
    own_terms: tuple[str, ...]
    parameters_of: Callable[[RouterConfig], Sequence[float]]
    credit_blocks: Callable[[Sequence[int], RouterConfig], float]
    follows: bool = False
    options: tuple[str, ...] = ()

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of all rows of its terms."""
        return COMMON_TERMS + self.own_terms

    @property
    def own_work_row(self) -> int:
        """Row of the tokens that the prompt itself would compute on a rank."""
        names = self.terms
        return names.index("own_work") if "own_work" in names else EFFECTIVE_PREFILL_TOKENS

    def parameters(self, config: RouterConfig) -> Floats:
        """float64[n] for its kernels, which only read it."""
        found = np.zeros(N_COMMON_PARAMETERS, np.float64)
        found[P_TEMPERATURE] = config.temperature
        found[P_KV_REUSE] = config.assume_kv_reuse
        return np.concatenate([found, np.array(self.parameters_of(config), np.float64)])
