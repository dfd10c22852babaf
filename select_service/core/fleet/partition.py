"""One (model, tenant): who is there, what they hold, what they are busy with, and the choice.

`place` only reads, so a request that is refused or that merely asks has changed nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from indexer.index.prefix_index import PrefixIndex
from indexer.index.slot_writer import SlotWriter
from select_service.bodies.selection import SelectRequest
from select_service.core.arrays import Mask
from select_service.core.decide.candidates import preference_factors
from select_service.core.decide.placement_kernels import CACHED_TOKENS, NOBODY
from select_service.core.decide.placing import Placing
from select_service.core.decide.prompt import Prompt
from select_service.core.decide.router_config import RouterConfig
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.active_load import ActiveLoad
from select_service.core.load.booking import Account
from select_service.core.workers.catalog import Worker
from select_service.core.workers.rank_table import RankTable


class Placement(NamedTuple):
    """One choice.

    matched:      cumulative matched blocks of the slot after GPU, CPU, DISK, EXTERNAL
    best_overlap: most blocks, over all tiers, that any eligible slot has
    """

    slot: int
    prompt_blocks: int
    effective_prefill_tokens: int
    matched: tuple[int, int, int, int]
    best_overlap: int


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


class Partition:
    """Ranks come and go with their workers; a rank has one slot in the index, table and load."""

    def __init__(
        self, key: PartitionKey, block_size: int, is_eagle: bool, index: PrefixIndex
    ) -> None:
        self.key = key
        self.block_size = block_size
        self.is_eagle = is_eagle
        self.index = index
        self.table = RankTable()
        self.account = Account(key, block_size)
        self.placing = Placing(index, self.table, self.account.load, block_size)
        self.tally = Tally()

    @property
    def load(self) -> ActiveLoad:
        return self.account.load

    # --- ranks

    def widening(self, worker: Worker) -> Iterator[None]:
        """What of `open_slots` grows with what the index holds, in steps.  Raises MemoryError."""
        while self.index.widen_on(sum(self.table.find(rank) is None for rank in worker.ranks())):
            yield

    def open_slots(self, worker: Worker) -> dict[Rank, SlotWriter]:
        """Slots for those ranks of a worker that have none, and room for all that `join` notes.

        All that needs memory in proportion to the slots is reserved before the first is opened.
        Raises MemoryError or OSError, and then has taken none.
        """
        new = [rank for rank in worker.ranks() if self.table.find(rank) is None]
        n_slots = self.index.reserve_slots(len(new))
        self.account.reserve_slots(n_slots)
        self.table.reserve_slots(n_slots)
        writers: dict[Rank, SlotWriter] = {}
        try:
            for rank in new:
                writers[rank] = self.index.open_slot()
            self.table.prepare(worker)
        except (MemoryError, OSError):
            for writer in writers.values():
                writer.close()
            raise
        finally:
            self.account.ensure_slots(self.index.n_slots)
            self.table.ensure_slots(self.index.n_slots)
        return writers

    def join(self, worker: Worker, opened: dict[Rank, SlotWriter]) -> None:
        """Give each new rank of `worker` its slot; ranks that are there keep theirs and its state.

        opened: what `open_slots` and `renewed_index` gave for the ranks of this worker
        """
        table = self.table
        writers = {rank: opened.get(rank) or table.writer(rank) for rank in worker.ranks()}
        table.put(worker, writers)

    def leave(self, worker_id: int, ranks: Iterable[Rank]) -> list[SlotWriter]:
        """Forget ranks of a worker: nothing more is booked on them.  Hands out their writers.

        The caller closes each of them when the slot has no load any more, and not before: a slot
        must come back empty.
        """
        return [row.writer for row in self.table.drop(worker_id, ranks)]

    def renewed_index(self, rank: Rank) -> SlotWriter:
        """Let `rank` begin anew; its old writer is dead, its load stays.

        Returns the new writer, for `join`; its `finish_clear` (slow) is for the caller.
        """
        return self.table.writer(rank).reopen()

    # --- decisions

    def place(
        self,
        prompt: Prompt,
        request: SelectRequest,
        config: RouterConfig,
        eligible: Mask,
        draw: float,
    ) -> Placement:
        """Choose a rank.  Only reads; its terms are in `placing.last` until the next one.

        eligible: bool[n_slots], at least one;  draw: uniform in [0, 1), for ties and the softmax
        """
        pinned = request.pinned_worker is not None
        preferred = request.routing_constraints.preferred_taints
        factors = preference_factors(self.table, preferred) if preferred and not pinned else None
        slot = self.placing.place(prompt, config, eligible, factors, pinned, draw)
        assert slot != NOBODY
        effective, gpu, cpu, disk, external, best = self.placing.last.summary.tolist()
        return Placement(
            slot, len(prompt.sequence_hashes), effective, (gpu, cpu, disk, external), best
        )

    def best_cached_tokens(self, prompt: Prompt, config: RouterConfig, allowed: Mask) -> int:
        """Most prompt tokens that any of the allowed ranks has cached, in the weights of the cost.

        allowed: bool[n_slots], at least one
        """
        self.placing.place(prompt, config, allowed)
        cached = self.placing.last.terms[CACHED_TOKENS]
        return int(cached[allowed].max())

    def count(self, placement: Placement, reserved: bool) -> None:
        """Add a decision to the tally."""
        tally = self.tally
        gpu, cpu, disk, external = placement.matched
        tally.selected += not reserved
        tally.reserved += reserved
        tally.prompt_blocks += placement.prompt_blocks
        tally.matched_gpu += gpu
        tally.matched_cpu += cpu - gpu
        tally.matched_disk += disk - cpu
        tally.matched_external += external - disk
        tally.chosen_overlap += external
        tally.best_overlap += placement.best_overlap

    def check_invariants(self) -> None:
        """For tests."""
        self.table.check_invariants()
        self.account.check_invariants()
        assert not self.account.leaving & {slot for _, slot in self.table.slots()}
        self.index.check_invariants()
        assert self.load.n_slots == self.index.n_slots == self.table.n_slots
        for _, slot in self.table.slots():
            assert self.table.row(slot).writer.slot == slot
