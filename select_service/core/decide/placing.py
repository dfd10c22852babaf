"""Placing prompts in one partition: one compiled call from a prompt to a slot."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import N_TIERS
from select_service.core.arrays import Floats, Mask, name_array
from select_service.core.decide import plan_layout as layout
from select_service.core.decide.decision_kernels import address_of_record
from select_service.core.decide.decision_ring import DecisionRing
from select_service.core.decide.placement_kernels import count_placement, place, say_addresses
from select_service.core.decide.policies import POLICIES, PolicyChoice, choice_of, policy_number
from select_service.core.decide.prompt import Prompt
from select_service.core.decide.router_config import RouterConfig
from select_service.core.load.active_load import ActiveLoad
from select_service.core.load.booking import BOOKED_BLOCKS_MAX
from select_service.core.workers.rank_table import RankTable

_NO_FACTORS: Floats = np.zeros(0, np.float64)
"""All of them are 1."""
_ROWS_AT_FIRST = 64
"""As many as a word has bits."""
_OF_POLICY = [
    *(layout.PARAMETERS, layout.PARAMETERS + 1),
    *(layout.FOLLOWS, layout.PLACE_AT, layout.NAMED_POLICY),
]
"""Words of a plan that change with its policy."""


class Scratch(NamedTuple):
    """What the last placement found, as plan_layout says; the next one overwrites it."""

    matched: npt.NDArray[np.int32]
    holding: npt.NDArray[np.uint64]
    leading: npt.NDArray[np.int64]
    running: npt.NDArray[np.uint64]
    keys: npt.NDArray[np.uint64]
    costs: npt.NDArray[np.float64]

    @classmethod
    def of(cls, rows: int) -> "Scratch":
        return cls(
            matched=np.zeros((rows, N_TIERS), np.int32),
            holding=np.zeros(rows // 64, np.uint64),
            leading=np.zeros(rows, np.int64),
            running=np.zeros(rows // 64, np.uint64),
            keys=np.empty(BOOKED_BLOCKS_MAX, np.uint64),
            costs=np.zeros(rows, np.float64),
        )


_SCRATCH = range(layout.MATCHED, layout.SUMMARY, 2)


class Tally(NamedTuple):
    """What the decisions of a partition added up to, in blocks; as in plan_layout."""

    selected: int
    reserved: int
    prompt_blocks: int
    matched_gpu: int
    matched_cpu: int
    matched_disk: int
    matched_external: int
    best_overlap: int
    chosen_overlap: int


class Plan:
    """How kernels place prompts (`header`, see plan_layout; never replaced); what they write."""

    def __init__(self, shared: npt.NDArray[np.int64], rows: int) -> None:
        """shared: a header that says what is not written"""
        self.header = shared.copy()
        self.summary = np.zeros(layout.N_SUMMARY, np.int64)
        self.tally = np.zeros(layout.TALLY_LENGTH, np.int64)
        name_array(self.header, layout.SUMMARY, self.summary)
        name_array(self.header, layout.TALLY, self.tally)
        self.install(Scratch.of(rows))

    def install(self, scratch: Scratch) -> None:
        arrays: tuple[npt.NDArray[Any], ...] = scratch
        for at, array in zip(_SCRATCH, arrays, strict=True):
            name_array(self.header, at, array)
        self.scratch = scratch


class Placing:
    """Reads index, table and load of a partition, and owns what a placement writes."""

    def __init__(
        self,
        index: PrefixIndex,
        table: RankTable,
        load: ActiveLoad,
        block_size: int,
        config: RouterConfig,
        ring: DecisionRing | None = None,
        partition: int = 0,
    ) -> None:
        """config: by which prompts are placed unless a request says otherwise, or `follow`
        ring: keeps what `place` does, under the number of the partition there
        """
        self._index = index
        self.table = table
        self.load = load
        self._config = config
        shared = np.zeros(layout.HEADER_LENGTH, np.int64)
        shared[layout.BLOCK_SIZE] = block_size
        say_addresses(shared)
        name_array(shared, layout.INDEX, index.header)
        name_array(shared, layout.LOAD, load.header)
        name_array(shared, layout.RANKS, table.header)
        shared[layout.PARTITION], shared[layout.RECORD_AT] = partition, address_of_record()
        self._shared = shared
        self._take(choice_of(config))
        self._own = Plan(shared, _ROWS_AT_FIRST)
        self.tallies = [self._own.tally]
        """int64[TALLY_LENGTH] of each plan, see plan_layout; what there is of all is their sum."""
        self._ring = ring
        if ring is not None:
            name_array(self._own.header, layout.RING, ring.header)
        self._plans = {0: self._own}
        self.plan = self._own.header
        """How kernels place prompts by `config` (plan_layout); never replaced."""

    def _take(self, choice: PolicyChoice) -> None:
        """Let the header that plans are copied from say a policy."""
        self.choice, self.policy = choice, POLICIES[choice.policy]
        self._parameters = self.policy.parameters(choice.within(self._config))
        shared = self._shared
        name_array(shared, layout.PARAMETERS, self._parameters)
        shared[layout.FOLLOWS] = self.policy.follows
        shared[layout.PLACE_AT] = self.policy.address_of_place()
        shared[layout.NAMED_POLICY] = policy_number(self.policy)

    def follow(self, choice: PolicyChoice) -> None:
        """Place by another policy from the next placement on, whoever makes it.

        What is booked stays.  Unfinished prefills that were booked by a policy that does not follow
        them have no prompt, so that they count as work until they end.
        """
        if choice != self.choice:
            with self._index.lock:
                self._take(choice)
                for plan in self._plans.values():
                    plan.header[_OF_POLICY] = self._shared[_OF_POLICY]

    @property
    def scratch(self) -> Scratch:
        return self._own.scratch

    def plan_for(self, reader: int) -> npt.NDArray[np.int64]:
        """As `plan`, for kernels of a reader that places while others do; 0 is who calls `place`.

        What it places is counted here, too.
        """
        plan = self._plans.get(reader)
        if plan is None:
            plan = self._plans[reader] = Plan(self._shared, len(self.scratch.costs))
            self.tallies.append(plan.tally)
        return plan.header

    def reserve_slots(self, n_slots: int) -> None:
        """Have room for so many.  Raises MemoryError, and has changed nothing."""
        rows = len(self.scratch.costs)
        if n_slots > rows:
            while rows < n_slots:
                rows *= 2
            scratches = [Scratch.of(rows) for _ in self._plans]
            with self._index.lock:
                for plan, scratch in zip(self._plans.values(), scratches, strict=True):
                    plan.install(scratch)

    def place(
        self,
        prompt: Prompt,
        config: RouterConfig,
        eligible: Mask,
        factors: Floats | None = None,
        pinned: bool = False,
        draw: float = 0.0,
        ring: DecisionRing | None = None,
    ) -> int:
        """The slot for a prompt, NOBODY (-1) when none is eligible; `scratch` says why.

        config:   what counts besides the policy, which is that of `choice`
        eligible: bool[n_slots];  factors: float64[n_slots], of the costs;  None: all 1
        draw:     uniform in [0, 1), for ties and the softmax
        ring:     of the caller, gets the row of the decision instead of that of the partition
        Changes nothing that others see.  O(blocks + slots), in one compiled call that locks the
        index.
        """
        assert 0.0 <= draw < 1.0
        plan = self.plan if config is self._config and ring is None else self._plan_of(config)
        if ring is not None:
            name_array(plan, layout.RING, ring.header)
        slot: int = place(
            plan,
            prompt.block_hashes,
            prompt.sequence_hashes,
            eligible,
            _NO_FACTORS if factors is None else factors,
            float(prompt.isl_tokens),
            pinned,
            draw,
        )
        return slot

    def terms(
        self,
        prompt: Prompt,
        config: RouterConfig,
        eligible: Mask,
        factors: Floats | None = None,
        pinned: bool = False,
    ) -> npt.NDArray[np.float64]:
        """float64[n, n_slots]: what the costs of the last placement are made of, a fresh array.

        The arguments are those of the placement, since which nothing was booked; rows as the policy
        names them.
        """
        terms = np.empty((len(self.policy.terms), len(eligible)), np.float64)
        self.policy.fill_terms(
            self.plan if config is self._config else self._plan_of(config),
            eligible,
            _NO_FACTORS if factors is None else factors,
            float(prompt.isl_tokens),
            float(len(prompt.sequence_hashes)),
            pinned,
            terms,
        )
        return terms

    def _plan_of(self, config: RouterConfig) -> npt.NDArray[np.int64]:
        """The plan of one request that overrides the configuration, but not the policy."""
        plan = self.plan.copy()
        self._other_parameters = self.policy.parameters(self.choice.within(config))
        name_array(plan, layout.PARAMETERS, self._other_parameters)
        return plan

    def summary(self) -> list[int]:
        """Of the last placement, as plan_layout says."""
        found: list[int] = self._own.summary.tolist()
        return found

    def count(self, prompt: Prompt, slot: int, reserved: bool) -> None:
        """Add the last placement, of a prompt on a slot, to the tally."""
        n_blocks = len(prompt.sequence_hashes)
        count_placement(self.plan, n_blocks, prompt.isl_tokens, slot, reserved)

    @property
    def tally(self) -> Tally:
        found: list[int] = sum(self.tallies)[: layout.N_TALLY].tolist()  # type: ignore[index]
        return Tally(*found)

    def check_invariants(self) -> None:
        """For tests."""
        for plan in self._plans.values():
            self._check(plan)

    def _check(self, plan: Plan) -> None:
        arrays: tuple[npt.NDArray[Any], ...] = (
            *(self._index.header, self.load.header, self.table.header, self._parameters),
            *(*plan.scratch, plan.summary, plan.tally),
        )
        pairs = [(array.ctypes.data, array.size) for array in arrays]
        assert plan.header[: layout.FOLLOWS].tolist() == [n for pair in pairs for n in pair]
        assert plan.header[layout.PLACE_AT] == self.policy.address_of_place()
        assert plan.header[layout.NAMED_POLICY] == policy_number(self.policy)
        assert plan.header[layout.FOLLOWS] == self.policy.follows
        assert len(plan.scratch.costs) >= self.table.n_slots
        for marked, rows in (
            (plan.scratch.holding, plan.scratch.matched.any(axis=1)),
            (plan.scratch.running, plan.scratch.leading != 0),
        ):
            bits = np.unpackbits(marked.view(np.uint8), bitorder="little")
            assert not (rows & (bits == 0)).any()
