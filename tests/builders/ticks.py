"""All due tasks of a selector, run at once."""

from select_service.core.selector import SelectorCore


def ticked(selector: SelectorCore, now: float) -> list[str]:
    """Run a turn of expiry and all turns of the other tasks; return the expired ids."""
    ended = selector.expire_reservations(now).ended_ids
    for task in selector.periodic_tasks():
        while task.step(now):
            pass
    return ended
