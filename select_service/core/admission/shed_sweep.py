"""Refusal of waiting requests of shed tiers, in parts over several turns of the event loop."""

from collections.abc import Iterable

from select_service.core.admission import turn_budget
from select_service.core.admission.shed_tiers import ShedTiers
from select_service.core.admission.turn_budget import TurnBudget
from select_service.core.admission.waiting_list import WaitingList
from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.identity import PartitionKey
from select_service.core.registry.fleet.partition import Partition


class ShedSweep:
    """Sweep over the queues that may hold requests of shed tiers.

    A request that the sweep has not reached keeps its place. In its turn the request is refused, or
    served if the tier is accepted again by then.
    """

    def __init__(self, waiting: WaitingList, shedding: ShedTiers, dirty: DirtyPartitions) -> None:
        self._waiting = waiting
        self._shedding = shedding
        self._dirty = dirty
        self._unswept: dict[PartitionKey, None] = {}
        """Queues to look at.  Queues made later hold no shed requests, as those are refused."""

    def schedule(self, keys: Iterable[PartitionKey]) -> None:
        """Schedule a look at these queues, after more tiers were shed."""
        self._unswept |= dict.fromkeys(key for key in keys if key in self._waiting.queues)
        self._dirty.request_turn_if(self._unswept)

    def refuse_some(self, budget: TurnBudget) -> None:
        """Refuse waiting requests of shed tiers; request another turn for the rest."""
        # The other half is for the requests that are not shed: a full queue takes many turns.
        reserve = budget.left // 2
        while self._unswept and budget.count_actions(turn_budget.REFUSE_WORK, reserve):
            key, _ = self._unswept.popitem()
            budget.spend(turn_budget.SWEEP_WORK)
            self._sweep_queue(key, budget, reserve)
        self._dirty.request_turn_if(self._unswept)

    def _sweep_queue(self, key: PartitionKey, budget: TurnBudget, reserve: int) -> None:
        queue = self._waiting.queues.get(key)
        if queue is None:
            return

        def is_shed(_: Partition, tier: int) -> bool:
            return self._shedding.is_shed(key.model_name, tier)

        tickets_max = budget.count_actions(turn_budget.REFUSE_WORK, reserve)
        refused = queue.take_group(is_shed, tickets_max)
        budget.spend(turn_budget.REFUSE_WORK, len(refused))
        if queue.groups.has_any(is_shed):
            self._unswept[key] = None
        for ticket in refused:
            self._waiting.forget_ticket(ticket)
            ticket.settle(self._shedding.refuse_tier(key, ticket.tier))
