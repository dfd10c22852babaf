"""Inspection of the state by requests: reservations, loads, overlaps and the index."""

from collections.abc import Container, Iterator

from select_service.core.admission.admission_gate import AdmissionGate
from select_service.core.load.reservations import ReservationFilter, Reservations
from select_service.core.placement.prompt import ReadAheadPrompt
from select_service.core.prompt_resolver import PromptResolver
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.views.dump_parts import DumpPart, list_dump_parts
from select_service.core.views.rank_views import (
    list_loads_within,
    list_overlap,
    list_potential_loads,
)
from select_service.schemas.inspection import OverlapRow, OverlapScores, PartitionLoads, RankLoad
from select_service.schemas.prompts import PromptQuery
from select_service.schemas.reservations import ReservationPage, ReservationRow


class StateInspection:
    """Views of the state of a process; nothing here changes it."""

    def __init__(
        self,
        fleet: WorkerFleet,
        reservations: Reservations,
        gate: AdmissionGate,
        prompts: PromptResolver,
    ) -> None:
        self._fleet, self._reservations = fleet, reservations
        self._gate, self._prompts = gate, prompts

    def get_reservation(self, reservation_id: str, now: float) -> ReservationRow:
        """Return a reservation (GET /reservations/{reservation_id}).  Raises NotFound."""
        return self._reservations.get_answer_row(reservation_id, now)

    def list_reservations(self, query: ReservationFilter, now: float) -> ReservationPage:
        return self._reservations.list_page(query, now)

    def partition_loads(
        self,
        model_name: str | None = None,
        tenant_id: str | None = None,
        among: Container[int] | None = None,
    ) -> Iterator[PartitionLoads | None]:
        """Iterate over the loads of a scope, see `list_loads_within`."""
        backlog_of = self._gate.waiting.backlog_of
        return list_loads_within(self._fleet.partitions, backlog_of, model_name, tenant_id, among)

    def potential_loads(
        self, query: PromptQuery, read_ahead: ReadAheadPrompt | None = None
    ) -> Iterator[RankLoad]:
        """Iterate over the loads with a prompt added, by worker and rank.  Raises like `select`."""
        return list_potential_loads(*self._prompts.read_prompt(query, read_ahead))

    def overlap_scores(
        self, query: PromptQuery, read_ahead: ReadAheadPrompt | None = None
    ) -> tuple[OverlapScores, Iterator[OverlapRow]]:
        """Return the scores without their rows, and the rows.  Raises like `select`."""
        return list_overlap(*self._prompts.read_prompt(query, read_ahead))

    def index_dumps(self) -> list[DumpPart]:
        """Return the parts of an index dump."""
        return list_dump_parts(self._fleet.partitions, self._fleet.recovered_blocks)
