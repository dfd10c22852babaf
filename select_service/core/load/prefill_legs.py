"""Prefill legs of pairs: names, and the set of live names.

A pair is a reservation of the caller, its decode leg, and a second reservation for the prefill,
under a name that no caller can use.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from select_service.base.errors import BadRequest

LEG_SUFFIX = "\x1fprefill"
"""End of the name of a prefill leg; ids of callers with this end are refused."""


def prefill_leg_of(reservation_id: str) -> str:
    """Return the name of the prefill leg of a reservation."""
    return reservation_id + LEG_SUFFIX


def is_prefill_leg(reservation_id: str) -> bool:
    """Return whether a name is that of a prefill leg."""
    return reservation_id.endswith(LEG_SUFFIX)


def owner_of(reservation_id: str) -> str:
    """Return the id of the caller's reservation behind a name; other names are such an id."""
    return reservation_id.removesuffix(LEG_SUFFIX)


def check_caller_id(reservation_id: str) -> None:
    """Raise BadRequest for an id that would be taken for a prefill leg."""
    if reservation_id.endswith(LEG_SUFFIX):
        raise BadRequest(
            "reservation_id: must not end with the control character 0x1F and `prefill`, the mark "
            "of prefill legs; choose another id"
        )


class PrefillLegs:
    """Set of the reservations with a live prefill leg, booked here or by peers."""

    def __init__(self) -> None:
        self._tenant_of: dict[str, str] = {}
        self._by_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tenant_of)

    def __contains__(self, reservation_id: str) -> bool:
        return reservation_id in self._tenant_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._tenant_of)

    def add(self, reservation_id: str, tenant_id: str) -> None:
        """Add the owner of a leg that was booked."""
        if reservation_id not in self._tenant_of:
            self._tenant_of[reservation_id] = tenant_id
            self._by_tenant[tenant_id] += 1

    def discard(self, reservation_id: str) -> None:
        """Remove the owner of a leg that was released."""
        tenant_id = self._tenant_of.pop(reservation_id, None)
        if tenant_id is not None:
            self._by_tenant[tenant_id] -= 1
            if not self._by_tenant[tenant_id]:
                del self._by_tenant[tenant_id]

    def count_of(self, tenant_ids: Iterable[str]) -> int:
        """Return the number of legs of these tenants."""
        return sum(self._by_tenant[tenant_id] for tenant_id in tenant_ids)
