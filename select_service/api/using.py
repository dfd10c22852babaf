"""What a request with a key counts against the quotas of that key, besides that it was made."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from starlette.requests import Request

from select_service.api.service import Service, grant_of

Booked: TypeAlias = Callable[[str], None]
"""Is told the id of the reservation that was made."""


@contextmanager
def booking(service: Service, request: Request, reservation_id: str | None) -> Iterator[Booked]:
    """Inside, the request makes a reservation, and says which.  Raises QuotaExceeded.

    reservation_id: that is asked for; where it stands already nothing is made
    """
    key, memory = grant_of(request).key, service.selector.held.memory
    use = service.guard.use_of(key)
    is_bounded = key is not None and key.quotas.reservations is not None
    if is_bounded and reservation_id is not None:
        is_bounded = service.selector.ledger.standing(reservation_id) is None
    if key is None or use is None or not is_bounded:
        yield _unbounded
        return

    def booked(reservation_id: str) -> None:
        held = service.selector.held.find(reservation_id)
        if held is not None:
            use.booked(memory, held.row)

    with use.booking(key.quotas):
        yield booked


def _unbounded(reservation_id: str) -> None:
    """Nobody counts."""


def register(service: Service, request: Request, worker_id: int) -> None:
    """The request registers a worker.  Raises QuotaExceeded."""
    key, catalog = grant_of(request).key, service.selector.fleet.catalog
    use = service.guard.use_of(key)
    if key is not None and use is not None:
        use.register(key.quotas, worker_id, catalog.is_registered)
