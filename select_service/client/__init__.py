"""Python client of the service: reservations that end even if a selector or the caller fails.

Programs import the names of `__all__`. The client needs no compiled code and no numpy: of the rest
of the service only the schemas are imported.
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
    from select_service.client.handoff_bodies import (
        HandoffError,
        make_decode_body,
        make_prefill_body,
    )
    from select_service.client.lease import AsyncLease, Lease
    from select_service.client.pair_lease import AsyncPairLease, PairLease
    from select_service.client.prompt_hasher import HashedPrompt, PromptHasher
    from select_service.client.virtual_connector_client import (
        ScalingDecision,
        VirtualConnectorClient,
    )
except ModuleNotFoundError as error:
    from select_service.base.extras import installation_advice

    raise ModuleNotFoundError(installation_advice(error, "client"), name=error.name) from None

__all__ = [
    "AsyncLease",
    "AsyncPairLease",
    "AsyncSelector",
    "Fallback",
    "HandoffError",
    "HashedPrompt",
    "KnownRank",
    "Lease",
    "PairLease",
    "PromptHasher",
    "Refused",
    "ScalingDecision",
    "Selector",
    "SelectorError",
    "Unavailable",
    "VirtualConnectorClient",
    "least_in_flight",
    "make_decode_body",
    "make_prefill_body",
    "raise_unavailable",
    "round_robin",
]
