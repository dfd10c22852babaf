"""Options of a client and their defaults."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ssl import SSLContext
from typing import Literal, TypedDict

from select_service.client.fallbacks import Fallback, raise_unavailable
from select_service.schemas.common import DEFAULT_NAME

TransportName = Literal["httpx", "aiohttp"]


class Options(TypedDict, total=False):
    """Keyword arguments of `AsyncSelector` and `Selector`."""

    model_name: str
    """Model of all calls that name no other."""
    tenant_id: str
    deadline_s: float
    """Time limit of a call with all attempts and pauses, in seconds."""
    attempt_s: float
    """Time limit of an attempt, in seconds. The default is half of `deadline_s`, or all of
    `deadline_s` with a single selector.
    """
    ttl_s: float
    """Time to live of reservations, in seconds; read from the selectors by default."""
    fallback: Fallback
    """Choice of a rank while no selector answers; the default is `raise_unavailable`."""
    tokenize: Callable[[str], Sequence[int]]
    """Function from a text `prompt` to token ids."""
    trace_headers: Callable[[], Mapping[str, str]]
    """Function that returns the caller's trace headers, called when a lease or a call begins."""
    api_key: str | None
    """API key, sent as `Authorization: Bearer`."""
    ssl_context: SSLContext | None
    """TLS settings of https URLs: trusted CAs and the client certificate.

    The default trusts public CAs.
    """
    transport: TransportName
    """Library that carries requests; httpx by default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientSettings:
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

    def attempt_timeout_s(self, n_selectors: int) -> float:
        if self.attempt_s is not None:
            return self.attempt_s
        return self.deadline_s if n_selectors == 1 else self.deadline_s / 2

    def __repr__(self) -> str:
        return f"Settings(model_name={self.model_name!r}, tenant_id={self.tenant_id!r})"
