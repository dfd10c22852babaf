"""Placement in a partition: one compiled call from a prompt to a slot."""

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import N_TIERS
from select_service.core.array_types import Floats, Mask, store_pointer
from select_service.core.load.active_load import ActiveLoad
from select_service.core.load.new_reservation import BOOKED_BLOCKS_MAX
from select_service.core.placement import plan_layout as layout
from select_service.core.placement.decision_ring import DecisionRing
from select_service.core.placement.decision_ring_kernels import address_of_record
from select_service.core.placement.placement_kernels import (
    count_placement,
    export_step_addresses,
    place_prompt,
)
from select_service.core.placement.policies.policy_registry import (
    POLICIES,
    PolicyChoice,
    policy_choice_of,
    policy_number,
)
from select_service.core.placement.prompt import Prompt
from select_service.core.placement.router_config import RouterConfig
from select_service.core.shared_caches.fetch_prices import FetchPrices
from select_service.core.shared_caches.shared_hits import SharedHits
from select_service.core.shared_caches.shared_layout import SHARED_VALUE
from select_service.core.workers.rank_table import RankTable

_NO_HEADER = np.zeros(0, np.int64)
_NO_SHARED: npt.NDArray[np.float64] = np.zeros(0, np.float64)
_NO_FACTORS: Floats = np.zeros(0, np.float64)
"""Empty array, meaning that all cost factors are 1."""
_pack_request = Struct(layout.REQUEST_FORMAT).pack_into
_REQUEST_AT = 8 * layout.REQUEST
"""Position of the request's numbers in the plan, in bytes."""
_INITIAL_ROWS = 64
"""Initial number of rows, the number of bits of a word."""


class RankPreference(NamedTuple):
    """Preference of a request among its eligible ranks.

    factors: float64[n_slots], cost factors; None means all 1
    pinned: whether the request gives the rank
    """

    factors: Floats | None = None
    pinned: bool = False


NO_PREFERENCE = RankPreference()
PINNED_RANK = RankPreference(pinned=True)


