"""Bookings of earlier selections by their id: rank, load and tracking of the choice."""

from select_service.base.errors import NotFound
from select_service.core.admission.waiting_list import WaitingList
from select_service.core.decision_maker import (
    DecisionMaker,
)
from select_service.core.identity import PartitionKey
from select_service.core.load.ledger import Ledger
from select_service.core.load.prefill_legs import check_caller_id
from select_service.core.placement.pending_selections import PendingSelections, encode_key
from select_service.core.placement.prompt import partition_key_of
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.selection_answers import (
    make_reservation_answer,
)
from select_service.schemas.reservations import Reservation, ReservationRequest


class SelectionReplay:
    """Books pending selections.  A refused booking keeps its selection."""

    def __init__(
        self,
        pending: PendingSelections,
        fleet: WorkerFleet,
        ledger: Ledger,
        decisions: DecisionMaker,
        waiting: WaitingList,
    ) -> None:
        self.pending = pending
        self._fleet = fleet
        self._ledger = ledger
        self._decisions = decisions
        self._waiting = waiting

    def book(self, request: ReservationRequest, now: float) -> Reservation:
        """Book the selection of a reservation request without a worker.

        Neither queues nor looks at the load again.  Raises NotFound for an unknown selection and
        for a rank that is gone, NoEligibleRank, Conflict, CapacityExceeded.
        """
        key, name, selection_id = partition_key_of(request), request.booking_id, _id_of(request)
        pending_key = encode_key(key, selection_id)
        entry = self.pending.find(pending_key, now)
        if entry is None:
            raise _no_selection_error(key, selection_id)
        partition = self._fleet.partitions.get(key)
        if partition is None:
            raise self._fleet.catalog.rank_not_found_error(key, entry.rank)
        slot = self._fleet.slot_of(partition, entry.rank)
        if partition.block_size != entry.block_size:
            raise NotFound(
                f"selection {selection_id} was made for blocks of {entry.block_size} tokens, and "
                f"the workers now have blocks of {partition.block_size}: select again"
            )
        check_caller_id(name)
        self._ledger.check_id_free(name)
        self._waiting.check_id_not_waiting(name)
        self._ledger.reservations.check_room(len(entry.prompt.sequence_hashes))
        self._decisions.book_selected(partition, slot, entry, name, now)
        self.pending.discard(pending_key)
        self.pending.n_booked += 1
        answer = make_reservation_answer(request, partition, slot)
        answer.kv_hint = self._decisions.make_hint(partition, slot, entry.prompt, name)
        return answer

    def count_blocks(self, request: ReservationRequest, now: float) -> int:
        """Return the number of prompt blocks that `book` would book; 0 without a selection."""
        key = encode_key(partition_key_of(request), _id_of(request))
        entry = self.pending.find(key, now)
        return 0 if entry is None else len(entry.prompt.sequence_hashes)

    def discard(self, key: PartitionKey, booked_id: str) -> None:
        """Remove the selection of an id that was booked on a rank chosen by the caller."""
        if self.pending:
            self.pending.discard(encode_key(key, booked_id))


def _id_of(request: ReservationRequest) -> str:
    assert request.selection_id is not None, "the schema requires an id without a worker"
    return request.selection_id


def _no_selection_error(key: PartitionKey, selection_id: str) -> NotFound:
    return NotFound(
        f"no pending selection {selection_id} for model={key.model_name} "
        f"routing_group={key.tenant_id} (expired, already used, made by another replica, or never "
        "selected): give worker_id and the prompt, or select again"
    )
