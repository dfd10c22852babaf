"""Ranks of a partition by role: serving, out of rotation, spare; limit of further ejections."""

from collections.abc import Iterator
from math import floor

from sortedcontainers import SortedDict

from select_service.core.health.health_kinds import (
    EJECTION_LIMITED,
    SILENT_KINDS,
    CheckKind,
    RankHealthState,
)
from select_service.core.health.health_rules import HealthRules
from select_service.core.health.rank_state.health_record import HealthRecord
from select_service.core.identity import Rank

SILENT_CHECKS_MIN = 2
"""Consecutive checks without any answer after which a rank counts as silent."""


class RankRegistry:
    """Health records of a partition, by rank and in order of registration."""

    def __init__(self, rules: HealthRules) -> None:
        self._rules = rules
        self._records: dict[Rank, HealthRecord] = {}
        self.out_of_rotation: SortedDict[int, HealthRecord] = SortedDict()
        """Records of ranks out of rotation, including spares."""
        self._spares: SortedDict[int, HealthRecord] = SortedDict()
        self.suspicious: dict[Rank, HealthRecord] = {}
        """Records of suspicious ranks, which serve although their checks fail."""
        self._serving_out = 0
        """Number of non-spare ranks out of rotation."""
        self._joined = 0
        self.capacity_per_rank: float | None = None
        """Part of the promised rate that a rank carries; None without a known capacity."""

    def add_rank(self, rank: Rank, is_spare: bool) -> HealthRecord:
        """Add a new rank in state healthy."""
        assert rank not in self._records
        self._joined += 1
        return self._store_record(HealthRecord(rank, self._joined, is_spare))

    def remove_rank(self, rank: Rank) -> HealthRecord:
        """Remove a rank."""
        record = self._records.pop(rank)
        self.suspicious.pop(rank, None)
        if self.out_of_rotation.pop(record.order, None) is not None:
            self._serving_out -= not record.is_spare
        self._spares.pop(record.order, None)
        return record

    def renew_record(self, rank: Rank) -> HealthRecord:
        """Replace the record by a fresh record; a spare stays a spare."""
        old = self.remove_rank(rank)
        # The published weight is carried over: listeners still have it, whatever the new state.
        return self._store_record(
            HealthRecord(rank, old.order, old.is_spare, published_weight=old.published_weight)
        )

    def _store_record(self, record: HealthRecord) -> HealthRecord:
        self._records[record.rank] = record
        if record.is_spare:
            self._spares[record.order] = record
        return record

    def __getitem__(self, rank: Rank) -> HealthRecord:
        return self._records[rank]

    def __contains__(self, rank: object) -> bool:
        return rank in self._records

    def is_current(self, record: HealthRecord) -> bool:
        """Return whether the record is the current record of its rank."""
        return self._records.get(record.rank) is record

    def __iter__(self) -> Iterator[HealthRecord]:
        return iter(self._records.values())

    def __len__(self) -> int:
        return len(self._records)

    @property
    def n_serving(self) -> int:
        """Number of non-spare ranks in any state."""
        return len(self._records) - len(self._spares)

    @property
    def n_spares(self) -> int:
        """Number of spare ranks in any state."""
        return len(self._spares)

    def on_state_changed(self, record: HealthRecord, previous_state: RankHealthState) -> None:
        """Update the sets after a change of state."""
        if record.state is RankHealthState.SUSPICIOUS:
            self.suspicious[record.rank] = record
        else:
            self.suspicious.pop(record.rank, None)
        if previous_state.is_serving and not record.state.is_serving:
            self.out_of_rotation[record.order] = record
            self._serving_out += not record.is_spare
        elif record.state.is_serving and not previous_state.is_serving:
            del self.out_of_rotation[record.order]
            self._serving_out -= not record.is_spare

    def may_eject(self, record: HealthRecord) -> bool:
        """Return whether a serving rank may be ejected.

        Limited causes eject at most a share of the ranks. A rank that answers nothing goes beyond
        that share while enough of the others answer.
        """
        assert record.cause is not None
        if self.is_within_limit(record.cause):
            return True
        is_silent = record.cause in SILENT_KINDS and record.silent_checks >= SILENT_CHECKS_MIN
        return is_silent and self._has_enough_without(record)

    def is_within_limit(self, cause: CheckKind) -> bool:
        """Return whether the ejection limit allows one more ejection for this cause.

        Slowness never ejects the last rank.
        """
        share = self._rules.max_eject
        if cause not in EJECTION_LIMITED or share >= 1.0:
            return True
        # A slow rank is better than none.
        if cause is CheckKind.LATENCY_SPIKE and self.n_serving - self._serving_out <= 1:
            return False
        # At least one rank may always be ejected, however small the partition.
        return self._serving_out < max(1, floor(share * self.n_serving))

    def _has_enough_without(self, record: HealthRecord) -> bool:
        """Return whether the other ranks that answer have enough capacity. O(suspicious ranks)

        Enough means that the degradation level would not refuse every request.
        """
        failing = sum(not other.is_spare for other in self.suspicious.values())
        answering = self.n_serving - self._serving_out - failing
        if answering <= 0:
            return False
        share = self.capacity_per_rank
        if share is None:
            share = 1.0 / self.n_serving
        return answering * share >= self._rules.capacity_floor

    def count_lost(self) -> int:
        """Return the number of ranks that health has taken out. O(ranks out of rotation)"""
        return sum(not record.is_drained_by_operator for record in self.out_of_rotation.values())

    def promote_spare(self, failed: HealthRecord) -> HealthRecord | None:
        """Let the first healthy spare replace a rank that is out, which becomes the spare."""
        spare = next((s for s in self._spares.values() if s.state is RankHealthState.HEALTHY), None)
        if spare is None or failed.is_spare:
            return None
        del self._spares[spare.order]
        self._spares[failed.order] = failed
        spare.is_spare, failed.is_spare = False, True
        # The failed rank is now a spare, and spares do not count towards the limit.
        self._serving_out -= 1
        return spare

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        assert {r.order for r in self if not r.state.is_serving} == set(self.out_of_rotation)
        assert {r.order for r in self if r.is_spare} == set(self._spares)
        suspicious = {r.rank for r in self if r.state is RankHealthState.SUSPICIOUS}
        assert suspicious == set(self.suspicious)
        assert self._serving_out == sum(not r.is_spare for r in self.out_of_rotation.values())
        assert len({r.order for r in self}) == len(self)
