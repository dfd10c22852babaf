"""Reports of callers: cleared caches, cached tokens, and the tokens of answers."""

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import NamedTuple

from indexer.hashing.block_hashing import Tokens
from select_service.base.errors import BadRequest, NotFound
from select_service.core.analysis.accuracy.reported_hits import ReportedHits, ReportedSums
from select_service.core.assumed.assumption_follower import AssumptionFollower
from select_service.core.assumed.rank_modes import AssumptionRules
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.new_reservation import UNKNOWN_CACHED
from select_service.core.load.reservations import Reservations
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.registry.fleet.partition import Partition
from select_service.core.replication.cleared_caches import CacheClear, ForgetCache
from select_service.core.silent_ranks import SilentRanks
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.schemas.common import AnswerResult
from select_service.schemas.rank_index import RankAssumptions, ReportedTokens

TURN_S = 0.1
"""Interval of the turns that remove assumed blocks, seconds."""


class AssumptionReport(NamedTuple):
    """Assumptions of a process, for metrics.

    ranks: number of ranks by the source of the index
    silent: ranks with assumed blocks because events are missing
    pending, prompts: prompts beside events that are waiting, and ended prompts by kind of end
    answers: answers with tokens, by what became of the blocks
    """

    ranks: Mapping[str, int]
    silent: int
    pending: int
    prompts: Mapping[str, int]
    answers: Mapping[AnswerResult, int]
    reported: ReportedSums


