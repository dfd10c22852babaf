"""Result of looking up a prompt in a shared cache."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from select_service.schemas.shared_caches import SharedOutcome


class SharedHits(NamedTuple):
    """Leading tokens of a prompt that a shared cache holds.

    tokens: tokens that every rank can fetch
    own_tokens: tokens that an engine can load from its own host, by the engine's id
    link_gbps: speed of the cache's own link; None means that the links of the ranks decide
    """

    outcome: SharedOutcome
    tokens: int = 0
    own_tokens: Mapping[str, int] = MappingProxyType({})
    link_gbps: float | None = None
