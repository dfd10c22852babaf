"""Placement policy: the record of terms, parameters and kernels every policy provides."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from select_service.core.array_types import Floats
from select_service.core.placement.placement_kernels import EFFECTIVE_PREFILL_TOKENS, N_COMMON_TERMS
from select_service.core.placement.plan_layout import N_COMMON_PARAMETERS, P_KV_REUSE, P_TEMPERATURE
from select_service.core.placement.router_config import RouterConfig

COMMON_TERM_NAMES = ("cached_tokens", "effective_prefill_tokens", "decode", "cost")
"""First rows of every policy's cost terms."""
assert len(COMMON_TERM_NAMES) == N_COMMON_TERMS

FillTermsKernel = Callable[..., None]
"""Kernel compiled with the signature TERMS; see `reference_kernels.fill_terms`."""


class PlacementPolicy(NamedTuple):
    """Placement policy, used to place prompts and to show placements.

    address_of_place: returns the address of a kernel with the signature PLACE_SIGNATURE that
        takes the three steps of `placement_kernels`
    own_term_names: names of the policy's term rows behind COMMON_TERM_NAMES, as in decision logs
    own_parameters: configuration -> the policy's parameters behind the common ones
    credit_blocks: (cumulative matched blocks of a slot by tier, configuration) -> value of the
        overlap, in blocks
    follows_prefills: whether the policy estimates the progress of prefills, so that prompts must
        be kept
    options: allowed values of `policy_options`
    credits_shared: whether tokens in a shared cache lower the cost
    """

    name: str
    address_of_place: Callable[[], int]
    fill_terms: FillTermsKernel
    own_term_names: tuple[str, ...]
    own_parameters: Callable[[RouterConfig], Sequence[float]]
    credit_blocks: Callable[[Sequence[int], RouterConfig], float]
    follows_prefills: bool = False
    options: tuple[str, ...] = ()
    credits_shared: bool = False

    @property
    def term_names(self) -> tuple[str, ...]:
        """Names of all term rows."""
        return COMMON_TERM_NAMES + self.own_term_names

    @property
    def own_work_row(self) -> int:
        """Row with the tokens the prompt itself would compute on a rank."""
        names = self.term_names
        return names.index("own_work") if "own_work" in names else EFFECTIVE_PREFILL_TOKENS

    def make_parameters(self, config: RouterConfig) -> Floats:
        """Return the parameters for the kernels, float64[n], read-only."""
        found = np.zeros(N_COMMON_PARAMETERS, np.float64)
        found[P_TEMPERATURE] = config.temperature
        found[P_KV_REUSE] = config.assume_kv_reuse
        return np.concatenate([found, np.array(self.own_parameters(config), np.float64)])
