"""Explanations of placements: recorded decisions, and the decision a request would get now."""

from collections.abc import Callable, Container, Iterable, Iterator
from typing import NoReturn

from select_service.base.errors import NotFound
from select_service.core.admission.admission_gate import AdmissionGate
from select_service.core.decision_maker import PlacementRequest
from select_service.core.placement import decision_ring_layout as layout
from select_service.core.placement.candidates import find_candidates
from select_service.core.placement.decision_ring import DecisionRing, Words
from select_service.core.placement.prompt import ReadAheadPrompt
from select_service.core.prompt_resolver import PromptResolver
from select_service.core.views.decision_views import DecisionFilter, list_rows, make_view
from select_service.schemas.decisions import DecisionRow, DecisionView
from select_service.schemas.selection import SelectRequest

_SHOWN_CHARS_MAX = 64


class Explanations:
    """Reader of recorded decisions; a hypothetical decision uses a ring of its own."""

    def __init__(
        self,
        ring: DecisionRing | None,
        gate: AdmissionGate,
        prompts: PromptResolver,
        random: Callable[[], float],
    ) -> None:
        """Build the reader.

        ring: ring of decisions; None means that decisions are not recorded
        """
        self.ring = ring
        self._gate = gate
        self._prompts = prompts
        self._random = random

    def __len__(self) -> int:
        """Return the number of decisions available now."""
        return 0 if self.ring is None else len(self.ring)

    def explain_request(
        self, request: SelectRequest, policy_class: str | None, read_ahead: ReadAheadPrompt | None
    ) -> DecisionView:
        """Return the decision a request would get now (POST /explain), without changes.

        Raises like `SelectorCore.select`.
        """
        partition, prompt, config = self._prompts.read_prompt(request, read_ahead)
        job = PlacementRequest(partition, prompt, request, config)
        # Only validates the tier: an explanation is given even for a shed one.
        self._gate.shedding.tiers.index_of(request.priority_tier)
        allowed = find_candidates(partition.table, request)
        eligible, would_wait = self._gate.preview_admission(job, allowed, policy_class)
        # A separate ring keeps hypothetical decisions out of the recorded ones.
        ring = DecisionRing(1)
        partition.place_prompt_in_ring(ring, prompt, request, config, eligible, self._random())
        view = make_view(ring, ring.draft_row(), partition.describe_for_decisions(), None)
        if self._gate.rules is not None:
            view.would_wait = would_wait
        return view

    def find_decision(
        self, text: str, now: float, tenants: frozenset[str] | None = None
    ) -> DecisionView:
        """Return the newest decision with this selection or reservation id.  Raises NotFound.

        tenants: visible tenants; None means all
        """
        found = self._first_visible(self._recorded_ring().find_all_by_id(text), now, tenants)
        return found or self._raise_not_found(
            f"`{text[:_SHOWN_CHARS_MAX]}` is neither the selection_id nor the reservation_id"
        )

    def find_by_number(
        self, number: int, now: float, tenants: Container[str] | None
    ) -> DecisionView:
        """Return the decision of a number.  Raises like `find_decision`."""
        ring = self._recorded_ring()
        row = ring.find_by_number(number) if 0 < number <= ring.newest_number else None
        found = self._first_visible(() if row is None else (row,), now, tenants)
        return found or self._raise_not_found(f"{number} is not the number")

    def _first_visible(
        self, rows: Iterable[Words], now: float, tenants: Container[str] | None
    ) -> DecisionView | None:
        ring = self._recorded_ring()
        for row in rows:
            decided = ring.find_partition(int(row[layout.PARTITION]))
            # A foreign tenant's decision gives the same error as none at all.
            if decided is not None and (tenants is None or decided.key.tenant_id in tenants):
                return make_view(ring, row, decided, now)
        return None

    def _raise_not_found(self, subject: str) -> NoReturn:
        raise NotFound(f"no decision found: {subject} of one of the last {len(self)}")

    def list_decisions(
        self, decision_filter: DecisionFilter, now: float
    ) -> Iterator[DecisionRow | None]:
        """Iterate over matching decisions, newest first, with None for each other one.  Raises
        NotFound.
        """
        return list_rows(self._recorded_ring(), decision_filter, now)

    def _recorded_ring(self) -> DecisionRing:
        if self.ring is None:
            raise NotFound("decisions are not recorded: start the service with --decisions above 0")
        return self.ring
