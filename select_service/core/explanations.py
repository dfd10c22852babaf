"""Why prompts go where they go: decisions that were kept, and what would be decided now."""

from collections.abc import Callable, Container, Iterable, Iterator
from typing import NoReturn

from select_service.bodies.decisions import DecisionRow, DecisionView
from select_service.core.admission.gate import Gate
from select_service.core.decide import decision_layout as layout
from select_service.core.decide.candidates import candidates
from select_service.core.decide.decision_ring import DecisionRing, Words
from select_service.core.decisions import Job
from select_service.core.views.decisions import DecisionFilter, rows_of, view_of
from select_service.errors import NotFound

_SHOWN_CHARS_MAX = 64


class Explanations:
    """Reads the ring of decisions; what is only asked about has a ring of its own."""

    def __init__(self, ring: DecisionRing | None, gate: Gate, random: Callable[[], float]) -> None:
        """ring: None: no decisions are kept"""
        self._ring = ring
        self._gate = gate
        self._random = random

    def __len__(self) -> int:
        """Decisions that can be looked up now."""
        return 0 if self._ring is None else len(self._ring)

    def asked(self, job: Job, policy_class: str | None) -> DecisionView:
        """What would be decided now.  Raises BadRequest, NoEligibleRank, Overloaded."""
        partition, request = job.partition, job.request
        self._gate.tiers.index_of(request.priority_tier)
        allowed = candidates(partition.table, request)
        eligible, would_wait = self._gate.asked(job, allowed, policy_class)
        ring = DecisionRing(1)
        partition.place_apart(ring, job.prompt, request, job.config, eligible, self._random())
        view = view_of(ring, ring.draft(), partition.decided(), None)
        if self._gate.rules is not None:
            view.would_wait = would_wait
        return view

    def find(self, text: str, now: float, tenants: frozenset[str] | None = None) -> DecisionView:
        """The newest decision with this selection or reservation id.  Raises NotFound.

        tenants: whose decisions may be seen; None: all
        """
        found = self._first(self._kept().found(text), now, tenants)
        return found or self._missing(
            f"`{text[:_SHOWN_CHARS_MAX]}` is neither the selection_id nor the reservation_id"
        )

    def numbered(self, number: int, now: float, tenants: Container[str] | None) -> DecisionView:
        """The decision with this number.  As `find`."""
        ring = self._kept()
        row = ring.numbered(number) if 0 < number <= ring.newest else None
        found = self._first(() if row is None else (row,), now, tenants)
        return found or self._missing(f"{number} is not the number")

    def _first(
        self, rows: Iterable[Words], now: float, tenants: Container[str] | None
    ) -> DecisionView | None:
        ring = self._kept()
        for row in rows:
            decided = ring.partition(int(row[layout.PARTITION]))
            if decided is not None and (tenants is None or decided.key.tenant_id in tenants):
                return view_of(ring, row, decided, now)
        return None

    def _missing(self, what: str) -> NoReturn:
        raise NotFound(f"no decision found: {what} of one of the last {len(self)}")

    def rows(self, wanted: DecisionFilter, now: float) -> Iterator[DecisionRow | None]:
        """The newest first; None for every other that is passed over.  Raises NotFound."""
        return rows_of(self._kept(), wanted, now)

    def _kept(self) -> DecisionRing:
        if self._ring is None:
            raise NotFound("no decisions are kept: the service runs with --decisions 0")
        return self._ring
