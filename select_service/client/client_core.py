"""Core of a client: calls, probes of failed selectors, pending frees and times to live."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import msgspec

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.base.version import package_version
from select_service.client.background_tasks import BackgroundTasks
from select_service.client.client_options import ClientSettings
from select_service.client.errors import Refused, SelectorError, Unavailable
from select_service.client.pending_frees import PendingFrees
from select_service.client.retrying_caller import Call, RetryingCaller
from select_service.client.route_table import (
    ClientRoute,
    RepeatPolicy,
    RouteCall,
    SelectorRoutes,
    reservation_target,
)
from select_service.client.selector_pool import (
    EXCLUSION_S_MAX,
    EXCLUSION_S_MIN,
    Scope,
    SelectorPool,
)
from select_service.client.transport import ClientRequest, ClientResponse, Transport, TransportError
from select_service.net.urls import service_url_error

PROBE_S_MAX = 1.0
TTL_S_UNKNOWN = 60.0
"""Time to live that is assumed before a selector names its own, in seconds."""
TTL_S_MAX = 3600.0
"""Time after which a pending free of a reservation without expiry is dropped, in seconds."""

P = ParamSpec("P")
A = TypeVar("A")


class ClientCore:
    """State that all leases of a client share. Belongs to one event loop."""

    def __init__(self, urls: Sequence[str], settings: ClientSettings, transport: Transport) -> None:
        self.settings = settings
        self.transport = transport
        self.background = BackgroundTasks()
        self.rng = random.Random()
        self.pool = SelectorPool(_checked_urls(urls), self.rng)
        attempt_s = settings.attempt_timeout_s(len(self.pool.urls))
        self.caller = RetryingCaller(transport, self.pool, attempt_s, self._schedule_probe)
        self._attempt_s = attempt_s
        self._pending_frees = PendingFrees()
        self._freeing: set[str] = set()
        self._ttls: dict[str, float] = {}
        self._fetching_ttl: set[str] = set()
        self._headers = {"user-agent": f"select-service-client/{package_version()}"}
        if settings.api_key is not None:
            self._headers["authorization"] = f"Bearer {settings.api_key}"

    @property
    def scope(self) -> Scope:
        return self.settings.model_name, self.settings.tenant_id

    def home_selector(self) -> str:
        """Return the selector of the client's scope."""
        return self.pool.next_selector(self.scope, _loop_time())

    def deadline_in(self, deadline_s: float | None = None) -> float:
        """Return the deadline of a call that begins now, in seconds of the event loop's clock."""
        return _loop_time() + (self.settings.deadline_s if deadline_s is None else deadline_s)

    def call_headers(self, given: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the headers of a lease or a call that begins now."""
        return {**self._headers, **self.settings.trace_headers(), **(given or {})}

    # Calls

    async def call(self, route: ClientRoute[P, A], *args: P.args, **kwargs: P.kwargs) -> A:
        """Call a route that creates no reservation.  Raises SelectorError."""
        wanted = route.make_call(*args, **kwargs)
        call = Call(
            self.make_request(route.method, wanted, self.call_headers()),
            self._scope_of_call(wanted),
            route.repeats,
            self.deadline_in(),
            good_statuses=route.good_statuses,
        )
        return decode_answer(route, await self.caller.call(call))

    def make_request(
        self, method: str, wanted: RouteCall, headers: dict[str, str]
    ) -> ClientRequest:
        """Return the request of a call, with the client's scope as default."""
        if wanted.fields is None:
            return ClientRequest(method, wanted.target, None, headers)
        fields = wanted.fields
        if wanted.is_scoped:
            fields = self.with_default_scope(fields)
        content = msgspec.json.encode(fields, enc_hook=_array_as_list)
        return ClientRequest(
            method, wanted.target, content, {**headers, "content-type": "application/json"}
        )

    def with_default_scope(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Add the model and tenant of the client as defaults."""
        scope = {"model_name": self.settings.model_name, "tenant_id": self.settings.tenant_id}
        # `routing_group` is another name of the tenant; both together would conflict.
        if "routing_group" in fields:
            del scope["tenant_id"]
        return scope | fields

    def _scope_of_call(self, wanted: RouteCall) -> Scope:
        return self.scope if wanted.fields is None else self.scope_of_fields(wanted.fields)

    def scope_of_fields(self, fields: Mapping[str, Any]) -> Scope:
        tenant_id = fields.get("tenant_id", fields.get("routing_group"))
        return (
            fields.get("model_name") or self.settings.model_name,
            tenant_id or self.settings.tenant_id,
        )

    # Probes of failed selectors

    def _schedule_probe(self, url: str, seconds: float) -> None:
        self.background.call_later(
            seconds, lambda: self.background.spawn(self._probe_selector(url))
        )

    async def _probe_selector(self, url: str) -> None:
        """Check whether a selector serves again; if not, schedule the next probe."""
        if not self.pool.is_serving(url) and not await self._is_ready(url):
            self._schedule_probe(url, self.pool.exclude(url, _loop_time()) or EXCLUSION_S_MIN)
            return
        self.pool.readmit(url)
        await self._free_pending(url)

    async def _is_ready(self, url: str) -> bool:
        asked = ClientRequest("GET", "/ready", None, self._headers)
        try:
            async with asyncio.timeout(PROBE_S_MAX):
                answer = await self.transport.send(url, asked, PROBE_S_MAX)
        except (TransportError, TimeoutError):
            return False
        return answer.status == 200

    # Pending frees

    def free_when_reachable(self, urls: Sequence[str], reservation_id: str) -> None:
        """Free a reservation that these selectors may have made, as soon as each answers."""
        for url in urls:
            self._pending_frees.add(
                url, reservation_id, _loop_time() + min(self.ttl_s(url), TTL_S_MAX)
            )
            if self.pool.is_serving(url) and not self.background.is_full:
                self.background.spawn(self._free_pending(url))

    async def _free_pending(self, url: str) -> None:
        """Free the pending reservations of a selector in turn, until an attempt gets no answer."""
        # One task per selector; new debts are picked up by the running task.
        if url in self._freeing:
            return
        self._freeing.add(url)
        try:
            while (owed := self._pending_frees.next_pending(url, _loop_time())) is not None:
                await self._free_at(url, owed)
                self._pending_frees.discard(url, owed)
        except Unavailable:
            return  # the next successful probe continues
        finally:
            self._freeing.discard(url)

    async def _free_at(self, url: str, reservation_id: str) -> None:
        """Free a reservation at a selector.

        Raises Unavailable. A 4xx refusal means that the reservation is gone already.
        """
        asked = ClientRequest("DELETE", reservation_target(reservation_id), None, self._headers)
        call = Call(
            asked,
            self.scope,
            RepeatPolicy.FREELY,
            _loop_time() + self._attempt_s,
            only_selector=url,
        )
        try:
            await self.caller.call(call)
        except Refused as refused:
            # The selector answers but cannot free now, so the debt stays for a later attempt.
            if refused.status >= 500:
                self._schedule_probe(url, EXCLUSION_S_MAX)
                raise Unavailable(f"{url} did not accept the release: {refused}") from refused

    # Times to live

    def ttl_s(self, url: str) -> float:
        """Return the time to live of reservations at a selector, in seconds; infinity without
        expiry.
        """
        if self.settings.ttl_s is not None:
            return self.settings.ttl_s
        return self._ttls.get(url, TTL_S_UNKNOWN)

    def fetch_ttl(self, url: str, reservation_id: str, then: Callable[[str], None]) -> None:
        """Read the time to live of a selector once, from one of its reservations.

        then: called with the URL after a successful read
        """
        if self.settings.ttl_s is None and url not in self._ttls and url not in self._fetching_ttl:
            self._fetching_ttl.add(url)
            self.background.spawn(self._fetch_ttl(url, reservation_id, then))

    async def _fetch_ttl(self, url: str, reservation_id: str, then: Callable[[str], None]) -> None:
        wanted = SelectorRoutes.reservation.make_call(reservation_id)
        asked = self.make_request("GET", wanted, self._headers)
        call = Call(asked, self.scope, RepeatPolicy.FREELY, self.deadline_in(), only_selector=url)
        try:
            row = decode_answer(SelectorRoutes.reservation, await self.caller.call(call))
        except SelectorError:
            # the reservation or the selector has ended; the next lease reads the time to live
            return
        finally:
            self._fetching_ttl.discard(url)
        left_s = row.expires_in_seconds
        # A fresh reservation has its whole time to live left, so the rest is the time to live.
        self._ttls[url] = float("inf") if left_s is None else left_s
        then(url)

    async def close(self) -> None:
        """Send the pending calls for at most `deadline_s` seconds, then end all tasks."""
        await self.background.close(self.settings.deadline_s)
        await self.transport.close()


def decode_answer(route: ClientRoute[P, A], answer: ClientResponse) -> A:
    """Decode a good answer.  Raises SelectorError if the answer is malformed."""
    try:
        return route.decode_answer(answer.content)
    except DECODE_ERRORS as error:
        text = f"malformed answer to {route.method} {route.path}: {error}"
        raise SelectorError(text) from error


def _checked_urls(urls: Sequence[str]) -> list[str]:
    """Return the URLs without slashes at their ends.  Raises ValueError."""
    if isinstance(urls, str):
        raise ValueError(f"expected a list of URLs of selectors, got one text: give [{urls!r}]")
    if not urls:
        raise ValueError("URLs of selectors are missing: give one for each selector")
    for url in urls:
        error = service_url_error(url)
        if error is not None:
            raise ValueError(f"`{url}` is not the URL of a selector: {error}")
    return [url.rstrip("/") for url in urls]


def _array_as_list(value: Any) -> Any:
    """Return an array of numbers, such as numpy's, as a JSON list."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} cannot be encoded as JSON")


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
