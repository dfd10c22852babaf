"""One (model, tenant): who is there, what they hold, what they are busy with, and the choice.

`place` only reads, so a request that is refused or that merely asks has changed nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from indexer.index.prefix_index import PrefixIndex
from indexer.index.slot_writer import SlotWriter
from select_service.bodies.selection import SelectRequest
from select_service.core.arrays import Floats, Mask
from select_service.core.decide.candidates import preference_factors
from select_service.core.decide.decision_ring import Decided, DecisionRing
from select_service.core.decide.explain import Candidate, explained
from select_service.core.decide.placement_kernels import CACHED_TOKENS, NOBODY
from select_service.core.decide.placing import Placing
from select_service.core.decide.prompt import Prompt
from select_service.core.decide.router_config import RouterConfig
from select_service.core.fleet.limits_layout import N_LIMITS
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.active_load import ActiveLoad
from select_service.core.load.booking import Account
from select_service.core.workers.catalog import Worker
from select_service.core.workers.rank_table import RankTable


class Placement(NamedTuple):
    """One choice: a slot and what plan_layout says of it in the summary, blocks cumulative."""

    slot: int
    effective_prefill_tokens: int
    gpu: int
    cpu: int
    disk: int
    external: int
    best_overlap: int
    own_work: int


class Partition:
    """Ranks come and go with their workers; a rank has one slot in the index, table and load.

    All that a placement reads changes under the lock of the index: kernels of other threads may
    place prompts at any time.
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
        """config: by which prompts are placed unless a request says otherwise
        ring: keeps the decisions
        """
        self.key = key
        self.block_size = block_size
        self.is_eagle = is_eagle
        self.index = index
        self.table = RankTable(index.lock)
        self.account = Account(key, block_size, index.lock)
        number = 0 if ring is None else ring.enter(self.decided())
        self.placing = Placing(
            index, self.table, self.account.load, block_size, config, ring, number
        )
        self.batch_share = 1.0
        """Of batch budgets and busy thresholds, what counts while the model is degraded."""
        self.limits: Floats = np.zeros(N_LIMITS, np.float64)
        """Of the gate, for kernels (limits_layout); nothing is said at first."""

    @property
    def load(self) -> ActiveLoad:
        return self.account.load

    # --- ranks

    def widening(self, worker: Worker) -> Iterator[None]:
        """What of `open_slots` grows with what the index holds, in steps.  Raises MemoryError."""
        while self.index.widen_on(len(self.table.newcomers(worker.ranks()))):
            yield

    def making_writers(self, worker: Worker, n_renewed: int) -> Iterator[None]:
        """The writers of ranks that come, and of those that begin anew, in steps."""
        while self.index.make_writers(len(self.table.newcomers(worker.ranks())) + n_renewed):
            yield

    def open_slots(self, worker: Worker) -> dict[Rank, SlotWriter]:
        """Slots for those ranks of a worker that have none, and room for all that `join` notes.

        All that needs memory in proportion to the slots is reserved before the first is opened.
        Raises MemoryError or OSError, and then has taken none.
        """
        new = self.table.newcomers(worker.ranks())
        n_slots = self.index.reserve_slots(len(new))
        self.account.reserve_slots(n_slots)
        self.table.reserve_slots(n_slots)
        self.placing.reserve_slots(n_slots)
        writers = self.index.open_slots(len(new))
        self.account.ensure_slots(self.index.n_slots)
        self.table.ensure_slots(self.index.n_slots)
        try:
            self.table.prepare(worker)
        except MemoryError:
            for writer in writers:
                writer.close()
            raise
        return dict(zip(new, writers, strict=True))

    def join(self, worker: Worker, opened: dict[Rank, SlotWriter]) -> None:
        """Give each new rank of `worker` its slot; ranks that are there keep theirs and its state.

        opened: what `open_slots` and `renewed_indexes` gave for the ranks of this worker
        """
        table = self.table
        writers = {rank: opened.get(rank) or table.writer(rank) for rank in worker.ranks()}
        table.put(worker, writers)
        self.load.only_decode[table.slots_of(worker.worker_id)] = worker.given.role == "decode"

    def leave(self, worker_id: int, ranks: Iterable[Rank]) -> list[SlotWriter]:
        """Forget ranks of a worker: nothing more is booked on them.  Hands out their writers.

        The caller closes each of them when the slot has no load any more, and not before: a slot
        must come back empty.
        """
        return [row.writer for row in self.table.drop(worker_id, ranks)]

    def renewed_indexes(self, ranks: Sequence[Rank]) -> dict[Rank, SlotWriter]:
        """Let ranks begin anew; their old writers are dead, their load stays.

        Returns the new writers, for `join`; their `finish_clear` (slow) is for the caller.
        """
        writers = self.index.reopen_slots([self.table.writer(rank) for rank in ranks])
        return dict(zip(ranks, writers, strict=True))

    # --- decisions

    def place(
        self,
        prompt: Prompt,
        request: SelectRequest,
        config: RouterConfig,
        eligible: Mask,
        draw: float,
    ) -> Placement:
        """Choose a rank.  Only reads; what it found is in `placing.scratch` until the next one.

        eligible: bool[n_slots], at least one;  draw: uniform in [0, 1), for ties and the softmax
        """
        pinned, factors = self._wishes(request)
        slot = self.placing.place(prompt, config, eligible, factors, pinned, draw)
        assert slot != NOBODY
        return Placement(slot, *self.placing.summary())

    def place_apart(
        self,
        ring: DecisionRing,
        prompt: Prompt,
        request: SelectRequest,
        config: RouterConfig,
        eligible: Mask,
        draw: float,
    ) -> None:
        """As `place`, with its row in a ring of the caller."""
        pinned, factors = self._wishes(request)
        slot = self.placing.place(prompt, config, eligible, factors, pinned, draw, ring)
        assert slot != NOBODY

    def decided(self) -> Decided:
        """As its decisions are shown."""
        return Decided(self.key, self.block_size, self.table)

    def explain(
        self,
        prompt: Prompt,
        request: SelectRequest,
        config: RouterConfig,
        eligible: Mask,
        chosen: int,
    ) -> list[Candidate]:
        """The candidates of the last `place`, which had the same arguments."""
        pinned, factors = self._wishes(request)
        terms = self.placing.terms(prompt, config, eligible, factors, pinned)
        return explained(self.placing, terms, eligible, chosen)

    def _wishes(self, request: SelectRequest) -> tuple[bool, Floats | None]:
        """Has it named its rank? Otherwise, what the taints that it prefers make of the costs."""
        preferred = request.routing_constraints.preferred_taints
        if request.pinned_worker is not None:
            return True, None
        return False, preference_factors(self.table, preferred) if preferred else None

    def best_tokens(self, prompt: Prompt, config: RouterConfig, allowed: Mask) -> tuple[int, int]:
        """Most prompt tokens that any of the allowed ranks has cached, in the weights of the cost,
        and the fewest that one of them would compute.

        allowed: bool[n_slots], at least one
        """
        self.placing.place(prompt, config, allowed)
        terms = self.placing.terms(prompt, config, allowed)[:, allowed]
        own_work = terms[self.placing.policy.own_work_row]
        return int(terms[CACHED_TOKENS].max()), int(own_work.min())

    def check_invariants(self) -> None:
        """For tests."""
        self.table.check_invariants()
        self.account.check_invariants()
        assert not self.account.leaving & {slot for _, slot in self.table.slots()}
        self.index.check_invariants()
        self.placing.check_invariants()
        assert self.load.n_slots == self.index.n_slots == self.table.n_slots
        for _, slot in self.table.slots():
            assert self.table.row(slot).writer.slot == slot
