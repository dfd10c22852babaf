"""What the due tasks of the service do with a selector again and again, at once."""

from select_service.core.selector import Selector


def ticked(selector: Selector, now: float) -> list[str]:
    """One turn of expiry and all turns of the rest.  Returns the ids of what has expired."""
    ended = selector.expire(now).ended
    for task in selector.upkeep():
        while task.step(now):
            pass
    return ended
