"""Deficit round robin: members take turns in proportion to their quanta.

In each round a member with a request to serve, its head, gets a quantum of credit to pay the cost
of a head.  Members without a head get no credit.  Rounds in which no member could pay are counted,
not walked, so a choice costs O(members).

Source: Shreedhar and Varghese, "Efficient Fair Queuing Using Deficit Round-Robin".
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping


class DeficitRing:
    """Ring of numbered members with credit; it is the first member's turn."""

    def __init__(self, members: Iterable[int]) -> None:
        self._credit: OrderedDict[int, int] = OrderedDict.fromkeys(members, 0)
        self._is_credited = False
        """Whether the first member has received the credit of this round."""

    def reset_credit(self, member: int) -> None:
        """Take the credit from a member, so that it cannot save up for a burst."""
        self._credit[member] = 0

    def choose_member(self, costs: Mapping[int, int], quantum_of: Callable[[int], int]) -> int:
        """Turn the ring to the next member that can pay, and return it.

        Repeated without a payment, the choice among equal costs is the same.
        costs: cost of the head of each member with a head, at least one
        """
        if not self._turn_to_payer(costs, quantum_of):
            self._skip_rounds(costs, quantum_of)
            self._is_credited = False
            self._turn_to_payer(costs, quantum_of)
        chosen = next(iter(self._credit))
        assert self._credit[chosen] >= costs[chosen]
        return chosen

    def charge_first(self, cost: int) -> None:
        """Subtract a cost from the chosen member, which keeps its turn while able to pay."""
        self._credit[next(iter(self._credit))] -= cost

    def repay_member(self, member: int, cost: int) -> None:
        """Return a payment for a request that was not served after all."""
        self._credit[member] += cost

    def pass_turn(self) -> None:
        """End the turn of the first member."""
        self._credit.move_to_end(next(iter(self._credit)))
        self._is_credited = False

    def _turn_to_payer(self, costs: Mapping[int, int], quantum_of: Callable[[int], int]) -> bool:
        """Turn to the first member that can pay with the credit of a round, if any."""
        passed = 0
        for member, credit in self._credit.items():
            cost = costs.get(member)
            if cost is not None:
                # The first member may have received this round's credit in an earlier call.
                if credit < cost and (passed or not self._is_credited):
                    credit += quantum_of(member)
                    self._credit[member] = credit
                if credit >= cost:
                    break
            passed += 1
        else:
            return False
        # Members that could not pay keep their credit, and wait for the next round.
        for _ in range(passed):
            self._credit.move_to_end(next(iter(self._credit)))
        self._is_credited = True
        return True

    def _skip_rounds(self, costs: Mapping[int, int], quantum_of: Callable[[int], int]) -> None:
        """Add the credit of the rounds before the first in which a member can pay."""
        # A cost may be millions of tokens and a quantum 1: walking every round would take too long.
        rounds = min(-(-(c - self._credit[m]) // quantum_of(m)) for m, c in costs.items()) - 1
        for member in costs:
            self._credit[member] += rounds * quantum_of(member)

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        assert all(credit >= 0 for credit in self._credit.values())
