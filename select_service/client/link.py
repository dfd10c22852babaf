"""What the leases of one client share: calls, selectors that come back, debts, times to live."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import msgspec

from select_service.client import routes
from select_service.client.background import Background
from select_service.client.calling import Call, Caller
from select_service.client.debts import Debts
from select_service.client.errors import Refused, SelectorError, Unavailable
from select_service.client.exchange import Answer, Asked, Broken, Transport
from select_service.client.known_selectors import REST_S_MAX, REST_S_MIN, KnownSelectors, Scope
from select_service.client.options import Settings
from select_service.client.routes import Repeats, Route, Wanted
from select_service.unreadable_json import UNREADABLE
from select_service.urls import service_url_error
from select_service.version import package_version

PROBE_S_MAX = 1.0
TTL_S_UNKNOWN = 60.0
"""Time to live that is assumed until a selector has said."""
TTL_S_MAX = 3600.0
"""Of what never expires, when it comes to debts."""

P = ParamSpec("P")
A = TypeVar("A")


class Link:
    """Belongs to one event loop."""

    def __init__(self, urls: Sequence[str], settings: Settings, transport: Transport) -> None:
        self.settings = settings
        self.transport = transport
        self.background = Background()
        self.chance = random.Random()
        self.known = KnownSelectors(_checked(urls), self.chance)
        attempt_s = settings.attempt_s_of(len(self.known.urls))
        self.caller = Caller(transport, self.known, attempt_s, self._left_alone)
        self._attempt_s = attempt_s
        self._debts = Debts()
        self._settling: set[str] = set()
        self._ttls: dict[str, float] = {}
        self._asking_ttl: set[str] = set()
        self._headers = {"user-agent": f"select-service-client/{package_version()}"}
        if settings.api_key is not None:
            self._headers["authorization"] = f"Bearer {settings.api_key}"

    @property
    def scope(self) -> Scope:
        return self.settings.model_name, self.settings.tenant_id

    def home(self) -> str:
        """The selector that calls of the client's scope go to now."""
        return self.known.next(self.scope, _now())

    def until(self, deadline_s: float | None = None) -> float:
        """When a call that begins now is over."""
        return _now() + (self.settings.deadline_s if deadline_s is None else deadline_s)

    def headers(self, given: Mapping[str, str] | None = None) -> dict[str, str]:
        """Of a lease or a call that begins now."""
        return {**self._headers, **self.settings.trace_headers(), **(given or {})}

    # --- calls

    async def call(self, route: Route[P, A], *args: P.args, **kwargs: P.kwargs) -> A:
        """Any route that books nothing.  Raises SelectorError."""
        wanted = route.want(*args, **kwargs)
        call = Call(
            self.asked(route.method, wanted, self.headers()),
            self._scope_of(wanted),
            route.repeats,
            self.until(),
            good=route.good,
        )
        return read(route, await self.caller.call(call))

    def asked(self, method: str, wanted: Wanted, headers: dict[str, str]) -> Asked:
        """The request of a call.  Fills in the scope where it is left out."""
        if wanted.fields is None:
            return Asked(method, wanted.target, None, headers)
        fields = wanted.fields
        if wanted.is_scoped:
            fields = self.scoped(fields)
        content = msgspec.json.encode(fields, enc_hook=_listed)
        return Asked(
            method, wanted.target, content, {**headers, "content-type": "application/json"}
        )

    def scoped(self, fields: dict[str, Any]) -> dict[str, Any]:
        """With the model and tenant of the client where they are left out."""
        scope = {"model_name": self.settings.model_name, "tenant_id": self.settings.tenant_id}
        if "routing_group" in fields:
            del scope["tenant_id"]
        return scope | fields

    def _scope_of(self, wanted: Wanted) -> Scope:
        return self.scope if wanted.fields is None else self.scope_in(wanted.fields)

    def scope_in(self, fields: Mapping[str, Any]) -> Scope:
        tenant_id = fields.get("tenant_id", fields.get("routing_group"))
        return (
            fields.get("model_name") or self.settings.model_name,
            tenant_id or self.settings.tenant_id,
        )

    # --- selectors that have failed

    def _left_alone(self, url: str, seconds: float) -> None:
        self.background.later(seconds, lambda: self.background.spawn(self._probe(url)))

    async def _probe(self, url: str) -> None:
        """Does it serve again?  If not, it is asked again later."""
        if not self.known.serves(url) and not await self._is_ready(url):
            self._left_alone(url, self.known.failed(url, _now()) or REST_S_MIN)
            return
        self.known.answered(url)
        await self._settle(url)

    async def _is_ready(self, url: str) -> bool:
        asked = Asked("GET", "/ready", None, self._headers)
        try:
            async with asyncio.timeout(PROBE_S_MAX):
                answer = await self.transport.send(url, asked, PROBE_S_MAX)
        except (Broken, TimeoutError):
            return False
        return answer.status == 200

    # --- bookings that must not stay

    def owe(self, urls: Sequence[str], reservation_id: str) -> None:
        """It may be booked at these selectors, and nobody wants it: it is freed there as soon as
        they answer."""
        for url in urls:
            self._debts.add(url, reservation_id, _now() + min(self.ttl_s(url), TTL_S_MAX))
            if self.known.serves(url) and not self.background.is_full:
                self.background.spawn(self._settle(url))

    async def _settle(self, url: str) -> None:
        """Free what is owed to a selector, one after the other, until it does not answer."""
        if url in self._settling:
            return
        self._settling.add(url)
        try:
            while (owed := self._debts.next(url, _now())) is not None:
                await self._free(url, owed)
                self._debts.settled(url, owed)
        except Unavailable:
            return  # whoever answers a probe is asked again
        finally:
            self._settling.discard(url)

    async def _free(self, url: str, reservation_id: str) -> None:
        """Raises Unavailable.  A refusal of 4xx says that it is gone."""
        asked = Asked("DELETE", routes.reservation_target(reservation_id), None, self._headers)
        call = Call(asked, self.scope, Repeats.FREELY, _now() + self._attempt_s, only=url)
        try:
            await self.caller.call(call)
        except Refused as refused:
            if refused.status >= 500:
                self._left_alone(url, REST_S_MAX)
                raise Unavailable(f"{url} frees nothing now: {refused}") from refused

    # --- times to live

    def ttl_s(self, url: str) -> float:
        """Time to live of a reservation there, in seconds; infinite: it never expires."""
        if self.settings.ttl_s is not None:
            return self.settings.ttl_s
        return self._ttls.get(url, TTL_S_UNKNOWN)

    def ask_ttl(self, url: str, reservation_id: str, then: Callable[[str], None]) -> None:
        """Once for each selector, by one of its reservations.  then: is called with the URL."""
        if self.settings.ttl_s is None and url not in self._ttls and url not in self._asking_ttl:
            self._asking_ttl.add(url)
            self.background.spawn(self._ask_ttl(url, reservation_id, then))

    async def _ask_ttl(self, url: str, reservation_id: str, then: Callable[[str], None]) -> None:
        wanted = routes.RESERVATION.want(reservation_id)
        asked = self.asked("GET", wanted, self._headers)
        call = Call(asked, self.scope, Repeats.FREELY, self.until(), only=url)
        try:
            row = read(routes.RESERVATION, await self.caller.call(call))
        except SelectorError:
            return  # it has ended, or the selector: the next lease asks again
        finally:
            self._asking_ttl.discard(url)
        left_s = row.expires_in_seconds
        self._ttls[url] = float("inf") if left_s is None else left_s
        then(url)

    async def close(self) -> None:
        """Tell what is left to tell, for as long as a call may take; then end."""
        await self.background.close(self.settings.deadline_s)
        await self.transport.close()


def read(route: Route[P, A], answer: Answer) -> A:
    """A good answer.  Raises SelectorError when it cannot be understood."""
    try:
        return route.read(answer.content)
    except UNREADABLE as error:
        text = f"{route.method} {route.path} was answered with something else: {error}"
        raise SelectorError(text) from error


def _checked(urls: Sequence[str]) -> list[str]:
    """Return the URLs without slashes at their ends.  Raises ValueError."""
    if isinstance(urls, str):
        raise ValueError(f"expected a list of URLs of selectors, got one text: give [{urls!r}]")
    if not urls:
        raise ValueError("URLs of selectors are missing: give one for each selector")
    for url in urls:
        error = service_url_error(url)
        if error is not None:
            raise ValueError(f"`{url}` is no URL of a selector: {error}")
    return [url.rstrip("/") for url in urls]


def _listed(value: Any) -> Any:
    """Arrays of numbers, as numpy's, are lists in JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")


def _now() -> float:
    return asyncio.get_running_loop().time()
