"""Who of a partition serves, who is out and who is a spare; how many more may go."""

from collections.abc import Iterator
from math import floor

from sortedcontainers import SortedDict

from select_service.core.health.health_record import HealthRecord
from select_service.core.health.kinds import LIMITED, Kind, State
from select_service.core.health.rules import HealthRules
from select_service.core.identity import Rank


class Roster:
    """The records of one partition, by rank and in the order of their registration."""

    def __init__(self, rules: HealthRules) -> None:
        self._rules = rules
        self._records: dict[Rank, HealthRecord] = {}
        self.out: SortedDict[int, HealthRecord] = SortedDict()
        """Who serves nobody, spares among them."""
        self._spares: SortedDict[int, HealthRecord] = SortedDict()
        self._serving_out = 0
        """How many of those that are out are no spares."""
        self._joined = 0

    def add(self, rank: Rank, is_spare: bool) -> HealthRecord:
        """A rank that was not here, healthy."""
        assert rank not in self._records
        self._joined += 1
        return self._put(HealthRecord(rank, self._joined, is_spare))

    def remove(self, rank: Rank) -> HealthRecord:
        """It is not here any more."""
        record = self._records.pop(rank)
        if self.out.pop(record.order, None) is not None:
            self._serving_out -= not record.is_spare
        self._spares.pop(record.order, None)
        return record

    def renew(self, rank: Rank) -> HealthRecord:
        """A fresh record in its place; a spare stays one."""
        old = self.remove(rank)
        return self._put(HealthRecord(rank, old.order, old.is_spare, told_weight=old.told_weight))

    def _put(self, record: HealthRecord) -> HealthRecord:
        self._records[record.rank] = record
        if record.is_spare:
            self._spares[record.order] = record
        return record

    def __getitem__(self, rank: Rank) -> HealthRecord:
        return self._records[rank]

    def __contains__(self, rank: object) -> bool:
        return rank in self._records

    def has(self, record: HealthRecord) -> bool:
        """Is it the one that is kept of its rank?"""
        return self._records.get(record.rank) is record

    def __iter__(self) -> Iterator[HealthRecord]:
        return iter(self._records.values())

    def __len__(self) -> int:
        return len(self._records)

    @property
    def serving(self) -> int:
        """Ranks that are no spares, whatever their state."""
        return len(self._records) - len(self._spares)

    @property
    def spares(self) -> int:
        """Whatever their state."""
        return len(self._spares)

    def moved(self, record: HealthRecord, was: State) -> None:
        """Its state is another one now."""
        if was.serves and not record.state.serves:
            self.out[record.order] = record
            self._serving_out += not record.is_spare
        elif record.state.serves and not was.serves:
            del self.out[record.order]
            self._serving_out -= not record.is_spare

    def may_eject(self, cause: Kind) -> bool:
        """Limited causes take out at most a share of the ranks, and slowness never the last."""
        share = self._rules.max_eject
        if cause not in LIMITED or share >= 1.0:
            return True
        if cause is Kind.LATENCY_SPIKE and self.serving - self._serving_out <= 1:
            return False
        return self._serving_out < max(1, floor(share * self.serving))

    def replace(self, failed: HealthRecord) -> HealthRecord | None:
        """The first healthy spare takes the place of one that is out, which becomes the spare."""
        spare = next((s for s in self._spares.values() if s.state is State.HEALTHY), None)
        if spare is None or failed.is_spare:
            return None
        del self._spares[spare.order]
        self._spares[failed.order] = failed
        spare.is_spare, failed.is_spare = False, True
        self._serving_out -= 1
        return spare

    def check_invariants(self) -> None:
        """For tests."""
        assert {r.order for r in self if not r.state.serves} == set(self.out)
        assert {r.order for r in self if r.is_spare} == set(self._spares)
        assert self._serving_out == sum(not r.is_spare for r in self.out.values())
        assert len({r.order for r in self}) == len(self)
