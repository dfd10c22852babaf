"""What the due tasks of the service do with a selector again and again, at once."""

from select_service.core.selector import SelectorCore


def ticked(selector: SelectorCore, now: float) -> list[str]:
    """One turn of expiry and all turns of the rest.  Returns the ids of what has expired."""
    ended = selector.expire_reservations(now).ended_ids
    for task in selector.periodic_tasks():
        while task.step(now):
            pass
    return ended
