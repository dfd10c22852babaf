"""Bookings that planned moves lead to: the load of a reservation on its new rank."""

from indexer.hashing.block_hashing import Hashes
from select_service.core.health.migration.migration_plan import PlannedMove
from select_service.core.health.migration.move_cost import MoveMethod
from select_service.core.identity import Rank
from select_service.core.load.move_constraints import MoveConstraintStore
from select_service.core.load.new_reservation import NO_PROMPT
from select_service.core.load.reservation_move import MoveTarget
from select_service.core.load.reservation_view import ReservationView
from select_service.core.registry.fleet.partition import Partition


class MoveTargets:
    """Builder of move targets from plans and from the stored constraints of reservations.

    tracks_prefill: whether repeated prefills count as load
    """

    def __init__(self, constraints: MoveConstraintStore, tracks_prefill: bool) -> None:
        self._constraints = constraints
        self._tracks_prefill = tracks_prefill

    def target_of(
        self, partition: Partition, move: PlannedMove, tokens: int, slot: int
    ) -> MoveTarget:
        """Return the target of a planned move to a slot.

        tokens: tokens of the reservation, prompt and output
        """
        assert move.target is not None
        overlap = move.overlap_blocks
        if move.method is MoveMethod.TRANSFER:
            assumable = self._assumable_blocks(partition, move.id)
            return MoveTarget(move.target, slot, cached_blocks=overlap, assumable=assumable)
        return self._with_prefill(partition, move.id, (move.target, slot), tokens, overlap)

    def repeated_prefill(self, partition: Partition, booking: ReservationView) -> MoveTarget:
        """Return the target of a booking that stays on its rank and computes its prompt again."""
        tokens = booking.isl_tokens + partition.block_size * booking.output_blocks
        name, overlap = booking.reservation_id, 0
        hashes = self._constraints.constraints_of(name).block_hashes
        if len(hashes):
            overlap = int(partition.index.match(hashes)[booking.slot, -1])
        place = booking.rank, booking.slot
        return self._with_prefill(partition, name, place, tokens, overlap)

    def _with_prefill(
        self,
        partition: Partition,
        reservation_id: str,
        place: tuple[Rank, int],
        tokens: int,
        overlap: int,
    ) -> MoveTarget:
        """Return the target at a rank and slot that computes the tokens beyond the overlap."""
        assumable = self._assumable_blocks(partition, reservation_id)
        if not self._tracks_prefill:
            return MoveTarget(*place, assumable=assumable)
        tokens = max(0, tokens - overlap * partition.block_size)
        prompt = None
        if partition.placer.policy.follows_prefills:
            prompt = self._constraints.constraints_of(reservation_id).block_hashes
        return MoveTarget(*place, tokens, overlap, prompt, assumable)

    def _assumable_blocks(self, partition: Partition, reservation_id: str) -> Hashes:
        """Return the block hashes of a prompt where the ranks may be assumed to hold them."""
        if partition.assumed is None:
            return NO_PROMPT
        return self._constraints.constraints_of(reservation_id).block_hashes
