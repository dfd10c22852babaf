"""Partition of a model and tenant: ranks, index, load, and the choice of a rank.

`place_prompt` only reads, so a rejected or hypothetical request changes nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.index.prefix_index import PrefixIndex, ReuseMatch
from indexer.index.slot_writer import SlotWriter
from select_service.core.array_types import Mask
from select_service.core.assumed.assumed_blocks import AssumedBlocks
from select_service.core.assumed.rank_modes import AssumptionRules
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.active_load import ActiveLoad
from select_service.core.load.new_reservation import LoadAccount
from select_service.core.placement.candidate_explanation import CandidateTerms, explain_candidates
from select_service.core.placement.candidates import preference_factors
from select_service.core.placement.decision_ring import DecisionPartition, DecisionRing
from select_service.core.placement.placement_kernels import CACHED_TOKENS, NO_SLOT
from select_service.core.placement.placer import NO_PREFERENCE, PINNED_RANK, Placer, RankPreference
from select_service.core.placement.prompt import Prompt
from select_service.core.placement.router_config import RouterConfig
from select_service.core.workers.rank_table import RankTable
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.schemas.selection import SelectRequest


class RankPlacement(NamedTuple):
    """Chosen slot and its summary as in plan_layout; blocks are cumulative over the tiers."""

    slot: int
    effective_prefill_tokens: int
    gpu: int
    cpu: int
    disk: int
    external: int
    best_overlap: int
    own_work: int
    inside: int = 0
    certainty: int = 0
    assumed: int = 0


class Partition:
    """Partition; a rank has one slot, the same in index, table and load.

    Ingest threads change the index, under its lock; all else belongs to the event loop.
    """

    def __init__(
        self,
        key: PartitionKey,
        block_size: int,
        is_eagle: bool,
        index: PrefixIndex,
        config: RouterConfig,
        ring: DecisionRing | None = None,
    ) -> None:
        """Create an empty partition.

        config: default routing settings of requests
        ring: ring that records the decisions
        """
        self.key = key
        self.block_size = block_size
        self.is_eagle = is_eagle
        self.index = index
        self.table = RankTable()
        self.account = LoadAccount(key, block_size)
        recording = None
        if ring is not None:
            recording = ring, ring.add_partition(self.describe_for_decisions())
        self.placer = Placer(index, self.table, self.account.load, block_size, config, recording)
        self.hint_slots: set[int] = set()
        """Slots of workers with a type for hints; such partitions are not on the fast path."""
        self.shared_credit_tokens = 0
        """Tokens of prefill that shared caches save by the decisions so far."""
        self.looked_up_tokens = 0
        """Tokens of the prompts for which a shared cache answered."""
        self.reused_tokens = 0
        """Leading tokens of these prompts that the chosen workers held themselves."""
        self.kv_source_outcomes: Counter[str] = Counter()
        """Decisions by the outcome of the search for a rank to fetch from."""
        self.assumed: AssumedBlocks | None = None
        """Assumed blocks, from the first rank of which bookings are assumed."""
        self.hint_outcomes: Counter[str] = Counter()
        """Bookings on these slots by what became of their hint."""
        self.effective_batch_share = 1.0
        """Effective share of batch budgets and busy thresholds while the model is degraded."""

    @property
    def load(self) -> ActiveLoad:
        return self.account.load

    @property
    def lookahead(self) -> int:
        """Tokens behind a block that its content covers, by the registration and events."""
        return max(1, self.index.lookahead) if self.is_eagle else 0

    def widen_index(self, worker: RegisteredWorker) -> Iterator[None]:
        """Widen the index for the new ranks, in steps. Raises MemoryError."""
        while self.index.widen_step(len(self.table.ranks_without_slot(worker.list_ranks()))):
            yield

    def make_writers(self, worker: RegisteredWorker, n_renewed: int) -> Iterator[None]:
        """Create the writers of new and renewed ranks, in steps."""
        while self.index.make_writers(
            len(self.table.ranks_without_slot(worker.list_ranks())) + n_renewed
        ):
            yield

    def open_slots(self, worker: RegisteredWorker) -> dict[Rank, SlotWriter]:
        """Open slots for the new ranks of a worker, with all memory that `join_ranks` needs.

        All memory proportional to the slots is reserved before the first slot is opened. Raises
        MemoryError or OSError without changes.
        """
        new = self.table.ranks_without_slot(worker.list_ranks())
        # Reserved everywhere first: afterwards no allocation can fail half-way.
        n_slots = self.index.reserve_slots(len(new))
        self.account.reserve_slots(n_slots)
        self.table.reserve_slots(n_slots)
        self.placer.reserve_slots(n_slots)
        if self.assumed is not None:
            self.assumed.reserve_slots(n_slots)
        writers = self.index.open_slots(len(new))
        self.account.ensure_slots(self.index.n_slots)
        self.table.ensure_slots(self.index.n_slots)
        if self.assumed is not None:
            self.assumed.ensure_slots(self.index.n_slots)
        try:
            self.table.prepare_worker(worker)
        except MemoryError:
            for writer in writers:
                writer.close()
            raise
        return dict(zip(new, writers, strict=True))

    def join_ranks(self, worker: RegisteredWorker, opened: dict[Rank, SlotWriter]) -> None:
        """Assign a slot to each new rank; existing ranks keep slot and state.

        opened: writers from `open_slots` and `renew_indexes`
        """
        table = self.table
        writers = {rank: opened.get(rank) or table.writer_of(rank) for rank in worker.list_ranks()}
        table.put_worker(worker, writers)
        slots = table.slots_of(worker.worker_id)
        if worker.takes_hints:
            self.hint_slots.update(slots)
        else:
            self.hint_slots.difference_update(slots)
        # The role is known only by workers, but kernels read it from the load.
        self.load.only_decode[slots] = worker.registration.role == "decode"

    def writer_at(self, slot: int) -> SlotWriter:
        """Return the writer of an occupied slot."""
        return self.table.row_at(slot).writer

    def prepare_assumed(self) -> AssumedBlocks:
        """Return the assumed blocks, made now if there are none.  Raises MemoryError."""
        if self.assumed is None:
            assumed = AssumedBlocks(self.index, self.load)
            self.placer.install_assumed_index(assumed.index)
            self.assumed = assumed
        return self.assumed

    def assume_bookings(self, worker: RegisteredWorker, rules: AssumptionRules) -> None:
        """Let the bookings on the ranks of a worker be assumed, or no longer."""
        if self.assumed is not None:
            given = worker.registration
            source = rules.source_of(given.index)
            for slot in self.table.slots_of(worker.worker_id):
                rank = rules.make_rank(source, given.total_kv_blocks, self.block_size)
                self.assumed.set_rank(slot, rank)

    def remove_ranks(self, worker_id: int, ranks: Iterable[Rank]) -> list[SlotWriter]:
        """Remove ranks of a worker from the table, and return their writers.

        The caller closes each writer when its slot has no load, and not earlier: a reused slot must
        be empty.
        """
        writers = [row.writer for row in self.table.remove_ranks(worker_id, ranks)]
        self.hint_slots.difference_update(writer.slot for writer in writers)
        return writers

    def renew_indexes(self, ranks: Sequence[Rank]) -> dict[Rank, SlotWriter]:
        """Restart the index of ranks: old writers become invalid, loads stay.

        Returns the new writers, for `join_ranks`; their slow `finish_clear` is left to the caller.
        """
        writers = self.index.reopen_slots([self.table.writer_of(rank) for rank in ranks])
        return dict(zip(ranks, writers, strict=True))

    def place_prompt(
        self,
        prompt: Prompt,
        request: SelectRequest,
        config: RouterConfig,
        eligible: Mask,
        draw: float,
    ) -> RankPlacement:
        """Choose a rank, without changes; details are in `placer.scratch` until the next call.

        eligible: bool[n_slots], at least one True
        draw: uniform in [0, 1), for ties and softmax
        """
        preference = self._preference_of(request)
        slot = self.placer.place_prompt(prompt, config, eligible, preference, draw)
        assert slot != NO_SLOT
        return RankPlacement(slot, *self.placer.last_summary())

    def place_prompt_in_ring(
        self,
        ring: DecisionRing,
        prompt: Prompt,
        request: SelectRequest,
        config: RouterConfig,
        eligible: Mask,
        draw: float,
    ) -> None:
        """Choose a rank like `place_prompt`, and record the decision in the given ring."""
        preference = self._preference_of(request)
        slot = self.placer.place_prompt(prompt, config, eligible, preference, draw, ring)
        assert slot != NO_SLOT

    def describe_for_decisions(self) -> DecisionPartition:
        """Return the description used in decision reports."""
        return DecisionPartition(self.key, self.block_size, self.table)

    def explain_placement(
        self,
        prompt: Prompt,
        request: SelectRequest,
        config: RouterConfig,
        eligible: Mask,
        chosen: int,
    ) -> list[CandidateTerms]:
        """Return the candidates of the last `place_prompt` with the same arguments."""
        terms = self.placer.cost_terms(prompt, config, eligible, self._preference_of(request))
        return explain_candidates(self.placer, terms, eligible, chosen)

    def _preference_of(self, request: SelectRequest) -> RankPreference:
        """Return the pinned rank, else the preferred taints, as a preference of the placement."""
        preferred = request.routing_constraints.preferred_taints
        if request.pinned_worker is not None:
            return PINNED_RANK
        if not preferred:
            return NO_PREFERENCE
        return RankPreference(preference_factors(self.table, preferred))

    def match_assumed(
        self, prompt: Prompt, config: RouterConfig
    ) -> tuple[ReuseMatch, npt.NDArray[np.int32] | None]:
        """Return what all ranks hold of a prompt, and the device blocks that are only assumed.

        The latter is int32[n_slots], or None where nothing is assumed.
        """
        if self.assumed is None:
            return self.index.match_reuse(prompt.block_hashes, prompt.units), None
        # Only for the match that the kernel leaves in the scratch; the choice is ignored.
        self.placer.place_prompt(prompt, config, self.table.open_slots)
        scratch = self.placer.scratch
        reuse = self.index.last_reuse(scratch.matched)
        return reuse, scratch.assumed_blocks[: len(reuse.matched)]

    def find_best_tokens(
        self, prompt: Prompt, config: RouterConfig, allowed: Mask
    ) -> tuple[int, int]:
        """Return the most cached prompt tokens of any allowed rank, weighted as in the cost, and
        the fewest tokens any of them would compute.

        allowed: bool[n_slots], at least one True
        """
        self.placer.place_prompt(prompt, config, allowed)
        terms = self.placer.cost_terms(prompt, config, allowed)[:, allowed]
        own_work = terms[self.placer.policy.own_work_row]
        return int(terms[CACHED_TOKENS].max()), int(own_work.min())

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        self.table.check_invariants()
        self.account.check_invariants()
        assert not self.account.leaving_slots & {slot for _, slot in self.table.iterate_slots()}
        self.index.check_invariants()
        self.placer.check_invariants()
        if self.assumed is not None:
            self.assumed.check_invariants()
            assert self.assumed.index.n_slots == self.index.n_slots
        assert self.load.n_slots == self.index.n_slots == self.table.n_slots
        takes_hints = set()
        for _, slot in self.table.iterate_slots():
            assert self.table.row_at(slot).writer.slot == slot
            takes_hints |= {slot} if self.table.row_at(slot).worker.takes_hints else set()
        assert takes_hints == self.hint_slots
