"""The Python client of the service: bookings that end, whatever happens to selectors and callers.

What is imported from here is what programs use.  Of the rest of the service nothing is needed but
its bodies: no compiled code, no numpy.
"""

try:
    from select_service.client.async_selector import AsyncSelector
    from select_service.client.blocking_selector import Selector
    from select_service.client.errors import Refused, SelectorError, Unavailable
    from select_service.client.fallbacks import (
        Fallback,
        KnownRank,
        least_in_flight,
        raise_unavailable,
        round_robin,
    )
    from select_service.client.hashing import HashedPrompt, PromptHasher
    from select_service.client.lease import AsyncLease, Lease
except ModuleNotFoundError as error:
    from select_service.extras import advice_to_install

    raise ModuleNotFoundError(advice_to_install(error, "client"), name=error.name) from None

__all__ = [
    "AsyncLease",
    "AsyncSelector",
    "Fallback",
    "HashedPrompt",
    "KnownRank",
    "Lease",
    "PromptHasher",
    "Refused",
    "Selector",
    "SelectorError",
    "Unavailable",
    "least_in_flight",
    "raise_unavailable",
    "round_robin",
]
