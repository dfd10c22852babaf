"""All state of one (model, tenant): an index, a load, and the slots of its ranks.

`place` only reads and `book` only writes, so a request that is refused or that merely asks has
changed nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.index.prefix_index import PrefixIndex, SlotWriter
from select_service.bodies.inspection import OverlapRow, RankLoad
from select_service.bodies.selection import Overlap, SelectRequest
from select_service.core.decide.cost import (
    POLICIES,
    RankNumbers,
    RouterConfig,
    Terms,
    prefer,
    router_credit_blocks,
)
from select_service.core.decide.pick import pick
from select_service.core.decide.prompt import Prompt
from select_service.core.fleet.catalog import Worker
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load import kernels
from select_service.core.load.active_load import ActiveLoad
from select_service.core.load.reservations import Booking
from select_service.errors import BadRequest, NoEligibleRank

PREFERENCE_MAX = 1e6
"""tanh is 1 long before this; the bound keeps sums of hostile weights finite."""


class Placement(NamedTuple):
    """One decision: the chosen slot and everything that it was made of."""

    slot: int
    rank: Rank
    worker: Worker
    numbers: RankNumbers
    terms: Terms
    prompt_blocks: int
    effective_prefill_tokens: int


@dataclass(slots=True)
class Tally:
    """What the decisions of a partition added up to, in blocks."""

    selected: int = 0
    reserved: int = 0
    prompt_blocks: int = 0
    matched_gpu: int = 0
    matched_cpu: int = 0
    matched_disk: int = 0
    matched_external: int = 0
    best_overlap: int = 0
    chosen_overlap: int = 0


class Drained(NamedTuple):
    """Running sums: prefill tokens that were done or given up, and prompt blocks freed."""

    tokens: int = 0
    blocks: int = 0


class _Slot(NamedTuple):
    rank: Rank
    worker: Worker
    writer: SlotWriter


class Partition:
    """Ranks come and go with their workers; a rank has one slot in the index and in the load."""

    def __init__(
        self,
        key: PartitionKey,
        block_size: int,
        is_eagle: bool,
        index: PrefixIndex,
        on_room: Callable[[PartitionKey], None] = lambda key: None,
    ) -> None:
        """on_room: told whenever load has gone, or ranks have come, gone or changed."""
        self.key = key
        self.block_size = block_size
        self.is_eagle = is_eagle
        self.index = index
        self.load = ActiveLoad()
        self.tally = Tally()
        self._drained_tokens = self._drained_blocks = 0
        self.shape = object()
        self._on_room = on_room
        self._kv_usages: dict[Rank, float] = {}
        self._slots: dict[Rank, _Slot] = {}
        self._slots_of_worker: dict[int, list[int]] = {}
        self._rank_at: dict[int, Rank] = {}
        self.open = np.zeros(0, np.bool_)
        self.kv_blocks = self.batch_tokens = self.kv_usage = np.zeros(0, np.float64)
        self.worker_numbers = np.zeros(0, np.int64)  # of open slots: the same for one worker's

    # --- ranks

    @property
    def ranks(self) -> list[Rank]:
        return sorted(self._slots)

    def worker_ids(self) -> set[int]:
        return set(self._slots_of_worker)

    def writer(self, rank: Rank) -> SlotWriter:
        return self._slots[rank].writer

    def slot_ranks(self) -> dict[int, Rank]:
        """slot -> rank of everything schedulable."""
        return dict(self._rank_at)

    def find(self, rank: Rank) -> int | None:
        """Slot of a schedulable rank."""
        held = self._slots.get(rank)
        return None if held is None else held.writer.slot

    def add_worker(self, worker: Worker) -> None:
        """Give each new rank of `worker` a slot; ranks that are there keep theirs and its state."""
        for rank in worker.ranks():
            held = self._slots.get(rank)
            writer = self.index.open_slot() if held is None else held.writer
            self._slots[rank] = _Slot(rank, worker, writer)
            self._rank_at[writer.slot] = rank
        self._refresh()

    def remove_ranks(self, ranks: list[Rank]) -> list[SlotWriter]:
        """Forget the ranks and hand out their writers, which the caller closes.

        The caller has freed their reservations: a slot must come back without load.
        """
        writers = []
        for rank in ranks:
            writer = self._slots.pop(rank).writer
            self._kv_usages.pop(rank, None)
            assert self.load.totals[writer.slot, kernels.REQUESTS] == 0
            del self._rank_at[writer.slot]
            writers.append(writer)
        self._refresh()
        return writers

    def renew_index(self, rank: Rank) -> SlotWriter:
        """Let `rank` begin anew; its old writer is dead, its load stays.

        Returns the new writer, whose `finish_clear` (slow) is for the caller.
        """
        held = self._slots[rank]
        self._slots[rank] = held._replace(writer=held.writer.reopen())
        return self._slots[rank].writer

    def _refresh(self) -> None:
        self.load.ensure_slots(self.index.n_slots)
        self.shape = object()
        self.open = np.zeros(self.load.n_slots, np.bool_)
        self.kv_blocks = np.full(self.load.n_slots, np.inf)
        self.batch_tokens = np.full(self.load.n_slots, np.inf)
        self.worker_numbers = np.zeros(self.load.n_slots, np.int64)
        self._slots_of_worker = {}
        for rank in self.ranks:
            slot, given = self._slots[rank].writer.slot, self._slots[rank].worker.given
            self.open[slot] = True
            self.kv_blocks[slot] = given.total_kv_blocks or np.inf
            if given.max_num_batched_tokens is not None:
                self.batch_tokens[slot] = given.max_num_batched_tokens
            self._slots_of_worker.setdefault(rank.worker_id, []).append(slot)
            self.worker_numbers[slot] = len(self._slots_of_worker) - 1
        self._fill_kv_usage()
        self._on_room(self.key)

    def set_kv_usages(self, told: Mapping[Rank, float | None]) -> None:
        """What engines say of these ranks: used part of the KV cache, 0 to 1, or None when unknown.

        Costs O(1) for each of them.
        """
        changed = {rank: u for rank, u in told.items() if self._kv_usages.get(rank) != u}
        for rank, usage in changed.items():
            self.kv_usage[self._slots[rank].writer.slot] = np.nan if usage is None else usage
            if usage is None:
                del self._kv_usages[rank]
            else:
                self._kv_usages[rank] = usage
        if changed:
            self._on_room(self.key)

    def forget_kv_usages(self, worker_id: int) -> None:
        """The engine of a worker has moved: what it said counts no more."""
        slots = self._slots_of_worker.get(worker_id, ())
        self.set_kv_usages({self._rank_at[slot]: None for slot in slots})

    def _fill_kv_usage(self) -> None:
        self.kv_usage = np.full(self.load.n_slots, np.nan)
        for rank, usage in self._kv_usages.items():
            self.kv_usage[self._slots[rank].writer.slot] = usage

    def worker_mask(self, worker_id: int) -> npt.NDArray[np.bool_]:
        """bool[n_slots]: the ranks of one worker."""
        mask = np.zeros_like(self.open)
        mask[self._slots_of_worker.get(worker_id, [])] = True
        return mask

    # --- decisions

    def numbers(
        self, prompt: Prompt, config: RouterConfig, eligible: npt.NDArray[np.bool_]
    ) -> RankNumbers:
        """Everything a policy may know about every slot, for this prompt.

        A copy: it outlives the booking that follows.
        """
        return RankNumbers(
            matched=self.index.match(prompt.block_hashes),
            totals=self.load.totals.copy(),
            active_blocks=self.load.active_blocks(),
            leading_run=self.load.leading_runs(prompt.sequence_hashes)
            if config.assume_kv_reuse
            else np.zeros(self.load.n_slots, np.int64),
            eligible=eligible,
        )

    def terms(
        self, prompt: Prompt, numbers: RankNumbers, config: RouterConfig, pinned: bool = False
    ) -> Terms:
        return POLICIES[config.policy](
            numbers,
            config,
            self.block_size,
            prompt.isl_tokens,
            len(prompt.sequence_hashes),
            pinned,
        )

    def best_cached_tokens(
        self, prompt: Prompt, config: RouterConfig, candidates: npt.NDArray[np.bool_]
    ) -> int:
        """Most prompt tokens that any candidate has cached, in the weights of the cost."""
        numbers = self.numbers(prompt, config, candidates)
        terms = self.terms(prompt, numbers, config)
        return int(terms[candidates, kernels.CACHED_TOKENS].max())

    def place(
        self,
        prompt: Prompt,
        request: SelectRequest,
        config: RouterConfig,
        eligible: npt.NDArray[np.bool_],
        draw: float,
    ) -> Placement:
        """Choose a rank.  Only reads.

        eligible: bool[n_slots], at least one;  draw: uniform in [0, 1), for ties and the softmax
        """
        numbers = self.numbers(prompt, config, eligible)
        pinned = request.pinned_worker is not None
        terms = self.terms(prompt, numbers, config, pinned)
        preferred = request.routing_constraints.preferred_taints
        if preferred and not pinned:
            prefer(terms, self._preference(preferred))
        slot = pick(
            np.ascontiguousarray(terms[:, kernels.COST]), eligible, config.temperature, draw
        )
        assert slot >= 0
        rank = self._rank_at[slot]
        return Placement(
            slot=slot,
            rank=rank,
            worker=self._slots[rank].worker,
            numbers=numbers,
            terms=terms,
            prompt_blocks=len(prompt.sequence_hashes),
            effective_prefill_tokens=int(terms[slot, kernels.EFFECTIVE_PREFILL_TOKENS]),
        )

    def book(self, booking: Booking) -> None:
        """Add the load of a booking.  Cannot fail."""
        self.load.add(booking.slot, booking.sequence_hashes, booking.prefill_tokens)

    def free(self, booking: Booking) -> None:
        """Take the load of a booking back.  Cannot fail."""
        self.load.remove(
            booking.slot, booking.sequence_hashes, booking.prefill_tokens, booking.output
        )
        self._drain(booking.prefill_tokens, len(booking.sequence_hashes))

    def complete_prefill(self, slot: int, prefill_tokens: int) -> None:
        """Take one reservation's booked prefill tokens off the slot."""
        self.load.complete_prefill(slot, prefill_tokens)
        self._drain(prefill_tokens, 0)

    def _drain(self, tokens: int, blocks: int) -> None:
        self._drained_tokens += tokens
        self._drained_blocks += blocks
        self._on_room(self.key)

    @property
    def drained(self) -> Drained:
        return Drained(self._drained_tokens, self._drained_blocks)

    def count(self, placement: Placement, reserved: bool) -> None:
        """Add a decision to the tally."""
        tally, matched = self.tally, placement.numbers.matched
        gpu, cpu, disk, external = matched[placement.slot].tolist()
        tally.selected += not reserved
        tally.reserved += reserved
        tally.prompt_blocks += placement.prompt_blocks
        tally.matched_gpu += gpu
        tally.matched_cpu += cpu - gpu
        tally.matched_disk += disk - cpu
        tally.matched_external += external - disk
        tally.chosen_overlap += external
        tally.best_overlap += kernels.best_overlap(matched, placement.numbers.eligible)

    def candidates(self, request: SelectRequest) -> npt.NDArray[np.bool_]:
        """bool[n_slots]: who may be chosen by the request's own constraints.

        Raises BadRequest when they contradict each other, NoEligibleRank when nobody may.
        """
        allowed, pinned = request.allowed_worker_ids, request.pinned_worker
        if pinned is not None and allowed is not None and pinned.worker_id not in allowed:
            raise BadRequest(f"pinned worker {pinned.worker_id} is not in allowed worker set")
        required = request.routing_constraints.required_taints
        if pinned is None and allowed is None and not required:
            return self.open
        eligible = np.zeros_like(self.open)
        if pinned is not None:
            slot = self.find(Rank(pinned.worker_id, pinned.dp_rank))
            slots = [] if slot is None else [slot]
        elif allowed is not None:
            slots = [s for w in set(allowed) for s in self._slots_of_worker.get(w, ())]
        else:
            slots = list(self._rank_at)
        for slot in slots:
            taints = self._slots[self._rank_at[slot]].worker.given.taints
            eligible[slot] = set(required) <= set(taints)
        if not eligible.any():
            raise NoEligibleRank(_nobody(request))
        return eligible

    def _preference(self, preferred: dict[str, float]) -> npt.NDArray[np.float64]:
        """float64[n_slots]: sum of the weights (32-bit floats on the wire) of the taints it has."""
        sums = np.zeros(self.load.n_slots, np.float64)
        for slot, rank in self._rank_at.items():
            for taint in set(self._slots[rank].worker.given.taints) & preferred.keys():
                weight = max(-PREFERENCE_MAX, min(PREFERENCE_MAX, preferred[taint]))
                sums[slot] += float(np.float32(weight))
        return sums

    # --- views

    def overlap_of(self, worker_id: int, matched: npt.NDArray[np.int32]) -> Overlap:
        """Matched tokens of one worker: per rank on GPU, and the best rank's cumulative values."""
        size = self.block_size
        gpu = cpu = disk = 0
        dp = {}
        for slot in self._slots_of_worker[worker_id]:
            row = matched[slot].tolist()
            dp[self._rank_at[slot].dp_rank] = size * row[0]
            gpu, cpu, disk = max(gpu, row[0]), max(cpu, row[1]), max(disk, row[3])
        return Overlap(
            longest_matched=size * disk, gpu=size * gpu, dp=dp, cpu=size * cpu, disk=size * disk
        )

    def overlap_rows(self, prompt: Prompt, config: RouterConfig) -> list[OverlapRow]:
        """Matched blocks of every rank, by worker and rank."""
        matched = self.index.match(prompt.block_hashes)
        rows = []
        for rank in self.ranks:
            row = matched[self._slots[rank].writer.slot]
            gpu, cpu, disk = int(row[0]), int(row[1]), int(row[3])
            rows.append(
                OverlapRow(
                    worker_id=rank.worker_id,
                    dp_rank=rank.dp_rank,
                    device_blocks=gpu,
                    host_pinned_blocks=cpu,
                    disk_blocks=disk,
                    host_pinned_extension_blocks=cpu - gpu,
                    disk_extension_blocks=disk - cpu,
                    shared_beyond_device_blocks=None,
                    router_credit_blocks=router_credit_blocks(row, config),
                )
            )
        return rows

    def loads(self) -> list[RankLoad]:
        """Current load of every rank, by worker and rank."""
        return self._rank_loads(
            self.load.totals[:, kernels.PREFILL_TOKENS], self.load.active_blocks()
        )

    def potential_loads(self, prompt: Prompt, config: RouterConfig) -> list[RankLoad]:
        """What the load of every rank would be with this prompt on it."""
        numbers = self.numbers(prompt, config, self.open)
        terms = self.terms(prompt, numbers, config)
        prefill = self.load.totals[:, kernels.PREFILL_TOKENS]
        if config.track_prefill_tokens:
            prefill = prefill + terms[:, kernels.EFFECTIVE_PREFILL_TOKENS].astype(np.int64)
        return self._rank_loads(prefill, terms[:, kernels.DECODE].astype(np.int64))

    def _rank_loads(
        self, prefill_tokens: npt.NDArray[np.int64], decode_blocks: npt.NDArray[np.int64]
    ) -> list[RankLoad]:
        rows = []
        for rank in self.ranks:
            slot = self._slots[rank].writer.slot
            rows.append(
                RankLoad(
                    worker_id=rank.worker_id,
                    dp_rank=rank.dp_rank,
                    potential_prefill_tokens=int(prefill_tokens[slot]),
                    potential_decode_blocks=int(decode_blocks[slot]),
                    active_requests=int(self.load.totals[slot, kernels.REQUESTS]),
                )
            )
        return rows

    def explain(self, placement: Placement) -> list[dict[str, float | int | bool]]:
        """Every candidate with the terms of its cost, cheapest first."""
        numbers, terms = placement.numbers, placement.terms
        slots = np.flatnonzero(numbers.eligible)
        slots = slots[np.argsort(terms[slots, kernels.COST], kind="stable")]
        return [
            {
                "worker_id": self._rank_at[int(slot)].worker_id,
                "dp_rank": self._rank_at[int(slot)].dp_rank,
                "chosen": int(slot) == placement.slot,
                "gpu_blocks": int(numbers.matched[slot, 0]),
                "cpu_blocks": int(numbers.matched[slot, 1]),
                "disk_blocks": int(numbers.matched[slot, 2]),
                "external_blocks": int(numbers.matched[slot, 3]),
                "prefill_tokens": int(numbers.totals[slot, kernels.PREFILL_TOKENS]),
                "active_blocks": int(numbers.active_blocks[slot]),
                "leading_run": int(numbers.leading_run[slot]),
                "active_requests": int(numbers.totals[slot, kernels.REQUESTS]),
                "cached_tokens": int(terms[slot, kernels.CACHED_TOKENS]),
                "effective_prefill_tokens": int(terms[slot, kernels.EFFECTIVE_PREFILL_TOKENS]),
                "raw": round(float(terms[slot, kernels.RAW]), 3),
                "credit": round(float(terms[slot, kernels.CREDIT]), 3),
                "prefill": round(float(terms[slot, kernels.PREFILL]), 3),
                "decode": round(float(terms[slot, kernels.DECODE]), 3),
                "cost": round(float(terms[slot, kernels.COST]), 3),
            }
            for slot in slots
        ]

    def check_invariants(self) -> None:
        """For tests."""
        self.load.check_invariants()
        self.index.check_invariants()
        assert {slot.writer.slot: rank for rank, slot in self._slots.items()} == self._rank_at
        assert set(np.flatnonzero(self.open)) == set(self._rank_at)
        assert self.load.n_slots == self.index.n_slots


def _nobody(request: SelectRequest) -> str:
    pinned = request.pinned_worker
    if pinned is not None:
        wanted = f"pinned worker {pinned.worker_id} dp_rank {pinned.dp_rank}"
    elif request.allowed_worker_ids is not None:
        wanted = f"any of {len(request.allowed_worker_ids)} allowed workers"
    else:
        wanted = "any worker"
    required = sorted(request.routing_constraints.required_taints)
    taints = f" with taints {required}" if required else ""
    return f"no endpoints available to route work: {wanted}{taints} is not schedulable here"
