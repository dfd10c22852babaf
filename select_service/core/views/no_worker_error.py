"""Error for requests of a model and tenant without workers."""

from collections.abc import Collection
from itertools import islice

from select_service.base.errors import NoWorkers
from select_service.core.identity import PartitionKey

SCOPES_SHOWN_MAX = 8
"""Maximum number of served scopes in the error text."""


def no_worker_error(key: PartitionKey, served: Collection[PartitionKey], workers: int) -> NoWorkers:
    """Return the error, with the scopes that are served.

    served: scopes with a schedulable worker
    workers: number of registered workers, schedulable or not
    """
    refusal = _make_error(key, served, workers)
    # Shown to keys bound to one tenant, which must not learn about other scopes.
    refusal.bound_text = f"no schedulable workers for {_describe_key(key)}"
    return refusal


def _make_error(key: PartitionKey, served: Collection[PartitionKey], workers: int) -> NoWorkers:
    if served:
        # Mostly a misspelt model: the served scopes show the right name.
        shown = sorted(islice(served, SCOPES_SHOWN_MAX))
        more = len(served) - len(shown)
        scopes = ", ".join(map(_describe_key, shown)) + (f" and {more} more" if more else "")
        return NoWorkers(
            f"no schedulable workers for {_describe_key(key)}; there are some for {scopes}"
        )
    nobody = "no schedulable workers are available"
    # A fleet that registers late and one with faulty records need different remedies.
    if not workers:
        return NoWorkers(f"{nobody}: none is registered; register one with POST /workers")
    return NoWorkers(
        f"{nobody}: none of {workers} registered workers is schedulable; see GET /workers"
    )


def _describe_key(key: PartitionKey) -> str:
    return f"model={key.model_name} tenant={key.tenant_id}"
