"""Placing prompts in one partition: one compiled call from arrays to a slot and its terms."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import N_TIERS
from select_service.core.arrays import Floats, Mask
from select_service.core.decide.placement_kernels import N_SUMMARY
from select_service.core.decide.policies import policy_of
from select_service.core.decide.policy import Policy
from select_service.core.decide.prompt import Prompt
from select_service.core.decide.reference import REFERENCE
from select_service.core.decide.router_config import RouterConfig
from select_service.core.load.active_load import ActiveLoad
from select_service.core.workers.rank_table import RankTable

_NO_FACTORS: Floats = np.zeros(0, np.float64)
"""All of them are 1."""


class Terms(NamedTuple):
    """What the last placement was made of; the next one overwrites it.

    matched: int32[>= n_slots, 4]: cumulative matched blocks after GPU, CPU, DISK, EXTERNAL
    blocks:  int64[2, n_slots]: active blocks, and leading prompt blocks that live requests hold
    terms:   float64[n, n_slots], rows as the policy names them
    summary: int64[N_SUMMARY], of the chosen slot
    """

    matched: npt.NDArray[np.int32]
    blocks: npt.NDArray[np.int64]
    terms: npt.NDArray[np.float64]
    summary: npt.NDArray[np.int64]

    @classmethod
    def of(cls, policy: Policy, n_matched: int, n_slots: int) -> "Terms":
        return cls(
            matched=np.zeros((n_matched, N_TIERS), np.int32),
            blocks=np.zeros((2, n_slots), np.int64),
            terms=np.zeros((len(policy.terms), n_slots), np.float64),
            summary=np.zeros(N_SUMMARY, np.int64),
        )


class Placing:
    """Reads index, table and load of a partition, and owns what a placement writes."""

    def __init__(
        self, index: PrefixIndex, table: RankTable, load: ActiveLoad, block_size: int
    ) -> None:
        self._index = index
        self.table = table
        self.load = load
        self._block_size = block_size
        self._config: RouterConfig | None = None
        self._parameters = _NO_FACTORS
        self.policy = REFERENCE  # until the first prompt, whose configuration names one
        self.last = Terms.of(self.policy, 0, 0)

    def place(
        self,
        prompt: Prompt,
        config: RouterConfig,
        eligible: Mask,
        factors: Floats | None = None,
        pinned: bool = False,
        draw: float = 0.0,
    ) -> int:
        """The slot for a prompt, NOBODY (-1) when none is eligible; its terms are in `last`.

        eligible: bool[n_slots];  factors: float64[n_slots], of the costs;  None: all 1
        draw:     uniform in [0, 1), for ties and the softmax
        Changes nothing else.  O(blocks + slots), in one compiled call under the index lock.
        """
        assert 0.0 <= draw < 1.0
        if config is not self._config:
            self._configure(config)
        last = self._terms()
        return self._index.read(
            self.policy.place,
            prompt.block_hashes,
            prompt.sequence_hashes,
            self.load.header,
            eligible,
            self.table.columns.weight,
            _NO_FACTORS if factors is None else factors,
            self._parameters,
            float(prompt.isl_tokens),
            pinned,
            draw,
            *last,
        )

    def _configure(self, config: RouterConfig) -> None:
        policy = policy_of(config)
        if policy is not self.policy:
            self.policy = policy
            self.last = Terms.of(policy, 0, 0)
        self._config, self._parameters = config, policy.parameters_of(config, self._block_size)

    def _terms(self) -> Terms:
        """Made anew when slots have come."""
        n_matched, n_slots = self._index.n_slots, self.table.n_slots
        if len(self.last.matched) != n_matched or self.last.terms.shape[1] != n_slots:
            self.last = Terms.of(self.policy, n_matched, n_slots)
        return self.last
