"""Waiting requests of a queue in groups that are refused or rebound together."""

from collections.abc import Callable

from select_service.core.admission.waiting_ticket import WaitingTicket
from select_service.core.registry.fleet.partition import Partition

GroupCheck = Callable[[Partition, int], bool]
"""Check of a group: its partition, and the index of its tier."""


class TicketGroups:
    """Tickets by partition and tier.

    A queue of a million requests thus refuses those of a shed tier, or those bound to a partition
    that was replaced, without a look at the others.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[Partition, int], dict[int, WaitingTicket]] = {}
        self._n_tickets = 0

    def __len__(self) -> int:
        return self._n_tickets

    def add(self, ticket: WaitingTicket) -> None:
        self._groups.setdefault(_group_of(ticket), {})[ticket.number] = ticket
        self._n_tickets += 1

    def remove(self, ticket: WaitingTicket) -> None:
        place = _group_of(ticket)
        group = self._groups[place]
        del group[ticket.number]
        self._n_tickets -= 1
        if not group:
            del self._groups[place]

    def has_any(self, is_meant: GroupCheck) -> bool:
        """Return whether a ticket of a group that passes the check is left."""
        return any(is_meant(*place) for place in self._groups)

    def take(self, is_meant: GroupCheck, tickets_max: int) -> list[WaitingTicket]:
        """Remove and return tickets of the groups that pass the check, the latest first."""
        taken: list[WaitingTicket] = []
        for place in [place for place in self._groups if is_meant(*place)]:
            group = self._groups[place]
            # From the end: a dict looks again at all entries that were removed from its start.
            while group and len(taken) < tickets_max:
                taken.append(group.popitem()[1])
            if not group:
                del self._groups[place]
        self._n_tickets -= len(taken)
        return taken

    def check_invariants(self, tickets: list[WaitingTicket]) -> None:
        """Check the invariants, for tests.

        tickets: all tickets of the queue
        """
        expected: dict[tuple[Partition, int], dict[int, WaitingTicket]] = {}
        for ticket in tickets:
            expected.setdefault(_group_of(ticket), {})[ticket.number] = ticket
        assert self._groups == expected
        assert self._n_tickets == len(tickets)


def _group_of(ticket: WaitingTicket) -> tuple[Partition, int]:
    return ticket.placement_request.partition, ticket.tier
