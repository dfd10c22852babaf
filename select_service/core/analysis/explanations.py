"""Explanations of placements: recorded decisions, and the decision a request would get now."""

from collections.abc import Callable, Container, Iterable, Iterator
from operator import itemgetter
from typing import NoReturn

from select_service.base.errors import NotFound
from select_service.core.admission.admission_gate import AdmissionGate, AdmissionPreview
from select_service.core.analysis.pair_decision_view import list_pair_rows, make_pair_view
from select_service.core.decision_maker import PlacementRequest
from select_service.core.pairs.pair_decisions import PairDecisions
from select_service.core.placement import decision_ring_layout as layout
from select_service.core.placement.candidates import find_candidates
from select_service.core.placement.decision_ring import DecisionRing, Words
from select_service.core.placement.prompt import ReadAheadPrompt
from select_service.core.prompt_resolver import PromptResolver
from select_service.core.views.decision_views import DatedRow, DecisionFilter, list_rows, make_view
from select_service.schemas.common import ErrorBody
from select_service.schemas.decisions import DecisionRow, DecisionView
from select_service.schemas.pairs import SelectPairRequest
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
        pairs: PairDecisions,
    ) -> None:
        """Build the reader.

        ring: ring of decisions; None means that decisions are not recorded
        pairs: chooser of pairs, with its own record
        """
        self.ring = ring
        self._gate = gate
        self._prompts = prompts
        self._random = random
        self._pairs = pairs

    def __len__(self) -> int:
        """Return the number of decisions available now."""
        return 0 if self.ring is None else len(self.ring) + len(self._pairs.log)

    def explain_request(
        self,
        request: SelectRequest,
        policy_class: str | None,
        read_ahead: ReadAheadPrompt | None,
        now: float,
    ) -> DecisionView:
        """Return the decision a request would get now (POST /explain), without changes.

        Raises like `SelectorCore.select`.
        """
        partition, prompt, config = self._prompts.read_prompt(request, read_ahead)
        job = PlacementRequest(partition, prompt, request, config)
        # Only validates the tier: an explanation is given even for a shed one.
        self._gate.shedding.tiers.index_of(request.priority_tier)
        allowed = find_candidates(partition.table, request)
        preview = self._gate.preview_admission(job, allowed, now, policy_class)
        # A separate ring keeps hypothetical decisions out of the record.
        ring = DecisionRing(1)
        eligible, draw = preview.eligible, self._random()
        partition.place_prompt_in_ring(ring, prompt, request, config, eligible, draw)
        view = make_view(ring, ring.draft_row(), partition.describe_for_decisions(), None)
        self._add_preview(view, preview)
        return view

    def explain_pair(
        self,
        request: SelectPairRequest,
        policy_class: str | None,
        read_ahead: ReadAheadPrompt | None,
        now: float,
    ) -> DecisionView:
        """Return the pair a request would get now, without changes.  Raises like `select_pair`."""
        partition, prompt, config = self._prompts.read_prompt(request, read_ahead)
        job = PlacementRequest(partition, prompt, request, config, pairs=self._pairs)
        self._gate.shedding.tiers.index_of(request.priority_tier)
        allowed = find_candidates(partition.table, request)
        self._pairs.leg_masks(partition, request, allowed)
        preview = self._gate.preview_admission(job, allowed, now, policy_class)
        view = make_pair_view(self._pairs.preview(job, preview.eligible, now), None)
        self._add_preview(view, preview)
        return view

    def _add_preview(self, view: DecisionView, preview: AdmissionPreview) -> None:
        """Add what the queue would do, if any."""
        if self._gate.rules is None:
            return
        view.would_wait, refusal = preview.would_wait, preview.refusal
        if preview.wait_s is not None:
            view.estimated_wait_s = preview.wait_s
        if refusal is not None:
            view.refusal = ErrorBody(error=str(refusal), code=refusal.code)

    def find_decision(
        self, text: str, now: float, tenants: frozenset[str] | None = None
    ) -> DecisionView:
        """Return the newest decision with this selection or reservation id.  Raises NotFound.

        tenants: visible tenants; None means all
        """
        found = self._first_visible(self._recorded_ring().find_all_by_id(text), now, tenants)
        pair = self._pairs.log.find(text, tenants) if found is None else None
        if pair is not None:
            return make_pair_view(pair, now)
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

    def find_pair_by_number(
        self, number: int, now: float, tenants: Container[str] | None
    ) -> DecisionView:
        """Return the decision of a number among those about pairs.  Raises like `find_decision`."""
        self._recorded_ring()
        found = self._pairs.log.find_by_number(number, tenants)
        if found is None:
            self._raise_not_found(f"{number} is not the number of a pair,")
        return make_pair_view(found, now)

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
        """Iterate over matching decisions, newest first, with None for each other decision.  Raises
        NotFound.
        """
        rows = list_rows(self._recorded_ring(), decision_filter, now)
        newest = self._pairs.log.iterate_newest()
        pairs = list_pair_rows(newest, decision_filter, now)
        return _merge_newest([rows, pairs], decision_filter.limit)

    def _recorded_ring(self) -> DecisionRing:
        if self.ring is None:
            raise NotFound("decisions are not recorded: start the service with --decisions above 0")
        return self.ring


def _merge_newest(
    sources: Iterable[Iterator[DatedRow | None]], limit: int
) -> Iterator[DecisionRow | None]:
    """Merge lists of decisions, each with the newest first; every None is passed on."""
    heads: dict[Iterator[DatedRow | None], DatedRow | None] = dict.fromkeys(sources)
    while heads and limit:
        for source in [source for source, head in heads.items() if head is None]:
            while (row := next(source, _END)) is None:
                yield None
            if isinstance(row, tuple):
                heads[source] = row
            else:
                del heads[source]
        dated = [(head[0], head[1], source) for source, head in heads.items() if head is not None]
        if dated:
            _, made, source = max(dated, key=itemgetter(0))
            yield made
            heads[source] = None
            limit -= 1


_END = object()