class PlacementScratch(NamedTuple):
    """Working arrays of a placement (see plan_layout), overwritten by the next placement."""

    matched: npt.NDArray[np.int32]
    holding: npt.NDArray[np.uint64]
    leading: npt.NDArray[np.int64]
    running: npt.NDArray[np.uint64]
    keys: npt.NDArray[np.uint64]
    costs: npt.NDArray[np.float64]
    assumed_matched: npt.NDArray[np.int32]
    assumed_holding: npt.NDArray[np.uint64]
    assumed_blocks: npt.NDArray[np.int32]
    own_works: npt.NDArray[np.float64]

    @classmethod
    def allocate(cls, rows: int) -> "PlacementScratch":
        return cls(
            matched=np.zeros((rows, N_TIERS), np.int32),
            holding=np.zeros(rows // 64, np.uint64),
            leading=np.zeros(rows, np.int64),
            running=np.zeros(rows // 64, np.uint64),
            keys=np.empty(BOOKED_BLOCKS_MAX, np.uint64),
            costs=np.zeros(rows, np.float64),
            assumed_matched=np.zeros((rows, N_TIERS), np.int32),
            assumed_holding=np.zeros(rows // 64, np.uint64),
            assumed_blocks=np.zeros(rows, np.int32),
            own_works=np.zeros(rows, np.float64),
        )


_SCRATCH = range(layout.MATCHED, layout.SUMMARY, 2)


class PlacementTally(NamedTuple):
    """Sums over the decisions of a partition, in blocks or tokens (see plan_layout)."""

    selected: int
    reserved: int
    prompt_blocks: int
    matched_gpu: int
    matched_cpu: int
    matched_disk: int
    matched_external: int
    best_overlap: int
    chosen_overlap: int
    exact_tokens: int
    bound_tokens: int
    least_tokens: int
    uncertain_tokens: int
    assumed_tokens: int


class PlacementPlan:
    """Plan of a reader: header for kernels (see plan_layout), and the arrays kernels write.

    header: int64 array, never replaced
    """

    def __init__(self, header: npt.NDArray[np.int64], rows: int) -> None:
        """Allocate the written arrays and enter them in the header.

        header: int64[HEADER_LENGTH], already with the entries that kernels only read
        """
        self.header = header
        self.summary = np.zeros(layout.N_SUMMARY, np.int64)
        self.tally = np.zeros(layout.TALLY_LENGTH, np.int64)
        store_pointer(self.header, layout.SUMMARY, self.summary)
        store_pointer(self.header, layout.TALLY, self.tally)
        self.install_scratch(PlacementScratch.allocate(rows))

    def install_scratch(self, scratch: PlacementScratch) -> None:
        arrays: tuple[npt.NDArray[Any], ...] = scratch
        for at, array in zip(_SCRATCH, arrays, strict=True):
            store_pointer(self.header, at, array)
        self.scratch = scratch


class Placer:
    """Placer of a partition: reads index, rank table and load, and owns the working arrays."""

    def __init__(
        self,
        index: PrefixIndex,
        table: RankTable,
        load: ActiveLoad,
        block_size: int,
        config: RouterConfig,
        recording: tuple[DecisionRing, int] | None = None,
    ) -> None:
        """Build the plan of the partition.

        config: default configuration of prompts, until `switch_policy` changes the policy
        recording: ring that records the decisions of `place_prompt`, and the number of the
                   partition in this ring
        """
        self._index = index
        self.fetch_prices = FetchPrices(table)
        self.shared_rows = _NO_SHARED
        """float64[n_slots, SHARED_FIELDS] of shared_layout, of the last placement with a look-up;
        empty without a hit.
        """
        self._assumed_index: PrefixIndex | None = None
        self.table = table
        self.load = load
        self._config = config
        self.plan = plan = np.zeros(layout.HEADER_LENGTH, np.int64)
        """How kernels place prompts by `config` (plan_layout); never replaced."""
        self.block_size = plan[layout.BLOCK_SIZE] = block_size
        export_step_addresses(plan)
        store_pointer(plan, layout.INDEX, index.header)
        store_pointer(plan, layout.LOAD, load.header)
        store_pointer(plan, layout.RANKS, table.header)
        plan[layout.RECORD_ADDRESS] = address_of_record()
        self._set_policy(policy_choice_of(config))
        self._own_plan = PlacementPlan(plan, _INITIAL_ROWS)
        self.tally_words = self._own_plan.tally
        """int64[TALLY_LENGTH] of plan_layout: counters of the decisions, which only grow."""
        self._recording = recording
        if recording is not None:
            ring, plan[layout.PARTITION] = recording
            store_pointer(plan, layout.RING, ring.header)

    def _set_policy(self, choice: PolicyChoice) -> None:
        """Write a policy into the plan."""
        self.policy_choice, self.policy = choice, POLICIES[choice.policy]
        self._parameters = self.policy.make_parameters(choice.apply_to(self._config))
        plan = self.plan
        store_pointer(plan, layout.PARAMETERS, self._parameters)
        plan[layout.FOLLOWS_PREFILLS] = self.policy.follows_prefills
        plan[layout.PLACE_ADDRESS] = self.policy.address_of_place()
        plan[layout.POLICY_NUMBER] = policy_number(self.policy)

    def switch_policy(self, choice: PolicyChoice) -> None:
        """Switch to another policy, from the next placement of any reader on.

        Bookings stay.  Unfinished prefills booked under a policy without progress estimates have no
        prompt and count as full work until their ends.
        """
        if choice != self.policy_choice:
            self._set_policy(choice)

    def install_assumed_index(self, index: PrefixIndex | None) -> None:
        """Match prompts with an index of assumed blocks as well, or no longer.

        index: index with the same slots and the same lock; None means none
        """
        self._assumed_index, plan = index, self.plan
        store_pointer(plan, layout.ASSUMED_INDEX, _NO_HEADER if index is None else index.header)
        # The rows of the last match are cleared by the next.
        plan[layout.ASSUMES] |= layout.HAS_ASSUMED_ROWS | layout.HAS_ASSUMED_INDEX
        if index is None:
            plan[layout.ASSUMES] &= ~layout.HAS_ASSUMED_INDEX

    def set_session_floor(self, slot: int, tokens: int) -> None:
        """Let the next placement assume that a slot holds at least `tokens` leading tokens.

        The floor counts in whole blocks of the device tier and for one placement only, with
        certainty `assumed`.  Kernels set the same words of the plan.
        """
        plan = self.plan
        plan[layout.FLOOR_SLOT], plan[layout.FLOOR_TOKENS] = slot, tokens
        plan[layout.ASSUMES] |= layout.HAS_FLOOR

    @property
    def may_assume(self) -> bool:
        """Whether the rows of assumed blocks are those of the last match."""
        return bool(self.plan[layout.ASSUMES])

    def count_assumed(self, slot: int) -> int:
        """Return the device blocks of the last match that are only assumed on a slot."""
        # Without the flag the rows are of an older match.
        return int(self.scratch.assumed_blocks[slot]) if self.plan[layout.ASSUMES] else 0

    @property
    def scratch(self) -> PlacementScratch:
        return self._own_plan.scratch

    def reserve_slots(self, n_slots: int) -> None:
        """Make room for `n_slots` slots.  Raises MemoryError without having changed anything."""
        rows = len(self.scratch.costs)
        if n_slots > rows:
            while rows < n_slots:
                rows *= 2
            self._own_plan.install_scratch(PlacementScratch.allocate(rows))

    def place_prompt(
        self,
        prompt: Prompt,
        config: RouterConfig,
        eligible: Mask,
        preference: RankPreference = NO_PREFERENCE,
        draw: float = 0.0,
        ring: DecisionRing | None = None,
    ) -> int:
        """Return the slot for a prompt, or -1 when no slot is eligible; fill `scratch`.

        config: parameters besides the policy, which is always that of `choice`
        eligible: bool[n_slots]
        draw: uniform in [0, 1), for ties and the softmax
        ring: ring that gets the row instead of the partition's ring
        Changes no state outside the plan.  O(blocks + slots), in one compiled call under the lock
        of the index.
        """
        assert 0.0 <= draw < 1.0
        # Identity is enough: an equal configuration in another object only costs a plan copy.
        plan = (
            self.plan
            if config is self._config and ring is None
            else self._plan_with_override(config)
        )
        if ring is not None:
            store_pointer(plan, layout.RING, ring.header)
        sequence, (factors, pinned) = prompt.sequence_hashes, preference
        _pack_request(plan.data, _REQUEST_AT, prompt.isl_tokens, len(sequence), pinned, draw)
        if prompt.units is not None:
            self._index.set_units(prompt.units)
        if prompt.shared is not None:
            self._set_shared(plan, prompt.shared)
        slot: int = place_prompt(
            plan,
            prompt.block_hashes,
            sequence,
            eligible,
            _NO_FACTORS if factors is None else factors,
        )
        if plan is not self.plan or prompt.units is not None or prompt.shared is not None:
            self._end_match(plan)
        return slot

    def _set_shared(self, plan: npt.NDArray[np.int64], hits: SharedHits) -> None:
        """Let the match compare slots with a shared cache, for credit if the policy gives any."""
        self.shared_rows = _NO_SHARED
        if hits.outcome == "hit":
            self.shared_rows = self.fetch_prices.price_rows(hits)
            if not self.policy.credits_shared:
                self.shared_rows[:, SHARED_VALUE] = 0.0
        store_pointer(plan, layout.SHARED, self.shared_rows)

    def _end_match(self, plan: npt.NDArray[np.int64]) -> None:
        """Take over what a match left in its plan; units and look-up of the prompt end with it."""
        # A match uses up the floor and leaves rows that the next one must clear.
        self.plan[layout.ASSUMES :] = plan[layout.ASSUMES :]
        store_pointer(self.plan, layout.SHARED, _NO_SHARED)
        self._index.set_units(None)

    def cost_terms(
        self,
        prompt: Prompt,
        config: RouterConfig,
        eligible: Mask,
        preference: RankPreference = NO_PREFERENCE,
    ) -> npt.NDArray[np.float64]:
        """Return the cost terms of the last placement, float64[n, n_slots], a fresh array.

        Arguments: those of the placement, since which nothing may have been booked.  The policy
        names the rows.
        """
        terms = np.empty((len(self.policy.term_names), len(eligible)), np.float64)
        plan = self.plan if config is self._config else self._plan_with_override(config)
        n_blocks, (factors, pinned) = len(prompt.sequence_hashes), preference
        _pack_request(plan.data, _REQUEST_AT, prompt.isl_tokens, n_blocks, pinned, 0.0)
        factors = _NO_FACTORS if factors is None else factors
        if prompt.shared is not None:
            store_pointer(plan, layout.SHARED, self.shared_rows)
        self.policy.fill_terms(plan, eligible, factors, terms)
        if prompt.shared is not None:
            store_pointer(plan, layout.SHARED, _NO_SHARED)
        return terms

    def _plan_with_override(self, config: RouterConfig) -> npt.NDArray[np.int64]:
        """Return the plan of a request with its own parameters; the policy stays."""
        plan = self.plan.copy()
        # The plan has only addresses, so the attribute keeps the array alive during the call.
        self._other_parameters = self.policy.make_parameters(self.policy_choice.apply_to(config))
        store_pointer(plan, layout.PARAMETERS, self._other_parameters)
        return plan

    @property
    def default_config(self) -> RouterConfig:
        """Default configuration of prompts."""
        return self._config

    def place_with(
        self,
        parameters: Floats,
        prompt: Prompt,
        draw: float,
        place: Callable[[npt.NDArray[np.int64]], None],
    ) -> None:
        """Run another placement of a prompt, which matches it by the partition's plan.

        parameters: parameters of the policy `work`, kept alive by the caller
        draw: uniform in [0, 1), for ties
        place: compiled call that takes the plan
        """
        plan = self.plan.copy()
        store_pointer(plan, layout.PARAMETERS, parameters)
        blocks = len(prompt.sequence_hashes)
        _pack_request(plan.data, _REQUEST_AT, prompt.isl_tokens, blocks, False, draw)
        self._index.set_units(prompt.units)
        if prompt.shared is not None:
            self._set_shared(plan, prompt.shared)
        place(plan)
        self._end_match(plan)

    def last_summary(self) -> list[int]:
        """Return the summary of the last placement, as plan_layout describes."""
        found: list[int] = self._own_plan.summary.tolist()
        return found

    def count_placement(self, prompt: Prompt, slot: int, reserved: bool) -> None:
        """Add the last placement, of a prompt on a slot, to the tally."""
        n_blocks = len(prompt.sequence_hashes)
        count_placement(self.plan, n_blocks, prompt.isl_tokens, slot, reserved)

    @property
    def total_tally(self) -> PlacementTally:
        found: list[int] = self.tally_words[: layout.N_TALLY].tolist()
        return PlacementTally(*found)

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        plan = self._own_plan
        arrays: tuple[npt.NDArray[Any], ...] = (
            *(self._index.header, self.load.header, self.table.header, self._parameters),
            *(*plan.scratch, plan.summary, plan.tally),
        )
        pairs = [(array.ctypes.data, array.size) for array in arrays]
        assert plan.header[: layout.FOLLOWS_PREFILLS].tolist() == [
            n for pair in pairs for n in pair
        ]
        assert plan.header[layout.PLACE_ADDRESS] == self.policy.address_of_place()
        assert plan.header[layout.POLICY_NUMBER] == policy_number(self.policy)
        assert plan.header[layout.FOLLOWS_PREFILLS] == self.policy.follows_prefills
        assert len(plan.scratch.costs) >= self.table.n_slots
        assert not plan.header[layout.SHARED + 1]  # set for the time of a placement only
        assumed = self._assumed_index
        assert bool(plan.header[layout.ASSUMES] & layout.HAS_ASSUMED_INDEX) == (assumed is not None)
        if assumed is not None:
            assert assumed.lock is self._index.lock
            pair = plan.header[layout.ASSUMED_INDEX : layout.ASSUMED_INDEX + 2].tolist()
            assert pair == [assumed.header.ctypes.data, assumed.header.size]
        for marked, rows in (
            (plan.scratch.assumed_holding, plan.scratch.assumed_matched.any(axis=1)),
            (plan.scratch.assumed_holding, plan.scratch.assumed_blocks != 0),
            (plan.scratch.holding, plan.scratch.matched.any(axis=1)),
            (plan.scratch.running, plan.scratch.leading != 0),
        ):
            bits = np.unpackbits(marked.view(np.uint8), bitorder="little")
            assert not (rows & (bits == 0)).any()