class AssumptionService:
    """Assumed blocks of all partitions, for callers."""

    def __init__(
        self,
        fleet: WorkerFleet,
        reservations: Reservations,
        follower: AssumptionFollower,
        rules: AssumptionRules,
        forget_contexts: ForgetCache,
    ) -> None:
        """forget_contexts: lets sessions have no cache on cleared ranks"""
        self._fleet = fleet
        self._reservations = reservations
        self._rules = rules
        self.follower = follower
        self.reported = ReportedHits()
        self.silent = SilentRanks(fleet.partitions, rules)
        self._forget_contexts = forget_contexts
        self.on_cache_cleared: Callable[[CacheClear], None] = lambda clear: None
        """Receiver of the clears that callers report here."""
        self.silent.on_assumption_begun = fleet.on_assumption_begun = follower.begin

    def clear_cache(self, worker_id: int, dp_rank: int | None, now: float) -> dict[int, int]:
        """Assume no longer that ranks hold blocks, except the blocks of live reservations.

        Returns by dp_rank the number of assumed blocks; removing them takes some turns.  Raises
        NotFound.
        """
        worker = self._fleet.catalog.get_worker(worker_id)
        if dp_rank is not None and dp_rank not in worker.dp_ranks():
            raise self._fleet.catalog.rank_not_found_error(worker.key, Rank(worker_id, dp_rank))
        partition = self._fleet.partitions.get(worker.key)
        if not worker.is_schedulable or partition is None:
            raise NotFound(f"worker {worker_id} is not schedulable: it has no ranks to clear")
        cleared = {}
        for rank in worker.list_ranks():
            if dp_rank in (None, rank.dp_rank):
                slot, assumed = partition.table.find_slot(rank), partition.assumed
                assert slot is not None
                cleared[rank.dp_rank] = 0 if assumed is None else assumed.count_blocks(slot)
                if cleared[rank.dp_rank]:
                    assert assumed is not None
                    assumed.begin_clear(slot, now, keeps_live=True)
        self._forget_contexts(worker.key, worker_id, dp_rank, now)
        self.on_cache_cleared(CacheClear(worker.key, worker_id, dp_rank, now))
        return cleared

    def forget_cache(
        self, key: PartitionKey, worker_id: int, dp_rank: int | None, at: float
    ) -> None:
        """Assume no longer that ranks hold blocks used before a clear that a peer received.

        Ranks that are unknown here are ignored.
        """
        partition = self._fleet.partitions.get(key)
        slots = [] if partition is None else partition.table.slots_of(worker_id)
        for slot in slots:
            assert partition is not None
            is_cleared = dp_rank in (None, partition.table.row_at(slot).rank.dp_rank)
            if is_cleared and partition.assumed is not None and partition.assumed.rank_at(slot):
                partition.assumed.begin_clear(slot, at, keeps_live=True)
        self._forget_contexts(key, worker_id, dp_rank, at)

    def report_cached(self, reservation_id: str, cached_tokens: int) -> None:
        """Compare the cached tokens of a live prompt with the prediction of its booking.

        Further reports of the same reservation are ignored.  Raises NotFound, BadRequest.
        """
        booking = self._reservations.get_reservation(reservation_id)
        if cached_tokens > booking.isl_tokens:
            raise BadRequest(
                f"cached_tokens ({cached_tokens}) must not exceed the tokens of the prompt "
                f"({booking.isl_tokens})"
            )
        partition = self._fleet.partitions.get(booking.key)
        # In a partition that was removed and created again the slot is another rank's.
        if partition is None or partition.account is not booking.account or booking.is_leaving:
            return
        # Without a prediction of this process there is nothing to compare.
        is_predicted = booking.origin is None and booking.cached_blocks != UNKNOWN_CACHED
        if not booking.is_prefilling or not is_predicted:
            return
        size, slot = partition.block_size, booking.slot
        predicted = min(booking.cached_blocks * size, booking.isl_tokens)
        is_over_claim = self.reported.add_report(
            partition.writer_at(slot), booking.rank, (predicted, cached_tokens), size
        )
        rank = None if partition.assumed is None else partition.assumed.rank_at(slot)
        if rank is not None and not rank.is_beside_events:
            assert partition.assumed is not None
            rank.size.learn(is_over_claim, partition.assumed.is_full(slot))

    def add_answer(self, reservation_id: str, tokens: Tokens, now: float) -> AnswerResult:
        """Assume the blocks of the answer to a live reservation.  Raises NotFound."""
        booking = self._reservations.get_reservation(reservation_id)
        return self.follower.add_answer(booking, tokens, now)

    def run_turn(self, now: float) -> bool:
        """Take bounded steps of pending work; return whether more are due."""
        return self.follower.run_turn(now)

    # Views

    def view_assumed(self, worker: RegisteredWorker, now: float) -> dict[int, RankAssumptions]:
        """Return the assumptions of a worker's ranks by dp_rank."""
        found, partition = {}, self._fleet.partitions.get(worker.key)
        if partition is None or partition.assumed is None:
            return {}
        for rank, slot in _iterate_slots(partition, worker):
            assumed = partition.assumed.rank_at(slot)
            if assumed is None:
                continue
            found[rank.dp_rank] = view = RankAssumptions(
                source="events" if assumed.is_beside_events else "assumed",
                blocks=partition.assumed.count_blocks(slot),
                size=assumed.size.blocks,
                size_from="reports" if assumed.size.declared is None else "total_kv_blocks",
                ttl_s=None if assumed.ttl_s == inf else assumed.ttl_s,
            )
            silent = self.silent.silent.get(partition.writer_at(slot))
            if silent is not None:
                view.silent_s = round(now - silent.live_at, 3)
        return found

    def view_reported(self, worker: RegisteredWorker) -> dict[int, ReportedTokens]:
        """Return the reported tokens of a worker's ranks by dp_rank."""
        found, partition = {}, self._fleet.partitions.get(worker.key)
        for rank, slot in () if partition is None else _iterate_slots(partition, worker):
            assert partition is not None
            sums = self.reported.sums_of(partition.writer_at(slot))
            if sums is not None:
                found[rank.dp_rank] = ReportedTokens(
                    reports=sums.reports,
                    predicted_tokens=sums.predicted,
                    cached_tokens=sums.cached,
                    over_tokens=sums.over,
                    under_tokens=sums.under,
                    over_claims=sums.over_claims,
                )
        return found

    def make_report(self) -> AssumptionReport:
        """Return the numbers for metrics.  O(ranks of partitions with assumed blocks)"""
        ranks = {"assumed": 0, "events": 0}
        for partition in self._fleet.partitions.values():
            for rank in () if partition.assumed is None else partition.assumed.ranks.values():
                ranks["events" if rank.is_beside_events else "assumed"] += 1
        pending = self.follower.pending
        prompts = {
            "confirmed": pending.n_confirmed,
            "withdrawn": pending.n_withdrawn,
            "expired": pending.n_expired,
        }
        return AssumptionReport(
            ranks,
            len(self.silent.silent),
            len(pending),
            prompts,
            dict(self.follower.answers),
            self.reported.total,
        )


def _iterate_slots(partition: Partition, worker: RegisteredWorker) -> Iterator[tuple[Rank, int]]:
    for rank in worker.list_ranks():
        slot = partition.table.find_slot(rank)
        if slot is not None:
            yield rank, slot
