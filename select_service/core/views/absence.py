"""What to say to somebody who asks for a model and tenant that nobody serves."""

from collections.abc import Collection
from itertools import islice

from select_service.core.identity import PartitionKey
from select_service.errors import NoWorkers

SCOPES_SHOWN_MAX = 8
"""Of those that are served, in the text of the refusal."""


def nobody_serves(key: PartitionKey, served: Collection[PartitionKey], workers: int) -> NoWorkers:
    """The refusal, with what could have been asked for.

    served:  scopes that have a schedulable worker
    workers: registered ones, schedulable or not
    """
    refusal = _refusal(key, served, workers)
    refusal.bound_text = f"no schedulable workers for {_named(key)}"
    return refusal


def _refusal(key: PartitionKey, served: Collection[PartitionKey], workers: int) -> NoWorkers:
    if served:
        shown = sorted(islice(served, SCOPES_SHOWN_MAX))
        more = len(served) - len(shown)
        scopes = ", ".join(map(_named, shown)) + (f" and {more} more" if more else "")
        return NoWorkers(f"no schedulable workers for {_named(key)}; there are some for {scopes}")
    nobody = "no schedulable workers are available"
    if not workers:
        return NoWorkers(f"{nobody}: none is registered; POST /workers registers one")
    return NoWorkers(
        f"{nobody}: of {workers} registered none is schedulable; GET /workers says why"
    )


def _named(key: PartitionKey) -> str:
    return f"model={key.model_name} tenant={key.tenant_id}"
