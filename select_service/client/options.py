"""What may be set of a client, with its defaults."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ssl import SSLContext
from typing import Literal, TypedDict

from select_service.bodies.common import DEFAULT_NAME
from select_service.client.fallbacks import Fallback, raise_unavailable

TransportName = Literal["httpx", "aiohttp"]


class Options(TypedDict, total=False):
    """Keywords of a selector's client."""

    model_name: str
    """Of all calls that name no other."""
    tenant_id: str
    deadline_s: float
    """Seconds that a call may take, all attempts and pauses together."""
    attempt_s: float
    """Seconds after which one attempt is given up; half of `deadline_s` when left out, all of it
    where there is one selector."""
    ttl_s: float
    """Time to live of reservations, in seconds; asked of the selectors when left out."""
    fallback: Fallback
    """Chooses a rank when no selector answers; `raise_unavailable` when left out."""
    tokenize: Callable[[str], Sequence[int]]
    """Makes token ids of a `prompt` that is a text."""
    trace_headers: Callable[[], Mapping[str, str]]
    """Headers of the caller's trace, asked when a lease or a call begins."""
    api_key: str | None
    """Sent as `Authorization: Bearer`."""
    ssl_context: SSLContext | None
    """Of selectors with https URLs: whom to believe, and which certificate to show. Without, public
    CAs are believed."""
    transport: TransportName
    """What carries requests; httpx when left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """`Options` with their defaults."""

    model_name: str = DEFAULT_NAME
    tenant_id: str = DEFAULT_NAME
    deadline_s: float = 5.0
    attempt_s: float | None = None
    ttl_s: float | None = None
    fallback: Fallback = raise_unavailable
    tokenize: Callable[[str], Sequence[int]] | None = None
    trace_headers: Callable[[], Mapping[str, str]] = dict
    api_key: str | None = None
    ssl_context: SSLContext | None = None
    transport: TransportName = "httpx"

    def attempt_s_of(self, n_selectors: int) -> float:
        if self.attempt_s is not None:
            return self.attempt_s
        return self.deadline_s if n_selectors == 1 else self.deadline_s / 2

    def __repr__(self) -> str:
        return f"Settings(model_name={self.model_name!r}, tenant_id={self.tenant_id!r})"
